// One rank's graph becomes its tape.
#include "compile/lower.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "compile/place.h"
#include "compile/segments.h"
#include "ops/basic.h"
#include "ops/local.h"
#include "ops/pipe.h"
#include "ops/settle.h"

namespace moetrain {

namespace {

/// Builds the plan in four walks: slots, work of the segments, tapes with memory, ports.
class Lowering {
 public:
  Lowering(const LocalGraph& local, const Mesh& mesh, int rank, const LowerOptions& options)
      : local_(local), graph_(local.graph), mesh_(mesh), rank_(rank), options_(options) {
    plan_.rank = rank;
    plan_.world = options.world;
  }

  Plan run() {
    make_slots();
    const bool whole = options_.stages.count == 1 && options_.whole_steps;
    std::vector<SegmentWork> segments;
    for (const SegmentNodes& s : cut_segments(graph_, options_.stages, options_.split_weights, whole)) {
      segments.push_back(work_of(s));
    }
    order_groups(segments);
    const TapeWriter tapes(plan_, options_.links, options_.overlap, segments);
    for (const SegmentWork& segment : segments) tapes.write(segment);
    place_frames(plan_);
    for (const std::vector<std::string>& names : options_.merged) {
      std::vector<int> parts;
      for (const std::string& name : names) {
        for (size_t i = 0; i < segments.size(); ++i) {
          if (segments[i].name == name) parts.push_back(static_cast<int>(i));
        }
      }
      if (parts.size() == names.size()) tapes.write_merged(parts);
    }
    merge_frames(plan_);
    place_arena(plan_);
    make_ports();
    return std::move(plan_);
  }

 private:
  int slot_of(Value v) const { return slots_.at(v); }

  static bool leaf(const Node& node) {
    return node.op == &ops::kInput || node.op == &ops::kState;
  }

  int64_t row_bytes(const Type& type) const {
    int64_t bytes = static_cast<int64_t>(size_of(type.dtype));
    for (size_t d = 2; d < type.shape.size(); ++d) bytes *= type.shape[d];
    return bytes;
  }

  /// Rows of output `output`: named by a bind, those of an operand, or of the first ragged operand.
  int extent_of(const Node& node, size_t output) {
    if (node.attrs.has("which")) {
      const Value bind = node.inputs.back();
      return bound_.at(bind.node) + static_cast<int>(node.attrs.integer("which"));
    }
    if (node.attrs.has("rows_of")) {
      const int64_t operand = node.attrs.integers("rows_of").at(output);
      return plan_.slots[slot_of(node.inputs[operand])].extent;
    }
    for (Value v : node.inputs) {
      if (graph_.type(v).ragged) return plan_.slots[slot_of(v)].extent;
    }
    MT_CHECK(false, "rows of '", node.name, "' have no extent");
    return -1;
  }

  void make_slots() {
    std::map<Value, std::string> outputs;
    for (const NamedValue& o : graph_.outputs) outputs[o.value] = o.name;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.op == &ops::kBind) {
        bound_[static_cast<int>(i)] = static_cast<int>(plan_.extents.size());
        for (size_t k = 0; k < node.inputs.size(); ++k) {
          plan_.extents.push_back({cat(node.name, ".", k), node.attrs.integers("expected")[k],
                                   node.attrs.integers("largest")[k]});
        }
      }
      for (size_t k = 0; k < node.outputs.size(); ++k) {
        const Value v{static_cast<int>(i), static_cast<int>(k)};
        Slot slot;
        slot.name = node.outputs.size() == 1 ? node.name : cat(node.name, "#", k);
        slot.type = node.outputs[k];
        slot.bytes = numel(slot.type.shape) * static_cast<int64_t>(size_of(slot.type.dtype));
        const int shares = node.op->alias ? node.op->alias(node.attrs, static_cast<int>(k)) : -1;
        if (node.op == &ops::kState) {
          slot.home = Home::kState;
        } else if (node.op == &ops::kInput) {
          slot.home = Home::kInput;
        } else if (node.op == &ops::kBind) {
          slot.home = Home::kHost;
        } else if (shares >= 0) {
          slot.alias = slot_of(node.inputs[shares]);
          slot.home = plan_.slots[root_slot(plan_, slot.alias)].home;
          slot.extent = plan_.slots[slot.alias].extent;
        } else if (slot.type.ragged) {
          slot.home = Home::kRagged;
          slot.extent = extent_of(node, k);
          slot.bytes = plan_.extents[slot.extent].expected * row_bytes(slot.type);
        }
        slots_[v] = static_cast<int>(plan_.slots.size());
        plan_.slots.push_back(std::move(slot));
      }
    }
    // What the trainer reads later must survive the segment: its memory leaves the arena.
    for (const auto& [value, name] : outputs) {
      Slot& slot = plan_.slots[root_slot(plan_, slot_of(value))];
      if (slot.home == Home::kArena) slot.home = Home::kOutput;
    }
  }

