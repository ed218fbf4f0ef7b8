// YaRN's two corrections, each in its place with its number: BR-06.
#include "model/rotary.h"

#include <gtest/gtest.h>

#include "run.h"

namespace moetrain {
namespace {

ModelConfig published(const std::string& scaling) {
  return t0_model({"model.qk_nope_head_dim=128", "model.qk_rope_head_dim=64",
                   "model.rope_scaling={factor: 40" + scaling + "}"});
}

TEST(Yarn, ScalesScoresOrSinesNeverBoth) {
  const double plain = 0.0721688;
  const ModelConfig both = published(", mscale: 1.0, mscale_all_dim: 1.0");
  EXPECT_NEAR(softmax_scale(both), 0.1352338, 1e-6);
  EXPECT_NEAR(rope_table(both).amplitude, 1.0, 1e-12);

  const ModelConfig smaller = published(", mscale: 0.707, mscale_all_dim: 0.707");
  EXPECT_NEAR(softmax_scale(smaller) / plain, 1.5896262, 1e-5);
  EXPECT_NEAR(rope_table(smaller).amplitude, 1.0, 1e-12);

  const ModelConfig sines = published(", mscale: 1.0, mscale_all_dim: 0");
  EXPECT_NEAR(softmax_scale(sines), plain, 1e-6);
  EXPECT_NEAR(rope_table(sines).amplitude, 1.3688879, 1e-6);
}

TEST(Yarn, FactorOneChangesNothing) {
  const ModelConfig off = t0_model();
  const ModelConfig one =
      t0_model({"model.rope_scaling={factor: 1, mscale: 1.0, mscale_all_dim: 1.0}"});
  EXPECT_DOUBLE_EQ(softmax_scale(one), softmax_scale(off));
  EXPECT_DOUBLE_EQ(rope_table(one).amplitude, 1.0);
  EXPECT_EQ(rope_table(one).frequencies, rope_table(off).frequencies);
}

}  // namespace
}  // namespace moetrain
