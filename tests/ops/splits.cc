// The question about sharding: does every free factor, split two ways, give the global result?
#include <gtest/gtest.h>

#include <cmath>
#include <algorithm>

#include "base/text.h"
#include "harness.h"

namespace moetrain::test {
namespace {

using Term = std::vector<std::string>;

/// The dim of `term` whose first factor is `factor`; -1 if none.
int dim_of(const Term& term, char factor) {
  for (size_t d = 0; d < term.size(); ++d) {
    if (!term[d].empty() && term[d][0] == factor) return static_cast<int>(d);
  }
  return -1;
}

/// Is `factor` the minor part of a merged dim anywhere? (Such a split is no slice.)
bool minor_somewhere(const Rule& rule, char factor) {
  auto minor = [&](const std::vector<Term>& terms) {
    for (const Term& term : terms) {
      for (const std::string& dim : term) {
        const size_t at = dim.find(factor);
        if (at != std::string::npos && at > 0) return true;
      }
    }
    return false;
  };
  return minor(rule.operands) || minor(rule.results);
}

/// Half `half` of dim `dim`, in place.
void halve(Shape& shape, std::vector<double>& values, int dim, int half) {
  int64_t outer = 1, inner = 1;
  for (int d = 0; d < dim; ++d) outer *= shape[d];
  for (size_t d = dim + 1; d < shape.size(); ++d) inner *= shape[d];
  const int64_t size = shape[dim], part = size / 2;
  std::vector<double> kept;
  for (int64_t o = 0; o < outer; ++o) {
    const auto begin = values.begin() + (o * size + half * part) * inner;
    kept.insert(kept.end(), begin, begin + part * inner);
  }
  values = std::move(kept);
  shape[dim] = part;
}

/// Rows of a ragged operand that each half gets: whole experts for dim 0, half of every expert's rows
/// for dim 1.
struct RowSplit {
  std::vector<int64_t> rows[2];
  std::vector<int64_t> offsets[2];  ///< the halves' plan offsets
};

RowSplit split_rows(const std::vector<int64_t>& offsets, int ragged_dim) {
  RowSplit split;
  const int64_t experts = static_cast<int64_t>(offsets.size()) - 1;
  for (int half = 0; half < 2; ++half) {
    split.offsets[half].push_back(0);
    for (int64_t e = 0; e < experts; ++e) {
      int64_t begin = offsets[e], end = offsets[e + 1];
      if (ragged_dim == 0) {
        if ((e < experts / 2) != (half == 0)) continue;
      } else {
        const int64_t middle = begin + (end - begin) / 2;
        (half == 0 ? end : begin) = middle;
      }
      for (int64_t r = begin; r < end; ++r) split.rows[half].push_back(r);
      split.offsets[half].push_back(static_cast<int64_t>(split.rows[half].size()));
    }
  }
  return split;
}

void keep_rows(std::vector<double>& values, int64_t width, const std::vector<int64_t>& rows) {
  std::vector<double> kept;
  for (int64_t r : rows) {
    kept.insert(kept.end(), values.begin() + r * width, values.begin() + (r + 1) * width);
  }
  values = std::move(kept);
}

/// How factor `factor` cuts ragged values: 0 experts, 1 rows, -1 not at all.
int ragged_cut(const Rule& rule, const OpCase& c, char factor) {
  int cut = -1;
  for (size_t i = 0; i < c.operands.size(); ++i) {
    const int d = dim_of(rule.operands[i], factor);
    if (c.operands[i].type.ragged && d >= 0 && d < 2) cut = d;
  }
  return cut;
}

struct Half {
  std::vector<Operand> operands;
  Attrs attrs;
  std::vector<int64_t> rows;
};

Half take_half(const Rule& rule, const OpCase& c, char factor, int half) {
  Half h{c.operands, c.attrs, {}};
  const int cut = ragged_cut(rule, c, factor);
  RowSplit split;
  for (size_t i = 0; i < c.operands.size() && cut >= 0; ++i) {
    if (!c.operands[i].type.ragged) continue;
    // The plan is the rank-1 i32 operand; without one every row stands alone.
    std::vector<int64_t> offsets{0, c.operands[i].rows / 2, c.operands[i].rows};
    int ragged_dim = 0;
    for (const Operand& other : c.operands) {
      if (other.type.dtype != DType::kI32 || other.type.shape.size() != 1) continue;
      offsets.assign(other.values.begin(), other.values.begin() + c.operands[i].type.shape[0] + 1);
      ragged_dim = cut;
    }
    split = split_rows(offsets, ragged_dim);
    h.rows = split.rows[half];
  }
  for (size_t i = 0; i < h.operands.size(); ++i) {
    Operand& operand = h.operands[i];
    const int d = dim_of(rule.operands[i], factor);
    if (operand.type.ragged) {
      const int64_t width = operand.type.shape[2];
      if (d >= 2) {
        Shape stored{operand.rows, width};
        halve(stored, operand.values, d - 1, half);
        operand.type.shape[2] = stored[1];
      } else if (d >= 0) {
        keep_rows(operand.values, width, h.rows);
        operand.rows = static_cast<int64_t>(h.rows.size());
        if (d == 0) operand.type.shape[0] /= 2;
      }
    } else if (d >= 0) {
      halve(operand.type.shape, operand.values, d, half);
    } else if (cut >= 0 && operand.type.dtype == DType::kI32 && operand.type.shape.size() == 1) {
      for (size_t e = 0; e < split.offsets[half].size(); ++e) {
        operand.values[e] = static_cast<double>(split.offsets[half][e]);
      }
    }
  }
  const int result_dim = dim_of(rule.results[0], factor);
  if (h.attrs.has("shape") && result_dim >= 0) {
    Shape shape = h.attrs.integers("shape");
    shape[result_dim] /= 2;
    h.attrs.set("shape", shape);
  }
  return h;
}

/// The global result from the halves', by the law.
Result join_halves(const Rule& rule, const OpCase& c, char factor, size_t result,
                   const Result& whole, const std::vector<Result> halves[2], const Half h[2]) {
  const Type& type = c.results[result];
  int d = dim_of(rule.results[result], factor);
  Result joined{whole.shape, std::vector<double>(whole.values.size(), 0.0)};
  if (type.ragged && (d == 0 || d == 1)) {
    const int64_t width = type.shape[2];
    for (int half = 0; half < 2; ++half) {
      for (size_t r = 0; r < h[half].rows.size(); ++r) {
        for (int64_t w = 0; w < width; ++w) {
          joined.values[h[half].rows[r] * width + w] = halves[half][result].values[r * width + w];
        }
      }
    }
    return joined;
  }
  if (type.ragged && d >= 2) --d;
  if (d < 0) {
    const bool summed = std::any_of(rule.operands.begin(), rule.operands.end(),
                                    [&](const Term& t) { return dim_of(t, factor) >= 0; });
    for (size_t e = 0; e < joined.values.size(); ++e) {
      const double a = halves[0][result].values[e], b = halves[1][result].values[e];
      // Indices (i32: a dispatch plan) are no sums: both halves must say the same.
      const bool copies = !summed || type.dtype == DType::kI32;
      joined.values[e] = copies ? (a == b ? a : std::nan("")) : a + b;
    }
    return joined;
  }
  int64_t inner = 1, outer = 1;
  for (int k = 0; k < d; ++k) outer *= whole.shape[k];
  for (size_t k = d + 1; k < whole.shape.size(); ++k) inner *= whole.shape[k];
  const int64_t part = whole.shape[d] / 2 * inner;
  for (int64_t o = 0; o < outer; ++o) {
    for (int half = 0; half < 2; ++half) {
      for (int64_t e = 0; e < part; ++e) {
        joined.values[(o * 2 + half) * part + e] = halves[half][result].values[o * part + e];
      }
    }
  }
  return joined;
}

/// Size of a factor, from a dim it has alone; 1 if it only occurs in merged dims.
int64_t size_of_factor(const Rule& rule, const OpCase& c, char factor) {
  auto alone = [&](const Term& term) {
    const int d = dim_of(term, factor);
    return d >= 0 && term[d].size() == 1 ? d : -1;
  };
  for (size_t i = 0; i < c.operands.size(); ++i) {
    const int d = alone(rule.operands[i]);
    if (d >= 0) return c.operands[i].type.shape[d];
  }
  for (size_t r = 0; r < c.results.size(); ++r) {
    const int d = alone(rule.results[r]);
    if (d >= 0) return c.results[r].shape[d];
  }
  return 1;
}

}  // namespace

void check_splits(const OpCase& c) {
  const Rule rule = rule_for(c);
  ASSERT_EQ(rule.results.size(), c.results.size());
  for (size_t r = 0; r < c.results.size(); ++r) {
    EXPECT_EQ(rule.results[r].size(), c.results[r].shape.size()) << "rule of result " << r;
  }
  const std::vector<Result> whole = run(*c.op, c.attrs, c.operands);
  const bool moves_tokens = !rule.local.empty() && rule.local.find('e') != std::string::npos;
  for (char factor : rule.factors) {
    const bool free = rule.whole.find(factor) == std::string::npos &&
                      rule.local.find(factor) == std::string::npos;
    if (!free || minor_somewhere(rule, factor) || size_of_factor(rule, c, factor) % 2 != 0) continue;
    // Tokens of dispatch and combine are cut together with their plan: see experts_test.
    if (moves_tokens && (factor == 'b' || factor == 's' || factor == 't')) continue;
    Half h[2];
    std::vector<Result> halves[2];
    for (int half = 0; half < 2; ++half) {
      h[half] = take_half(rule, c, factor, half);
      halves[half] = run(*c.op, h[half].attrs, h[half].operands);
    }
    for (size_t r = 0; r < whole.size(); ++r) {
      const Result joined = join_halves(rule, c, factor, r, whole[r], halves, h);
      expect_near(joined.values, whole[r].values, 1e-11,
                  cat("factor ", factor, " split, result ", r));
    }
  }
}

}  // namespace moetrain::test
