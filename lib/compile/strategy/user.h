// The user's own rows (`parallel.shard`), made from the three forms of the YAML.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compile/shard/propagate.h"

namespace moetrain {

/// A layout as the user writes it: axis names per dim ("-" or "None" or nothing: whole), major first.
using UserLayout = std::vector<std::vector<std::string>>;

/// {op: PATTERN, n: tp}: axes for factors of ops. `where` is file:line:column.
LayoutRow user_factors(const std::string& pattern,
                       const std::map<char, std::vector<std::string>>& factors,
                       const std::string& where);
/// {op: PATTERN, in: [...], out: [...]}: layouts of operands and of the result.
LayoutRow user_uses(const std::string& pattern, const std::vector<UserLayout>& in,
                    const std::vector<UserLayout>& out, const std::string& where);
/// {param: PATTERN, layout: [...]}: where a parameter is stored; a leading "self." is dropped.
LayoutRow user_parameter(const std::string& pattern, const UserLayout& layout,
                         const std::string& where);

}  // namespace moetrain
