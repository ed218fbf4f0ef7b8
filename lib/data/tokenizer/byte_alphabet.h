// GPT-2's printable alphabet for bytes: how byte-level vocabularies spell their tokens.
#pragma once

#include <string>
#include <string_view>

namespace moetrain {

/// The character that stands for `byte`, in UTF-8: itself for 21-7E, A1-AC and AE-FF (hex), the
/// other 68 bytes in order for U+0100 to U+0143.
const std::string& byte_symbol(unsigned char byte);
/// `bytes` spelled in the alphabet.
std::string to_symbols(std::string_view bytes);
/// The bytes a token stands for: if all its characters are in the alphabet, theirs; else its own
/// UTF-8.
std::string from_symbols(std::string_view token);

}  // namespace moetrain
