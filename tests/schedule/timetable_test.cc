// Timetables: every small case is complete, free of deadlock, within its memory and as idle as the formula.
#include "compile/schedule/timetable.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"

namespace moetrain {
namespace {

using Kind = Action::Kind;

TEST(Timetable, PlainHasTheKnownBubbleAndActivations) {
  for (int p = 1; p <= 6; ++p) {
    for (int m = 1; m <= 12; ++m) {
      const Played played = play(one_forward_one_backward({p, 1, false}, m, false), {});
      EXPECT_DOUBLE_EQ(played.time, 3.0 * m + 3.0 * (p - 1)) << p << " stages, " << m;
      EXPECT_DOUBLE_EQ(played.idle, 3.0 * (p - 1));
      for (int s = 0; s < p; ++s) EXPECT_EQ(played.peak[s], std::min(m, p - s));
    }
  }
}

TEST(Timetable, InterleavedDividesTheBubble) {
  for (int p = 2; p <= 6; ++p) {
    for (int v = 2; v <= 3; ++v) {
      for (int m = p; m <= 12; m += p) {
        const Played played = play(one_forward_one_backward({p, v, false}, m, false), {});
        EXPECT_DOUBLE_EQ(played.time, 3.0 * m * v + 3.0 * (p - 1)) << p << " " << v << " " << m;
        for (int s = 0; s < p; ++s) {
          EXPECT_LE(played.peak[s], std::min(m * v, 2 * (p - s - 1) + (v - 1) * p + 1));
        }
      }
    }
  }
}

TEST(Timetable, FusedKeepsTheTimeAndDoublesActivations) {
  for (int p = 1; p <= 6; ++p) {
    for (int m = 2 * p; m <= 12; ++m) {
      const Played played = play(one_forward_one_backward({p, 1, false}, m, true), {});
      for (int s = 0; s < p; ++s) EXPECT_EQ(played.peak[s], 2 * (p - s)) << p << " " << m;
    }
  }
  // Worked by hand: four stages, 32 micro-batches.
  const Timetable fused = one_forward_one_backward({4, 1, false}, 32, true);
  const Played played = play(fused, {});
  EXPECT_DOUBLE_EQ(played.time, 105);
  EXPECT_EQ(played.peak, (std::vector<int>{8, 6, 4, 2}));
  EXPECT_DOUBLE_EQ(play(one_forward_one_backward({4, 1, false}, 32, false), {}).time, 105);
  EXPECT_EQ(fused.of_stage[3][0].kind, Kind::kForward);
  EXPECT_EQ(fused.of_stage[3][1], (Action{Kind::kBoth, 0, 1, 0, 0}));
}

TEST(Timetable, FusedWithTheClassicWarmUpHalvesTheSpeed) {
  Timetable slow = one_forward_one_backward({4, 1, false}, 32, true);
  for (int s = 0; s < 4; ++s) {
    std::vector<Action>& out = slow.of_stage[s];
    out.clear();
    const int warm = 4 - s;
    for (int i = 0; i < warm; ++i) out.push_back({Kind::kForward, 0, i});
    for (int i = warm; i < 32; ++i) out.push_back({Kind::kBoth, 0, i, 0, i - warm});
    for (int i = 32 - warm; i < 32; ++i) out.push_back({Kind::kBackward, 0, i});
  }
  EXPECT_DOUBLE_EQ(play(slow, {}).time, 195);
}

TEST(Timetable, InterleavedFusedNeedsOneMore) {
  for (int p = 2; p <= 6; ++p) {
    for (int v = 2; v <= 3; ++v) {
      for (int m = p; m <= 12; m += p) {
        const Played played = play(one_forward_one_backward({p, v, false}, m, true), {});
        for (int s = 0; s < p; ++s) {
          EXPECT_LE(played.peak[s], std::min(m * v, 2 * (p - s - 1) + (v - 1) * p + 2));
        }
      }
    }
  }
}

/// Runs of step 1 .. 8, from the actions themselves.
std::map<Kind, int> kinds(const std::vector<Action>& actions) {
  std::map<Kind, int> counts;
  for (const Action& a : actions) ++counts[a.kind];
  return counts;
}

TEST(Timetable, DualPipeVMatchesThePublishedCounts) {
  const Timetable t = dual_pipe_v(4, 10);
  const int steps[4][8] = {{6, 1, 3, 3, 3, 1, 3, 1},
                           {4, 2, 2, 4, 2, 2, 2, 2},
                           {2, 3, 1, 5, 1, 3, 1, 3},
                           {0, 4, 0, 6, 0, 4, 0, 4}};
  for (int r = 0; r < 4; ++r) {
    const int* n = steps[r];
    std::map<Kind, int> counts = kinds(t.of_stage[r]);
    const int turning = r == 3 ? 1 : 0;
    EXPECT_EQ(counts[Kind::kForward], n[0] + 2 * n[1] + n[2] + turning) << r;
    EXPECT_EQ(counts[Kind::kBoth], 2 * n[3] - turning + n[4]) << r;
    EXPECT_EQ(counts[Kind::kInputGradient], n[2] + n[5] + n[6]) << r;
    EXPECT_EQ(counts[Kind::kWeightGradient], n[2] + n[6] + n[7]) << r;
    EXPECT_EQ(counts[Kind::kBackward], n[4] + n[5] + turning) << r;
  }
  // Stage 0 starts with six first-half forwards, then one pair of both halves.
  for (int i = 0; i < 7; ++i) EXPECT_EQ(t.of_stage[0][i], (Action{Kind::kForward, 0, i}));
  EXPECT_EQ(t.of_stage[0][7], (Action{Kind::kForward, 1, 0}));
  EXPECT_EQ(t.of_stage[0][8], (Action{Kind::kInputGradient, 1, 0}));
}

TEST(Timetable, DualPipeVIsCompleteAndBounded) {
  for (int p = 1; p <= 6; ++p) {
    for (int m = 2 * p; m <= 12 + p; ++m) {
      const Played played = play(dual_pipe_v(p, m), {1, 2, 1, 3});
      const double work = 2 * 3.0 * m;
      // (P-1)(FB + B - 3W) of chunks, the published bubble, with p = 2P.
      EXPECT_LE(played.time - work, (p - 1) * 2.0 + 1.0) << p << " " << m;
      for (int peak : played.peak) EXPECT_LE(peak, 2 * p + 1);
    }
  }
}

// The second of three stages is twice as slow: it gets its first input at 1, waits from 5 to 6 for the last
// stage to come back with it, and is busy from then on; the first stage's last backward pass takes 2 more.
TEST(Timetable, TheSlowestStageSetsThePace) {
  const Timetable t = one_forward_one_backward({3, 1, false}, 8, false);
  const Played played = play_stages(t, {{}, {2, 4, 2, 6}, {}});
  EXPECT_DOUBLE_EQ(played.time, 1 + 8 * 6 + 1 + 2);
  EXPECT_EQ(played.busy, (std::vector<double>{24, 48, 24}));
  EXPECT_DOUBLE_EQ(played.idle, played.time - 24);
  EXPECT_THROW(play_stages(t, {{}, {}}), InternalError);
}

TEST(Timetable, ForwardOnlyPassesEverything) {
  for (int p = 1; p <= 6; ++p) {
    for (int v = 1; v <= 3; ++v) {
      for (int m = 1; m <= 12; ++m) {
        const Played played = play(forward_only({p, v, false}, m), {}, true);
        EXPECT_GE(played.time, m * v);
      }
    }
    play(forward_only({p, 2, true}, 5), {}, true);
  }
}

TEST(Timetable, PlayFindsDeadlocksAndGaps) {
  Timetable t = one_forward_one_backward({2, 1, false}, 2, false);
  Timetable locked = t;
  std::swap(locked.of_stage[1][0], locked.of_stage[1][1]);  // backward before its own forward
  EXPECT_THROW(play(locked, {}), InternalError);
  Timetable missing = t;
  missing.of_stage[0].pop_back();
  EXPECT_THROW(play(missing, {}), InternalError);
  Timetable overtaking = t;
  overtaking.of_stage[0][0].micro = 1;
  EXPECT_THROW(play(overtaking, {}), InternalError);
}

TEST(Timetable, PrintsWords) {
  EXPECT_EQ(print(one_forward_one_backward({2, 1, false}, 2, false)),
            "F0.0 F0.1 B0.0 B0.1\nF0.0 B0.0 F0.1 B0.1\n");
}

TEST(Stages, FoldedMeetsOnStageZero) {
  const Stages v{4, 2, true};
  EXPECT_EQ(v.stage_of(7), 0);
  EXPECT_EQ(v.stage_of(4), 3);
  for (int c = 0; c < 8; ++c) EXPECT_EQ(v.chunk(v.stage_of(c), v.local(c)), c);
  const Stages i{3, 3, false};
  for (int c = 0; c < 9; ++c) EXPECT_EQ(i.chunk(i.stage_of(c), i.local(c)), c);
}

}  // namespace
}  // namespace moetrain
