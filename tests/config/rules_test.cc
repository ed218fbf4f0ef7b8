// The table of rules of sizes and topology: valid rows pass, every other row names its rule,
// numbers and remedy.
#include "config/rules.h"

#include "sample.h"

namespace moetrain {
namespace {

struct Row {
  int64_t world;
  std::vector<std::string> sets;
  const char* broken;  // part of the message; nullptr: valid
};

std::string p(const std::string& key, int64_t value) {
  return "parallel." + key + "=" + std::to_string(value);
}

// The sample has 8 experts in 4 groups (2 kept), top-2, 8 heads, 4 layers (1 dense), sequence 64,
// global batch 8.
const std::vector<Row> kRows = {
    {1, {}, nullptr},
    {8, {}, nullptr},
    {8, {p("tensor", 2), p("expert", 4)}, nullptr},
    // tp_extend_ep: 2 x 4 = 8 pieces.
    {8, {p("tensor", 2), p("expert", 4), "parallel.tp_extend_ep=true"}, nullptr},
    {8,
     {p("tensor", 2), p("expert", 4), "parallel.tp_extend_ep=true", "model.n_routed_experts=16"},
     nullptr},
    {8,
     {p("tensor", 2), p("expert", 4), "parallel.tp_extend_ep=true", "model.n_routed_experts=12"},
     "`parallel.tp_extend_ep`: model.n_routed_experts must be divisible by expert x tensor, but 12 "
     "% 8 = 4; nearest model.n_routed_experts: 8 or 16"},
    {8, {p("tensor", 2), p("expert", 4), "model.n_routed_experts=12"}, nullptr},
    {8,
     {p("tensor", 2), p("expert", 8)},
     "edp x expert = data x context, so expert must divide data x context = 4 x 1 = 4, but 4 % 8 = "
     "4; nearest expert: 4"},
    {8, {p("tensor", 2), p("expert", 3)}, "4 % 3 = 1; nearest expert: 2 or 4"},
    {4,
     {p("expert", 4), "model.n_routed_experts=6", "model.n_group=1", "model.topk_group=1"},
     "model.n_routed_experts must be divisible by expert, but 6 % 4 = 2; nearest "
     "model.n_routed_experts: 4 or 8; nearest expert: 3 or 6"},
    {4,
     {p("tensor", 4), "model.num_attention_heads=6"},
     "model.num_attention_heads must be divisible by tensor, but 6 % 4 = 2; nearest "
     "model.num_attention_heads: 4 or 8; nearest tensor: 3 or 6"},
    {4,
     {"train.global_batch_size=10", "train.micro_batch_size=2"},
     "`train.global_batch_size`: global_batch_size must be divisible by micro_batch_size x data, "
     "but 10 % 8 = 2; nearest global_batch_size: 8 or 16"},
    {8, {"train.micro_batch_size=2"}, "8 % 16 = 8; nearest global_batch_size: 16"},
    {4,
     {"train.batch_ramp=[{until_tokens: 1k, global_batch_size: 6}]"},
     "`train.batch_ramp.0.global_batch_size`"},
    // World size.
    {4,
     {p("data", 8)},
     "world size 4 must be data x tensor x pipeline x context = 8 x 1 x 1 x 1 = 8; start 8 ranks, "
     "or set parallel.data to 4 or auto"},
    {4,
     {p("tensor", 8)},
     "world size 4 must be a multiple of tensor x pipeline x context = 8 x 1 x 1 = 8; start 8 "
     "ranks"},
    {6,
     {p("tensor", 4)},
     "world size 6 must be a multiple of tensor x pipeline x context = 4 x 1 x 1 = 4; start 4 or 8 "
     "ranks"},
    {8, {p("tensor", 2), p("pipeline", 2), p("data", 2)}, nullptr},
    // Sequence and context.
    {2, {p("tensor", 2), "data.sequence_length=63"}, nullptr},
    {2, {p("tensor", 2), "data.sequence_length=65"}, nullptr},
    {2,
     {p("tensor", 2), "data.sequence_length=63", "parallel.sequence_parallel=true"},
     "`parallel.sequence_parallel`: data.sequence_length must be divisible by context x tensor, "
     "but 63 % 2 = 1; nearest data.sequence_length: 62 or 64"},
    {4,
     {p("tensor", 4), "data.sequence_length=2", "parallel.sequence_parallel=true"},
     "2 % 4 = 2; nearest data.sequence_length: 4; nearest context x tensor: 2"},
    {2,
     {p("context", 2), "data.sequence_length=63"},
     "data.sequence_length must be divisible by context, but 63 % 2 = 1"},
    {2,
     {p("tensor", 2), "parallel.sequence_parallel=false", "parallel.tp_extend_ep=true"},
     "needs sequence_parallel"},
    {8, {p("context", 2), p("expert", 4)}, nullptr},
    {8, {p("context", 2), p("expert", 8)}, nullptr},
    {6,
     {p("data", 2), p("context", 3), p("expert", 2), "data.sequence_length=63"},
     "have no common refinement"},
    {1, {"data.sequence_length=8192"}, "exceeds model.max_position_embeddings"},
    // Tensor splits.
    {2,
     {p("tensor", 2), "model.vocab_size=511"},
     "model.vocab_size must be divisible by tensor, but 511 % 2 = 1"},
    {2,
     {p("tensor", 2), "model.intermediate_size=127"},
     "model.intermediate_size must be divisible by tensor"},
    {2, {p("tensor", 2), "model.intermediate_size=127", "model.first_k_dense_replace=0"}, nullptr},
    {4,
     {p("tensor", 4), "model.moe_intermediate_size=30", "parallel.tp_extend_ep=false"},
     "model.moe_intermediate_size must be divisible by tensor"},
    // Expert groups.
    {1, {"model.n_group=8", "model.topk_group=1"}, "needs at least 2 experts"},
    {1,
     {"model.n_group=8", "model.topk_group=1"},
     "fewer than num_experts_per_tok = 2; keep at least 2 groups"},
    {1,
     {"model.n_group=3"},
     "n_routed_experts must be divisible by n_group, but 8 % 3 = 2; nearest n_routed_experts: 6 or "
     "9; nearest n_group: 2 or 4"},
    {1, {"model.n_group=4", "model.topk_group=5"}, "5 groups cannot be kept of n_group = 4"},
    {1,
     {"model.num_experts_per_tok=9"},
     "9 experts per token cannot be chosen from n_routed_experts = 8"},
    {1, {"model.n_group=8", "model.topk_group=8"}, "needs at least 2 experts"},
    {1, {"model.n_group=1", "model.topk_group=1", "model.num_experts_per_tok=8"}, nullptr},
    {1, {"model.qk_rope_head_dim=7"}, "must be even"},
    {1, {"model.num_key_value_heads=4"}, "must equal num_attention_heads = 8"},
    {1, {"model.first_k_dense_replace=5"}, "exceed num_hidden_layers = 4"},
    // Pipeline.
    {2, {p("pipeline", 2), "model.num_hidden_layers=5"}, nullptr},
    {3, {p("pipeline", 3), "model.num_hidden_layers=5"}, nullptr},
    {4, {p("pipeline", 4), "model.num_hidden_layers=5"}, nullptr},
    {5, {p("pipeline", 5), "model.num_hidden_layers=5"}, nullptr},
    {6,
     {p("pipeline", 6), "model.num_hidden_layers=5"},
     "pipeline x virtual_stages = 6 chunks need a layer each, but model.num_hidden_layers is 5"},
    {2, {p("pipeline", 2), "model.num_hidden_layers=5", "parallel.stage_layout=[3, 2]"}, nullptr},
    {2, {p("pipeline", 2), "model.num_hidden_layers=5", "parallel.stage_layout=[5, 0]"}, nullptr},
    {2,
     {p("pipeline", 2), "model.num_hidden_layers=5", "parallel.stage_layout=[0, 5]"},
     "leaves a chunk without layers"},
    {2,
     {p("pipeline", 2), "model.num_hidden_layers=5", "parallel.stage_layout=[2, 2]"},
     "places 4 layers, but model.num_hidden_layers is 5"},
    {2,
     {p("pipeline", 2), "model.num_hidden_layers=5", "parallel.stage_layout=[3, 3]"},
     "places 6 layers"},
    {2,
     {p("pipeline", 2), "parallel.stage_layout=[2, 1, 1]"},
     "has 3 entries, but there are pipeline x virtual_stages = 2 chunks"},
    {2, {p("pipeline", 2), "parallel.virtual_stages=2"}, nullptr},
    {1, {"parallel.virtual_stages=2"}, "needs parallel.pipeline > 1"},
    {2,
     {p("pipeline", 2), "parallel.virtual_stages=2", "train.global_batch_size=7"},
     "needs a multiple of pipeline = 2 micro-batches"},
    {2, {p("pipeline", 2), "parallel.schedule=dualpipev"}, nullptr},
    {2,
     {p("pipeline", 2), "parallel.schedule=dualpipev", "train.global_batch_size=3"},
     "dualpipev needs at least 2 x pipeline = 4 micro-batches, but global_batch_size / "
     "(micro_batch_size x data) = 3 / 1 = 3; at least 4 sequences"},
    {4,
     {p("pipeline", 4), "parallel.schedule=dualpipev"},
     "2 x pipeline = 8 chunks need a layer each"},
    // Nodes and dispatch.
    {8, {p("ranks_per_node", 3)}, "world size must be divisible by ranks_per_node, but 8 % 3 = 2"},
    {8, {p("ranks_per_node", 4), p("expert", 8), "parallel.dispatch=allgather"}, nullptr},
    {6,
     {p("ranks_per_node", 2), p("expert", 3), "parallel.dispatch=dedup",
      "model.n_routed_experts=12", "train.global_batch_size=6"},
     "needs expert groups of whole nodes or inside one node"},
    // The user's axes.
    {8, {"parallel.mesh={x: 2, y: 4}"}, nullptr},
    {8,
     {"parallel.mesh={x: 2, y: 2}"},
     "the product of its sizes is 4, but a pipeline stage has data x context x tensor = 8 x 1 x 1 "
     "= 8 ranks"},
    {8, {"parallel.mesh={tp: 8}"}, "`tp` cannot name an axis of yours"},
    {6,
     {p("tensor", 2), "parallel.mesh={x: 2, y: 3}", "train.global_batch_size=6"},
     "have no common refinement"},
    {2, {"parallel.shard=[{op: a, n: tq}]"}, "unknown axis `tq`; did you mean `tp`?"},
    {2, {"parallel.shard=[{op: a, n: pp}]"}, "a pipeline stage is no axis"},
    // Recipe.
    {1, {"train.tokens=1M"}, "give train.steps or train.tokens, not both"},
    {1, {"data.split=0,0,0"}, "with a positive sum"},
    {1, {"optimizer.schedule={kind: stages}"}, "needs the list `stages`"},
    {1,
     {"optimizer.schedule={kind: cosine, warmup_steps: 20, decay_steps: 10}"},
     "ends before warm-up"},
    {1, {"optimizer.schedule={kind: wsd}"}, "needs decay_steps"},
    {1, {"optimizer.schedule={kind: wsd, warmup_steps: 9, decay_steps: 5}"}, nullptr},
    {1, {"optimizer.schedule={kind: constant, decay_steps: 5}"}, "only used with kind linear"},
    {1,
     {"optimizer.schedule={kind: stages, stages: [{learning_rate: 1}, {learning_rate: 1}]}"},
     "only the last stage"},
    {1,
     {"router.bias_update_schedule=[{value: 0}]"},
     "exactly one of after_steps and after_tokens"},
    {1,
     {"train.mtp_lambda_schedule=[{after_steps: 5, value: 0}, {after_steps: 5, value: 1}]"},
     "rising order"},
};

TEST(Rules, Table) {
  for (const Row& row : kRows) {
    const std::string said = rules_broken(row.sets, row.world);
    const std::string name = cat("world ", row.world, ", ", join(row.sets, " "));
    if (row.broken == nullptr)
      EXPECT_EQ(said, "") << name;
    else
      EXPECT_TRUE(contains(said, row.broken)) << name;
  }
}

TEST(Rules, OutOfRangeIsRefusedAtLoading) {
  for (const char* set : {"model.num_experts_per_tok=0", "model.n_group=-1", "parallel.tensor=-2",
                          "train.micro_batch_size=0"})
    EXPECT_TRUE(contains(faults_of(kSample, {set}), "must be at least 1")) << set;
  EXPECT_TRUE(contains(faults_of(kSample, {"compute.threads=100000"}), "at most 1024"));
}

TEST(Rules, AutoValues) {
  Config c = sample({"parallel.tensor=2"});
  resolve(c, 8);
  EXPECT_EQ(*c.parallel.data, 4);
  EXPECT_TRUE(*c.parallel.sequence_parallel);
  EXPECT_TRUE(*c.parallel.tp_extend_ep);
  EXPECT_EQ(*c.parallel.ranks_per_node, 8);
  EXPECT_EQ(*c.model.num_key_value_heads, 8);
  EXPECT_EQ(*c.data.seed, 1234);
  EXPECT_EQ(c.parallel.expert_group(), 2);
  EXPECT_EQ(c.micro_batches(), 2);
  EXPECT_EQ(c.origins.at("parallel.data").kind, Origin::kAuto);

  c = sample({"parallel.tensor=2", "data.sequence_length=63"});
  resolve(c, 2, 1);
  EXPECT_FALSE(*c.parallel.sequence_parallel);
  EXPECT_FALSE(*c.parallel.tp_extend_ep);
  EXPECT_EQ(*c.parallel.ranks_per_node, 1);

  c = sample({"parallel.tensor=2", "parallel.expert=4", "model.n_routed_experts=12"});
  resolve(c, 8);
  EXPECT_TRUE(*c.parallel.sequence_parallel);
  EXPECT_FALSE(*c.parallel.tp_extend_ep);

  c = sample();
  resolve(c, 1);
  EXPECT_FALSE(*c.parallel.sequence_parallel);
}

TEST(Rules, MessageIsPlacedAtTheKey) {
  Config c = parse_config(bent("tensor: 1", "tensor: 3"), "t.yaml", "");
  resolve(c, 3);
  EXPECT_TRUE(contains(rules_broken({"parallel.tensor=3"}, 3),
                       "--set parallel.tensor=3: `parallel.tensor`"));
  try {
    validate(c, 3);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_TRUE(
        contains(error.what(), "t.yaml:23:11: `parallel.tensor`: model.num_attention_heads"));
  }
}

TEST(Rules, TrainingNeedsDataAndLength) {
  EXPECT_NO_THROW(validate_training(sample()));
  EXPECT_THROW(validate_training(sample({"data.train=[]"})), UserError);
  EXPECT_THROW(validate_training(sample({"train.steps=null"})), UserError);
  EXPECT_NO_THROW(validate_training(sample({"train.steps=null", "train.tokens=1M"})));
}

TEST(Rules, Nearest) {
  EXPECT_EQ(nearest_multiples(10, 8), "8 or 16");
  EXPECT_EQ(nearest_multiples(3, 8), "8");
  EXPECT_EQ(nearest_divisors(6, 4), "3 or 6");
  EXPECT_EQ(nearest_divisors(4, 8), "4");
}

}  // namespace
}  // namespace moetrain
