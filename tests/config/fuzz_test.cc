// Damaged YAML, JSON and settings end in success or UserError, never in another exception, a crash
// or a hang.
#include <filesystem>
#include <fstream>
#include <random>

#include "sample.h"

namespace moetrain {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// One to four small damages: a byte changed, a run removed, doubled or moved, a nasty token put
/// in.
std::string damaged(std::string text, std::mt19937_64& rng) {
  static const std::vector<std::string> kTokens = {"[",
                                                   "]",
                                                   "{",
                                                   "}",
                                                   ":",
                                                   ": ",
                                                   "- ",
                                                   "\n",
                                                   "\t",
                                                   "&a ",
                                                   "*a",
                                                   "!!int ",
                                                   "|\n",
                                                   ">-\n",
                                                   "? ",
                                                   "---\n",
                                                   "...\n",
                                                   "\"",
                                                   "'",
                                                   "#",
                                                   "%YAML 1.1\n",
                                                   "<<: ",
                                                   "null",
                                                   "~",
                                                   "\xef\xbb\xbf",
                                                   "\xff",
                                                   "1e999",
                                                   "010",
                                                   "@",
                                                   "`",
                                                   ",",
                                                   std::string(40, '['),
                                                   std::string(40, '{'),
                                                   "0x7fffffffffffffff",
                                                   "\\u0000"};
  const auto below = [&](size_t n) { return static_cast<size_t>(rng() % std::max<size_t>(n, 1)); };
  for (size_t i = 0, n = 1 + below(4); i < n; ++i) {
    const size_t at = below(text.size() + 1), length = below(24);
    switch (below(5)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(rng());
        break;
      case 1:
        text.erase(std::min(at, text.size()), length);
        break;
      case 2:
        text.insert(at, text.substr(std::min(at, text.size()), length));
        break;
      case 3:
        text.insert(at, kTokens[below(kTokens.size())]);
        break;
      default: {
        const std::string run = text.substr(std::min(at, text.size()), length);
        text.insert(below(text.size() + 1), run);
      }
    }
  }
  return text;
}

TEST(Fuzz, YamlEndsInSuccessOrUserError) {
  std::mt19937_64 rng(1);
  const std::vector<std::string> seeds = {
      kSample, read(MOETRAIN_SOURCE_DIR "/configs/deepseek_v3_671b.yaml"),
      bent("  tensor: 1",
           "  tensor: 2\n  mesh: {x: 2}\n  shard: [{op: a, n: [tp]}, {param: b, layout: [\"[tp] "
           "+{dp}\"]}]")};
  int loaded = 0, refused = 0;
  for (int i = 0; i < 1500; ++i) {
    const std::string text = damaged(seeds[static_cast<size_t>(i) % seeds.size()], rng);
    try {
      Config config = parse_config(text, "fuzz.yaml", "");
      resolve(config, 8);
      ++loaded;
      check(config, 8);
    } catch (const UserError& error) {
      ASSERT_FALSE(error.diagnostics().empty());
      ++refused;
    }
  }
  EXPECT_GT(loaded, 20);
  EXPECT_GT(refused, 1000);
}

TEST(Fuzz, SettingsEndInSuccessOrUserError) {
  std::mt19937_64 rng(2);
  for (int i = 0; i < 1000; ++i) {
    try {
      sample({damaged("data.train.0.weight=[1, {a: 2}]", rng), damaged("parallel.tensor=2", rng)});
    } catch (const UserError&) {
    }
  }
}

TEST(Fuzz, ConfigJsonEndsInSuccessOrUserError) {
  std::mt19937_64 rng(3);
  const std::string good = read(MOETRAIN_TEST_DATA "/config/deepseek_v3.json");
  const std::string path = testing::TempDir() + "moetrain_fuzz_config.json";
  for (int i = 0; i < 500; ++i) {
    std::ofstream(path, std::ios::binary) << damaged(good, rng);
    try {
      load_hf_model(path);
    } catch (const UserError&) {
    }
  }
  std::filesystem::remove(path);
}

TEST(Fuzz, SizesNeverOverflow) {
  // Meaningful with the undefined-behaviour sanitizer: rules multiply sizes.
  std::mt19937_64 rng(4);
  const std::vector<std::string> keys = {"parallel.tensor",
                                         "parallel.pipeline",
                                         "parallel.context",
                                         "parallel.expert",
                                         "parallel.data",
                                         "parallel.ranks_per_node",
                                         "parallel.virtual_stages",
                                         "parallel.mesh.x",
                                         "parallel.mesh.y",
                                         "model.num_hidden_layers",
                                         "model.n_routed_experts",
                                         "model.n_shared_experts",
                                         "model.moe_intermediate_size",
                                         "model.n_group",
                                         "model.topk_group",
                                         "model.num_experts_per_tok",
                                         "model.vocab_size",
                                         "data.sequence_length",
                                         "train.global_batch_size",
                                         "train.micro_batch_size"};
  const std::vector<std::string> values = {"1", "2", "3", "8", "32767", "32768", "1000000"};
  for (int i = 0; i < 500; ++i) {
    std::vector<std::string> sets = {rng() % 2 ? "parallel.schedule=dualpipev"
                                               : "parallel.dispatch=dedup"};
    for (const std::string& key : keys)
      if (rng() % 3 != 0) sets.push_back(key + "=" + values[rng() % values.size()]);
    try {
      Config config = sample(sets);
      resolve(config, rng() % 2 ? 8 : 1 << 20);
      check(config, rng() % 2 ? 8 : 1 << 20);
      smallest_world_size(config);
    } catch (const UserError&) {
    }
  }
}

TEST(Fuzz, DeepNestingIsRefused) {
  for (const size_t depth : {100u, 5000u, 50000u}) {
    EXPECT_NE(faults_of(std::string(depth, '[')), "");
    EXPECT_NE(faults_of(std::string(depth, '[') + std::string(depth, ']')), "");
    EXPECT_NE(faults_of("run: " + std::string(depth, '{')), "");
  }
  std::string blocks;
  for (int i = 0; i < 1500; ++i) blocks += std::string(static_cast<size_t>(i), ' ') + "a:\n";
  EXPECT_NE(faults_of(blocks), "");
}

}  // namespace
}  // namespace moetrain
