// Anchors: what the rows of annotation demand of every node, merged by rank of the rows.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compile/shard/problem.h"
#include "compile/shard/propagate.h"

namespace moetrain {

/// Demands on one node. Everything not mentioned is open.
struct NodeAnchor {
  std::map<char, std::vector<Axis>> factors;   ///< locked factors (an empty list: never split)
  std::map<int, Layout> in;                    ///< operand -> layout of the use
  std::optional<Layout> out;                   ///< layout its readers see
  std::optional<Layout> leaf;                  ///< layout of a state or input
  std::string origin;                          ///< of the first row that binds it
  bool locked = false;                         ///< some user row binds it
  int number = 0;                              ///< equal anchors have equal numbers; 0 = none
};

struct Anchors {
  std::vector<NodeAnchor> nodes;
  std::vector<std::string> notes;
};

/// Binds rows to nodes. User rows (locked) go first, then rows with longer patterns, then by text, so
/// that the order of rows does not matter; a later row that contradicts an earlier one on the same
/// node loses there; a user row that loses or matches nothing leaves a note. Throws UserError for rows that
/// no layout can satisfy, all of them at once.
Anchors bind_rows(Problem& problem, const std::vector<LayoutRow>& rows);

}  // namespace moetrain
