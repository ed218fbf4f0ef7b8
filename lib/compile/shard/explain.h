// Explain: for every op its layouts, who decided them, and what each redistribution costs; and diffs.
#pragma once

#include <string>

#include "compile/shard/propagate.h"

namespace moetrain {

/// One paragraph per op whose name matches `pattern`, in graph order:
///   layers.0.attn.q_b  matmul {b: dp, n: tp}  anchor: strategy tp
///     operand 0 [dp, -, -] from layers.0.attn.q_a_norm [dp, tp, -]: AllGather(1,tp) 24 KiB, 5.3 us
///     result [dp, -, tp]
/// then the notes and the sum. Operands that arrive as demanded take no line.
std::string explain(const Graph& graph, const Mesh& mesh, const LinkModel& links,
                    const ShardingResult& result, const std::string& pattern = "*");

/// What changed between two results, by op name: ops on one side only, and ops whose factors, results
/// or operands differ. Empty when nothing does. The graphs and meshes may differ.
std::string explain_diff(const Graph& before_graph, const Mesh& before_mesh,
                         const ShardingResult& before, const Graph& after_graph,
                         const Mesh& after_mesh, const ShardingResult& after);

}  // namespace moetrain
