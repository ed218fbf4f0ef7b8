// First fit with coalescing.
#include "runtime/row_arena.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"

namespace moetrain {

namespace {
int64_t aligned(int64_t bytes) { return std::max<int64_t>(64, (bytes + 63) / 64 * 64); }
}  // namespace

RowArena::RowArena(Device& device, int64_t capacity) : device_(device) {
  if (capacity > 0) add_block(aligned(capacity));
}

RowArena::~RowArena() {
  for (Block& block : blocks_) device_.release(block.base);
}

void RowArena::add_block(int64_t bytes) {
  blocks_.push_back({device_.allocate(static_cast<size_t>(bytes), "token rows"), bytes, {}});
  blocks_.back().free[0] = bytes;
}

std::byte* RowArena::take(Block& block, int64_t bytes) {
  for (auto it = block.free.begin(); it != block.free.end(); ++it) {
    if (it->second < bytes) continue;
    const auto [offset, size] = *it;
    block.free.erase(it);
    if (size > bytes) block.free[offset + bytes] = size - bytes;
    return block.base + offset;
  }
  return nullptr;
}

std::byte* RowArena::allocate(int64_t bytes) {
  bytes = aligned(bytes);
  std::byte* memory = nullptr;
  for (Block& block : blocks_) {
    if ((memory = take(block, bytes))) break;
  }
  if (!memory) {
    const int64_t more = std::max(bytes, capacity() / 4);
    if (!blocks_.empty()) {
      ++growths_;
      log_warning(cat("the arena of token rows grows from ", human_bytes(capacity()), " by ",
                      human_bytes(more),
                      ": routing is less balanced than compute.ragged_headroom allows for"));
    }
    add_block(aligned(more));
    memory = take(blocks_.back(), bytes);
  }
  used_[memory] = bytes;
  in_use_ += bytes;
  peak_ = std::max(peak_, in_use_);
  return memory;
}

void RowArena::release(std::byte* memory) {
  auto used = used_.find(memory);
  MT_CHECK(used != used_.end(), "rows released twice");
  int64_t size = used->second;
  used_.erase(used);
  in_use_ -= size;
  for (Block& block : blocks_) {
    if (memory < block.base || memory >= block.base + block.size) continue;
    int64_t offset = memory - block.base;
    auto next = block.free.lower_bound(offset);
    if (next != block.free.end() && offset + size == next->first) {
      size += next->second;
      next = block.free.erase(next);
    }
    if (next != block.free.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second += size;
        return;
      }
    }
    block.free[offset] = size;
    return;
  }
}

int64_t RowArena::capacity() const {
  int64_t total = 0;
  for (const Block& block : blocks_) total += block.size;
  return total;
}

}  // namespace moetrain
