// The arena of token rows: buffers whose size is known only when the tape reaches them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "runtime/device/device.h"

namespace moetrain {

/// First-fit allocator over one big block of device memory; adds a block when nothing fits. Blocks are
/// kept for the life of the arena, so a steady step allocates nothing from the device.
class RowArena {
 public:
  RowArena(Device& device, int64_t capacity);
  ~RowArena();
  RowArena(const RowArena&) = delete;
  RowArena& operator=(const RowArena&) = delete;

  std::byte* allocate(int64_t bytes);
  void release(std::byte* memory);
  int64_t growths() const { return growths_; }
  int64_t capacity() const;
  int64_t peak() const { return peak_; }

 private:
  struct Block {
    std::byte* base;
    int64_t size;
    std::map<int64_t, int64_t> free;  // offset -> bytes, coalesced
  };
  std::byte* take(Block& block, int64_t bytes);
  void add_block(int64_t bytes);

  Device& device_;
  std::vector<Block> blocks_;
  std::map<std::byte*, int64_t> used_;
  int64_t growths_ = 0, in_use_ = 0, peak_ = 0;
};

}  // namespace moetrain
