// Scratch folders and small datasets for the tests of this room.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/indexed.h"

namespace moetrain::test {

/// A folder of its own, removed at the end.
class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "moetrain_data_XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  size_t files() const {
    size_t n = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) ++n;
    return n;
  }

 private:
  std::string path_;
};

inline void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

/// One document per length; token t of document d is 1000 d + t (or `base` + running number).
inline void write_lengths(const std::string& prefix, const std::vector<int>& lengths) {
  IndexedWriter writer(prefix, TokenType::kI32);
  for (size_t d = 0; d < lengths.size(); ++d) {
    std::vector<int32_t> tokens;
    for (int t = 0; t < lengths[d]; ++t) tokens.push_back(static_cast<int32_t>(d) * 1000 + t);
    writer.add_document(tokens);
  }
  writer.finish();
}

/// The message of the UserError that `call` throws; fails the test when it throws none.
template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected a UserError";
  return {};
}

}  // namespace moetrain::test
