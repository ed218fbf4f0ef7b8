// Attention forward and backward: causal, documents, positions of a sequence split, odd widths.
#include "ops/attention.h"

#include "kernels/harness.h"

namespace moetrain::cpu::testing {
namespace {

using Attention = EachTarget;

struct Problem {
  int64_t b, s, z, h, n, r, v;
  std::vector<int32_t> q_pos, k_pos, q_start;  // [b, s], [b, z], [b, s]
};

/// Plain causal attention over s positions, with documents of `document` tokens (0: none).
Problem causal(int64_t b, int64_t s, int64_t h, int64_t n, int64_t r, int64_t v, int64_t document) {
  Problem p{b, s, s, h, n, r, v, {}, {}, {}};
  for (int64_t i = 0; i < b * s; ++i) {
    const int32_t pos = static_cast<int32_t>(i % s);
    p.q_pos.push_back(pos), p.k_pos.push_back(pos);
    p.q_start.push_back(
        document ? pos / static_cast<int32_t>(document) * static_cast<int32_t>(document) : 0);
  }
  return p;
}

/// Queries of two pieces of a sequence (a balanced split over two ranks), all keys.
Problem pieces() {
  Problem p{1, 40, 80, 2, 6, 4, 5, {}, {}, {}};
  for (int32_t i = 0; i < 20; ++i) p.q_pos.push_back(i);
  for (int32_t i = 60; i < 80; ++i) p.q_pos.push_back(i);
  for (int32_t i = 0; i < 80; ++i) p.k_pos.push_back(i);
  p.q_start.assign(40, 0);
  return p;
}

/// Queries before every key see nothing.
Problem blind() {
  Problem p{1, 9, 7, 2, 4, 2, 4, {}, {}, {}};
  for (int32_t i = 0; i < 9; ++i) p.q_pos.push_back(i);
  for (int32_t i = 0; i < 7; ++i) p.k_pos.push_back(i + 5);
  p.q_start.assign(9, 0);
  return p;
}

Case forward_case(const Problem& p, DType t, const Attrs& attrs) {
  Case forward(ops::kAttention, attrs);
  forward.normal(t, {p.b, p.s, p.h, p.n + p.r})
      .normal(t, {p.b, p.z, p.h, p.n + p.v})
      .normal(t, {p.b, p.z, p.r})
      .integers({p.b, p.s}, p.q_pos)
      .integers({p.b, p.z}, p.k_pos)
      .integers({p.b, p.s}, p.q_start);
  return forward;
}

/// The backward pass of `forward`: its operands and the reference's results.
Case backward_case(const Problem& p, DType t, const Case& forward) {
  Case backward(ops::kAttentionGrad, forward.attrs());
  backward.normal(t, {p.b, p.s, p.h, p.v});
  for (size_t i : {0, 1, 2}) backward.operand_of(forward, i);
  backward.result_of(forward, 0, t).result_of(forward, 1, DType::kF32);
  for (size_t i : {3, 4, 5}) backward.operand_of(forward, i);
  return backward;
}

void check(const Problem& p, DType t) {
  const Attrs attrs{{"nope", p.n}, {"scale", 0.4}};
  const Case forward = forward_case(p, t, attrs);
  // With bf16 operands probabilities and score gradients are rounded to bf16 before they are
  // multiplied.
  const double loss = t == DType::kBF16 ? 0x1p-7 : 3e-6;
  forward.check({Bound{loss}, Bound{3e-6}});
  backward_case(p, t, forward).check({Bound{2 * loss}, Bound{2 * loss}, Bound{2 * loss}});
}

TEST_P(Attention, MatchesReference) {
  for (DType t : {DType::kF32, DType::kBF16}) {
    check(causal(2, 29, 3, 8, 4, 6, 0), t);
    check(causal(1, 130, 2, 16, 8, 24, 0), t);
    check(causal(1, 70, 1, 5, 2, 3, 0), t);    // odd widths
    check(causal(2, 67, 2, 66, 2, 70, 0), t);  // wider than a panel
    check(causal(1, 1, 1, 2, 2, 1, 0), t);
    check(causal(2, 150, 2, 8, 4, 8, 11), t);  // documents
    check(pieces(), t);
    check(blind(), t);
  }
}

TEST_P(Attention, LongRowsTakeSeveralRuns) { check(causal(1, 1100, 1, 4, 2, 4, 0), DType::kF32); }
TEST_P(Attention, LongRowsTakeSeveralRunsInBf16) {
  check(causal(1, 600, 1, 4, 2, 4, 0), DType::kBF16);
}

// The softmax of one key is constant: no rounding of dout . o against dout . v may show.
TEST_P(Attention, OneKeyHasNoScoreGradient) {
  const Attrs attrs{{"nope", int64_t{12}}, {"scale", 0.4}};
  for (const DType t : {DType::kF32, DType::kBF16}) {
    for (const Problem& p : {causal(2, 1, 3, 12, 8, 14, 0), causal(2, 40, 2, 12, 8, 14, 1)}) {
      const Case backward = backward_case(p, t, forward_case(p, t, attrs));
      const auto values = backward.kernel_values(1);
      for (const double dq : values[0]) ASSERT_EQ(dq, 0);
      for (const double dkr : values[2]) ASSERT_EQ(dkr, 0);
    }
  }
}

MOETRAIN_ON_EACH_TARGET(Attention);

}  // namespace
}  // namespace moetrain::cpu::testing
