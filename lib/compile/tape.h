// Tapes: a segment's work put in order, on lanes, with waits, and with token rows allocated and freed.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compile/shard/reshard.h"
#include "plan/plan.h"

namespace moetrain {

struct OverlapOptions {
  bool on = false;                          ///< off: one lane, order of the graph
  int64_t store_bytes = int64_t{256} << 20;  ///< most that weight gradients put off may keep alive
};

/// A segment before it is a tape: its work (no allocations) in an order that is valid.
struct SegmentWork {
  std::string name;
  int chunk = -1;
  std::vector<Instruction> work;
  std::vector<int> parts;  ///< Segment::parts
};

/// Root slots an instruction reads or writes.
void touched_slots(const Plan& plan, const Instruction& instruction, std::vector<int>& slots);

/// Writes tapes into a plan whose slots, extents and groups are known.
class TapeWriter {
 public:
  /// `segments` are those of one micro-batch in the order it passes them; token rows are freed in the last
  /// that touches them.
  TapeWriter(Plan& plan, const LinkModel& links, const OverlapOptions& overlap,
             const std::vector<SegmentWork>& segments);

  /// Appends the tape of `segment` to the plan.
  void write(const SegmentWork& segment) const;
  /// Appends some of the segments given merged into one: the first is side 0; the others, of another
  /// micro-batch or what follows, are side 1. Values that live inside one segment get slots of their own.
  /// Frames must be placed.
  void write_merged(const std::vector<int>& parts) const;

 private:
  int lane_of(const Instruction& instruction) const;
  std::vector<std::vector<int>> dependencies(const std::vector<Instruction>& work) const;

  Plan& plan_;
  const LinkModel& links_;
  const OverlapOptions overlap_;
  const std::vector<SegmentWork>& segments_;
  std::map<int, int> last_segment_;  ///< ragged root -> index into segments_
};

}  // namespace moetrain
