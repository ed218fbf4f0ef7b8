// Fills typed structs from a YamlNode along the description rows, collecting every fault.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/field.h"
#include "config/node.h"

namespace moetrain {

/// One loading: what is wrong so far, and where each value came from.
struct Reading {
  std::vector<Diagnostic> faults;
  std::map<std::string, Origin> origins;
  std::set<std::string> refused;  ///< paths given but faulty: not to be called missing as well
};

/// Reads the map `node` into `rows`; `path` is the dotted name of the map ("" for the whole file).
/// May be called again with another document over the same rows: later values win.
void read_map(const YamlNode& node, const Fields& rows, const std::string& path, Reading& reading);

/// Faults for rows marked required that no document gave. `where` is the place to name.
void require_all(const Fields& rows, const std::string& path, const std::string& where,
                 Reading& reading);

/// Reads the rows of `parallel.shard`.
std::vector<ShardRow> read_shard_rows(const YamlNode& node, const std::string& path,
                                      Reading& reading);

/// "`parallel.tensor: x` must be ...": the common form of a complaint about a value.
std::string complaint(const std::string& path, const YamlNode& value, const std::string& fault);

}  // namespace moetrain
