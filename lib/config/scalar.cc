// Reads numbers exactly: digits, a decimal exponent and a suffix, before any binary rounding.
#include "config/scalar.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"

namespace moetrain {

namespace {

/// sign * digits * 10^exponent * multiplier
struct Decimal {
  bool negative = false;
  std::string digits;  // no leading zeros; empty is zero
  int64_t exponent = 0;
  int64_t multiplier = 1;
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

struct Unit {
  const char* name;
  int64_t multiplier;
};
constexpr int64_t kKilo = 1000, kMega = kKilo * 1000, kGiga = kMega * 1000, kTera = kGiga * 1000;
constexpr Unit kCountUnits[] = {{"k", kKilo}, {"K", kKilo}, {"M", kMega},
                                {"B", kGiga}, {"G", kGiga}, {"T", kTera}};
constexpr Unit kByteUnits[] = {
    {"B", 1},      {"kB", kKilo},      {"KB", kKilo},      {"MB", kMega},      {"GB", kGiga},
    {"TB", kTera}, {"KiB", 1LL << 10}, {"MiB", 1LL << 20}, {"GiB", 1LL << 30}, {"TiB", 1LL << 40}};
constexpr Unit kSecondUnits[] = {{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};

std::vector<Unit> units_of(Suffix suffix) {
  switch (suffix) {
    case Suffix::kBytes:
      return {std::begin(kByteUnits), std::end(kByteUnits)};
    case Suffix::kSeconds:
      return {std::begin(kSecondUnits), std::end(kSecondUnits)};
    default:
      return {std::begin(kCountUnits), std::end(kCountUnits)};
  }
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return out;
}

/// Takes digits with single underscores between them from the front of `rest`.
bool take_digits(std::string_view& rest, std::string& out) {
  size_t i = 0;
  while (i < rest.size()) {
    if (is_digit(rest[i])) {
      out += rest[i++];
    } else if (rest[i] == '_' && i > 0 && is_digit(rest[i - 1]) && i + 1 < rest.size() &&
               is_digit(rest[i + 1])) {
      ++i;
    } else {
      break;
    }
  }
  const bool any = i > 0;
  rest.remove_prefix(i);
  return any;
}

std::string take_decimal(std::string_view text, Suffix suffix, Decimal& out) {
  const std::string word = lower(text);
  std::string_view bare = word;
  if (!bare.empty() && (bare[0] == '-' || bare[0] == '+')) bare.remove_prefix(1);
  if (bare == ".inf" || bare == "inf" || bare == "infinity" || bare == ".nan" || bare == "nan")
    return "must be a finite number";
  std::string_view rest = text;
  if (!rest.empty() && (rest[0] == '-' || rest[0] == '+')) {
    out.negative = rest[0] == '-';
    rest.remove_prefix(1);
  }
  if (rest.size() > 1 && rest[0] == '0' &&
      (rest[1] == 'x' || rest[1] == 'X' || rest[1] == 'o' || rest[1] == 'O' || rest[1] == 'b'))
    return "only decimal numbers are read; write it in decimal";
  std::string whole, fraction;
  const bool has_whole = take_digits(rest, whole);
  if (whole.size() > 1 && whole[0] == '0')
    return cat("a leading zero means octal to other readers; write ",
               whole.substr(std::min(whole.find_first_not_of('0'), whole.size() - 1)));
  bool has_fraction = false;
  if (!rest.empty() && rest[0] == '.') {
    rest.remove_prefix(1);
    has_fraction = take_digits(rest, fraction);
  }
  if (!has_whole && !has_fraction) return "is not a number";
  if (rest.size() > 1 && (rest[0] == 'e' || rest[0] == 'E')) {
    std::string_view tail = rest.substr(1);
    bool negative = false;
    if (tail[0] == '-' || tail[0] == '+') {
      negative = tail[0] == '-';
      tail.remove_prefix(1);
    }
    std::string exponent;
    if (!take_digits(tail, exponent)) return "is not a number: digits must follow the exponent's e";
    if (exponent.size() > 5) return "its exponent is out of range";
    out.exponent = std::stoll(exponent) * (negative ? -1 : 1);
    rest = tail;
  }
  if (!rest.empty()) {
    const std::vector<Unit> units = units_of(suffix);
    const auto unit =
        std::find_if(units.begin(), units.end(), [&](const Unit& u) { return rest == u.name; });
    if (unit == units.end()) {
      std::vector<std::string> names;
      for (const Unit& u : units) names.emplace_back(u.name);
      return cat("is not a number: `", rest, "` is no suffix (known: ", join(names, " "), ")");
    }
    out.multiplier = unit->multiplier;
  }
  out.exponent -= static_cast<int64_t>(fraction.size());
  out.digits = whole + fraction;
  out.digits.erase(0, std::min(out.digits.find_first_not_of('0'), out.digits.size()));
  return {};
}

/// Sums of durations, like 1h30m, as (seconds text parts); other texts stay one part.
std::vector<std::string> parts_of(const std::string& text, Suffix suffix) {
  std::vector<std::string> parts;
  if (suffix == Suffix::kSeconds) {
    std::string part;
    for (const char c : text) {
      part += c;
      if (c == 's' || c == 'm' || c == 'h' || c == 'd') {
        parts.push_back(std::move(part));
        part.clear();
      }
    }
    if (!part.empty() && (parts.empty() || is_digit(part[0]) || part[0] == '.')) {
      if (!parts.empty()) return {text};  // 1h30: ambiguous, refused as a whole
      parts.push_back(std::move(part));
    } else if (!part.empty()) {
      return {text};
    }
    for (size_t i = 1; i < parts.size(); ++i)
      if (!is_digit(parts[i][0])) return {text};
  }
  if (parts.empty()) parts.push_back(text);
  return parts;
}

Read<int64_t> read_one_integer(const std::string& text, Suffix suffix) {
  Decimal d;
  if (std::string fault = take_decimal(text, suffix, d); !fault.empty()) return {0, fault};
  while (d.exponent < 0 && !d.digits.empty() && d.digits.back() == '0') {
    d.digits.pop_back();
    ++d.exponent;
  }
  if (d.digits.empty()) return {0, {}};
  int64_t multiplier = d.multiplier;
  while (d.exponent < 0 && multiplier % 10 == 0) {  // 1.5k, 14.8T
    multiplier /= 10;
    ++d.exponent;
  }
  if (d.exponent < 0) {
    // A power of two as suffix (1.5GiB): exact if the double product is whole.
    const double value = std::strtod(d.digits.c_str(), nullptr) *
                         std::pow(10.0, static_cast<double>(d.exponent)) *
                         static_cast<double>(d.multiplier);
    if (multiplier > 1 && value < 9e15 && value == std::floor(value))
      return {static_cast<int64_t>(d.negative ? -value : value), {}};
    return {0, "must be a whole number"};
  }
  const std::string too_large = "is beyond 64 bits";
  if (d.digits.size() + static_cast<size_t>(d.exponent) > 20) return {0, too_large};
  unsigned __int128 value = 0;
  for (const char c : d.digits) value = value * 10 + static_cast<unsigned>(c - '0');
  for (int64_t i = 0; i < d.exponent; ++i) value *= 10;
  value *= static_cast<unsigned __int128>(multiplier);
  if (value > static_cast<unsigned __int128>(std::numeric_limits<int64_t>::max()))
    return {0, too_large};
  const auto magnitude = static_cast<int64_t>(value);
  return {d.negative ? -magnitude : magnitude, {}};
}

Read<double> read_one_real(const std::string& text, Suffix suffix) {
  Decimal d;
  if (std::string fault = take_decimal(text, suffix, d); !fault.empty()) return {0, fault};
  if (d.digits.empty()) return {0, {}};
  const std::string clean = cat(d.digits, "e", d.exponent);
  double value = 0;
  const auto result = std::from_chars(clean.data(), clean.data() + clean.size(), value);
  if (result.ec != std::errc() || value == 0) return {0, "is beyond the range of a double"};
  value *= static_cast<double>(d.multiplier);
  if (!std::isfinite(value)) return {0, "is beyond the range of a double"};
  return {d.negative ? -value : value, {}};
}

template <class T, class One>
Read<T> read_sum(const std::string& text, Suffix suffix, One one) {
  Read<T> total;
  for (const std::string& part : parts_of(text, suffix)) {
    const Read<T> read = one(part, suffix);
    if (!read.fault.empty()) return read;
    if constexpr (std::is_same_v<T, int64_t>) {
      if (__builtin_add_overflow(total.value, read.value, &total.value))
        return {0, "is beyond 64 bits"};
    } else {
      total.value += read.value;
    }
  }
  return total;
}

}  // namespace

Read<int64_t> read_integer(const std::string& text, Suffix suffix) {
  return read_sum<int64_t>(text, suffix, read_one_integer);
}

Read<double> read_real(const std::string& text, Suffix suffix) {
  return read_sum<double>(text, suffix, read_one_real);
}

Read<bool> read_bool(const std::string& text) {
  if (text == "true" || text == "True" || text == "TRUE") return {true, {}};
  if (text == "false" || text == "False" || text == "FALSE") return {false, {}};
  const std::string word = lower(text);
  if (word == "yes" || word == "on" || word == "y" || word == "1")
    return {false, "is no truth value here; write true"};
  if (word == "no" || word == "off" || word == "n" || word == "0")
    return {false, "is no truth value here; write false"};
  return {false, "must be true or false"};
}

std::string real_text(double value) {
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  return {buffer, result.ptr};
}

}  // namespace moetrain
