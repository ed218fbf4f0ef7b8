// The merge table (open addressing), the cache of whole pieces, and the two merge loops.
#include "data/tokenizer/bpe_model.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "data/tokenizer/byte_alphabet.h"

namespace moetrain {
namespace {

constexpr size_t kShort = 48;  // longest piece that is scanned instead of heaped
constexpr uint64_t kMix = 0x9E3779B97F4A7C15ull;

uint64_t pair_of(int32_t a, int32_t b) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32) | static_cast<uint32_t>(b);
}

}  // namespace

BpeModel::BpeModel(const TokenizerSpec& spec, const TokenIds& ids, const std::string& path) {
  const auto refuse = [&](std::string where, std::string what) {
    throw UserError({{path, cat(where, ": ", what)}});
  };
  for (int b = 0; b < 256; ++b) {
    const std::string& symbol = byte_symbol(static_cast<unsigned char>(b));
    const auto it = ids.find(symbol);
    if (it == ids.end())
      refuse("model.vocab",
             cat("no token for byte ", b, " (\"", symbol, "\"); byte-level BPE needs all 256"));
    byte_ids_[static_cast<size_t>(b)] = it->second;
  }
  const size_t slots = std::bit_ceil(std::max<size_t>(16, spec.merges.size() * 2));
  shift_ = 64 - std::countr_zero(slots);
  table_.resize(slots);
  std::string joined;
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto& [a, b] = spec.merges[rank];
    joined = a + b;
    const auto left = ids.find(a), right = ids.find(b), both = ids.find(joined);
    for (const auto& [it, token] :
         {std::pair(left, &a), std::pair(right, &b), std::pair(both, &std::as_const(joined))}) {
      if (it == ids.end())
        refuse(cat("model.merges[", rank, "]"), cat("\"", *token, "\" is not in the vocabulary"));
    }
    insert(left->second, right->second, static_cast<uint32_t>(rank), both->second);
  }
  if (!spec.ignore_merges) return;
  for (const auto& [token, id] : spec.vocab)
    whole_.emplace(from_symbols(token), static_cast<int32_t>(id));
}

void BpeModel::insert(int32_t a, int32_t b, uint32_t rank, int32_t id) {
  const uint64_t pair = pair_of(a, b);
  size_t at = (pair * kMix) >> shift_;
  while (table_[at].pair != ~uint64_t{0} && table_[at].pair != pair)
    at = (at + 1) & (table_.size() - 1);
  table_[at] = {pair, rank, id};  // a pair listed twice keeps its last rank, as in the reference
}

BpeModel::Merge BpeModel::find(int32_t a, int32_t b) const {
  const uint64_t pair = pair_of(a, b);
  size_t at = (pair * kMix) >> shift_;
  while (table_[at].pair != pair) {
    if (table_[at].pair == ~uint64_t{0}) return {};
    at = (at + 1) & (table_.size() - 1);
  }
  return table_[at];
}

void BpeModel::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (piece.size() == 1) {
    ids.push_back(byte_ids_[static_cast<unsigned char>(piece[0])]);
    return;
  }
  if (piece.size() > Scratch::kKeyBytes) return merge(piece, scratch, ids);
  std::array<uint64_t, 3> key{};
  std::memcpy(key.data(), piece.data(), piece.size());
  key[2] |= static_cast<uint64_t>(piece.size()) << 56;
  const uint64_t mixed =
      ((key[0] * kMix) ^ std::rotl(key[1] * kMix, 23) ^ std::rotl(key[2] * kMix, 41)) * kMix;
  Scratch::Slot& slot = scratch.slots_[mixed >> 48];
  if (slot.key == key) {
    ids.insert(ids.end(), slot.ids.begin(), slot.ids.begin() + slot.count);
    return;
  }
  const size_t before = ids.size();
  merge(piece, scratch, ids);
  const size_t count = ids.size() - before;
  if (count > Scratch::kIds) return;
  slot.key = key;
  slot.count = static_cast<int32_t>(count);
  std::copy(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end(), slot.ids.begin());
}

