// The board: memory that the members of a group on one node share, exchanged in steps of bounded size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/comm/wait.h"

namespace moetrain::comm {

/// Each member owns a slot of kDepth parts used in turn. One step: every member writes its part,
/// publishes it, reads the others' parts, and is done. Writing step s only waits for the readers of step
/// s - kDepth, so members may drift apart a little without waiting. All take the same number of steps.
///
///   char* mine = board.open();  fill(mine);  board.publish(header);
///   for (int j : others) use(board.peer(j));
///   board.close();
class Board {
 public:
  static constexpr uint32_t kDepth = 4;  // a power of two: steps may wrap

  /// What a step announces: members must agree on verb, detail and size; steps may differ.
  struct Header {
    int32_t verb = 0, detail = 0;
    int64_t size = 0;
    int64_t steps = 0;  // how many steps this member needs (ragged verbs)
  };

  /// Bytes of shared memory for `members` slots.
  static int64_t bytes_for(int members);

  /// `memory` is zeroed, shared by all members and outlives the board. `ranks` are the members' world
  /// ranks; `me` this one's place.
  Board(void* memory, std::vector<int> ranks, int me, const Health& health, std::string name);

  int members() const { return static_cast<int>(ranks_.size()); }
  int me() const { return me_; }
  /// Bytes a step can carry per member.
  int64_t part_bytes() const { return part_bytes_; }
  /// What is for one of the members when a part is divided among them; a multiple of 64.
  int64_t stride() const { return part_bytes_ / members() / 64 * 64; }

  char* open();
  void publish(const Header& header);
  /// Member j's part of this step; blocks until published. The first look at a member in a verb
  /// should be verify().
  const char* peer(int j);
  /// Waits for member j and throws InternalError unless it runs the same verb; returns its steps.
  int64_t verify(int j);
  void close();

 private:
  struct Slot {
    Counter written, read;
    Header headers[kDepth];
  };
  static int64_t part_for(int members);
  char* part(int member) const;

  std::vector<int> ranks_;
  int me_;
  const Health& health_;
  std::string name_;
  int64_t part_bytes_;
  Slot* slots_;
  char* data_;
  uint32_t step_ = 0;
};

}  // namespace moetrain::comm
