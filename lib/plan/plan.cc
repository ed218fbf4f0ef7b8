// Plans as text and numbers.
#include "plan/plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/random.h"

namespace moetrain {

const char* lane_name(int lane) {
  static const char* const kNames[kLaneCount] = {"compute", "inter-node", "intra-node", "stage"};
  return kNames[lane];
}

int root_slot(const Plan& plan, int slot) {
  while (plan.slots[slot].alias >= 0) slot = plan.slots[slot].alias;
  return slot;
}

int64_t expected_rows(const Plan& plan, const Launch& launch) {
  if (launch.out.empty()) return 0;
  const Slot& y = plan.slots[launch.out[0]];
  const Shape& shape = y.type.shape;
  if (y.extent >= 0) return plan.extents[y.extent].expected;
  return shape.empty() ? 1 : numel(shape) / std::max<int64_t>(1, shape.back());
}

const Segment& Plan::segment(const std::string& name) const {
  for (const Segment& s : segments) {
    if (s.name == name) return s;
  }
  MT_CHECK(false, "no segment '", name, "' in the plan");
  return segments.front();
}

int64_t Plan::state_bytes() const {
  int64_t total = 0;
  for (const Slot& s : slots) {
    if (s.home == Home::kState && s.alias < 0) total += s.bytes;
  }
  return total;
}

int64_t Plan::frame_bytes() const {
  int64_t total = 0;
  for (const FrameGroup& f : frames) total += f.bytes * f.count;
  return total;
}

int64_t sent_bytes(const Plan& plan, const Collective& c) {
  if (c.in.empty()) return 0;                           // received
  if (c.out.empty()) return plan.slots[c.in[0]].bytes;  // sent to another stage
  const int64_t members = static_cast<int64_t>(plan.groups[c.group].ranks.size());
  const int64_t in = plan.slots[c.in[0]].bytes;
  const std::string op = c.op->name;
  if (op == "all_gather") return in * (members - 1);
  if (op == "all_reduce") return 2 * in * (members - 1) / members;
  if (op == "exchange") {
    int64_t total = 0;
    const auto& ranks = plan.groups[c.group].ranks;
    const auto& bytes = c.attrs.integers("send_bytes");
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (ranks[i] != plan.rank) total += bytes[i];
    }
    return total;
  }
  return in * (members - 1) / members;
}

namespace {

std::string slot_text(const Plan& plan, int index) {
  const Slot& s = plan.slots[index];
  std::string where;
  switch (s.home) {
    case Home::kState: where = "state"; break;
    case Home::kInput: where = "input"; break;
    case Home::kOutput: where = "output"; break;
    case Home::kArena: where = cat("@", s.offset); break;
    case Home::kFrame: where = cat("frame ", s.frame, " @", s.offset); break;
    case Home::kRagged: where = cat("rows ", plan.extents[s.extent].name); break;
    case Home::kHost: where = "host"; break;
  }
  if (s.alias >= 0) where = cat("= $", s.alias);
  return cat("$", index, " ", to_string(s.type), " ", where);
}

std::string slots_text(const std::vector<int>& slots) {
  std::vector<std::string> names;
  for (int s : slots) names.push_back(cat("$", s));
  return join(names, ", ");
}

struct InstructionPrinter {
  const Plan& plan;
  std::string operator()(const Launch& l) const {
    return cat(slots_text(l.out), " = ", l.op->name, "(", slots_text(l.in), ") ",
               to_string(l.attrs));
  }
  std::string operator()(const Collective& c) const {
    return cat(slots_text(c.out), " = ", c.op->name, "(", slots_text(c.in), ") over ",
               plan.groups[c.group].name, " sends ", sent_bytes(plan, c));
  }
  std::string operator()(const Bind& b) const {
    std::vector<std::string> names;
    for (int e : b.extents) names.push_back(plan.extents[e].name);
    return cat("bind ", join(names, ", "), " from ", slots_text(b.counts));
  }
  std::string operator()(const Alloc& a) const { return "alloc " + slot_text(plan, a.slot); }
  std::string operator()(const Free& f) const { return cat("free $", f.slot); }
};

}  // namespace

