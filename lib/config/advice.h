// What to write instead of a key that does not exist: right section, nearest name, names other
// trainers use.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "config/field.h"

namespace moetrain {

/// Remedy for the unknown `key` in the map `path`, whose rows are `rows`.
std::string advice(const std::string& key, const Fields& rows, const std::string& path);

/// Every key of every section with the map it belongs to; entries of lists are written `[]`.
const std::vector<std::pair<std::string, std::string>>& all_keys();

/// Names of other trainers and short forms, with the dotted name here.
const std::vector<std::pair<std::string, std::string>>& foreign_names();

}  // namespace moetrain
