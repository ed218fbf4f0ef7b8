// The manifest of a checkpoint: every state, where its boxes lie, and checksums, as strict JSON.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/box.h"

namespace moetrain {

/// A box as stored in one file, under the tensor name tensor_name(state, box).
struct StoredBox {
  size_t file = 0;  ///< index into Manifest::files
  Box box;
  uint32_t crc = 0;  ///< crc32c of its data
};

/// A named global tensor.
struct StoredState {
  std::string name;
  DType dtype = DType::kF32;
  Shape global;
  std::vector<StoredBox> boxes;
};

struct StoredFile {
  std::string name;  ///< without folder
  uint64_t bytes = 0;
  uint32_t header_crc = 0;  ///< crc32c of length field and header
};

/// Everything about a checkpoint but its data.
struct Manifest {
  int64_t step = 0;
  std::map<std::string, std::string> metadata;
  std::vector<StoredFile> files;
  std::vector<StoredState> states;  ///< by name
};

/// The JSON text, opening with the checksum of all that follows that line.
std::string render_manifest(const Manifest& manifest);
/// Reads and checks it: checksum, types, boxes inside and covering each state exactly once.
/// UserError that starts with `path` if anything is wrong. Without `whole` the text may hold only
/// some of the boxes (one rank's part) and a state several times.
Manifest parse_manifest(std::string_view text, const std::string& path, bool whole = true);

/// Name of a box's tensor in its file: the state's name, `@0:16,0:7168` behind it unless whole.
std::string tensor_name(const std::string& state, const Box& box, const Shape& global);

}  // namespace moetrain
