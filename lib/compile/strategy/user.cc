// User rows: locked, with the place in the file as their origin.
#include "compile/strategy/user.h"

#include "base/error.h"

namespace moetrain {
namespace {

LayoutRow row(LayoutRow::Kind kind, const std::string& pattern, const std::string& where) {
  LayoutRow r;
  r.kind = kind;
  r.pattern = pattern;
  r.origin = where;
  r.locked = true;
  return r;
}

}  // namespace

LayoutRow user_factors(const std::string& pattern,
                       const std::map<char, std::vector<std::string>>& factors,
                       const std::string& where) {
  LayoutRow r = row(LayoutRow::Kind::kFactors, pattern, where);
  r.factors = factors;
  return r;
}

LayoutRow user_uses(const std::string& pattern, const std::vector<UserLayout>& in,
                    const std::vector<UserLayout>& out, const std::string& where) {
  LayoutRow r = row(LayoutRow::Kind::kUses, pattern, where);
  r.in = in;
  r.out = out;
  if (out.size() > 1) {
    throw UserError({{where, cat("LAYOUT_ARG: `out` of '", pattern, "' has ", out.size(),
                                 " layouts; give exactly one, for the first result")}});
  }
  return r;
}

LayoutRow user_parameter(const std::string& pattern, const UserLayout& layout,
                         const std::string& where) {
  const std::string self = "self.";
  const bool dropped = pattern.compare(0, self.size(), self) == 0;
  LayoutRow r = row(LayoutRow::Kind::kState, dropped ? pattern.substr(self.size()) : pattern, where);
  r.out = {layout};
  return r;
}

}  // namespace moetrain
