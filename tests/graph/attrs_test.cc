// Attributes: order, types, defaults, text.
#include "graph/attrs.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace moetrain {
namespace {

TEST(Attrs, AreSortedAndComparable) {
  const Attrs a{{"heads", int64_t{8}}, {"eps", 1e-6}};
  Attrs b;
  b.set("eps", 1e-6).set("heads", int64_t{7}).set("heads", int64_t{8});
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.items()[0].first, "eps");
  EXPECT_EQ(to_string(a), "{eps=1e-06, heads=8}");
  EXPECT_EQ(to_string(Attrs{}), "");
  b.set("heads", int64_t{9});
  EXPECT_FALSE(a == b);
}

TEST(Attrs, GiveTypedValuesAndDefaults) {
  const Attrs a{{"n", int64_t{3}}, {"name", "x"}, {"shape", std::vector<int64_t>{2, 3}},
                {"f", std::vector<double>{1, 2, 3, 4, 5}}};
  EXPECT_EQ(a.integer("n"), 3);
  EXPECT_EQ(a.text("name"), "x");
  EXPECT_EQ(a.integers("shape"), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(a.reals("f").size(), 5u);
  EXPECT_EQ(a.integer_or("m", 5), 5);
  EXPECT_EQ(a.real_or("eps", 0.5), 0.5);
  EXPECT_TRUE(a.has("n"));
  EXPECT_FALSE(a.has("m"));
  EXPECT_EQ(to_string(a), "{f=[5 reals], n=3, name=x, shape=[2,3]}");
}

TEST(Attrs, MissingOrMistypedIsOurBug) {
  const Attrs a{{"n", int64_t{3}}};
  EXPECT_THROW(a.integer("m"), InternalError);
  EXPECT_THROW(a.real("n"), InternalError);
  EXPECT_THROW(a.real_or("n", 1.0), InternalError);
  try {
    a.text("name");
    FAIL();
  } catch (const InternalError& e) {
    EXPECT_NE(std::string(e.what()).find("no attribute 'name'"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace moetrain
