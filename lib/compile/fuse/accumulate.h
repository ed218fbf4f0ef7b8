// Gradient accumulation moves into the products that make the gradients.
#pragma once

#include "compile/partition.h"

namespace moetrain {

/// Every accumulate happens as soon as its addend exists; a weight-gradient product (dense, grouped,
/// embedding) adds straight into the accumulator, so no gradient is stored twice. Sums of several
/// gradients of one parameter become several additions, in the order of their producers.
LocalGraph fuse_accumulate(const LocalGraph& local);

}  // namespace moetrain
