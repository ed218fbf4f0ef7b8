// Norms, rope, activation, sums, copies, optimizer and embedding against their references.
#include <cstring>

#include "kernels/harness.h"
#include "ops/attention.h"
#include "ops/basic.h"
#include "ops/embedding.h"
#include "ops/fused_norm.h"
#include "ops/fused_rope.h"
#include "ops/local.h"
#include "ops/norm.h"
#include "ops/pad.h"
#include "ops/swiglu.h"
#include "ops/update.h"

namespace moetrain::cpu::testing {
namespace {

using Vector = EachTarget;

const DType kFloats[] = {DType::kF32, DType::kBF16};

TEST_P(Vector, RmsNorm) {
  for (DType t : kFloats) {
    for (int64_t d : {1, 7, 16, 33, 512}) {
      Case forward(ops::kRmsNorm, {{"eps", 1e-6}});
      forward.normal(t, {3, 23, d}).normal(DType::kF32, {d});
      forward.check({Bound{}, Bound{}});
      Case(ops::kRmsNormGrad, {})
          .normal(t, {3, 23, d})
          .normal(t, {3, 23, d})
          .normal(DType::kF32, {d})
          .result_of(forward, 1, DType::kF32)
          .check({Bound{1e-5}, Bound{1e-5}});
    }
  }
}

TEST_P(Vector, RmsNormGradOfManyRows) {
  Case forward(ops::kRmsNorm, {{"eps", 1e-5}});
  forward.normal(DType::kF32, {333, 40}).normal(DType::kF32, {40});
  Case(ops::kRmsNormGrad, {})
      .normal(DType::kF32, {333, 40})
      .normal(DType::kF32, {333, 40})
      .normal(DType::kF32, {40})
      .result_of(forward, 1, DType::kF32)
      .check({Bound{1e-5}, Bound{1e-5}});
}

TEST_P(Vector, RmsNormOfAFloatStreamInBf16) {
  Case forward(ops::kRmsNorm, {{"eps", 1e-6}, {"dtype", std::string("bf16")}});
  forward.normal(DType::kF32, {70, 35}).normal(DType::kF32, {35});
  forward.check({Bound{}, Bound{}});
  Case(ops::kRmsNormGrad, {})
      .normal(DType::kBF16, {70, 35})
      .normal(DType::kF32, {70, 35})
      .normal(DType::kF32, {35})
      .result_of(forward, 1, DType::kF32)
      .check({Bound{1e-5}, Bound{1e-5}});
}

TEST_P(Vector, RmsNormWithTheSumsAroundIt) {
  for (const char* copy : {"", "bf16"}) {
    for (DType y : kFloats) {
      if (*copy && y == DType::kBF16) continue;
      Attrs attrs{{"eps", 1e-6}, {"dtype", std::string(name_of(y))}};
      Attrs grad;
      if (*copy) attrs.set("copy", std::string(copy)), grad.set("copy", std::string(copy));
      for (int64_t d : {1, 35, 512}) {
        Case forward(ops::kAddRmsNorm, attrs);
        forward.normal(DType::kF32, {70, d}).normal(DType::kBF16, {70, d});
        forward.normal(DType::kF32, {70, d}).normal(DType::kF32, {d});
        std::vector<Bound> bounds(*copy ? 4 : 3, Bound{});
        forward.check(bounds);
        Case(ops::kAddRmsNorm, attrs)
            .normal(DType::kBF16, {5, d})
            .normal(DType::kF32, {5, d})
            .normal(DType::kF32, {d})
            .check(bounds);
        bounds.assign(*copy ? 3 : 2, Bound{1e-5});
        Case(ops::kRmsNormGradAdd, grad)
            .normal(y, {70, d})
            .normal(DType::kF32, {70, d})
            .normal(DType::kF32, {d})
            .result_of(forward, 2, DType::kF32)
            .normal(DType::kF32, {70, d})
            .check(bounds);
        Case(ops::kRmsNormGradAdd, grad)
            .normal(y, {70, d})
            .normal(DType::kF32, {70, d})
            .normal(DType::kF32, {d})
            .result_of(forward, 2, DType::kF32)
            .normal(DType::kF32, {70, d})
            .normal(DType::kBF16, {70, d})
            .normal(DType::kF32, {70, d})
            .check(bounds);
      }
    }
  }
}

TEST_P(Vector, RmsNormGradOfAFloatStreamIntoBf16) {
  for (DType t : kFloats) {
    Case forward(ops::kRmsNorm, {{"eps", 1e-6}});
    forward.normal(DType::kF32, {71, 35}).normal(DType::kF32, {35});
    Case(ops::kRmsNormGrad, {{"dtype", std::string("bf16")}})
        .normal(t, {71, 35})
        .normal(DType::kF32, {71, 35})
        .normal(DType::kF32, {35})
        .result_of(forward, 1, DType::kF32)
        .check({Bound{1e-5}, Bound{1e-5}});
  }
}

TEST_P(Vector, SumsOfMixedWidths) {
  Case(ops::kAdd, {}).normal(DType::kF32, {3, 77}).normal(DType::kBF16, {3, 77}).check({Bound{}});
  Case(ops::kAddN, {})
      .normal(DType::kBF16, {501})
      .normal(DType::kF32, {501})
      .normal(DType::kBF16, {501})
      .check({Bound{}});
}

TEST_P(Vector, Rope) {
  std::vector<int32_t> positions;
  for (int i = 0; i < 2 * 19; ++i) positions.push_back(i < 30 ? i : 100003 * (i - 29));
  for (DType t : kFloats) {
    for (int64_t interleave : {0, 1}) {
      for (int64_t inverse : {0, 1}) {
        Attrs attrs{{"rope_dim", int64_t{10}},
                    {"frequencies", std::vector<double>{1.0, 0.31, 0.01, 1e-3, 1e-5}},
                    {"amplitude", 1.3},
                    {"interleave", interleave},
                    {"inverse", inverse}};
        Case(ops::kRope, attrs)
            .normal(t, {2, 19, 3, 15})
            .integers({2, 19}, positions)
            .check({Bound{5e-7}});
        Case(ops::kRope, attrs)
            .normal(t, {2, 19, 10})
            .integers({2, 19}, positions)
            .check({Bound{5e-7}});
      }
    }
  }
}

TEST_P(Vector, RopeInPlace) {
  for (DType t : kFloats) {
    for (int64_t interleave : {0, 1}) {
      Case(ops::kRope, {{"rope_dim", int64_t{38}},
                        {"frequencies", std::vector<double>(19, 0.17)},
                        {"amplitude", 1.0},
                        {"interleave", interleave},
                        {"in_place", int64_t{1}}})
          .normal(t, {2, 19, 3, 45})
          .integers({2, 19}, std::vector<int32_t>(38, 77))
          .check({Bound{5e-7}});
    }
  }
}

TEST_P(Vector, NormAndRopeOfOneRow) {
  std::vector<int32_t> positions;
  for (int i = 0; i < 2 * 35; ++i) positions.push_back(i < 60 ? i : 100003 * (i - 59));
  for (DType t : kFloats) {
    for (DType other : kFloats) {
      for (int64_t interleave : {0, 1}) {
        for (int64_t d : {1, 35, 128}) {
          const std::string name(name_of(t)), other_name(name_of(other));
          const Attrs turns{{"rope_dim", int64_t{10}},
                            {"frequencies", std::vector<double>{1.0, 0.31, 0.01, 1e-3, 1e-5}},
                            {"amplitude", 1.3},
                            {"interleave", interleave}};
          Attrs attrs = turns;
          attrs.set("eps", 1e-6).set("dtype", name).set("rope_dtype", other_name);
          Case forward(ops::kNormRope, attrs);
          forward.normal(DType::kF32, {2, 35, d + 10})
              .normal(DType::kF32, {d})
              .integers({2, 35}, positions);
          forward.check({Bound{}, Bound{}, Bound{5e-7}});
          for (const char* copy : {"", "bf16"}) {
            attrs = turns;
            attrs.set("inverse", int64_t{1}).set("dtype", other_name);
            if (*copy) attrs.set("copy", std::string(copy));
            for (int64_t more : {0, 10}) {  // behind what was normed
              Case(ops::kNormRopeGrad, attrs)
                  .normal(t, {2, 35, d})
                  .normal(DType::kF32, {2, 35, d + more})
                  .normal(DType::kF32, {d})
                  .result_of(forward, 1, DType::kF32)
                  .normal(t, {2, 35, 10})
                  .integers({2, 35}, positions)
                  .check(std::vector<Bound>(*copy ? 3 : 2, Bound{1e-5}));
            }
          }
        }
      }
    }
  }
}

TEST_P(Vector, Swiglu) {
  for (DType t : kFloats) {
    for (double scale : {1.0, 30.0}) {
      Case(ops::kSwiglu, {}).normal(t, {5, 41}, scale).normal(t, {5, 41}).check({Bound{1e-6}});
      Case(ops::kSwigluGrad, {})
          .normal(t, {5, 41})
          .normal(t, {5, 41}, scale)
          .normal(t, {5, 41})
          .check({Bound{1e-6}, Bound{1e-6}});
    }
    Case(ops::kSwiglu, {}).ragged(t, 3, 20, 0, 8).ragged(t, 3, 20, 0, 8).rows(0).check({Bound{}});
    Case(ops::kSwiglu, {})
        .ragged(t, 3, 20, 11, 8)
        .ragged(t, 3, 20, 11, 8)
        .rows(11)
        .check({Bound{}});
  }
}

TEST_P(Vector, SumsAndCasts) {
  for (DType t : kFloats) {
    Case(ops::kAdd, {}).normal(t, {3, 77}).normal(t, {3, 77}).check({Bound{}});
    Case(ops::kAddN, {}).normal(t, {50001}).normal(t, {50001}).normal(t, {50001}).check({Bound{}});
    Case(ops::kScale, {{"factor", -0.37}}).normal(t, {101}).check({Bound{}});
    for (const char* to : {"f32", "bf16"}) {
      Case(ops::kCast, {{"dtype", std::string(to)}}).normal(t, {101}).check({Bound{0}});
    }
    Case(ops::kAccumulate, {}).normal(DType::kF32, {9, 31}).normal(t, {9, 31}).check({Bound{}});
    Case(ops::kAssign, {}).normal(t, {9, 31}).normal(DType::kF32, {9, 31}).check({Bound{0}});
  }
  Case(ops::kClear, {}).normal(DType::kF32, {40007}).check({Bound{0}});
}

TEST_P(Vector, SplitConcatStack) {
  for (DType t : kFloats) {
    Case(ops::kSplit, {{"sizes", std::vector<int64_t>{3, 1, 29}}})
        .normal(t, {2, 41, 33})
        .check({Bound{0}, Bound{0}, Bound{0}});
    for (const int64_t rows : {1, 17, 4001}) {  // in one task and in several
      Case(ops::kPad, {{"by", int64_t{7}}}).normal(t, {rows, 3, 19}).check({Bound{0}});
      Case(ops::kCrop, {{"by", int64_t{7}}}).normal(t, {rows, 3, 19}).check({Bound{0}});
    }
    Case(ops::kConcat, {}).normal(t, {17, 5}).normal(t, {17, 64}).check({Bound{0}});
    Case(ops::kStack, {{"dim", int64_t{1}}, {"parts", int64_t{3}}})
        .normal(t, {4, 6, 5})
        .copies()
        .check({Bound{0}});
    Case(ops::kUnstack, {{"dim", int64_t{1}}}).normal(t, {3, 4, 2, 5}).copies().check({Bound{0}});
  }
}

TEST_P(Vector, SumSquares) {
  for (DType t : kFloats) {
    for (int64_t n : {1, 7, 8193, 40000})
      Case(ops::kSumSquares, {}).normal(t, {n}).check({Bound{1e-12}});
  }
  // Squares beyond the float range still have a finite sum of small ones and a finite norm in
  // double.
  Case(ops::kSumSquares, {}).normal(DType::kF32, {100}, 1e18).check({Bound{1e-12}});
}

TEST_P(Vector, Adamw) {
  const Attrs attrs{{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"decay", 0.1}};
  for (float factor : {1.0f, 0.25f, -1.0f}) {
    Case(ops::kAdamw, attrs)
        .normal(DType::kF32, {3, 37})
        .normal(DType::kF32, {3, 37}, 1e-3)
        .normal(DType::kF32, {3, 37}, 1e-5, 1e-4)
        .normal(DType::kF32, {3, 37}, 1e-2)
        .floats({}, {factor})
        .floats({4}, {1e-3f, 0.19f, 0.0975f, 0})
        .check({Bound{1e-6}, Bound{1e-6}, Bound{1e-6}});
    Attrs with_copy = attrs;
    with_copy.set("copy", int64_t{1});
    Case(ops::kAdamw, with_copy)
        .normal(DType::kF32, {3, 37})
        .normal(DType::kF32, {3, 37}, 1e-3)
        .normal(DType::kF32, {3, 37}, 1e-5, 1e-4)
        .normal(DType::kF32, {3, 37}, 1e-2)
        .floats({}, {factor})
        .floats({4}, {1e-3f, 0.19f, 0.0975f, 0})
        .normal(DType::kBF16, {3, 37})
        .check({Bound{1e-6}, Bound{1e-6}, Bound{1e-6}, Bound{1e-6}});
  }
}

TEST_P(Vector, Embedding) {
  const std::vector<int32_t> ids{3, 0, 3, 12, 7, 3, 100, 5};
  for (DType t : kFloats) {
    for (int64_t begin : {0, 2}) {
      for (const char* to : {"f32", "bf16"}) {
        Case(ops::kEmbedding, {{"vocab_begin", begin}, {"dtype", std::string(to)}})
            .normal(t, {13, 21})
            .integers({2, 4}, ids)
            .check({Bound{0}});
      }
      Case(ops::kEmbeddingGrad, {{"vocab_begin", begin}, {"vocab", int64_t{13}}})
          .integers({2, 4}, ids)
          .normal(t, {2, 4, 21})
          .check({Bound{}});
      Case(ops::kEmbeddingGrad,
           {{"vocab_begin", begin}, {"vocab", int64_t{77}}, {"accumulate", int64_t{1}}})
          .integers({2, 4}, ids)
          .normal(t, {2, 4, 21})
          .normal(DType::kF32, {77, 21})
          .check({Bound{}});
    }
  }
}

MOETRAIN_ON_EACH_TARGET(Vector);

}  // namespace
}  // namespace moetrain::cpu::testing
