// What can move once per update does not move in every micro-batch.
#include <gtest/gtest.h>

#include "tiny_plan.h"

namespace moetrain {
namespace {

// The embedding is read on the first stage and, by the MTP layer, on the last: two gradients, summed late.
TEST(OncePerUpdate, GradientsOfASharedEmbeddingAreSummedInTheUpdate) {
  const TinyPlan plan = tiny_plan(4, {"parallel.pipeline=2", "parallel.data=2", "parallel.zero=1",
                                      "model.num_nextn_predict_layers=1"});
  bool in_update = false;
  for (const Segment& segment : plan.compiled.plan.segments) {
    if (!segment.parts.empty()) continue;
    for (const Instruction& instruction : segment.instructions) {
      if (!std::holds_alternative<Collective>(instruction.what)) continue;
      if (instruction.name.find("grad:model.embed_tokens.weight") == std::string::npos) continue;
      EXPECT_EQ(segment.name, "update") << instruction.name;
      in_update |= segment.name == "update";
    }
  }
  EXPECT_TRUE(in_update);
}

}  // namespace
}  // namespace moetrain
