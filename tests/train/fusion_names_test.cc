// The passes of fusion and the keys that switch them off have the same names, in the same order.
#include <gtest/gtest.h>

#include "compile/fuse/passes.h"
#include "config/field.h"
#include "config/running.h"

namespace moetrain {
namespace {

TEST(FusionNames, EveryPassHasItsKey) {
  FusionConfig config;
  std::vector<std::string> keys, passes;
  for (const Field& field : describe(config)) keys.push_back(field.name);
  for (const FusionPass& pass : fusion_passes()) passes.push_back(pass.name);
  EXPECT_EQ(keys, passes);
}

}  // namespace
}  // namespace moetrain
