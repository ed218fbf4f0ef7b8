// How failures read.
#include "base/error.h"

#include <cstring>

namespace moetrain {

std::string UserError::render(const std::vector<Diagnostic>& diagnostics) {
  std::string text;
  for (const Diagnostic& d : diagnostics) {
    if (!text.empty()) text += '\n';
    text += d.where.empty() ? d.message : d.where + ": " + d.message;
  }
  return text;
}

void check_failed(const char* file, int line, const char* condition, const std::string& detail) {
  const char* short_name = std::strstr(file, "lib/");
  throw InternalError(cat("internal error at ", short_name ? short_name : file, ":", line,
                          ": expected ", condition, detail.empty() ? "" : ": ", detail));
}

}  // namespace moetrain
