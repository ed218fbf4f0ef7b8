// PCRE2 behind a small door: compile once with JIT, validate UTF-8 elsewhere, treat every surprise
// as an error.
#include "data/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <mutex>

#include "base/error.h"
#include "data/tokenizer/unicode.h"
#include "data/tokenizer/utf8.h"

namespace moetrain {

struct RegexScratch::Impl {
  pcre2_match_data* data = pcre2_match_data_create(4, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(size_t{32} << 10, size_t{8} << 20, nullptr);
  Impl() {
    MT_CHECK(data != nullptr && context != nullptr, "out of memory");
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Impl() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

RegexScratch::RegexScratch() : impl_(std::make_unique<Impl>()) {}
RegexScratch::~RegexScratch() = default;

struct Regex::Impl {
  pcre2_code* code = nullptr;
  bool jit = false;
  std::string where;
  ~Impl() { pcre2_code_free(code); }
};

namespace {

std::string message_of(int error) {
  unsigned char text[256] = {};
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

pcre2_code* compile(const std::string& pattern, const std::string& where) {
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  int error = 0;
  size_t at = 0;
  // Multi-line anchors are what the reference's syntax means by ^ and $.
  pcre2_code* code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &at, context);
  pcre2_compile_context_free(context);
  if (code == nullptr) throw UserError({{where, cat("regular expression: ", message_of(error))}});
  return code;
}

// What this PCRE2 takes for \p{name}: one pass over a text of all code points that any table or
// library assigns (planes 4 to 13 hold no characters, 15 and 16 are private).
std::vector<CodeRange> pcre2_class(char name) {
  std::string all;
  all.reserve(1100000);
  for (uint32_t c = 0; c <= 0xEFFFF; ++c) {
    if (c == 0xD800) c = 0xE000;
    if (c == 0x40000) c = 0xE0000;
    utf8_append(c, all);
  }
  pcre2_code* code = compile(cat("\\p{", name, "}+"), "classes");
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  const RegexScratch scratch;
  std::vector<CodeRange> ranges;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(all.data());
  for (size_t at = 0; pcre2_match(code, subject, all.size(), at, PCRE2_NO_UTF_CHECK,
                                  scratch.get()->data, nullptr) > 0;) {
    const size_t* ends = pcre2_get_ovector_pointer(scratch.get()->data);
    size_t length = 0, last = ends[1] - 1;
    while ((static_cast<unsigned char>(all[last]) & 0xC0) == 0x80) --last;
    ranges.push_back({utf8_decode(all, ends[0], &length), utf8_decode(all, last, &length)});
    at = ends[1];
  }
  pcre2_code_free(code);
  return ranges;
}

std::string spelled(std::span<const CodeRange> ranges) {
  std::ostringstream out;
  out << std::hex;
  for (const CodeRange& r : ranges) {
    out << "\\x{" << r.first << '}';
    if (r.last > r.first) out << "-\\x{" << r.last << '}';
  }
  return out.str();
}

// Members of one class as written inside brackets. The library's own property is the fast way to
// say most of it; what a newer Unicode added is spelled out.
std::string spell_members(char name) {
  const auto table = unicode_class(name);
  if (name == 's') return spelled(table);
  const std::vector<CodeRange> own = pcre2_class(name);
  if (!difference(own, table).empty()) return spelled(table);
  return cat("\\p{", name, "}", spelled(difference(table, own)));
}

// Asking the library costs some ten milliseconds a class: once per process.
std::string members(char name, bool negated) {
  static std::array<std::once_flag, 128> asked;
  static std::array<std::string, 128> answers;
  if (negated) return spelled(complement(unicode_class(name)));
  const auto at = static_cast<size_t>(name);
  std::call_once(asked[at], [&] { answers[at] = spell_members(name); });
  return answers[at];
}

// The translator walks the pattern once; `in_class` tells brackets from the rest.
class Translator {
 public:
  Translator(const std::string& pattern, const std::string& where) : in_(pattern), where_(where) {}

  std::string run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        class_character(c);
      } else {
        plain_character(c);
      }
    }
    if (in_class_) refuse("a class [ without its ]");
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw UserError(
        {{where_, cat("regular expression: ", what, " at character ", at_, " of ", in_)}});
  }

  void class_character(char c) {
    if (c == '[') refuse("a class inside a class is not supported");
    if (c == '&' && in_.compare(at_, 2, "&&") == 0)
      refuse("an intersection of classes (&&) is not supported");
    if (c == ']' && at_ != class_start_) in_class_ = false;
    out_ += c == ']' && in_class_ ? "\\]" : std::string(1, c);
    ++at_;
  }

  void plain_character(char c) {
    if (c == '[') {
      in_class_ = true;
      out_ += c;
      if (at_ + 1 < in_.size() && in_[at_ + 1] == '^') out_ += in_[++at_];
      class_start_ = at_ + 1;
    } else if (c == '(' && in_.compare(at_, 2, "(?") == 0) {
      // Only groups that both libraries read alike.
      static constexpr std::string_view kGroups[] = {"(?:",  "(?=",  "(?!",  "(?>",
                                                     "(?<=", "(?<!", "(?i:", "(?i)"};
      bool known = false;
      for (std::string_view group : kGroups)
        known = known || in_.compare(at_, group.size(), group) == 0;
      if (!known) refuse("this kind of group is not supported");
      out_ += c;
    } else if (c == '(' && in_.compare(at_, 2, "(*") == 0) {
      refuse("verbs (*...) are not supported");
    } else if (in_.compare(at_, 2, "{,") == 0) {
      refuse("{,n} means different things in different libraries; write {0,n}");
    } else if (c == '}' && in_.compare(at_, 2, "}+") == 0) {
      refuse("}+ means different things in different libraries");
    } else {
      out_ += c;
    }
    ++at_;
  }

  void escape() {
    if (at_ + 1 >= in_.size()) refuse("a lone \\");
    const char c = in_[at_ + 1];
    const auto is_alnum = [](char x) {
      return (x >= '0' && x <= '9') || ((x | 32) >= 'a' && (x | 32) <= 'z');
    };
    if (!is_alnum(c) || c == 'r' || c == 'n' || c == 't' || c == 'f' || c == 'a' || c == 'e') {
      out_ += in_.substr(at_, 2);
      at_ += 2;
    } else if (c == 's' || c == 'S') {
      at_ += 2;
      put_class('s', c == 'S');
    } else if (c == 'p' || c == 'P') {
      property();
    } else if (c == 'x' || c == 'u') {
      code_point();
    } else if (c == 'v') {
      out_ += "\\x0b";
      at_ += 2;
    } else {
      refuse(cat("\\", c, " is not supported"));
    }
  }

  void property() {
    bool negated = in_[at_ + 1] == 'P';
    size_t end = at_ + 3;
    std::string name = in_.substr(std::min(at_ + 2, in_.size()), 1);
    if (name == "{") {
      end = in_.find('}', at_);
      if (end == std::string::npos) refuse("\\p{ without its }");
      name = in_.substr(at_ + 3, end - at_ - 3);
      ++end;
    }
    if (!name.empty() && name[0] == '^') {
      negated = !negated;
      name.erase(0, 1);
    }
    static constexpr std::pair<std::string_view, char> kNames[] = {
        {"Letter", 'L'},      {"Mark", 'M'},   {"Number", 'N'},
        {"Punctuation", 'P'}, {"Symbol", 'S'}, {"White_Space", 's'}};
    char known =
        name.size() == 1 && std::string_view("LMNPS").find(name[0]) != std::string_view::npos
            ? name[0]
            : 0;
    for (const auto& [full, letter] : kNames) known = name == full ? letter : known;
    if (known == 0) refuse(cat("property \\p{", name, "} is not supported (L, M, N, P, S are)"));
    at_ = end;
    put_class(known, negated);
  }

  void code_point() {
    const size_t start = at_ + 2;
    size_t digits_from = start, digits = in_[at_ + 1] == 'u' ? 4 : 2, end = start + digits;
    if (in_[at_ + 1] == 'x' && start < in_.size() && in_[start] == '{') {
      digits_from = start + 1;
      end = in_.find('}', start);
      if (end == std::string::npos) refuse("\\x{ without its }");
      digits = end - digits_from;
      ++end;
    }
    const std::string hex = in_.substr(digits_from, digits);
    if (hex.empty() || hex.size() > 6 || end > in_.size() ||
        hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
      refuse("a code point needs hexadecimal digits");
    }
    out_ += cat("\\x{", hex, "}");
    at_ = end;
  }

  void put_class(char name, bool negated) {
    if (in_class_) {
      // A range such as [\s-x] means something only by accident.
      if (at_ + 1 < in_.size() && in_[at_] == '-' && in_[at_ + 1] != ']')
        refuse("a class as the start of a range");
      out_ += members(name, negated);
    } else {
      out_ += cat(negated ? "[^" : "[", members(name, false), "]");
    }
  }

  const std::string& in_;
  const std::string& where_;
  std::string out_;
  size_t at_ = 0, class_start_ = 0;
  bool in_class_ = false;
};

}  // namespace

std::string translate_pattern(const std::string& pattern, const std::string& where) {
  return Translator(pattern, where).run();
}

Regex::Regex(const std::string& pattern, const std::string& where)
    : impl_(std::make_unique<Impl>()) {
  impl_->where = where;
  impl_->code = compile(translate_pattern(pattern, where), where);
  impl_->jit = pcre2_jit_compile(impl_->code, PCRE2_JIT_COMPLETE) == 0;
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

size_t Regex::after_character(std::string_view text, size_t at) {
  if (at >= text.size()) return at + 1;
  size_t length = 1;
  utf8_decode(text, at, &length);
  return at + length;
}

bool Regex::next(std::string_view text, size_t at, const RegexScratch& scratch, size_t* begin,
                 size_t* end) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data() != nullptr ? text.data() : "");
  const auto& tools = *scratch.get();
  const int count = impl_->jit ? pcre2_jit_match(impl_->code, subject, text.size(), at,
                                                 PCRE2_NO_UTF_CHECK, tools.data, tools.context)
                               : pcre2_match(impl_->code, subject, text.size(), at,
                                             PCRE2_NO_UTF_CHECK, tools.data, tools.context);
  if (count == PCRE2_ERROR_NOMATCH) return false;
  if (count < 0) {
    throw UserError({{impl_->where, cat("regular expression gave up at byte ", at, " of a text of ",
                                        text.size(), " bytes: ", message_of(count))}});
  }
  const size_t* ends = pcre2_get_ovector_pointer(tools.data);
  *begin = ends[0];
  *end = ends[1];
  return true;
}

}  // namespace moetrain
