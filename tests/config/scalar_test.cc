// The table of spellings: what is a number, a truth value, a size, a duration - and what is
// refused.
#include "config/scalar.h"

#include "sample.h"

namespace moetrain {
namespace {

TEST(Scalar, Integers) {
  const std::vector<std::pair<const char*, int64_t>> good = {
      {"12", 12},
      {"+2", 2},
      {"-3", -3},
      {"0", 0},
      {"1_000", 1000},
      {"1e1", 10},
      {"2.0", 2},
      {"10k", 10000},
      {"1.5k", 1500},
      {"14.8T", 14800000000000},
      {"333B", 333000000000},
      {"58.625B", 58625000000},
      {"1e18", 1000000000000000000},
      {"9223372036854775807", 9223372036854775807},
      {"120e-1", 12},
      {"0e5", 0}};
  for (const auto& [text, value] : good) {
    EXPECT_EQ(read_integer(text).fault, "") << text;
    EXPECT_EQ(read_integer(text).value, value) << text;
  }
  for (const char* bad : {"",     "010",     "00",    "0x10", "0o17",
                          "0b1",  "2.5",     "1__0",  "_1",   "1_",
                          "1e",   "k",       "10kk",  "10 k", "9223372036854775808",
                          "1e19", "1e99999", "inf",   ".inf", "-.INF",
                          "nan",  ".nan",    "1,000", "two",  "1e-1",
                          "--1",  "0.1k1"})
    EXPECT_NE(read_integer(bad).fault, "") << bad;
  EXPECT_TRUE(contains(read_integer("010").fault, "write 10"));
}

TEST(Scalar, Reals) {
  for (const char* text : {"1e-4", "1.0e-4", "1E-4", "0.0001", ".0001", "+1e-4", "0.1e-3"})
    EXPECT_EQ(read_real(text).value, 1e-4) << text;
  EXPECT_EQ(read_real("1_000.5").value, 1000.5);
  EXPECT_EQ(read_real("1.").value, 1.0);
  EXPECT_EQ(read_real("2.2k").value, 2200.0);
  for (const char* bad :
       {"", ".", "e4", "1e400", "1e-400", "inf", "nan", "-.inf", "01.5", "1.5.2", "1e4e4"})
    EXPECT_NE(read_real(bad).fault, "") << bad;
  for (const double value : {1e-4, 2.2e-4, 0.1, 1.0 / 3, 1e300})
    EXPECT_EQ(read_real(real_text(value)).value, value);
}

TEST(Scalar, Truth) {
  for (const char* text : {"true", "True", "TRUE"})
    EXPECT_TRUE(read_bool(text).value && read_bool(text).fault.empty());
  for (const char* text : {"false", "False", "FALSE"})
    EXPECT_TRUE(!read_bool(text).value && read_bool(text).fault.empty());
  for (const char* bad : {"yes", "no", "on", "off", "y", "n", "1", "0", "tRue", ""})
    EXPECT_NE(read_bool(bad).fault, "") << bad;
  EXPECT_TRUE(contains(read_bool("yes").fault, "write true"));
}

TEST(Scalar, SizesAndDurations) {
  EXPECT_EQ(read_integer("4GiB", Suffix::kBytes).value, 4LL << 30);
  EXPECT_EQ(read_integer("1.5KiB", Suffix::kBytes).value, 1536);
  EXPECT_EQ(read_integer("500MB", Suffix::kBytes).value, 500000000);
  EXPECT_EQ(read_integer("17", Suffix::kBytes).value, 17);
  EXPECT_NE(read_integer("4k", Suffix::kBytes).fault, "");
  EXPECT_NE(read_integer("0.3KiB", Suffix::kBytes).fault, "");
  EXPECT_EQ(read_real("90", Suffix::kSeconds).value, 90);
  EXPECT_EQ(read_real("1h30m", Suffix::kSeconds).value, 5400);
  EXPECT_EQ(read_real("2d", Suffix::kSeconds).value, 172800);
  EXPECT_NE(read_real("1h30", Suffix::kSeconds).fault, "");
  EXPECT_NE(read_real("h", Suffix::kSeconds).fault, "");
}

TEST(Scalar, InContext) {
  EXPECT_EQ(sample({"optimizer.learning_rate=1e-4"}).optimizer.learning_rate, 1e-4);
  EXPECT_EQ(sample({"model.num_hidden_layers=1e1"}).model.num_hidden_layers, 10);
  EXPECT_EQ(sample({"compute.memory_limit=4GiB"}).compute.memory_limit, 4LL << 30);
  EXPECT_EQ(sample({"run.time_limit=1h"}).run.time_limit, 3600);
  EXPECT_EQ(sample({"data.split=99,1,0"}).data.split, (std::vector<double>{99, 1, 0}));
  const auto said = [](const std::string& set) { return faults_of(kSample, {set}); };
  EXPECT_TRUE(contains(said("model.num_hidden_layers=\"2\""), "remove the quotes"));
  EXPECT_TRUE(contains(said("model.num_hidden_layers=010"), "write 10"));
  EXPECT_TRUE(contains(said("optimizer.learning_rate=inf"), "finite"));
  EXPECT_TRUE(contains(said("optimizer.learning_rate=.nan"), "finite"));
  EXPECT_TRUE(contains(said("optimizer.learning_rate=0"), "must be greater than 0"));
  EXPECT_TRUE(contains(said("optimizer.betas=[0.9, 1]"), "less than 1"));
  EXPECT_TRUE(contains(said("optimizer.betas=[0.9]"), "2 numbers"));
  EXPECT_TRUE(contains(said("compute.fusion=yes"), "write true"));
  EXPECT_TRUE(contains(said("compute.fusion=\"true\""), "remove the quotes"));
  EXPECT_TRUE(contains(said("parallel.zero=2"), "must be one of 0, 1, 3"));
  EXPECT_TRUE(contains(said("parallel.schedule=1f1v"), "did you mean `1f1b`?"));
  EXPECT_TRUE(contains(said("data.train.0.weight=0"), "must be greater than 0"));
  EXPECT_TRUE(contains(said("run.name=null"), "must be text, not nothing"));
}

}  // namespace
}  // namespace moetrain
