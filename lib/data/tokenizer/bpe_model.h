// Byte-pair merging of one piece: bytes in, ids out, exactly in the order of the merge ranks.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/json_io.h"

namespace moetrain {

/// Ids by token as the file spells it; the texts belong to a TokenizerSpec.
using TokenIds = std::unordered_map<std::string_view, int32_t>;

/// Merges lowest rank first, leftmost on ties. Const and thread-safe with one Scratch per thread.
/// Short pieces are scanned; long ones use a heap with stale-entry check: n log n for any text.
class BpeModel {
 public:
  /// `ids` holds spec.vocab. UserError (naming `path`) when a byte symbol, or a part or result of a
  /// merge, is not in the vocabulary.
  BpeModel(const TokenizerSpec& spec, const TokenIds& ids, const std::string& path);

  /// Pieces seen before and working memory, of one thread.
  class Scratch {
   public:
    Scratch() : slots_(size_t{1} << 16) {}

   private:
    friend class BpeModel;
    static constexpr size_t kKeyBytes = 23, kIds = 9;
    struct alignas(64) Slot {
      std::array<uint64_t, 3> key{};  // up to 23 bytes, the last byte is their count
      int32_t count = 0;
      std::array<int32_t, kIds> ids{};
    };
    std::vector<Slot> slots_;
    std::vector<int32_t> symbols_, next_, previous_;
    std::vector<uint64_t> heap_;
  };

  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    uint64_t pair = ~uint64_t{0};
    uint32_t rank = 0xffffffffu;
    int32_t id = -1;
  };
  Merge find(int32_t a, int32_t b) const;
  void insert(int32_t a, int32_t b, uint32_t rank, int32_t id);
  void merge(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;
  void merge_short(std::string_view piece, std::vector<int32_t>& ids) const;
  void merge_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> byte_ids_{};
  std::vector<Merge> table_;
  int shift_ = 0;
  std::unordered_map<std::string, int32_t> whole_;  // only with ignore_merges: piece bytes to id
};

}  // namespace moetrain
