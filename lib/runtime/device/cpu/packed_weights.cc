// A map of kept weights by address; a write makes the copies of all it overlaps stale.
#include "runtime/device/cpu/packed_weights.h"

#include <algorithm>

namespace moetrain::cpu {

void PackedWeights::keep(const Kernel& kernel, const Tensor& weight, float* data) {
  Weight& w = weights_[reinterpret_cast<uintptr_t>(weight.data)];
  const size_t bytes = static_cast<size_t>(weight.bytes());
  w.bytes = std::max(w.bytes, bytes);
  longest_ = std::max(longest_, bytes);
  w.copies.push_back({&kernel, weight.shape, data, false});
}

PackedWeights::Copy* PackedWeights::find(const Kernel& kernel, const Tensor& weight) {
  const auto at = weights_.find(reinterpret_cast<uintptr_t>(weight.data));
  if (at == weights_.end()) return nullptr;
  for (Copy& c : at->second.copies) {
    if (c.kernel == &kernel && c.shape == weight.shape) return &c;
  }
  return nullptr;
}

void PackedWeights::changed(const void* memory, size_t bytes) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
  auto at = weights_.lower_bound(begin > longest_ ? begin - longest_ : 0);
  for (; at != weights_.end() && at->first < begin + bytes; ++at) {
    if (at->first + at->second.bytes <= begin) continue;
    for (Copy& c : at->second.copies) c.fresh = false;
  }
}

std::vector<float*> PackedWeights::forget(const void* memory, size_t bytes) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
  std::vector<float*> data;
  auto at = weights_.lower_bound(begin);
  while (at != weights_.end() && at->first < begin + bytes) {
    for (const Copy& c : at->second.copies) data.push_back(c.data);
    at = weights_.erase(at);
  }
  return data;
}

}  // namespace moetrain::cpu
