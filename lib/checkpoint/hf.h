// Exchange with Hugging Face folders: config.json, sharded safetensors and their index.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"

namespace moetrain {

/// One row of the name table: a published tensor and the slice of a state that it is. The slice has
/// as many elements as `shape`, in the same row-major order (expert 3 of `[E, out, in]` is `[out,
/// in]`).
struct PublishedTensor {
  std::string published;
  std::string state;
  Box slice;
  Shape shape;
  DType dtype = DType::kBF16;  ///< what export writes
  /// Another name of a slice that an earlier row holds (the MTP layer's embedding and head): export
  /// writes it, import does not need it, but if it is there it must hold the same values.
  bool copy = false;
};

struct HfExportOptions {
  uint64_t max_file_bytes = 5'000'000'000;  ///< data bytes after which a new file starts
  std::function<void(size_t done, size_t all)> progress;  ///< after every tensor; may be empty
};

/// Writes `folder` (new or empty): model-0000i-of-0000n.safetensors, model.safetensors.index.json
/// listing exactly what those hold, and `extra_files` (name to contents; config.json must be among
/// them). Holds one tensor in memory at a time. The folder appears only when complete.
void export_hf(const CheckpointReader& checkpoint, const std::vector<PublishedTensor>& table,
               const std::map<std::string, std::string>& extra_files, const std::string& folder,
               const HfExportOptions& options = {});

/// A folder to import from, opened and checked: the index (or a single model.safetensors) lists
/// exactly what the files hold, and every file is intact.
class HfFolder {
 public:
  explicit HfFolder(const std::string& folder);

  const std::string& folder() const { return folder_; }
  /// config.json as text.
  const std::string& config() const { return config_; }
  /// The tensor and its file, or nullptr.
  const FileTensor* find(const std::string& name) const;

  /// Every row is there with its shape and a type that import understands (BF16, F32, or F8_E4M3
  /// with its block factors), and nothing else except names that match one of `may_ignore` (with
  /// `*`). UserError listing at most 10 faults and their number.
  void check(const std::vector<PublishedTensor>& table,
             const std::vector<std::string>& may_ignore = {}) const;

  /// All elements of a row's tensor, dequantised if need be, converted to `as`.
  void read(const PublishedTensor& row, DType as, void* out) const;

 private:
  struct Place {
    size_t file;
    const FileTensor* tensor;
  };
  void read_f8(const Place& place, DType as, void* out) const;
  std::string fault_of(const PublishedTensor& row) const;

  std::string folder_;
  std::string config_;
  int64_t block_ = 128;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::unordered_map<std::string, Place> places_;
};

/// A folder seen through a name table: any box of a state, as from a CheckpointReader.
class HfStates {
 public:
  /// Both arguments must outlive this. Call folder.check(table) first.
  HfStates(const HfFolder& folder, const std::vector<PublishedTensor>& table);
  /// Assembles `want` of a state; reads whole published tensors, one at a time.
  void read(const std::string& state, const Box& want, DType as, void* out) const;

 private:
  const HfFolder& folder_;
  std::unordered_map<std::string, std::vector<const PublishedTensor*>> rows_;
};

/// Turns a published folder into a checkpoint folder of step 0 that holds `states` (all floats; the
/// table must cover each exactly once). One published tensor in memory at a time (two for copies).
void import_hf(const HfFolder& folder, const std::vector<PublishedTensor>& table,
               const std::vector<StateSpec>& states, const std::string& checkpoint,
               const std::map<std::string, std::string>& metadata,
               const std::vector<std::string>& may_ignore = {});

}  // namespace moetrain
