// Layouts: slices, text form, validity, and the grid notation, against worked vectors.
#include "compile/shard/layout.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "base/error.h"
#include "compile/shard/mesh_view.h"
#include "shard/meshes.h"

namespace moetrain {
namespace {

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

using Range = std::array<int64_t, 4>;  // rows begin:end, cols begin:end

Range range_of(const Mesh& mesh, const char* layout, int rank) {
  const Box box = slice_of(mesh, parse_layout(mesh, layout), {16, 8}, rank);
  return {box.begin[0], box.begin[0] + box.extent[0], box.begin[1], box.begin[1] + box.extent[1]};
}

TEST(Layout, SlicesOfEightRanks) {
  const Mesh mesh = make_mesh({{"dp", 4}, {"mp", 2}});
  for (int r = 0; r < 8; ++r) {
    const int64_t dp = r / 2, mp = r % 2;
    EXPECT_EQ(range_of(mesh, "[dp, mp]", r), (Range{4 * dp, 4 * dp + 4, 4 * mp, 4 * mp + 4}));
    EXPECT_EQ(range_of(mesh, "[mp, dp]", r), (Range{8 * mp, 8 * mp + 8, 2 * dp, 2 * dp + 2}));
    EXPECT_EQ(range_of(mesh, "[(dp mp), -]", r), (Range{2 * r, 2 * r + 2, 0, 8}));
    EXPECT_EQ(range_of(mesh, "[dp, -]", r), (Range{4 * dp, 4 * dp + 4, 0, 8}));
    EXPECT_EQ(range_of(mesh, "[-, mp]", r), (Range{0, 16, 4 * mp, 4 * mp + 4}));
  }
  const int64_t rows[] = {0, 8, 2, 10, 4, 12, 6, 14};
  for (int r = 0; r < 8; ++r) {
    EXPECT_EQ(range_of(mesh, "[(mp dp), -]", r), (Range{rows[r], rows[r] + 2, 0, 8}));
  }
  EXPECT_EQ(mesh.group(0, {0}), (std::vector<int>{0, 2, 4, 6}));
  EXPECT_EQ(mesh.group(1, {0}), (std::vector<int>{1, 3, 5, 7}));
  EXPECT_EQ(mesh.group(5, {1}), (std::vector<int>{4, 5}));
}

TEST(Layout, TextFormReadsBack) {
  Mesh mesh = make_mesh({{"edp", 2}, {"ep", 2}, {"cp", 2}, {"tp", 2}, {"one", 1}});
  mesh.names["dp"] = {0, 1};
  for (const char* text : {"[]", "[-, -]", "[dp, (cp tp), -]", "[(ep tp), -] +{edp}",
                           "[tp] +{dp cp}", "[-] max{tp}", "[cp] +{edp} max{tp}"}) {
    EXPECT_EQ(to_string(mesh, parse_layout(mesh, text)), text);
  }
  EXPECT_EQ(to_string(mesh, parse_layout(mesh, "[(edp ep), one] +{tp one}")), "[dp, -] +{tp}");
  EXPECT_NE(refusal([&] { parse_layout(mesh, "[dp,"); }).find("LAYOUT_ARG"), std::string::npos);
  EXPECT_NE(refusal([&] { parse_layout(mesh, "[dq]"); }).find("LAYOUT_AXIS_UNKNOWN"),
            std::string::npos);
  EXPECT_NE(refusal([&] { parse_layout(mesh, "[dp] tp"); }).find("column 6"), std::string::npos);
}

TEST(Layout, ValidityNamesTheRule) {
  const Mesh mesh = make_mesh({{"dp", 4}, {"mp", 2}});
  auto check = [&](const char* text, const Shape& shape) {
    return refusal([&] { check_layout(mesh, parse_layout(mesh, text), shape, "w"); });
  };
  EXPECT_EQ(check("[dp, mp]", {16, 8}), "accepted");
  EXPECT_NE(check("[dp, dp]", {16, 8}).find("LAYOUT_AXIS_REUSED"), std::string::npos);
  EXPECT_NE(check("[dp] +{dp}", {16}).find("LAYOUT_AXIS_REUSED"), std::string::npos);
  EXPECT_NE(check("[dp]", {16, 8}).find("LAYOUT_RANK"), std::string::npos);
  EXPECT_NE(check("[dp, -]", {10, 8}).find("LAYOUT_DIVIDE"), std::string::npos);
  EXPECT_NE(check("[(dp mp), -]", {12, 8}).find("8 equal parts"), std::string::npos);
}

TEST(Layout, RaggedDimKeepsItsLargestSize) {
  const Mesh mesh = make_mesh({{"dp", 4}, {"ep", 2}});
  const Type rows{DType::kF32, {8, 48, 16}, true};
  EXPECT_EQ(local_shape(mesh, parse_layout(mesh, "[ep, dp, -]"), rows), (Shape{4, 48, 16}));
}

TEST(MeshView, TensorMaps) {
  using Map = std::vector<std::vector<int>>;
  const MeshView two({4, 2}, {"dp", "mp"});
  EXPECT_EQ(two.tensor_map({{"dp"}, {"mp"}}), (Map{{1}, {0}}));
  EXPECT_EQ(two.tensor_map({{"mp"}, {"dp"}}), (Map{{0}, {1}}));
  EXPECT_EQ(two.tensor_map({{"dp", "mp"}, {"None"}}), (Map{{1, 0}, {-1}}));
  EXPECT_EQ(two.tensor_map({{"mp", "dp"}, {"None"}}), (Map{{0, 1}, {-1}}));
  EXPECT_EQ(two.tensor_map({{"dp"}, {"None"}, {"mp"}}), (Map{{1}, {-1}, {0}}));
  const MeshView three({2, 2, 2}, {"dp", "sp", "mp"});
  EXPECT_EQ(three.tensor_map({{"dp"}, {"mp"}}), (Map{{2}, {0}}));
  const MeshView inter({2, 4, 2, 2}, {"dp", "mp", "sp", "interleaved_parallel"}, {}, 16);
  EXPECT_EQ(inter.tensor_map({{"dp", "interleaved_parallel"}, {"mp"}}), (Map{{3, 0}, {2}}));
  const MeshView::Entries all{{"dp", "interleaved_parallel", "mp"}, {"sp"}};
  EXPECT_EQ(inter.tensor_map(all), (Map{{3, 0, 2}, {1}}));
  EXPECT_EQ(inter.physical_split(all), (std::vector<int>{8, 2}));
  EXPECT_NE(refusal([&] { inter.layout(all); }).find("parallel.overlap"), std::string::npos);
  EXPECT_EQ(to_string(two.mesh(), two.layout({{"dp", "mp"}, {"None"}})), "[(dp mp), -]");
}

TEST(MeshView, TuplesBecomeVirtualDims) {
  EXPECT_EQ(expand_tuples({8, 2, 4}, {{2}, {1, 0}}, {512, 1024}),
            (ExpandedMap{{2, 1, 0}, {512, 2, 512}}));
  EXPECT_EQ(expand_tuples({8, 2, 4}, {{1}, {0, 2}}, {512, 1024}),
            (ExpandedMap{{1, 0, 2}, {512, 4, 256}}));
}

TEST(MeshView, Refusals) {
  auto view = [](std::vector<int> matrix, std::vector<std::string> names,
                 std::vector<int> ranks = {}, int stage = 0) {
    return refusal([&] { MeshView(matrix, names, ranks, stage); });
  };
  EXPECT_EQ(view({4, 2}, {"dp", "mp"}), "accepted");
  EXPECT_NE(view({4, 2}, {"dp"}).find("LAYOUT_ARG"), std::string::npos);
  EXPECT_NE(view({4, 2}, {"dp", "None"}).find("LAYOUT_ALIAS"), std::string::npos);
  EXPECT_NE(view({4, 2}, {"dp", "dp"}).find("LAYOUT_ALIAS"), std::string::npos);
  EXPECT_NE(view({2, 4}, {"interleaved_parallel", "dp"}).find("LAYOUT_INTERLEAVE"),
            std::string::npos);
  EXPECT_NE(view({4, 2}, {"dp", "mp"}, {0, 1, 2, 3, 4, 5, 6}).find("LAYOUT_RANKS"),
            std::string::npos);
  EXPECT_NE(view({4, 4}, {"dp", "mp"}, {}, 8).find("LAYOUT_DEVICES"), std::string::npos);
  const MeshView two({4, 2}, {"dp", "mp"});
  EXPECT_NE(refusal([&] { two.tensor_map({{"dp"}, {"dp"}}); }).find("LAYOUT_AXIS_REUSED"),
            std::string::npos);
  EXPECT_NE(refusal([&] { two.tensor_map({{"tp"}}); }).find("LAYOUT_AXIS_UNKNOWN"),
            std::string::npos);
  const MeshView odd({2}, {"dp"}, {1, 0});
  EXPECT_EQ(odd.rank_at(0), 1);
  EXPECT_NE(refusal([&] { odd.mesh(); }).find("LAYOUT_RANKS"), std::string::npos);
}

}  // namespace
}  // namespace moetrain
