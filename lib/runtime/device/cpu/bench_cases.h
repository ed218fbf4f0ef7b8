// The shapes of training as benchmark cases: one op, its attributes, its operands.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "graph/op.h"
#include "runtime/device/cpu/bench.h"

namespace moetrain::cpu {

/// An operand: its type, its rows at run time if ragged, and its integer contents if it has any.
struct BenchOperand {
  Type type;
  int64_t rows = 0;
  std::vector<int32_t> integers;
};

struct BenchCase {
  const OpDef* op;
  Attrs attrs;
  std::vector<BenchOperand> operands;
  std::string shape;
  int64_t rows = 0;  ///< of ragged outputs
};

std::vector<BenchCase> bench_cases(const BenchKernelOptions& options, DType dtype);

}  // namespace moetrain::cpu
