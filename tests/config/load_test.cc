// Strictness of loading: every kind of faulty file is refused with place, key, value and remedy.
#include <filesystem>
#include <fstream>

#include "sample.h"

namespace moetrain {
namespace {

TEST(Load, SampleIsTyped) {
  const Config c = sample();
  EXPECT_EQ(c.run.name, "t0");
  EXPECT_EQ(c.model.hidden_size, 64);
  EXPECT_EQ(c.model.q_lora_rank, 32);
  EXPECT_TRUE(c.parallel.data.is_auto());
  EXPECT_EQ(c.train.steps, 20);
  EXPECT_FALSE(c.train.tokens.has_value());
  ASSERT_EQ(c.data.train.size(), 1u);
  EXPECT_EQ(c.data.train[0].prefix, "d0");
  EXPECT_EQ(c.data.train[0].weight, 1);
  EXPECT_EQ(c.origins.at("model.hidden_size").where, "t.yaml:4:16");
  EXPECT_EQ(c.where("model.hidden_size"), "t.yaml:4:16");
  EXPECT_EQ(c.where("optimizer.eps"), "t.yaml");
}

TEST(Load, UnknownKeyNamesTheNearest) {
  const std::string text = bent("", "optimizer:\n  learning_rte: 1e-3\n");
  EXPECT_TRUE(
      contains(faults_of(text),
               "t.yaml:28:3: unknown key `optimizer.learning_rte`; did you mean `learning_rate`?"));
}

TEST(Load, HyphenForUnderscore) {
  const std::string text = bent("", "optimizer:\n  weight-decay: 0.1\n");
  EXPECT_TRUE(contains(faults_of(text), "did you mean `weight_decay`?"));
}

TEST(Load, MisplacedKeyNamesItsSection) {
  const std::string faults = faults_of(bent("  steps: 20", "  steps: 20\n  weight_decay: 0.1"));
  EXPECT_TRUE(contains(faults,
                       "t.yaml:26:3: unknown key `train.weight_decay`; this key belongs to "
                       "`optimizer`, not to `train`"));
  EXPECT_TRUE(contains(faults_of(bent("", "sequence_length: 4\n")), "belongs to `data`"));
  EXPECT_TRUE(contains(faults_of(bent("run: {", "run: {parallel: 3, ")), "section `parallel`"));
}

TEST(Load, DuplicateKeyNamesBothPlaces) {
  const std::string faults = faults_of(bent("  steps: 20", "  steps: 20\n  steps: 21"));
  EXPECT_TRUE(contains(faults, "t.yaml:26:3: duplicate key `steps` (first at t.yaml:25:3)"));
  EXPECT_TRUE(contains(faults_of(bent("", "run: {name: x}\n")), "duplicate key `run`"));
}

TEST(Load, EveryFaultIsReportedAtOnce) {
  const std::string faults =
      faults_of(bent("  hidden_size: 64\n", "  hidden_size: many\n  hiden_size: 3\n") +
                "log: {interval: 0}\n");
  EXPECT_TRUE(contains(faults, "`model.hidden_size: many` must be a whole number"));
  EXPECT_TRUE(contains(faults, "unknown key `model.hiden_size`; did you mean `hidden_size`?"));
  EXPECT_TRUE(contains(faults, "`log.interval: 0` must be at least 1"));
  EXPECT_EQ(faults.find("missing"), std::string::npos) << faults;
}

TEST(Load, WrongShapes) {
  EXPECT_TRUE(contains(faults_of(bent("  tensor: 1", "  tensor: [1, 2]")),
                       "`parallel.tensor: [1, 2]` must be a whole number, not a list"));
  EXPECT_TRUE(
      contains(faults_of(bent("", "optimizer:\n")), "`optimizer: null` this section is empty"));
  EXPECT_TRUE(
      contains(faults_of(bent("", "optimizer: 3\n")), "must be a map of keys, not a single value"));
  EXPECT_TRUE(
      contains(faults_of(bent("[{prefix: d0}]", "d0")), "`data.train: d0` must be a list of maps"));
  EXPECT_TRUE(contains(faults_of(bent("[{prefix: d0}]", "[d0]")),
                       "must be a map with keys prefix, weight"));
  EXPECT_TRUE(contains(faults_of(bent("[{prefix: d0}]", "[{weight: 2}]")),
                       "missing key `data.train.0.prefix`"));
}

TEST(Load, MissingKeys) {
  const std::string faults = faults_of(bent("  hidden_size: 64\n", ""));
  EXPECT_TRUE(contains(faults, "t.yaml:3:3: missing key `model.hidden_size`"));
  EXPECT_TRUE(contains(faults_of("run: {name: x}\n"),
                       "missing section `train`; it must give global_batch_size"));
}

TEST(Load, BrokenTextHasAPlace) {
  EXPECT_TRUE(contains(faults_of(""), "the file is empty"));
  EXPECT_TRUE(contains(faults_of("# only a comment\n"), "the file is empty"));
  EXPECT_TRUE(contains(faults_of("- 1\n"), "must be a map of sections, not a list"));
  EXPECT_TRUE(contains(faults_of("run:\n\tname: x\n"), "t.yaml:2:1: tab in the indentation"));
  EXPECT_TRUE(contains(faults_of("run:\n  name: x\n output_dir: y\n"), "t.yaml:3:"));
  EXPECT_TRUE(contains(faults_of("run: {name: x\n"), "not valid YAML"));
  EXPECT_TRUE(contains(faults_of("run: \xff\n"), "t.yaml:1:6: the file is not UTF-8 text"));
  EXPECT_TRUE(contains(faults_of(std::string("run: \0x\n", 8)), "control character"));
  EXPECT_TRUE(contains(faults_of(kSample + "---\nrun: {}\n"), "a second document starts here"));
  EXPECT_TRUE(contains(faults_of(bent("name: t0", "name: &a t0")), "anchors"));
  EXPECT_TRUE(contains(faults_of(bent("hidden_size: 64", "hidden_size: !!str 64")), "tags"));
  EXPECT_TRUE(contains(faults_of(kSample + "? [a]\n: 1\n"), "a key must be a word, not a list"));
}

TEST(Load, OtherLineEndingsAndByteOrderMark) {
  std::string dos;
  for (const char c : kSample) dos += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(parse_config(dos, "t.yaml", "").data.train[0].prefix, "d0");
  EXPECT_EQ(faults_of("\xef\xbb\xbf" + kSample), "");
  EXPECT_TRUE(contains(faults_of(bent("tensor: 1", "tensor:1")), "t.yaml:2"));
}

TEST(Load, MissingFileAndDirectory) {
  EXPECT_THROW(load_config("no/such/file.yaml"), UserError);
  EXPECT_THROW(load_config(MOETRAIN_TEST_DATA), UserError);
}

TEST(Load, SettingsWinAndAreNamed) {
  const Config c = sample({"parallel.tensor=2", "optimizer.betas=[0.8, 0.9]",
                           "data.train.0.weight=3", "model.q_lora_rank=null", "parallel.tensor=4"});
  EXPECT_EQ(c.parallel.tensor, 4);
  EXPECT_EQ(c.optimizer.betas, (std::vector<double>{0.8, 0.9}));
  EXPECT_EQ(c.data.train[0].weight, 3);
  EXPECT_FALSE(c.model.q_lora_rank.has_value());
  EXPECT_EQ(c.origins.at("parallel.tensor").where, "--set parallel.tensor=4");
  EXPECT_EQ(c.origins.at("parallel.tensor").kind, Origin::kSet);

  EXPECT_TRUE(
      contains(faults_of(kSample, {"parallel.tenser=2"}),
               "--set parallel.tenser=2: unknown key `parallel.tenser`; did you mean `tensor`?"));
  EXPECT_TRUE(contains(faults_of(kSample, {"parallel.tensor=0"}),
                       "--set parallel.tensor=0: `parallel.tensor: 0` must be at least 1"));
  for (const char* bad : {"parallel.tensor", "=2", "parallel..tensor=2",
                          "parallel.tensor=", "parallel.tensor={", "data.train.7.weight=1"})
    EXPECT_TRUE(contains(faults_of(kSample, {bad}), std::string("--set ") + bad + ": ")) << bad;
}

TEST(Load, SettingReplacesAFaultyValue) {
  EXPECT_EQ(faults_of(bent("  tensor: 1", "  tensor: x"), {"parallel.tensor=2"}), "");
}

TEST(Load, HfConfigInlineWins) {
  std::string text =
      "model:\n  hf_config: tiny.json\n  num_hidden_layers: 6\ndata: {sequence_length: 64}\ntrain: "
      "{global_batch_size: 8}\n";
  const Config c = parse_config(text, "t.yaml", MOETRAIN_TEST_DATA "/config");
  EXPECT_EQ(c.model.num_hidden_layers, 6);
  EXPECT_EQ(c.model.hidden_size, 32);
  EXPECT_EQ(c.origins.at("model.hidden_size").kind, Origin::kHfConfig);
  EXPECT_TRUE(contains(c.where("model.hidden_size"), "tiny.json:7"));
  EXPECT_EQ(c.origins.at("model.num_hidden_layers").where, "t.yaml:3:22");
  EXPECT_TRUE(contains(faults_of("model: {hf_config: nowhere.json}\ndata: {sequence_length: "
                                 "64}\ntrain: {global_batch_size: 8}\n"),
                       "nowhere.json: model.hf_config: cannot read"));
  EXPECT_EQ(faults_of("model: {hf_config: nowhere.json}\ndata: {sequence_length: 64}\ntrain: "
                      "{global_batch_size: 8}\n")
                .find("missing"),
            std::string::npos);
}

TEST(Load, HfNullSharedExpertsAreNone) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "no_shared.json";
  std::ofstream(path) << "{\"n_shared_experts\": null}";
  const Config c = parse_config(bent("model:", "model:\n  hf_config: no_shared.json"), "t.yaml",
                                ::testing::TempDir());
  EXPECT_EQ(c.model.n_shared_experts, 0);
}

TEST(Load, HfPublishedModel) {
  const ModelConfig m = load_hf_model(MOETRAIN_TEST_DATA "/config/deepseek_v3.json");
  EXPECT_EQ(m.n_routed_experts, 256);
  EXPECT_EQ(m.total_layers(), 62);
  ASSERT_TRUE(m.rope_scaling.has_value());
  EXPECT_EQ(m.rope_scaling->factor, 40);
  EXPECT_EQ(m.rope_scaling->mscale_all_dim, 1.0);
}

TEST(Load, HfContradictionsAreRefused) {
  std::ifstream file(MOETRAIN_TEST_DATA "/config/tiny.json");
  const std::string good((std::istreambuf_iterator<char>(file)), {});
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    const std::string path = testing::TempDir() + "moetrain_bent_config.json";
    std::ofstream(path) << text;
    std::string said;
    try {
      load_hf_model(path);
    } catch (const UserError& error) {
      said = error.what();
    }
    std::filesystem::remove(path);
    return said;
  };
  EXPECT_TRUE(contains(refused("\"sigmoid\"", "\"softmax\""),
                       "`model.scoring_func: \"softmax\"` must be sigmoid"));
  EXPECT_TRUE(
      contains(refused("\"attention_bias\": false", "\"attention_bias\": true"), "must be false"));
  EXPECT_TRUE(contains(refused("\"silu\"", "\"gelu\""), "must be silu"));
  EXPECT_TRUE(contains(refused("\"moe_layer_freq\": 1", "\"moe_layer_freq\": 2"),
                       "`model.moe_layer_freq: 2` must be 1"));
  EXPECT_TRUE(contains(refused("\"hidden_size\": 32,", ""), "missing key `model.hidden_size`"));
  EXPECT_TRUE(contains(refused("\"hidden_size\": 32,", "\"hidden_size\": \"32\","), "not text"));
  EXPECT_TRUE(contains(refused("\"hidden_size\": 32,", "\"hidden_size\": 32, \"hidden_size\": 64,"),
                       "duplicate key"));
  EXPECT_TRUE(contains(refused("\"hidden_size\": 32,", "\"hidden_size\": 32"), "not valid JSON"));
  EXPECT_EQ(refused("\"hidden_size\": 32,", "\"hidden_size\": 32, \"use_cache\": {\"a\": [1]},"),
            "");
}

