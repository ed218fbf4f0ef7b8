// NFC through utf8proc, the one file that knows it.
#include "data/tokenizer/normalizer.h"

#include "base/error.h"

#ifdef MOETRAIN_UTF8PROC
#include <utf8proc.h>

#include <cstdlib>
#endif

namespace moetrain {

#ifdef MOETRAIN_UTF8PROC
bool has_nfc() { return true; }

std::string normalize_nfc(std::string_view text) {
  utf8proc_uint8_t* out = nullptr;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &out, options);
  MT_CHECK(size >= 0, utf8proc_errmsg(size));
  std::string result(reinterpret_cast<const char*>(out), static_cast<size_t>(size));
  std::free(out);
  return result;
}
#else
bool has_nfc() { return false; }

std::string normalize_nfc(std::string_view text) {
  MT_CHECK(false, "built without utf8proc");
  return std::string(text);
}
#endif

}  // namespace moetrain
