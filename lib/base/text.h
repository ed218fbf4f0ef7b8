// String helpers that replace a formatting library in headers: cat(...) and friends.
#pragma once

#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace moetrain {

/// Everything streamed one after the other: cat("rank ", 3) == "rank 3".
template <class... Args>
std::string cat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

/// Elements streamed with a separator between them.
template <class Range>
std::string join(const Range& range, std::string_view separator) {
  std::ostringstream out;
  bool first = true;
  for (const auto& item : range) {
    if (!first) out << separator;
    out << item;
    first = false;
  }
  return out.str();
}

/// The candidate with the smallest edit distance to `word`, or "" if none is near (more than a third of its length).
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// Does `name` match `pattern`, in which `*` stands for any run of characters?
bool glob_match(std::string_view pattern, std::string_view name);

/// 1536 -> "1.5 KiB".
std::string human_bytes(double bytes);

}  // namespace moetrain
