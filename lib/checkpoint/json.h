// A small strict JSON value, so that the heavy JSON library is compiled in one file only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moetrain {

/// A JSON value as read from a file. Objects keep the order of the text.
struct Json {
  enum class Kind { kNull, kBool, kInt, kNumber, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;  ///< of kInt: whole numbers that fit 64 signed bits
  double number = 0;    ///< of kInt and kNumber
  std::string string;
  std::vector<Json> items;        ///< elements of an array, member values of an object
  std::vector<std::string> keys;  ///< member names of an object, one per item

  bool is(Kind k) const { return kind == k; }
  /// Member of an object, or nullptr.
  const Json* find(std::string_view key) const;
};

/// Parses exactly one JSON text. Duplicate member names, nesting deeper than 64, bytes that are not
/// UTF-8 and anything after the value (but white space) are refused: UserError starting with
/// `what`.
Json parse_json(std::string_view text, const std::string& what);

/// `text` as a JSON string literal with quotes; bytes that are not UTF-8 become U+FFFD.
std::string json_quote(std::string_view text);
/// Shortest decimal that reads back as the same double; `null` for NaN and infinities.
std::string json_number(double value);

}  // namespace moetrain
