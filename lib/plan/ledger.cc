// Counting a plan's traffic without running it: the host fabrics' algorithms, with sizes only.
#include "plan/ledger.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace moetrain {

LinkTraffic& LinkTraffic::operator+=(const LinkTraffic& other) {
  inter_bytes += other.inter_bytes;
  intra_bytes += other.intra_bytes;
  inter_messages += other.inter_messages;
  intra_messages += other.intra_messages;
  return *this;
}

NodeOf consecutive_nodes(int ranks_per_node) {
  return [ranks_per_node](int rank) { return ranks_per_node > 0 ? rank / ranks_per_node : 0; };
}

namespace {

using Sizes = std::vector<int64_t>;

/// A group as one member sees it, and what that member sends.
class Counting {
 public:
  Counting(const std::vector<int>& ranks, int rank, const NodeOf& node_of) {
    std::vector<int> seen;
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] == rank) me_ = static_cast<int>(i);
      const auto found = std::find(seen.begin(), seen.end(), node_of(ranks[i]));
      const size_t node = found - seen.begin();
      if (found == seen.end()) {
        seen.push_back(node_of(ranks[i]));
        nodes_.emplace_back();
      }
      node_.push_back(static_cast<int>(node));
      local_.push_back(static_cast<int>(nodes_[node].size()));
      nodes_[node].push_back(static_cast<int>(i));
    }
    MT_CHECK(me_ >= 0, "rank ", rank, " counts for a group it is not in");
  }

  int size() const { return static_cast<int>(node_.size()); }

  void exchange(const Sizes& bytes) {
    for (int i = 0; i < size(); ++i) {
      if (i != me_) count(node_[i] != here(), bytes[i], 1);
    }
  }

  /// Blocks cross to every other node once and are shared there, own ones on the own node.
  void gather(const Sizes& blocks) {
    const int64_t others = per_node() - 1;
    for (size_t n = 1; n < nodes_.size(); ++n) count(true, blocks[me_], 1);
    count(false, blocks[me_] * others, others);
    int64_t passed_on = 0;
    for (int i = 0; i < size(); ++i) {
      if (node_[i] != here() && local_[i] % per_node() == local_[me_]) passed_on += blocks[i];
    }
    count(false, passed_on * others, others);
  }

  /// Each member sums, over its node, the blocks of owners with its place; sums travel to their
  /// owners.
  void reduce(const Sizes& elements, DType dtype) {
    const int64_t size_here = static_cast<int64_t>(size_of(dtype));
    const int64_t size_away = per_node() > 1 && dtype == DType::kBF16
                                  ? static_cast<int64_t>(size_of(DType::kF32))
                                  : size_here;
    for (int l = 0; l < per_node(); ++l) {
      int64_t stream = elements[nodes_[here()][l]];
      for (int i = 0; i < size(); ++i) {
        if (node_[i] != here() && local_[i] % per_node() == l) stream += elements[i];
      }
      if (l != local_[me_]) count(false, stream * size_here, 1);
    }
    for (int i = 0; i < size(); ++i) {
      if (node_[i] != here() && local_[i] % per_node() == local_[me_]) {
        count(true, elements[i] * size_away, 1);
      }
    }
  }

  const LinkTraffic& sent() const { return sent_; }

 private:
  int here() const { return node_[me_]; }
  int per_node() const { return static_cast<int>(nodes_[here()].size()); }
  void count(bool inter, int64_t bytes, int64_t messages) {
    if (bytes == 0) return;
    (inter ? sent_.inter_bytes : sent_.intra_bytes) += bytes;
    (inter ? sent_.inter_messages : sent_.intra_messages) += messages;
  }

  int me_ = -1;
  std::vector<int> node_, local_;
  std::vector<std::vector<int>> nodes_;
  LinkTraffic sent_;
};

}  // namespace

LinkTraffic exchange_traffic(const std::vector<int>& ranks, int rank, const NodeOf& node_of,
                             const std::vector<int64_t>& send_bytes) {
  Counting counting(ranks, rank, node_of);
  counting.exchange(send_bytes);
  return counting.sent();
}

LinkTraffic collective_traffic(const Plan& plan, const Collective& c, const NodeOf& node_of) {
  const std::vector<int>& ranks = plan.groups[c.group].ranks;
  const int64_t members = static_cast<int64_t>(ranks.size());
  if (members < 2 || c.in.empty()) return {};
  Counting counting(ranks, plan.rank, node_of);
  const Slot& in = plan.slots[c.in[0]];
  const std::string op = c.op->name;
  if (op == "all_gather") {
    counting.gather(Sizes(members, in.bytes));
  } else if (op == "reduce_scatter") {
    counting.reduce(Sizes(members, numel(in.type.shape) / members), in.type.dtype);
  } else if (op == "all_reduce") {
    // Shares of whole cache lines; the last ones may be short or empty.
    const int64_t n = numel(in.type.shape), share = ((n + members - 1) / members + 31) / 32 * 32;
    Sizes elements, bytes;
    for (int64_t i = 0; i < members; ++i) {
      elements.push_back(std::min(n, (i + 1) * share) - std::min(n, i * share));
      bytes.push_back(elements.back() * static_cast<int64_t>(size_of(in.type.dtype)));
    }
    counting.reduce(elements, in.type.dtype);
    counting.gather(bytes);
  } else if (op == "exchange") {
    counting.exchange(c.attrs.integers("send_bytes"));
  } else if (op == "send") {
    Sizes bytes(members, 0);
    for (int64_t i = 0; i < members; ++i) bytes[i] = ranks[i] == plan.rank ? 0 : in.bytes;
    counting.exchange(bytes);
  } else {  // all_to_all and the ragged exchange of rows: in.bytes are expected bytes
    counting.exchange(Sizes(members, in.bytes / members));
  }
  return counting.sent();
}

std::vector<LedgerLine> ledger(const Plan& plan, const NodeOf& node_of) {
  std::vector<LedgerLine> lines;
  for (const Segment& segment : plan.segments) {
    if (!segment.parts.empty()) continue;
    for (const Instruction& instruction : segment.instructions) {
      const auto* c = std::get_if<Collective>(&instruction.what);
      if (c == nullptr) continue;
      const bool ragged = !c->in.empty() && plan.slots[c->in[0]].type.ragged;
      lines.push_back({segment.name, instruction.name, c->op->name, plan.groups[c->group].name,
                       ragged, collective_traffic(plan, *c, node_of)});
    }
  }
  return lines;
}

LinkTraffic total(const std::vector<LedgerLine>& lines) {
  LinkTraffic sum;
  for (const LedgerLine& line : lines) sum += line.sent;
  return sum;
}

}  // namespace moetrain
