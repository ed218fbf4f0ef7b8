// Which layers go to which stage when nobody says: the slowest chunk as fast as can be.
#pragma once

#include <cstdint>
#include <vector>

namespace moetrain {

/// Number of layers of each chunk: runs of `costs` whose largest sum is least, `lead` being added to the
/// first run and `tail` to the last; among those the most even ones, then the ones with more layers in
/// front. Every chunk has a layer, except perhaps the last of several where it has a tail. Costs are
/// positive, there are at least as many as chunks.
std::vector<int64_t> balanced_layers(const std::vector<double>& costs, double lead, double tail,
                                     int chunks);

}  // namespace moetrain