  int group_of(const Attrs& attrs) {
    std::string name;
    std::vector<int> ranks;
    if (attrs.has("ranks")) {  // a part of a group that no axis names: one node, or one rank per node
      const auto& list = attrs.integers("ranks");
      ranks.assign(list.begin(), list.end());
      name = attrs.text("group");
    } else {
      const auto& list = attrs.integers("axes");
      const std::vector<Axis> axes(list.begin(), list.end());
      ranks = mesh_.group(rank_, axes);
      std::vector<std::string> names;
      for (Axis a : axes) names.push_back(mesh_.atoms[a].name);
      name = join(names, "*");
    }
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
      if (plan_.groups[g].name == name) return static_cast<int>(g);
    }
    plan_.groups.push_back({name, ranks});
    return static_cast<int>(plan_.groups.size()) - 1;
  }

  SegmentWork work_of(const SegmentNodes& wanted) {
    SegmentWork segment;
    segment.name = wanted.name;
    segment.chunk = wanted.chunk;
    for (int n : wanted.nodes) {
      const Node& node = graph_.nodes[n];
      if (ops::only_renames(node)) continue;  // the output slot is an alias: nothing to run
      std::vector<int> in, out;
      for (Value v : node.inputs) in.push_back(slot_of(v));
      for (size_t k = 0; k < node.outputs.size(); ++k) {
        out.push_back(slot_of({n, static_cast<int>(k)}));
      }
      Instruction instruction;
      if (node.op == &ops::kBind) {
        Bind bind{in, {}, out[0]};
        for (size_t k = 0; k < in.size(); ++k) {
          bind.extents.push_back(bound_.at(n) + static_cast<int>(k));
        }
        instruction.what = std::move(bind);
      } else if (ops::is_collective(*node.op) || ops::is_transfer(*node.op)) {
        instruction.what = Collective{node.op, node.attrs, in, out, group_of(node.attrs)};
      } else {
        instruction.what = Launch{node.op, node.attrs, in, out};
      }
      instruction.node = n;
      instruction.name = node.name;
      instruction.tag = node.tag;
      segment.work.push_back(std::move(instruction));
    }
    return segment;
  }

  /// Groups inside the stage first, then the streams between stages by name: any two ranks make the groups
  /// they share in the same order.
  void order_groups(std::vector<SegmentWork>& segments) {
    std::vector<int> order(plan_.groups.size());
    std::iota(order.begin(), order.end(), 0);
    auto stream = [&](int g) { return plan_.groups[g].name.starts_with("pp "); };
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      if (stream(a) != stream(b)) return stream(b);
      return stream(a) && plan_.groups[a].name < plan_.groups[b].name;
    });
    std::vector<RankGroup> groups;
    std::vector<int> moved(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      moved[order[i]] = static_cast<int>(i);
      groups.push_back(std::move(plan_.groups[order[i]]));
    }
    plan_.groups = std::move(groups);
    for (SegmentWork& segment : segments) {
      for (Instruction& instruction : segment.work) {
        if (auto* c = std::get_if<Collective>(&instruction.what)) c->group = moved[c->group];
      }
    }
  }

  Port port(const LocalPort& p) const {
    Port port;
    port.name = p.name;
    port.slot = slot_of(p.value);
    port.global = p.global;
    const Box box = slice_of(mesh_, p.layout, p.global.shape, rank_);
    port.begin = box.begin;
    port.extent = box.extent;
    port.partial = p.layout.has_partial();
    std::vector<bool> used(mesh_.atoms.size(), false);
    for (const auto& dim : p.layout.dims) {
      for (Axis a : dim) used[a] = true;
    }
    const std::vector<int> coordinate = mesh_.coordinate(rank_);
    for (size_t a = 0; a < used.size(); ++a) {
      if (!used[a] && coordinate[a] != 0) port.owner = false;
    }
    return port;
  }

  void make_ports() {
    for (const LocalPort& p : local_.states) plan_.states.push_back(port(p));
    for (const LocalPort& p : local_.inputs) plan_.inputs.push_back(port(p));
    for (const NamedValue& o : graph_.outputs) {
      Port out;
      out.name = o.name;
      out.slot = slot_of(o.value);
      out.global = graph_.type(o.value);
      out.begin.assign(out.global.shape.size(), 0);
      out.extent = out.global.shape;
      plan_.outputs.push_back(std::move(out));
    }
  }

  const LocalGraph& local_;
  const Graph& graph_;
  const Mesh& mesh_;
  const int rank_;
  const LowerOptions options_;
  Plan plan_;
  std::map<Value, int> slots_;
  std::map<int, int> bound_;  // bind node -> its first extent
};

}  // namespace

Plan lower(const LocalGraph& local, const Mesh& mesh, int rank, const LowerOptions& options) {
  return Lowering(local, mesh, rank, options).run();
}

}  // namespace moetrain
