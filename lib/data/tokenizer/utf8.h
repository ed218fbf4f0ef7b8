// UTF-8: validation, lossy repair, single characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace moetrain {

/// Length of the well-formed character at the start of `bytes`, or 0. `skip` receives the length of
/// the maximal ill-formed part when 0 is returned (at least 1).
size_t utf8_character(std::string_view bytes, size_t* skip = nullptr);
/// Offset of the first ill-formed byte, or npos.
size_t utf8_find_invalid(std::string_view bytes);
/// Every maximal ill-formed part becomes U+FFFD, as Rust's from_utf8_lossy does.
std::string utf8_lossy(std::string_view bytes);
/// Bytes at the end that begin a character which more bytes could finish (0 to 3).
size_t utf8_unfinished_tail(std::string_view bytes);
/// Code point of the well-formed character at `at`; `length` receives its bytes.
uint32_t utf8_decode(std::string_view bytes, size_t at, size_t* length);
void utf8_append(uint32_t code_point, std::string& out);

}  // namespace moetrain
