// The board's steps: two counters per member say what is written and what has been read.
#include "runtime/comm/board.h"

#include <algorithm>

#include "base/error.h"
#include "runtime/comm/verb.h"

namespace moetrain::comm {

namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kPartBytes = 256 * 1024;   // fits the second-level cache; large enough to hide a step
constexpr int64_t kLeastStride = 16 * 1024;  // with many members a part grows instead

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

int64_t Board::part_for(int members) {
  return std::max(kPartBytes, round_up(members * kLeastStride, kPage));
}

int64_t Board::bytes_for(int members) {
  return round_up(members * static_cast<int64_t>(sizeof(Slot)), kPage) +
         members * kDepth * part_for(members);
}

Board::Board(void* memory, std::vector<int> ranks, int me, const Health& health, std::string name)
    : ranks_(std::move(ranks)),
      me_(me),
      health_(health),
      name_(std::move(name)),
      part_bytes_(part_for(members())),
      slots_(static_cast<Slot*>(memory)),
      data_(static_cast<char*>(memory) +
            round_up(members() * static_cast<int64_t>(sizeof(Slot)), kPage)) {}

char* Board::part(int member) const {
  return data_ + (kDepth * member + step_ % kDepth) * part_bytes_;
}

char* Board::open() {
  for (int j = 0; j < members(); ++j) {
    if (j != me_) slots_[j].read.wait(step_ - kDepth + 1, ranks_[j], health_);
  }
  return part(me_);
}

void Board::publish(const Header& header) {
  slots_[me_].headers[step_ % kDepth] = header;
  slots_[me_].written.advance(step_ + 1);
}

const char* Board::peer(int j) {
  slots_[j].written.wait(step_ + 1, ranks_[j], health_);
  return part(j);
}

int64_t Board::verify(int j) {
  slots_[j].written.wait(step_ + 1, ranks_[j], health_);
  const Header& mine = slots_[me_].headers[step_ % kDepth];
  const Header& theirs = slots_[j].headers[step_ % kDepth];
  MT_CHECK(mine.verb == theirs.verb && mine.detail == theirs.detail && mine.size == theirs.size,
           "members of group ", name_, " disagree: rank ", ranks_[me_], " runs ",
           describe_verb(mine.verb, mine.detail, mine.size), ", rank ", ranks_[j], " runs ",
           describe_verb(theirs.verb, theirs.detail, theirs.size));
  return theirs.steps;
}

void Board::close() {
  ++step_;
  slots_[me_].read.advance(step_);
}

}  // namespace moetrain::comm
