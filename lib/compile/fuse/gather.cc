// Rows are gathered by the products that read them.
#include "compile/fuse/gather.h"

#include "compile/fuse/rebuild.h"
#include "ops/projections.h"
#include "ops/rows.h"

namespace moetrain {

namespace {

class GatherPass {
 public:
  GatherPass(const LocalGraph& local, FusionReport& report)
      : rebuild_(local), old_(local.graph), users_(users_of(local.graph)), report_(report) {}

  LocalGraph run() {
    std::map<Value, int> readers = reader_counts(old_);
    for (int i = 0; i < static_cast<int>(old_.nodes.size()); ++i) {
      const Node& node = old_.nodes[i];
      if (node.op == &ops::kGatherRows) {
        if (can_go(i, readers[{i, 0}])) {
          ++report_.nodes;
          report_.bytes_saved += 2 * expected_bytes(old_, {i, 0});
          continue;
        }
      } else if (const size_t x = rows_operand(node); x < node.inputs.size()) {
        const int source = node.inputs[x].node;
        if (old_.nodes[source].op == &ops::kGatherRows && can_go(source, readers[{source, 0}])) {
          read_through(i, x, old_.nodes[source]);
          continue;
        }
      }
      rebuild_.copy(i);
    }
    return rebuild_.finish();
  }

 private:
  /// The operand of a grouped product that is its rows, or past the end.
  static size_t rows_operand(const Node& node) {
    if (node.attrs.integer_or("grouped", 0) == 0) return node.inputs.size();
    if (node.op == &ops::kProjections) return 0;
    if (node.op == &ops::kProjectionsDw) return ops::projections_dw_operands(node.attrs).x;
    return node.inputs.size();
  }

  /// Everybody who reads the rows can read their source, sorted by the same plan.
  bool can_go(int gather, int readers) const {
    const Node& node = old_.nodes[gather];
    int reading = 0;
    for (int user : users_[gather]) {
      const Node& reader = old_.nodes[user];
      const size_t x = rows_operand(reader);
      if (x >= reader.inputs.size() || reader.inputs[x] != Value{gather, 0} || !sorted_by(reader, node.inputs[1]))
        return false;
      ++reading;
    }
    return reading > 0 && reading == readers;
  }
  static bool sorted_by(const Node& reader, Value plan) {
    const auto at = reader.op == &ops::kProjections ? ops::projections_operands(reader.attrs)
                                                    : ops::projections_dw_operands(reader.attrs);
    return at.plan > 0 && reader.inputs[at.plan] == plan;
  }

  void read_through(int index, size_t x, const Node& gather) {
    const Node& node = old_.nodes[index];
    std::vector<Value> inputs = rebuild_.values_but(node.inputs, x);
    inputs[x] = rebuild_.value(gather.inputs[0]);
    Attrs attrs = node.attrs;
    attrs.set("gather", int64_t{1});
    attrs.set("top_k", gather.attrs.integer("top_k"));
    if (node.op == &ops::kProjections) {
      attrs.set("which", gather.attrs.integer("which"));
      attrs.set("capacity", gather.attrs.integer("capacity"));
      inputs.push_back(rebuild_.value(gather.inputs[2]));
    }
    const int made = rebuild_.append(*node.op, std::move(inputs), std::move(attrs), index);
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      rebuild_.map({index, static_cast<int>(k)}, {made, static_cast<int>(k)});
    }
  }

  Rebuild rebuild_;
  const Graph& old_;
  const std::vector<std::vector<int>> users_;
  FusionReport& report_;
};

}  // namespace

LocalGraph fuse_gather(const LocalGraph& local, FusionReport& report) {
  return GatherPass(local, report).run();
}

}  // namespace moetrain
