// A folder of its own for each test, removed afterwards, and small helpers to damage files in it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace moetrain {

class TempFolder {
 public:
  TempFolder() {
    // In memory where there is such a place: these tests call fsync hundreds of times.
    std::string pattern =
        (::access("/dev/shm", W_OK) == 0 ? "/dev/shm/" : testing::TempDir()) + "moetrain_XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The message of the UserError that `call` must throw.
template <class Error, class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

}  // namespace moetrain

/// The call must throw UserError whose message contains `text`.
#define EXPECT_REFUSED(call, text)                  \
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, text, \
                      ::moetrain::message_of<::moetrain::UserError>([&] { call; }))
