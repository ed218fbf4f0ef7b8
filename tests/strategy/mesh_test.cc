// Meshes of a stage: common refinements, names as runs of atoms, refusals with the formula.
#include <gtest/gtest.h>

#include "base/error.h"
#include "compile/strategy/parallel_options.h"

namespace moetrain {
namespace {

ParallelOptions options(int data, int context, int tensor, int expert) {
  ParallelOptions o;
  o.data = data;
  o.context = context;
  o.tensor = tensor;
  o.expert = expert;
  return o;
}

std::vector<int> sizes(const Mesh& mesh) {
  std::vector<int> list;
  for (const auto& atom : mesh.atoms) list.push_back(atom.size);
  return list;
}

std::string refusal(const ParallelOptions& o) {
  try {
    build_mesh(o);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(BuildMesh, CommonRefinement) {
  const Mesh mesh = build_mesh(options(4, 2, 1, 4));
  EXPECT_EQ(sizes(mesh), (std::vector<int>{2, 2, 2}));
  EXPECT_EQ(mesh.resolve("dp"), (std::vector<Axis>{0, 1}));
  EXPECT_EQ(mesh.resolve("cp"), (std::vector<Axis>{2}));
  EXPECT_EQ(mesh.resolve("edp"), (std::vector<Axis>{0}));
  EXPECT_EQ(mesh.resolve("ep"), (std::vector<Axis>{1, 2}));
  EXPECT_TRUE(mesh.resolve("tp").empty());
}

TEST(BuildMesh, TensorIsInnermost) {
  const Mesh mesh = build_mesh(options(2, 1, 2, 2), 4);
  EXPECT_EQ(sizes(mesh), (std::vector<int>{2, 2}));
  EXPECT_EQ(mesh.group(4, mesh.resolve("tp")), (std::vector<int>{4, 5}));
  EXPECT_EQ(mesh.group(4, mesh.resolve("ep")), (std::vector<int>{4, 6}));
  EXPECT_EQ(mesh.resolve("ep"), mesh.resolve("dp"));
}

TEST(BuildMesh, OneRankHasEmptyRuns) {
  const Mesh mesh = build_mesh(options(1, 1, 1, 1));
  EXPECT_EQ(mesh.size(), 1);
  for (const char* name : {"dp", "cp", "tp", "edp", "ep"}) EXPECT_TRUE(mesh.resolve(name).empty());
}

TEST(BuildMesh, UserAxesAreRunsToo) {
  ParallelOptions o = options(4, 1, 2, 2);
  o.mesh = {{"rows", 2}, {"cols", 4}};
  const Mesh mesh = build_mesh(o);
  EXPECT_EQ(mesh.size(), 8);
  EXPECT_EQ(mesh.size(mesh.resolve("rows")), 2);
  EXPECT_EQ(mesh.size(mesh.resolve("cols")), 4);
  EXPECT_EQ(mesh.resolve("rows"), mesh.resolve("edp"));
  EXPECT_EQ(mesh.resolve("dp").size(), 2u);
}

TEST(BuildMesh, RefusesWithTheFormula) {
  EXPECT_NE(refusal(options(4, 3, 1, 2)).find("no multiple"), std::string::npos);
  EXPECT_NE(refusal(options(4, 3, 1, 2)).find("cp 3"), std::string::npos);
  EXPECT_NE(refusal(options(2, 1, 1, 4)).find("must divide data x context = 2 x 1 = 2"),
            std::string::npos);
  ParallelOptions o = options(2, 1, 2, 1);
  o.mesh = {{"a", 2}, {"b", 4}};
  EXPECT_NE(refusal(o).find("LAYOUT_DEVICES"), std::string::npos);
  o.mesh = {{"tp", 4}};
  EXPECT_NE(refusal(o).find("LAYOUT_ALIAS"), std::string::npos);
  EXPECT_NE(refusal(options(0, 1, 1, 1)).find("at least 1"), std::string::npos);
}

TEST(BuildMesh, InterleavingIsRefusedWithARemedy) {
  ParallelOptions o;
  o.data = 4;
  for (const bool last : {true, false}) {
    o.mesh = {{"x", 2}, {"interleaved_parallel", 2}};
    if (!last) std::swap(o.mesh[0], o.mesh[1]);
    try {
      build_mesh(o);
      FAIL() << "accepted";
    } catch (const UserError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("LAYOUT_INTERLEAVE"), std::string::npos) << text;
      EXPECT_NE(text.find("fused_1f1b"), std::string::npos) << text;
      EXPECT_EQ(text.find("must come last") == std::string::npos, last) << text;
    }
  }
}

}  // namespace
}  // namespace moetrain