TEST(Load, ShardRows) {
  const Config c = parse_config(bent("  tensor: 1", R"(  tensor: 2
  mesh: {x: 2}
  shard:
    - {op: "layers.*.attn.q_b", n: tp}
    - {op: "*.norm", s: [cp, tp], b: ~}
    - {op: head, in: [[dp, ~, tp], "[-, tp]", [-, tp], [-]], out: ["[dp, -] +{tp}"]}
    - {param: "model.embed_tokens.weight", layout: [[x], "-"]})"),
                                "t.yaml", "");
  ASSERT_EQ(c.parallel.shard.size(), 4u);
  const auto& rows = c.parallel.shard;
  EXPECT_EQ(rows[0].pattern, "layers.*.attn.q_b");
  EXPECT_EQ(rows[0].factors,
            (std::vector<std::pair<char, std::vector<std::string>>>{{'n', {"tp"}}}));
  EXPECT_EQ(rows[0].where, "t.yaml:26:7");
  EXPECT_EQ(rows[1].factors[0].second, (std::vector<std::string>{"cp", "tp"}));
  EXPECT_TRUE(rows[1].factors[1].second.empty());
  EXPECT_EQ(rows[2].form, ShardRow::kLayouts);
  EXPECT_EQ(rows[2].in[0].dims, (std::vector<std::vector<std::string>>{{"dp"}, {}, {"tp"}}));
  EXPECT_EQ(rows[2].in[1].dims, (std::vector<std::vector<std::string>>{{}, {"tp"}}));
  EXPECT_EQ(rows[2].in[2].dims, rows[2].in[1].dims);
  EXPECT_EQ(rows[2].in[3].dims, (std::vector<std::vector<std::string>>{{}}));
  EXPECT_EQ(rows[2].out[0].partial, (std::vector<std::string>{"tp"}));
  EXPECT_EQ(rows[3].form, ShardRow::kParam);
  EXPECT_EQ(rows[3].layout.dims, (std::vector<std::vector<std::string>>{{"x"}, {}}));

  const auto said = [](const std::string& row) {
    return faults_of(bent("  tensor: 1", "  shard: [" + row + "]"));
  };
  EXPECT_TRUE(contains(said("{n: tp}"), "needs exactly one of"));
  EXPECT_TRUE(contains(said("{op: a}"), "gives no axes"));
  EXPECT_TRUE(contains(said("{op: a, rows: tp}"), "unknown key `parallel.shard.0.rows`"));
  EXPECT_TRUE(contains(said("{op: a, in: [[tp]], n: tp}"), "unknown key"));
  EXPECT_TRUE(contains(said("{param: a}"), "needs `layout"));
  EXPECT_TRUE(contains(said("{param: a, layout: [tp, tp]}"), "twice"));
  EXPECT_TRUE(contains(said("{op: a, n: 3}"), "is no axis name"));
  EXPECT_TRUE(contains(said("7"), "must be a map"));
}

}  // namespace
}  // namespace moetrain
