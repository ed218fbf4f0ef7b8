// Reading checkpoints: any box of any state, whatever layout wrote it; strict about names and
// shapes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

namespace moetrain {

/// A state that a program expects to find.
struct StateSpec {
  std::string name;
  DType dtype = DType::kF32;
  Shape global;
};

/// An open checkpoint. Reads lazily through mapped files; use from one thread at a time.
class CheckpointReader {
 public:
  /// Reads the manifest of `folder` and checks that every file is there with its exact size.
  /// With `check_data`, read() compares the checksum of a stored box when it first touches it.
  explicit CheckpointReader(const std::string& folder, bool check_data = true);

  const std::string& folder() const { return folder_; }
  int64_t step() const { return manifest_.step; }
  const Manifest& manifest() const { return manifest_; }
  const std::vector<StoredState>& states() const { return manifest_.states; }
  /// The state, or nullptr.
  const StoredState* find(const std::string& name) const;
  /// A metadata value; UserError that names the key if it is absent (or not a number).
  const std::string& metadata(const std::string& key) const;
  int64_t metadata_int(const std::string& key) const;
  double metadata_number(const std::string& key) const;

  /// Every expected state is there with its dtype and shape, and no other. UserError that lists
  /// missing, extra, misshaped and mistyped ones (at most 10, and the count). `same_dtype` false
  /// accepts another float type.
  void check(const std::vector<StateSpec>& expected, bool same_dtype = true) const;

  /// Assembles `want` (of the state's index space) into `out`, row-major, converted to `as`.
  void read(const std::string& name, const Box& want, DType as, void* out) const;

  /// Checks the files numbered `part`, `part + parts`, ... completely: headers, sizes, every byte.
  /// Ranks can share the work. UserError listing the damaged tensors.
  void verify(size_t part = 0, size_t parts = 1) const;
  /// For people: step, metadata, files, and every state with dtype, shape and number of boxes.
  std::string describe() const;

 private:
  const SafetensorsFile& file(size_t index) const;
  const FileTensor& tensor_of(const StoredState& state, const StoredBox& stored) const;

  std::string folder_;
  bool check_data_;
  Manifest manifest_;
  std::unordered_map<std::string, size_t> index_;
  mutable std::vector<std::unique_ptr<SafetensorsFile>> files_;
  mutable std::vector<std::vector<bool>> checked_;  // per state and box
};

/// CheckpointReader(folder).verify() for the command line.
void verify_checkpoint(const std::string& folder);

}  // namespace moetrain
