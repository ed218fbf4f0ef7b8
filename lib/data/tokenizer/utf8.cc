// Well-formedness follows the Unicode Standard's table 3-7.
#include "data/tokenizer/utf8.h"

#include <cstring>

namespace moetrain {

size_t utf8_character(std::string_view bytes, size_t* skip) {
  if (skip != nullptr) *skip = 1;
  if (bytes.empty()) return 0;
  const auto at = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned lead = at(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  unsigned low = 0x80, high = 0xBF;  // bounds of the second byte only
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < length; ++i) {
    if (i >= bytes.size() || at(i) < low || at(i) > high) {
      if (skip != nullptr) *skip = i;
      return 0;
    }
    low = 0x80;
    high = 0xBF;
  }
  return length;
}

size_t utf8_find_invalid(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    uint64_t eight;
    if (at + 8 <= bytes.size()) {
      std::memcpy(&eight, bytes.data() + at, 8);
      if ((eight & 0x8080808080808080ull) == 0) {
        at += 8;
        continue;
      }
    }
    const size_t length = utf8_character(bytes.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

std::string utf8_lossy(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (;;) {
    const size_t good = utf8_find_invalid(bytes);
    out += bytes.substr(0, good);
    if (good == std::string_view::npos) return out;
    size_t skip = 1;
    utf8_character(bytes.substr(good), &skip);
    out += "\xEF\xBF\xBD";
    bytes.remove_prefix(good + skip);
  }
}

size_t utf8_unfinished_tail(std::string_view bytes) {
  for (size_t tail = 1; tail <= 3 && tail <= bytes.size(); ++tail) {
    const std::string_view end = bytes.substr(bytes.size() - tail);
    const auto lead = static_cast<unsigned char>(end[0]);
    if ((lead & 0xC0) == 0x80) continue;
    size_t skip = 0;
    const bool cut = lead >= 0x80 && utf8_character(end, &skip) == 0 && skip == tail &&
                     lead >= 0xC2 && lead <= 0xF4;
    return cut ? tail : 0;
  }
  return 0;
}

uint32_t utf8_decode(std::string_view bytes, size_t at, size_t* length) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<unsigned char>(bytes[at + i]));
  };
  const uint32_t lead = byte(0);
  if (lead < 0x80) {
    *length = 1;
    return lead;
  }
  *length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint32_t code = lead & (0x7Fu >> *length);
  for (size_t i = 1; i < *length; ++i) code = (code << 6) | (byte(i) & 0x3Fu);
  return code;
}

void utf8_append(uint32_t code, std::string& out) {
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out.push_back(static_cast<char>(0xC0 | (code >> 6)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else if (code < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | (code >> 12)));
    out.push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xF0 | (code >> 18)));
    out.push_back(static_cast<char>(0x80 | ((code >> 12) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  }
}

}  // namespace moetrain
