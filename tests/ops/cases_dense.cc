// Cases of dense operators: products, norm, activation, embedding, loss, rotation, attention.
#include "harness.h"
#include "ops/attention.h"
#include "ops/embedding.h"
#include "ops/fused_norm.h"
#include "ops/fused_rope.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/swiglu.h"
#include "ops/vocab_loss.h"

namespace moetrain::test {

using namespace ops;

namespace {

Operand tokens(double vocab, Shape shape) {
  Operand ids = integers(shape, std::vector<double>(numel(shape)));
  for (size_t i = 0; i < ids.values.size(); ++i) {
    ids.values[i] = static_cast<double>((i * 5 + 3) % static_cast<size_t>(vocab));
  }
  return ids;
}

Operand positions(int64_t batch, int64_t length) {
  Operand pos = integers({batch, length}, std::vector<double>(batch * length));
  for (int64_t i = 0; i < batch * length; ++i) pos.values[i] = static_cast<double>(i % length);
  return pos;
}

OpCase rope_case(const std::string& name, Shape shape, bool interleave, bool inverse) {
  return {name, &kRope,
          {{"rope_dim", int64_t{4}}, {"frequencies", std::vector<double>{1.0, 0.1}},
           {"amplitude", 1.3}, {"interleave", int64_t{interleave}}, {"inverse", int64_t{inverse}}},
          {normal(name, shape), positions(shape[0], shape[1])}, {f32(shape)}, {0}, {}, false, 0,
          true};
}

/// Latent 6, rotary part 4; the gradient reads the latent where it stands in the joint value.
Attrs norm_rope_attrs() {
  return {{"rope_dim", int64_t{4}}, {"frequencies", std::vector<double>{1.0, 0.1}},
          {"amplitude", 1.3},       {"interleave", int64_t{1}}, {"eps", 1e-6}};
}

std::vector<OpCase> norm_rope_cases() {
  Attrs narrow = norm_rope_attrs(), copy = norm_rope_attrs();
  narrow.set("dtype", "bf16").set("rope_dtype", "bf16");
  copy.set("copy", "bf16").set("inverse", int64_t{1}).set("interleave", int64_t{0});
  const auto forward = [] {
    return std::vector<Operand>{normal("x", {2, 4, 10}), normal("g", {6}), positions(2, 4)};
  };
  const auto gradient = [](int64_t width, DType dtype) {
    return std::vector<Operand>{normal("dy", {2, 4, 6}, dtype), normal("x", {2, 4, width}),
                                normal("g", {6}), positive("r", {2, 4}),
                                normal("dk", {2, 4, 4}, dtype), positions(2, 4)};
  };
  const Type bf16{DType::kBF16, {2, 4, 6}}, rotary{DType::kBF16, {2, 4, 4}};
  return {
      {"norm_rope", &kNormRope, norm_rope_attrs(), forward(),
       {f32({2, 4, 6}), f32({2, 4}), f32({2, 4, 4})}},
      {"norm_rope_narrowing", &kNormRope, narrow, forward(), {bf16, f32({2, 4}), rotary}},
      {"norm_rope_grad", &kNormRopeGrad, norm_rope_attrs(), gradient(10, DType::kF32),
       {f32({2, 4, 10}), f32({6})}},
      {"norm_rope_grad_copy", &kNormRopeGrad, copy, gradient(6, DType::kBF16),
       {f32({2, 4, 10}), f32({6}), {DType::kBF16, {2, 4, 10}}}},
  };
}

// Batch 2, 4 queries, 4 keys, 2 heads, widths 3 (own) + 2 (shared), value 4. The second sequence
// holds two documents; so its later queries start at key 2.
std::vector<Operand> attention_operands() {
  return {normal("q", {2, 4, 2, 5}), normal("kv", {2, 4, 2, 7}), normal("kr", {2, 4, 2}),
          positions(2, 4), positions(2, 4), integers({2, 4}, {0, 0, 0, 0, 0, 0, 2, 2})};
}

OpCase loss_case(const std::string& name, bool gradient) {
  OpCase c{name, &kVocabLoss, {{"gradient", int64_t{gradient}}},
           {normal("x", {2, 4, 6}), normal("w", {8, 6}), tokens(8, {2, 4}),
            filled({2, 4}, {1, 1, 0, 1, 0.5, 1, 1, 0}), filled({}, {1.0 / 6})},
           {f32({}), f32({})}};
  c.operands[2].values[2] = -100;  // an ignored position may carry any label
  c.matmul_flops = 2.0 * 8 * 8 * 6 * (gradient ? 3 : 1);
  if (gradient) {
    c.results.push_back(f32({2, 4, 6}));
    c.results.push_back(f32({8, 6}));
    c.gradient_of = {0};
    c.no_gradient = {3, 4};
    c.constant_cotangent = true;
  }
  return c;
}

std::vector<OpCase> product_cases() {
  return {
      {"matmul", &kMatmul, {}, {normal("x", {2, 4, 6}), normal("w", {8, 6})}, {f32({2, 4, 8})}, {0},
       {}, false, 2.0 * 8 * 6 * 8, true},
      {"matmul_rank2", &kMatmul, {}, {normal("x", {4, 6}), normal("w", {2, 6})}, {f32({4, 2})}, {0},
       {}, false, 2.0 * 4 * 6 * 2},
      {"matmul_rank4", &kMatmul, {}, {normal("x", {2, 2, 2, 3}), normal("w", {2, 3})},
       {f32({2, 2, 2, 2})}, {0}, {}, false, 2.0 * 8 * 3 * 2},
      {"matmul_widening", &kMatmul, {{"dtype", "f32"}},
       {normal("x", {2, 4}, DType::kBF16), normal("w", {2, 4}, DType::kBF16)}, {f32({2, 2})}, {0},
       {}, false, 2.0 * 2 * 4 * 2},
      {"matmul_dx", &kMatmulDx, {}, {normal("dy", {2, 4, 8}), normal("w", {8, 6})},
       {f32({2, 4, 6})}, {}, {}, false, 2.0 * 8 * 6 * 8, true},
      {"matmul_dw", &kMatmulDw, {}, {normal("dy", {2, 4, 8}), normal("x", {2, 4, 6})},
       {f32({8, 6})}, {}, {}, false, 2.0 * 8 * 6 * 8, true},
      {"matmul_dw_into", &kMatmulDw, {{"accumulate", int64_t{1}}},
       {normal("dy", {2, 4, 8}), normal("x", {2, 4, 6}), normal("acc", {8, 6})}, {f32({8, 6})}, {},
       {}, false, 2.0 * 8 * 6 * 8},
  };
}

}  // namespace

std::vector<OpCase> dense_cases() {
  const Attrs eps{{"eps", 1e-6}};
  const Attrs heads{{"scale", 0.45}, {"nope", int64_t{3}}};
  std::vector<OpCase> cases = product_cases();
  const std::vector<OpCase> more{
      {"rms_norm", &kRmsNorm, eps, {normal("x", {2, 4, 6}), normal("g", {6})},
       {f32({2, 4, 6}), f32({2, 4})}, {0}, {}, false, 0, true},
      {"rms_norm_narrowing", &kRmsNorm, {{"eps", 1e-6}, {"dtype", "bf16"}},
       {normal("x", {2, 4, 6}), normal("g", {6})}, {{DType::kBF16, {2, 4, 6}}, f32({2, 4})}, {0}},
      {"rms_norm_grad_narrow_dy", &kRmsNormGrad, {},
       {normal("dy", {2, 4, 6}, DType::kBF16), normal("x", {2, 4, 6}), normal("g", {6}),
        positive("r", {2, 4})},
       {f32({2, 4, 6}), f32({6})}},
      {"add_rms_norm", &kAddRmsNorm, eps,
       {normal("x", {2, 4, 6}), normal("y", {2, 4, 6}), normal("z", {2, 4, 6}), normal("g", {6})},
       {f32({2, 4, 6}), f32({2, 4, 6}), f32({2, 4})}},
      {"add_rms_norm_copy", &kAddRmsNorm, {{"eps", 1e-6}, {"copy", "bf16"}},
       {normal("x", {2, 4, 6}), normal("y", {2, 4, 6}, DType::kBF16), normal("g", {6})},
       {f32({2, 4, 6}), f32({2, 4, 6}), f32({2, 4}), {DType::kBF16, {2, 4, 6}}}},
      {"rms_norm_grad_add", &kRmsNormGradAdd, {},
       {normal("dy", {2, 4, 6}, DType::kBF16), normal("x", {2, 4, 6}), normal("g", {6}),
        positive("r", {2, 4}), normal("o", {2, 4, 6})},
       {f32({2, 4, 6}), f32({6})}},
      {"rms_norm_grad_add_of_terms", &kRmsNormGradAdd, {},
       {normal("dy", {2, 4, 6}, DType::kBF16), normal("x", {2, 4, 6}), normal("g", {6}),
        positive("r", {2, 4}), normal("o", {2, 4, 6}), normal("e", {2, 4, 6}),
        normal("f", {2, 4, 6}, DType::kBF16)},
       {f32({2, 4, 6}), f32({6})}},
      {"rms_norm_grad_add_copy", &kRmsNormGradAdd, {{"copy", "bf16"}},
       {normal("dy", {2, 4, 6}), normal("x", {2, 4, 6}), normal("g", {6}), positive("r", {2, 4}),
        normal("o", {2, 4, 6})},
       {f32({2, 4, 6}), f32({6}), {DType::kBF16, {2, 4, 6}}}},
      {"rms_norm_row", &kRmsNorm, eps, {normal("x", {6}), normal("g", {6})}, {f32({6}), f32({})},
       {0}},
      {"rms_norm_grad", &kRmsNormGrad, {},
       {normal("dy", {2, 4, 6}), normal("x", {2, 4, 6}), normal("g", {6}), positive("r", {2, 4})},
       {f32({2, 4, 6}), f32({6})}},
      {"rms_norm_grad_narrowing", &kRmsNormGrad, {{"dtype", "bf16"}},
       {normal("dy", {2, 4, 6}), normal("x", {2, 4, 6}), normal("g", {6}), positive("r", {2, 4})},
       {{DType::kBF16, {2, 4, 6}}, f32({6})}},
      {"swiglu", &kSwiglu, {}, {normal("g", {2, 4, 6}), normal("u", {2, 4, 6})}, {f32({2, 4, 6})},
       {0}, {}, false, 0, true},
      {"swiglu_ragged", &kSwiglu, {}, {ragged("g", 2, 8, 6, 4), ragged("u", 2, 8, 6, 4)},
       {{DType::kF32, {2, 8, 4}, true}}, {0}},
      {"swiglu_grad", &kSwigluGrad, {},
       {normal("dy", {4, 6}), normal("g", {4, 6}), normal("u", {4, 6})},
       {f32({4, 6}), f32({4, 6})}},
      {"embedding", &kEmbedding, {{"dtype", "f32"}}, {normal("t", {8, 6}), tokens(8, {2, 4})},
       {f32({2, 4, 6})}, {0}},
      {"embedding_bf16", &kEmbedding, {{"dtype", "bf16"}}, {normal("t", {8, 6}), tokens(8, {2, 4})},
       {{DType::kBF16, {2, 4, 6}}}, {0}},
      {"embedding_slice", &kEmbedding, {{"vocab_begin", int64_t{2}}},
       {normal("t", {4, 6}), tokens(8, {2, 4})}, {f32({2, 4, 6})}},
      {"embedding_grad", &kEmbeddingGrad, {{"vocab", int64_t{4}}, {"vocab_begin", int64_t{2}}},
       {tokens(8, {2, 4}), normal("dy", {2, 4, 6})}, {f32({4, 6})}},
      {"embedding_grad_into", &kEmbeddingGrad, {{"vocab", int64_t{8}}, {"accumulate", int64_t{1}}},
       {tokens(8, {2, 4}), normal("dy", {2, 4, 6}), normal("acc", {8, 6})}, {f32({8, 6})}},
      loss_case("vocab_loss", true),
      loss_case("vocab_loss_forward", false),
      rope_case("rope_interleaved", {2, 4, 2, 6}, true, false),
      rope_case("rope_halves", {2, 4, 2, 6}, false, false),
      rope_case("rope_inverse", {2, 4, 2, 6}, true, true),
      rope_case("rope_halves_inverse_shared", {2, 4, 4}, false, true),
      {"attention", &kAttention, heads, attention_operands(),
       {f32({2, 4, 2, 4}), f32({2, 4, 2})}, {0}, {}, false, 2.0 * 2 * 4 * 2 * 2.5 * (5 + 4), true},
      {"attention_grad", &kAttentionGrad, heads,
       {normal("do", {2, 4, 2, 4}), normal("q", {2, 4, 2, 5}), normal("kv", {2, 4, 2, 7}),
        normal("kr", {2, 4, 2}), normal("o", {2, 4, 2, 4}), positive("lse", {2, 4, 2}),
        positions(2, 4), positions(2, 4), integers({2, 4}, {0, 0, 0, 0, 0, 0, 2, 2})},
       {f32({2, 4, 2, 5}), f32({2, 4, 2, 7}), f32({2, 4, 2})}, {}, {}, false,
       2.0 * 2 * 4 * 2 * 2.5 * (3 * 5 + 2 * 4)},
  };
  cases.insert(cases.end(), more.begin(), more.end());
  for (OpCase& c : norm_rope_cases()) cases.push_back(std::move(c));
  return cases;
}

}  // namespace moetrain::test
