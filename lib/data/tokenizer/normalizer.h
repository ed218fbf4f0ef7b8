// Unicode normalisation, for tokenizer files that ask for NFC.
#pragma once

#include <string>
#include <string_view>

namespace moetrain {

/// Whether this build can: it needs utf8proc.
bool has_nfc();
/// Well-formed UTF-8 in canonical composed form. Only when has_nfc().
std::string normalize_nfc(std::string_view text);

}  // namespace moetrain
