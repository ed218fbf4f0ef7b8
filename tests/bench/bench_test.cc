// Measurements at tiny sizes: fits, advice, machine files, transports and step variants.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "checkpoint/file.h"
#include "checkpoint/json.h"
#include "config/load.h"
#include "train/bench_collectives.h"
#include "train/bench_dispatch.h"
#include "train/bench_machine.h"
#include "train/bench_step.h"
#include "train/bench_tools.h"
#include "train/cores.h"

namespace moetrain {
namespace {

const char* const kTiny = R"(
model:
  vocab_size: 64
  hidden_size: 32
  intermediate_size: 48
  moe_intermediate_size: 16
  num_hidden_layers: 2
  num_attention_heads: 2
  n_shared_experts: 1
  n_routed_experts: 4
  num_experts_per_tok: 2
  n_group: 1
  topk_group: 1
  routed_scaling_factor: 2.5
  first_k_dense_replace: 1
  q_lora_rank: 16
  kv_lora_rank: 8
  qk_nope_head_dim: 8
  qk_rope_head_dim: 4
  v_head_dim: 8
data: {sequence_length: 16}
train: {global_batch_size: 2, micro_batch_size: 1, steps: 4}
compute: {precision: fp32, threads: 1}
)";

TEST(BenchTools, MedianOfOddAndEven) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(median({}), 0);
}

TEST(FitLink, FindsTheLineThatMadeThePoints) {
  std::vector<std::pair<double, double>> points;
  for (double bytes : {64.0, 65536.0, 4e6}) points.emplace_back(bytes, 5e-6 + bytes / 2e9);
  const LinkFit fit = fit_link(points);
  EXPECT_NEAR(fit.latency, 5e-6, 1e-11);
  EXPECT_NEAR(fit.bandwidth, 2e9, 1e3);
}

TEST(FitLink, SmallMessagesCountAsMuchAsLargeOnes) {
  // the largest is 30 % late; latency must stay near what the small ones took
  const LinkFit fit = fit_link({{64, 5e-6}, {65536, 5e-6 + 65536 / 2e9}, {4e6, 1.3 * 4e6 / 2e9}});
  EXPECT_NEAR(fit.latency, 5e-6, 1e-6);
  EXPECT_GT(fit.bandwidth, 1.3e9);
  EXPECT_LT(fit.bandwidth, 2.1e9);
}

TEST(FitLink, NoiseNeverGivesNonsense) {
  const LinkFit fit = fit_link({{64, 9e-6}, {65536, 8e-6}, {4e6, 7e-6}});
  EXPECT_GT(fit.latency, 0);
  EXPECT_NEAR(fit.bandwidth, 4e6 / 7e-6, 1e7);
}

RankCores on(int node, int64_t threads, std::vector<int> allowed, int64_t online = 4) {
  return {node, threads, online, std::move(allowed)};
}

TEST(Cores, SilentWhenThreadsFit) {
  EXPECT_EQ(core_advice({on(0, 2, {0, 1, 2, 3}), on(0, 2, {0, 1, 2, 3})}), "");
  EXPECT_EQ(core_advice({on(0, 2, {0, 1}), on(0, 2, {2, 3})}), "");
  EXPECT_EQ(core_advice({on(0, 4, {0, 1, 2, 3}), on(1, 4, {0, 1, 2, 3})}), "");
}

TEST(Cores, SaysOversubscription) {
  const std::string text = core_advice({on(0, 4, {0, 1, 2, 3}), on(1, 3, {0, 1, 2, 3}),
                                        on(1, 2, {0, 1, 2, 3})});
  EXPECT_NE(text.find("node 1 has 4 cores for 2 ranks with 5 threads"), std::string::npos) << text;
  EXPECT_EQ(text.find("binds"), std::string::npos) << text;
}

TEST(Cores, SaysBinding) {
  std::string text = core_advice({on(0, 2, {0}), on(0, 1, {1, 2, 3})});
  EXPECT_NE(text.find("rank 0 computes with 2 threads but is bound to 1 core;"), std::string::npos)
      << text;
  text = core_advice({on(0, 1, {0}), on(0, 1, {1})});
  EXPECT_NE(text.find("bound to 2 of its 4 cores"), std::string::npos) << text;
  text = core_advice({on(0, 2, {0})});
  EXPECT_NE(text.find("--bind-to none"), std::string::npos) << text;
}