void BpeModel::merge(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (!whole_.empty()) {
    if (const auto it = whole_.find(std::string(piece)); it != whole_.end()) {
      ids.push_back(it->second);
      return;
    }
  }
  if (piece.size() <= kShort) return merge_short(piece, ids);
  merge_long(piece, scratch, ids);
}

void BpeModel::merge_short(std::string_view piece, std::vector<int32_t>& ids) const {
  int32_t symbols[kShort];
  Merge pairs[kShort];
  size_t n = piece.size();
  for (size_t i = 0; i < n; ++i) symbols[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
  for (size_t i = 0; i + 1 < n; ++i) pairs[i] = find(symbols[i], symbols[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) best = pairs[i].rank < pairs[best].rank ? i : best;
    if (pairs[best].id < 0) break;
    symbols[best] = pairs[best].id;
    std::copy(symbols + best + 2, symbols + n, symbols + best + 1);
    std::copy(pairs + best + 1, pairs + n - 1, pairs + best);
    --n;
    if (best > 0) pairs[best - 1] = find(symbols[best - 1], symbols[best]);
    if (best + 1 < n) pairs[best] = find(symbols[best], symbols[best + 1]);
  }
  ids.insert(ids.end(), symbols, symbols + n);
}

// A heap of (rank, position); an entry is stale when the pair now at that position has another
// rank.
void BpeModel::merge_long(std::string_view piece, Scratch& scratch,
                          std::vector<int32_t>& ids) const {
  auto& symbols = scratch.symbols_;
  auto& next = scratch.next_;
  auto& previous = scratch.previous_;
  auto& heap = scratch.heap_;
  const auto n = static_cast<int32_t>(piece.size());
  symbols.resize(piece.size());
  next.resize(piece.size());
  previous.resize(piece.size());
  heap.clear();
  for (int32_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    symbols[at] = byte_ids_[static_cast<unsigned char>(piece[at])];
    next[at] = i + 1 < n ? i + 1 : -1;
    previous[at] = i - 1;
  }
  const auto entry = [](uint32_t rank, int32_t at) {
    return (static_cast<uint64_t>(rank) << 32) | static_cast<uint32_t>(at);
  };
  const auto pair_at = [&](int32_t at) {
    const int32_t after = next[static_cast<size_t>(at)];
    return after < 0 ? Merge{}
                     : find(symbols[static_cast<size_t>(at)], symbols[static_cast<size_t>(after)]);
  };
  const auto push = [&](int32_t at) {
    const Merge merge = pair_at(at);
    if (merge.id < 0) return;
    heap.push_back(entry(merge.rank, at));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (int32_t i = 0; i + 1 < n; ++i) {
    const Merge merge = pair_at(i);
    if (merge.id >= 0) heap.push_back(entry(merge.rank, i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t top = heap.back();
    heap.pop_back();
    const auto at = static_cast<int32_t>(top & 0xffffffffu);
    auto& symbol = symbols[static_cast<size_t>(at)];
    if (symbol < 0) continue;  // merged into its left neighbour
    const Merge merge = pair_at(at);
    if (merge.id < 0 || merge.rank != top >> 32) continue;
    const int32_t gone = next[static_cast<size_t>(at)], after = next[static_cast<size_t>(gone)];
    symbol = merge.id;
    symbols[static_cast<size_t>(gone)] = -1;
    next[static_cast<size_t>(at)] = after;
    if (after >= 0) previous[static_cast<size_t>(after)] = at;
    push(at);
    if (previous[static_cast<size_t>(at)] >= 0) push(previous[static_cast<size_t>(at)]);
  }
  for (int32_t at = 0; at >= 0; at = next[static_cast<size_t>(at)])
    ids.push_back(symbols[static_cast<size_t>(at)]);
}

}  // namespace moetrain
