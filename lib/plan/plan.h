// The contract between compiler and runtime: one rank's tape, with every buffer and every wait decided.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain {

/// Where a slot's memory comes from.
enum class Home : uint8_t {
  kState,   ///< lives from step to step; the trainer fills and saves it
  kInput,   ///< fed by the trainer before a segment
  kOutput,  ///< read by the trainer after a segment
  kArena,   ///< planned offset in the static arena
  kFrame,   ///< planned offset in the frame of a micro-batch in flight
  kRagged,  ///< allocated by the tape at its actual size
  kHost,    ///< a few integers on the host (bound counts)
};

/// A buffer of one rank. A slot with `alias` >= 0 shares the memory of that slot.
struct Slot {
  std::string name;
  Type type;           ///< local type; ragged: shape[1] is the capacity in rows per expert, unused
  Home home = Home::kArena;
  int alias = -1;
  int64_t offset = 0;  ///< bytes into the arena (kArena) or the frame (kFrame, kInput with a frame)
  int64_t bytes = 0;   ///< for kRagged: at the expected row count
  int extent = -1;     ///< kRagged: index of the extent that gives its rows
  int frame = -1;      ///< frame group of what belongs to one micro-batch; -1: there is one of it
};

/// A row count known at run time only.
struct Extent {
  std::string name;
  int64_t expected = 0;  ///< rows at balanced routing
  int64_t largest = 0;   ///< rows at worst
  int frame = 0;         ///< frame group it is counted in
};

/// Runs one op on slots.
struct Launch {
  const OpDef* op = nullptr;
  Attrs attrs;
  std::vector<int> in, out;
};

/// Gives one collective op to the communicator of `group`.
struct Collective {
  const OpDef* op = nullptr;
  Attrs attrs;
  std::vector<int> in, out;
  int group = -1;
};

/// Copies count tensors to the host and binds extents to their sums: the one wait for the host.
struct Bind {
  std::vector<int> counts;   ///< slots
  std::vector<int> extents;  ///< extent i = sum of counts i
  int host = -1;             ///< the slot other instructions name to reach the host copies
};

struct Alloc {
  int slot = -1;
};
struct Free {
  int slot = -1;
};

/// Lanes of the executor: kernels, collectives whose group spans nodes, those inside one node, and messages
/// received from other pipeline stages. Without overlap everything runs on kComputeLane.
enum : int { kComputeLane = 0, kInterLane = 1, kIntraLane = 2, kStageLane = 3, kLaneCount = 4 };
const char* lane_name(int lane);

struct Instruction {
  std::variant<Launch, Collective, Bind, Alloc, Free> what;
  int lane = kComputeLane;
  std::vector<int> waits;  ///< earlier instructions of the segment, on other lanes
  int done = -1;           ///< instruction by which the compute lane has waited for it (itself, on that lane)
  int side = 0;            ///< of a merged segment: whose micro-batch (Segment::parts)
  int node = -1;           ///< of the local graph
  std::string name;
  Tag tag;
  double seconds = 0;      ///< predicted
};

/// A run of instructions that the timetable plays as one: "step" and "update", or, with micro-batches in
/// flight, "F.c", "B.c", "W.c" of the chunks c of this stage and "update". A merged segment plays others at
/// once, the first as side 0 and the rest as side 1, each side with a micro-batch of its own: "F.0|B.1" is a
/// forward pass beside a backward pass, "B.0|update" the last backward pass beside the update.
struct Segment {
  std::string name;
  std::vector<Instruction> instructions;
  int chunk = -1;           ///< local chunk it passes (merged: that of side 0); -1: the update
  std::vector<int> frames;  ///< frame groups it touches
  std::vector<int> parts;   ///< indices of the segments it merges; empty for all others
};

/// Slots of one chunk for one micro-batch in flight, `count` times.
struct FrameGroup {
  int64_t bytes = 0;
  int count = 1;
};

struct RankGroup {
  std::string name;
  std::vector<int> ranks;
};

/// A state, input or output as the trainer sees it. `begin`/`shape` is this rank's box of the global
/// tensor; `partial` states hold an addend only. `owner`: this rank is the one that saves the box.
struct Port {
  std::string name;
  int slot = -1;
  Type global;
  std::vector<int64_t> begin, extent;
  bool partial = false;
  bool owner = true;
};

struct Plan {
  int rank = 0, world = 1;
  std::vector<Slot> slots;
  std::vector<Extent> extents;
  std::vector<RankGroup> groups;
  std::vector<Segment> segments;
  std::vector<Port> states, inputs, outputs;
  std::vector<FrameGroup> frames;
  int64_t arena_bytes = 0;
  int64_t ragged_bytes = 0;        ///< peak at balanced routing
  int64_t ragged_bytes_worst = 0;  ///< peak when every row that can arrive does

  const Segment& segment(const std::string& name) const;
  int64_t state_bytes() const;
  /// All frames of all groups.
  int64_t frame_bytes() const;
};

/// The slot whose memory `slot` is: what it is an alias of, in the end.
int root_slot(const Plan& plan, int slot);
/// Rows of the launch's first result (1 of a scalar, 0 without a result), at balanced routing.
int64_t expected_rows(const Plan& plan, const Launch& launch);

/// The whole plan as text: slots, groups, tape.
std::string print(const Plan& plan);
/// One line per collective, in the order of the graph: name, op, group, bytes this rank sends. Ragged ones at
/// expected rows. Merged segments are left out.
std::string print_collectives(const Plan& plan);
/// A hash that equals on all ranks of a pipeline stage when their plans belong together (same segments,
/// ops, names).
uint64_t agreement_hash(const Plan& plan);
/// Per stream between stages, in the order of names: a hash of the messages one step passes through it.
/// Equal at both ends.
std::map<std::string, uint64_t> stream_hashes(const Plan& plan);

/// The group's view that collectives need: bytes one rank sends for this instruction (expected rows).
int64_t sent_bytes(const Plan& plan, const Collective& collective);

}  // namespace moetrain