TEST(Cores, CheckAgreesOnAllRanks) {
  const Config config = parse_config(kTiny, "tiny.yaml", ".", {"compute.threads=1000"});
  run_local_ranks(2, 0, [&](Fabric& fabric) {
    EXPECT_EQ(rank_threads(config, fabric), 1000);
    EXPECT_NE(check_cores(config, fabric).find("2000 threads"), std::string::npos);
  });
}

TEST(MachineFile, MeasuredOneReadsBackAndHashes) {
  const std::string path = testing::TempDir() + "bench_machine.yaml";
  Machine machine;
  run_local_ranks(2, 1, [&](Fabric& fabric) {
    BenchCollectivesOptions options;
    options.repeats = 2;
    options.sizes = {4096};
    const MachineMeasurement found = measure_machine(fabric, 1, options);
    EXPECT_EQ(found.machine.ranks_per_node, 1);
    EXPECT_NE(found.text.find("inter-node link, ranks 0 and 1"), std::string::npos) << found.text;
    EXPECT_NE(found.text.find("all_to_all_v"), std::string::npos) << found.text;
    if (fabric.rank() == 0) machine = found.machine;
  });
  EXPECT_GT(machine.fp32_flops, 0);
  EXPECT_NE(machine.inter_bandwidth, Machine{}.inter_bandwidth);
  EXPECT_EQ(machine.intra_bandwidth, Machine{}.intra_bandwidth);
  write_file_atomically(path, machine_yaml(machine));
  const Machine read = load_machine(path);
  EXPECT_EQ(machine_yaml(read), machine_yaml(machine));
  EXPECT_EQ(machine_hash(read), machine_hash(machine));
  Machine other = read;
  other.inter_latency *= 2;
  EXPECT_NE(machine_hash(other), machine_hash(read));
  std::filesystem::remove(path);
}

TEST(MachineFile, ShippedOnesAreRead) {
  for (const auto& file : std::filesystem::directory_iterator(MOETRAIN_CONFIGS "/machine")) {
    EXPECT_GT(load_machine(file.path().string()).bf16_flops, 1e9) << file.path();
  }
}

TEST(Dispatch, EveryTransportOnEveryRouting) {
  for (int per_node : {4, 2}) {
    run_local_ranks(4, per_node, [&](Fabric& fabric) {
      BenchDispatchOptions options;
      options.repeats = 1;
      options.threads = 1;
      options.tokens = 24;
      options.hidden = 16;
      options.experts = 8;
      options.top_k = 3;
      const std::string text = bench_dispatch(fabric, options);
      for (const char* word : {"alltoall ", "alltoall_once", "allgather", "dedup", "skewed"}) {
        EXPECT_NE(text.find(word), std::string::npos) << word << " in\n" << text;
      }
    });
  }
}

TEST(Dispatch, RefusesExpertsThatDoNotDivide) {
  run_local_ranks(2, 0, [&](Fabric& fabric) {
    BenchDispatchOptions options;
    options.experts = 7;
    EXPECT_THROW(bench_dispatch(fabric, options), UserError);
  });
}

TEST(Steps, VariantsInTurnsWithOperations) {
  const Config config = parse_config(kTiny, "tiny.yaml", ".");
  const Config plain = parse_config(kTiny, "tiny.yaml", ".", {"compute.fusion=false"});
  run_local_ranks(2, 0, [&](Fabric& fabric) {
    BenchStepOptions options;
    options.steps = 2;
    const StepsReport report = bench_steps(
        fabric, {{"as configured", config}, {"plain", plain}, {"reference", config, true}}, options);
    ASSERT_EQ(report.timings.size(), 3u);
    EXPECT_TRUE(report.peak_probed);
    for (const StepTiming& t : report.timings) {
      EXPECT_GT(t.tokens_per_second, 0) << t.name;
      EXPECT_LE(t.best_seconds, t.seconds) << t.name;
      EXPECT_GT(t.planned_bytes, 0) << t.name;
      EXPECT_GT(t.device_bytes, t.planned_bytes / 2) << t.name;
    }
    for (const char* op : {"matmul", "attention", "adamw", "between instructions"}) {
      EXPECT_NE(report.operations.find(op), std::string::npos) << op << "\n" << report.operations;
    }
    const Json json = parse_json(report.json(), "report");
    ASSERT_NE(json.find("variants"), nullptr);
    EXPECT_EQ(json.find("variants")->items.size(), 3u);
    EXPECT_NE(report.text().find("plain"), std::string::npos);
  });
}

}  // namespace
}  // namespace moetrain
