// What derives from the rows: resolved YAML that loads again, a JSON Schema, and the committed
// configurations.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "config/advice.h"
#include "config/field.h"
#include "config/schema.h"
#include "config/value_text.h"
#include "sample.h"

namespace moetrain {
namespace {

/// show_config without comments.
std::string values_of(const Config& config) {
  std::string out, line;
  for (const char c : show_config(config)) {
    if (c != '\n') {
      line += c;
      continue;
    }
    line.erase(std::min(line.find("  # "), line.size()));
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
    line.clear();
  }
  return out;
}

TEST(Show, OriginsOfEveryKind) {
  Config c = parse_config(
      "model:\n  hf_config: tiny.json\n  num_hidden_layers: 6\ndata: {sequence_length: 64}\ntrain: "
      "{global_batch_size: 8}\n",
      "t.yaml", MOETRAIN_TEST_DATA "/config", {"parallel.tensor=2"});
  resolve(c, 4);
  const std::string shown = show_config(c);
  EXPECT_TRUE(contains(shown, "# t.yaml:3:22"));
  EXPECT_TRUE(contains(shown, "# --set parallel.tensor=2"));
  EXPECT_TRUE(contains(shown, "tiny.json:7"));
  EXPECT_TRUE(contains(shown, "# default"));
  EXPECT_TRUE(contains(shown, "# auto: world size 4 / (tensor x pipeline x context = 2)"));
}

TEST(Show, LoadsAgain) {
  const std::vector<std::string> sets = {
      "run.name=\"a: b # \\\"c\\\"\"",
      "optimizer.learning_rate=1e-4",
      "model.rope_scaling={factor: 4, mscale: 0.7}",
      "parallel.mesh={x: 2, y: 4}",
      "parallel.shard=[{op: \"l.*\", n: [x, y]}, {op: a, in: [[dp], \"[-, tp] +{ep}\"]}, {param: "
      "w, layout: [tp, ~]}]",
      "train.mtp_lambda_schedule=[{after_tokens: 10T, value: 0.1}]",
      "compute.memory_limit=4GiB",
      "run.time_limit=1h",
      "parallel.stage_layout=[4]",
      "debug.dump={steps: [1, 2], dir: x}"};
  const Config first = sample(sets);
  const Config again = parse_config(show_config(first), "shown.yaml", "");
  EXPECT_EQ(values_of(again), values_of(first));
  EXPECT_EQ(again.run.name, "a: b # \"c\"");
  EXPECT_EQ(again.parallel.shard[1].in[1].partial, (std::vector<std::string>{"ep"}));
  Config resolved = sample();
  resolve(resolved, 8);
  EXPECT_EQ(values_of(parse_config(show_config(resolved), "shown.yaml", "")), values_of(resolved));
}

TEST(Schema, IsJsonAndKnowsEveryKey) {
  const auto schema = nlohmann::json::parse(config_schema());
  Config config;
  for (const Field& section : describe(config)) {
    ASSERT_TRUE(schema["properties"].contains(section.name)) << section.name;
    const auto& inner = schema["properties"][section.name];
    EXPECT_EQ(inner["additionalProperties"], false);
    for (const Field& field : std::get<Group>(section.target).fields()) {
      ASSERT_TRUE(inner["properties"].contains(field.name)) << field.name;
      EXPECT_FALSE(inner["properties"][field.name]["description"].empty()) << field.name;
    }
  }
  EXPECT_EQ(schema["properties"]["parallel"]["properties"]["zero"]["default"], 1);
  EXPECT_EQ(schema["properties"]["optimizer"]["properties"]["betas"]["default"],
            nlohmann::json({0.9, 0.95}));
  EXPECT_EQ(schema["properties"]["compute"]["properties"]["precision"]["enum"],
            nlohmann::json({"bf16", "fp32"}));
}

void expect_described(const Fields& rows, const std::string& path) {
  std::set<std::string> names;
  for (const Field& field : rows) {
    EXPECT_TRUE(names.insert(field.name).second) << path << "." << field.name;
    EXPECT_FALSE(field.help.empty()) << path << "." << field.name;
    if (const Group* g = std::get_if<Group>(&field.target))
      expect_described(g->fields(), path + "." + field.name);
  }
}

TEST(Rows, EachKnobOnceWithHelp) {
  Config config;
  expect_described(describe(config), "");
}

TEST(Rows, ForeignNamesPointToKnobs) {
  std::set<std::string> known;
  for (const auto& [name, home] : all_keys()) known.insert(home.empty() ? name : home + "." + name);
  for (const auto& [foreign, ours] : foreign_names()) EXPECT_EQ(known.count(ours), 1u) << foreign;
  EXPECT_TRUE(
      contains(faults_of(kSample, {"parallel.tp=2"}), "here it is called `parallel.tensor`"));
  EXPECT_TRUE(contains(faults_of(kSample, {"optimizer.schedule.warmup=3"}),
                       "did you mean `warmup_steps`?"));
}

TEST(Rows, DefaultsAreInRange) {
  // The defaults printed and loaded again pass the same checks as any value (required ones aside).
  EXPECT_NO_THROW(parse_config(show_config(sample()), "defaults.yaml", ""));
}

TEST(CommittedConfigs, LoadAndValidate) {
  namespace fs = std::filesystem;
  int seen = 0;
  for (const auto& entry : fs::directory_iterator(MOETRAIN_SOURCE_DIR "/configs")) {
    if (entry.path().extension() != ".yaml") continue;
    const Config loaded = load_config(entry.path().string());
    std::vector<int64_t> worlds = {smallest_world_size(loaded)};
    if (entry.path().stem() == "deepseek_v3_671b") worlds.push_back(2048);
    if (entry.path().stem() == "quickstart") worlds.push_back(4);
    for (const int64_t world : worlds) {
      Config c = loaded;
      resolve(c, world);
      EXPECT_NO_THROW(validate(c, world)) << entry.path() << " on " << world;
      EXPECT_NO_THROW(validate_training(c)) << entry.path();
    }
    ++seen;
  }
  EXPECT_GE(seen, 3);
}

TEST(CommittedConfigs, DeepSeekV3IsThePublishedModel) {
  Config c = load_config(MOETRAIN_SOURCE_DIR "/configs/deepseek_v3_671b.yaml");
  ModelConfig published = load_hf_model(MOETRAIN_TEST_DATA "/config/deepseek_v3.json");
  // What pretraining has otherwise than the released file: context before the YaRN phases, initial
  // deviation.
  published.hf_config.reset();
  published.rope_scaling.reset();
  published.max_position_embeddings = 4096;
  published.initializer_range = 0.006;
  Config other = c;
  other.model = published;
  EXPECT_EQ(values_of(c), values_of(other));
  EXPECT_EQ(c.train.batch_ramp.back().until_tokens, 469000000000);
  int64_t planned = 0;
  for (const RateStage& stage : c.optimizer.schedule.stages) planned += *stage.tokens;
  EXPECT_EQ(planned, c.train.tokens);
}

}  // namespace
}  // namespace moetrain