std::string print(const Plan& plan) {
  std::string text = cat("rank ", plan.rank, " of ", plan.world, "; arena ", plan.arena_bytes,
                         " bytes, frames ", plan.frame_bytes(), " bytes, states ",
                         plan.state_bytes(), " bytes, rows ",
                         plan.ragged_bytes, " bytes (worst ", plan.ragged_bytes_worst, ")\n");
  for (const RankGroup& g : plan.groups) text += cat("group ", g.name, ": ", join(g.ranks, " "), "\n");
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    text += slot_text(plan, static_cast<int>(i)) + "  # " + plan.slots[i].name + "\n";
  }
  for (const Segment& s : plan.segments) {
    text += "segment " + s.name + "\n";
    for (size_t i = 0; i < s.instructions.size(); ++i) {
      const Instruction& in = s.instructions[i];
      text += cat("  ", i, " ", lane_name(in.lane), " ", std::visit(InstructionPrinter{plan}, in.what));
      if (!s.parts.empty()) text += cat(" side ", in.side);
      if (!in.waits.empty()) text += cat(" after ", join(in.waits, ","));
      text += "  # " + in.name + "\n";
    }
  }
  return text;
}

std::string print_collectives(const Plan& plan) {
  std::string text;
  for (const Segment& s : plan.segments) {
    if (!s.parts.empty()) continue;  // its parts are listed
    int64_t total = 0;
    std::vector<const Instruction*> in_graph_order;
    for (const Instruction& in : s.instructions) {
      if (std::holds_alternative<Collective>(in.what)) in_graph_order.push_back(&in);
    }
    std::stable_sort(in_graph_order.begin(), in_graph_order.end(),
                     [](const Instruction* a, const Instruction* b) { return a->node < b->node; });
    for (const Instruction* listed : in_graph_order) {
      const Instruction& in = *listed;
      const auto* c = std::get_if<Collective>(&in.what);
      const int64_t bytes = sent_bytes(plan, *c);
      total += bytes;
      text += cat(s.name, " ", in.name, " ", c->op->name, " ", plan.groups[c->group].name, " ",
                  to_string(plan.slots[c->in.empty() ? c->out[0] : c->in[0]].type), " ", bytes,
                  "\n");
    }
    text += cat(s.name, " total ", total, " bytes sent by rank ", plan.rank, "\n");
  }
  return text;
}

uint64_t agreement_hash(const Plan& plan) {
  uint64_t hash = hash_bytes(cat(plan.world));
  for (const Segment& s : plan.segments) {
    for (const Instruction& in : s.instructions) {
      if (const auto* l = std::get_if<Launch>(&in.what)) hash = hash_bytes(l->op->name, hash);
      if (const auto* c = std::get_if<Collective>(&in.what)) {
        // What an exchange packs differs between ranks; everything else moves equal blocks.
        const bool equal_blocks = !c->attrs.has("send_bytes");
        hash = hash_bytes(cat(c->op->name, equal_blocks && !c->in.empty() ? plan.slots[c->in[0]].bytes : 0,
                              plan.groups[c->group].ranks.size()), hash);
      }
      hash = hash_bytes(in.name, hash);
    }
  }
  return hash;
}

std::map<std::string, uint64_t> stream_hashes(const Plan& plan) {
  std::map<std::string, uint64_t> hashes;
  for (const Segment& segment : plan.segments) {
    if (!segment.parts.empty()) continue;  // which passes are merged may differ between the ends
    for (const Instruction& in : segment.instructions) {
      const auto* c = std::get_if<Collective>(&in.what);
      if (c == nullptr || (!c->in.empty() && !c->out.empty())) continue;
      const Type& type = plan.slots[c->in.empty() ? c->out[0] : c->in[0]].type;
      uint64_t& hash = hashes[plan.groups[c->group].name];
      hash = hash_bytes(to_string(type), hash);
    }
  }
  return hashes;
}

}  // namespace moetrain
