// The artificial link: the executor hides what the schedule promises, whatever the speed of the machine.
#include <gtest/gtest.h>

#include "train/bench_overlap.h"

namespace moetrain {
namespace {

TEST(ArtificialLink, APairOfPassesHidesItsTransfers) {
  BenchOverlapOptions options;
  options.repeats = 1;
  OverlapReport report;
  // Sleeps overshoot on a machine busy with other things: a few tries.
  for (int attempt = 0; attempt < 5; ++attempt) {
    report = bench_overlap(options);
    if (report.merged <= 22 && report.apart <= 35.2 && report.exposed <= 0.15) break;
  }
  EXPECT_NEAR(report.merged, 20, 2) << report.text;
  EXPECT_NEAR(report.apart, 32, 3.2) << report.text;
  EXPECT_LE(report.exposed, 0.15) << report.text;
}

TEST(ArtificialLink, LongTransfersShow) {
  BenchOverlapOptions options;
  options.repeats = 1;
  options.layers = 4;
  options.transfer = 8;  // 4 x 8 ms on one lane against 20 ms of computation
  const OverlapReport report = bench_overlap(options);
  EXPECT_GE(report.merged, 32);
  EXPECT_GE(report.exposed, 0.25);
}

}  // namespace
}  // namespace moetrain
