// The table in both directions, built from the rule.
#include "data/tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "data/tokenizer/utf8.h"

namespace moetrain {
namespace {

struct Alphabet {
  std::array<std::string, 256> symbol;
  std::array<int16_t, 0x144> byte;  // by code point, -1: not in the alphabet
  Alphabet() {
    byte.fill(-1);
    uint32_t next = 0x100;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool itself = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const uint32_t code = itself ? b : next++;
      utf8_append(code, symbol[b]);
      byte[code] = static_cast<int16_t>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet table;
  return table;
}

}  // namespace

const std::string& byte_symbol(unsigned char byte) { return alphabet().symbol[byte]; }

std::string to_symbols(std::string_view bytes) {
  std::string out;
  for (char c : bytes) out += byte_symbol(static_cast<unsigned char>(c));
  return out;
}

std::string from_symbols(std::string_view token) {
  const auto& table = alphabet().byte;
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    size_t length = 1;
    const uint32_t code = utf8_decode(token, at, &length);
    if (code >= table.size() || table[code] < 0) return std::string(token);
    bytes.push_back(static_cast<char>(table[code]));
    at += length;
  }
  return bytes;
}

}  // namespace moetrain
