// The interpreter: feeds, precision, states written in place, ragged row counts.
#include "graph/interpret.h"

#include <gtest/gtest.h>

#include "toy_ops.h"

namespace moetrain::test {
namespace {

HostTensor host(Shape shape, std::vector<double> values, DType dtype = DType::kF32) {
  HostTensor t = make_host_tensor(dtype, std::move(shape));
  for (size_t i = 0; i < values.size(); ++i) {
    set_element(t.view(), static_cast<int64_t>(i), values[i]);
  }
  return t;
}

double at(const HostTensor& t, int64_t i) { return get_element(t.view(), i); }

TEST(Interpret, KeepsFloatsInDoubleUnlessAsked) {
  Graph g;
  const Value x = g.add(kInput, {}, {{"shape", Shape{1}}}, "x");
  const Value y = g.add(kInput, {}, {{"shape", Shape{1}}}, "y");
  g.mark_output("sum", g.add(kSum, {x, y}));
  const std::map<std::string, HostTensor> feeds{{"x", host({1}, {1.0})},
                                                {"y", host({1}, {1e-12}, DType::kF64)}};
  auto in_double = interpret(g, feeds);
  EXPECT_EQ(in_double["sum"].dtype, DType::kF64);
  EXPECT_EQ(at(in_double["sum"], 0), 1.0 + 1e-12);
  auto in_float = interpret(g, feeds, {.in_double = false});
  EXPECT_EQ(in_float["sum"].dtype, DType::kF32);
  EXPECT_EQ(at(in_float["sum"], 0), 1.0);
}

// A state's old value stays readable after the update, and its content is the last value written.
TEST(Interpret, FollowsStatesThroughUpdatesInPlace) {
  Graph g;
  const Value s = g.add(kState, {}, {{"shape", Shape{2}}}, "s");
  const Value x = g.add(kInput, {}, {{"shape", Shape{2}}}, "x");
  const Value once = g.add(kSumInPlace, {s, x});
  const Value old = g.add(kSum, {s, x});
  g.add(kSumInPlace, {once, x});
  g.add(kState, {}, {{"shape", Shape{1}}}, "untouched");
  g.mark_output("old", old);
  auto out = interpret(g, {{"s", host({2}, {1, 2})}, {"x", host({2}, {10, 20})},
                           {"untouched", host({1}, {5})}});
  EXPECT_EQ(at(out["old"], 1), 22);
  EXPECT_EQ(at(out["state:s"], 0), 21);
  EXPECT_EQ(at(out["state:s"], 1), 42);
  EXPECT_EQ(at(out["state:untouched"], 0), 5);
}

TEST(Interpret, GivesRaggedValuesTheirRows) {
  for (int64_t rows : {0, 1, 4}) {
    Graph g;
    const int n = g.append(kRows, {}, {{"rows", rows}}, "rows");
    g.mark_output("twice", g.add(kSum, {{n, 0}, {n, 0}}));
    auto out = interpret(g, {});
    EXPECT_EQ(out["twice"].shape, (Shape{rows, 2}));
    EXPECT_EQ(out["twice"].bytes.size(), static_cast<size_t>(rows) * 2 * sizeof(double));
    if (rows > 0) {
      EXPECT_EQ(at(out["twice"], 2 * rows - 1), 2.0 * (2 * rows - 1));
    }
  }
}

TEST(Interpret, NamesMissingAndMisshapedFeeds) {
  Graph g;
  g.add(kInput, {}, {{"shape", Shape{2}}}, "tokens");
  auto message = [&](const std::map<std::string, HostTensor>& feeds) -> std::string {
    try {
      interpret(g, feeds);
    } catch (const InternalError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message({}).find("no feed for 'tokens'"), std::string::npos);
  EXPECT_NE(message({{"tokens", host({3}, {1, 2, 3})}}).find("feed of 'tokens' is [3], not [2]"),
            std::string::npos);
}

TEST(Interpret, ReleasesAndRepeatsValuesSafely) {
  Graph g;
  const Value x = g.add(kInput, {}, {{"shape", Shape{1}}}, "x");
  const Value y = g.add(kSum, {x, x});
  const Value z = g.add(kSum, {y, y});
  g.mark_output("y", y);
  g.mark_output("again", y);
  g.mark_output("z", z);
  auto out = interpret(g, {{"x", host({1}, {3})}});
  EXPECT_EQ(at(out["y"], 0), 6);
  EXPECT_EQ(at(out["again"], 0), 6);
  EXPECT_EQ(at(out["z"], 0), 12);
}

}  // namespace
}  // namespace moetrain::test
