// golden_check: runs golden cases through the real compiler, runtime and optimizer and compares
// everything.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "base/error.h"
#include "base/log.h"
#include "compare.h"
#include "config/load.h"
#include "config/validate.h"
#include "golden_case.h"
#include "runtime/comm/comm.h"
#include "train/fabric.h"
#include "train/session.h"

namespace moetrain::golden {

namespace {

struct Arguments {
  std::vector<std::string> sets, folders;
  bool bf16 = false, reference = false;
};

/// Parts of every state of all ranks, put together (small models only).
class Gathered {
 public:
  Gathered(Session& session, Fabric& fabric) {
    std::string mine;
    auto put = [&](const void* p, size_t n) { mine.append(static_cast<const char*>(p), n); };
    auto put64 = [&](int64_t v) { put(&v, sizeof v); };
    for (const ShardOut& s : session.shards()) {
      put64(static_cast<int64_t>(s.name.size()));
      put(s.name.data(), s.name.size());
      put64(static_cast<int64_t>(s.global.size()));
      for (size_t d = 0; d < s.global.size(); ++d) {
        put64(s.global[d]);
        put64(s.box.begin[d]);
        put64(s.box.extent[d]);
      }
      std::vector<float> data(numel(s.box.extent));
      s.produce(data.data());
      put(data.data(), data.size() * sizeof(float));
    }
    for (const std::string& part : fabric.gather(mine)) take(part);
  }

  /// The part of state `name` that is published tensor `t`.
  std::vector<float> tensor(const std::string& name, const PublishedSlice& t) const {
    const auto& [shape, data] = states_.at(name);
    const int64_t n = numel(t.shape);
    const int64_t begin = t.slice.begin.empty() ? 0 : t.slice.begin[0] * (numel(shape) / shape[0]);
    return {data.begin() + begin, data.begin() + begin + n};
  }

 private:
  void take(const std::string& bytes) {
    size_t at = 0;
    auto get64 = [&] {
      int64_t v;
      std::memcpy(&v, bytes.data() + at, sizeof v);
      at += sizeof v;
      return v;
    };
    while (at < bytes.size()) {
      const size_t length = static_cast<size_t>(get64());
      const std::string name = bytes.substr(at, length);
      at += length;
      const size_t dims = static_cast<size_t>(get64());
      Shape global(dims);
      Box box{Shape(dims), Shape(dims)};
      for (size_t d = 0; d < dims; ++d) {
        global[d] = get64();
        box.begin[d] = get64();
        box.extent[d] = get64();
      }
      auto& [shape, data] = states_[name];
      shape = global;
      data.resize(numel(global));
      for_each_run(box, box, {Shape(dims, 0), global}, [&](int64_t from, int64_t to, int64_t n) {
        std::memcpy(data.data() + to, bytes.data() + at + from * sizeof(float), n * sizeof(float));
      });
      at += numel(box.extent) * sizeof(float);
    }
  }

  std::map<std::string, std::pair<Shape, std::vector<float>>> states_;
};

class Run {
 public:
  Run(const Case& c, const Arguments& arguments, Fabric& fabric)
      : case_(c), arguments_(arguments), fabric_(fabric), config_(make_config()) {}

  Report run() {
    const CaseSettings& s = case_.settings();
    SessionOptions options;
    options.dump = true;
    options.update_weights = s.adamw;
    options.reference = arguments_.reference;
    Session session(config_, fabric_, options);
    session.load_parameters([&](const std::string& name, const Box& box, float* out) {
      read_weights(session, name, box, out);
    });
    const int64_t steps = arguments_.bf16 ? 1 : s.steps;
    for (int64_t step = 0; step < steps; ++step) run_step(session, step);
    if (!arguments_.bf16 && s.steps > 1) compare_trajectory();
    if (!arguments_.bf16 && s.adamw) compare_final(session);
    return report_;
  }

 private:
  Config make_config() const {
    std::vector<std::string> sets = case_.config_sets();
    if (arguments_.bf16) sets.push_back("compute.precision=bf16");
    sets.insert(sets.end(), arguments_.sets.begin(), arguments_.sets.end());
    Config config = config_from_hf(case_.folder() + "/config.json", sets);
    // Cases may be longer than the length they declare: nothing computed depends on it.
    config.model.max_position_embeddings =
        std::max(config.model.max_position_embeddings, config.data.sequence_length);
    resolve(config, fabric_.size());
    validate(config, fabric_.size());
    return config;
  }

  void read_weights(Session& session, const std::string& name, const Box& box, float* out) const {
    for (const Parameter& p : session.parameters()) {
      if (p.name != name) continue;
      std::vector<float> tensor;
      for (const PublishedSlice& t : p.published) {
        const auto part = intersect(t.slice, box);
        if (!part) continue;
        tensor.resize(numel(t.shape));
        case_.weights().read(case_.weights().at(t.name), DType::kF32, tensor.data());
        for_each_run(*part, t.slice, box, [&](int64_t from, int64_t to, int64_t n) {
          std::memcpy(out + to, tensor.data() + from, n * sizeof(float));
        });
      }
    }
  }

  /// Appends output `name` of one micro-batch, first `keep` positions of each sequence.
  void collect(const Session& session, const std::string& name, const std::string& as,
               int64_t keep) {
    const std::vector<float> whole = session.output(name);
    const int64_t s = case_.settings().sequence,
                  line = static_cast<int64_t>(whole.size()) / (session.micro_batch() * s);
    std::vector<float>& out = collected_[as];
    for (int64_t b = 0; b < session.micro_batch(); ++b) {
      const float* from = whole.data() + b * s * line;
      out.insert(out.end(), from, from + keep * line);
    }
  }

  void collect_micro_batch(const Session& session) {
    const ModelConfig& m = config_.model;
    const int64_t s = case_.settings().sequence;
    for (int64_t i = 0; i < m.num_hidden_layers; ++i) {
      collect(session, cat("hidden.", i), cat("hidden.", i), s);
    }
    collect(session, "hidden.final", "hidden.final", s);
    collect(session, "logits", "logits", s);
    for (int64_t k = 1; k <= m.num_nextn_predict_layers; ++k) {
      const std::string p = cat("mtp.", k - 1, ".");
      collect(session, p + "hidden", p + "hidden", s - k);
      collect(session, p + "logits", p + "logits", s - k);
    }
    for (int64_t i = m.first_k_dense_replace; i < m.total_layers(); ++i) {
      const int64_t keep = i < m.num_hidden_layers ? s : s - (i - m.num_hidden_layers + 1);
      for (const char* what : {"topk_idx", "topk_weight"}) {
        collect(session, cat("route.", i, ".", what), cat("route.", i, ".", what), keep);
      }
    }
  }

  void run_step(Session& session, int64_t step) {
    const CaseSettings& s = case_.settings();
    const int64_t depths = config_.model.num_nextn_predict_layers;
    std::vector<int64_t> valid;
    for (int64_t k = 0; k <= depths; ++k) valid.push_back(s.batch * (s.sequence - k));
    StepSettings settings{s.lr, step + 1, s.mtp_lambda, s.bias_speed};
    const StepResult r = session.train_step(
        step * s.batch, s.batch, valid, settings,
        [&](int64_t first, int64_t count, Batch& b) { case_.fill(first, count, depths, b); },
        [&](int64_t) {
          if (step == 0) collect_micro_batch(session);
        });
    trajectory_["steps.loss"].push_back(r.loss);
    trajectory_["steps.loss_main"].push_back(r.main_loss);
    trajectory_["steps.loss_mtp"].push_back(r.mtp_loss);
    trajectory_["steps.loss_balance"].push_back(r.balance_loss);
    trajectory_["steps.grad_norm"].push_back(r.grad_norm);
    for (const auto& [layer, load] : r.loads) {
      auto& loads = trajectory_[cat("steps.route.", layer, ".load")];
      loads.insert(loads.end(), load.begin(), load.end());
      const std::vector<float> bias =
          whole_state(session, cat("model.layers.", layer, ".mlp.gate.e_score_correction_bias"));
      auto& biases = trajectory_[cat("steps.route.", layer, ".bias")];
      biases.insert(biases.end(), bias.begin(), bias.end());
    }
    if (step == 0) compare_first(session, r);
  }

  /// A float32 state that the ranks of its pipeline stage hold whole, on all ranks.
  std::vector<float> whole_state(Session& session, const std::string& name) {
    std::string mine;
    for (const Port& port : session.plan().states) {
      if (port.name != name) continue;
      mine.resize(numel(port.extent) * sizeof(float));
      session.executor().read(port, mine.data(), mine.size());
    }
    for (const std::string& part : fabric_.gather(mine)) {
      if (!part.empty()) mine = part;
    }
    std::vector<float> values(mine.size() / sizeof(float));
    std::memcpy(values.data(), mine.data(), mine.size());
    return values;
  }

  void compare_first(Session& session, const StepResult& r) {
    auto scalar = [&](const char* name, double value, double tolerance) {
      if (case_.has(name)) {
        report_.relative("loss", name, {static_cast<float>(value)}, case_.values(name), tolerance);
      }
    };
    if (arguments_.bf16) {
      scalar("loss", r.loss, 1e-2);
      if (case_.settings().batch < 8) compare_gradient_vector(session);
      return;
    }
    scalar("loss", r.loss, 1e-5);
    scalar("loss_main", r.main_loss, 1e-5);
    scalar("loss_mtp", r.mtp_loss, 1e-5);
    scalar("loss_balance", r.balance_loss, 1e-5);
    scalar("grad_norm", r.grad_norm, 1e-5);
    for (const auto& [name, values] : collected_) {
      if (!case_.has(name)) continue;
      if (name.ends_with("topk_idx")) {
        report_.exact("routing (wrong choices)", name, values, case_.values(name));
      } else {
        const std::string kind = name.starts_with("logits")  ? "logits"
                                 : name.starts_with("route") ? "topk_weight"
                                                             : "hidden, mtp";
        report_.relative(kind, name, values, case_.values(name), 1e-4);
      }
    }
    for (const auto& [layer, load] : r.loads) {
      const std::string name = cat("route.", layer, ".load");
      if (case_.has(name)) {
        report_.exact("load (wrong counts)", name, {load.begin(), load.end()}, case_.values(name));
      }
    }
    each_gradient(session, [&](const std::string& name, const std::vector<float>& values) {
      report_.relative("gradients", name, values, case_.values(name), 1e-4);
    });
  }

  template <class Visit>
  void each_gradient(Session& session, Visit visit) {
    for (const Parameter& p : session.parameters()) {
      if (!p.trained) continue;
      const std::vector<float> whole = session.output("grad." + p.name);
      for (const PublishedSlice& t : p.published) {
        const std::string name = "grad." + t.name;
        if (!case_.has(name)) {
          report_.fail(name + " (not in the case)", 0);
          continue;
        }
        const int64_t n = numel(t.shape), begin = p.shape.size() == 3 ? t.slice.begin[0] * n : 0;
        visit(name, {whole.begin() + begin, whole.begin() + begin + n});
      }
    }
  }

  void compare_gradient_vector(Session& session) {
    double difference = 0, norm = 0;
    each_gradient(session, [&](const std::string& name, const std::vector<float>& a) {
      const std::vector<float> b = case_.values(name);
      for (size_t i = 0; i < b.size(); ++i) {
        difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
        norm += double{b[i]} * b[i];
      }
    });
    report_.relative("gradients as one vector", "gradients",
                     {static_cast<float>(1 + std::sqrt(difference / norm))}, {1.0f}, 0.15);
  }

  void compare_trajectory() {
    for (const auto& [name, values] : trajectory_) {
      if (!case_.has(name)) continue;
      const std::vector<float> expected = case_.values(name);
      const std::vector<float> mine(values.begin(), values.end());
      if (name.ends_with(".load")) {
        report_.exact("trajectory loads", name, mine, expected);
      } else if (name.ends_with(".bias")) {
        report_.absolute("trajectory biases", name, mine, expected, 1e-6);
      } else {
        report_.relative("trajectory", name, mine, expected, 1e-5);
      }
    }
  }

  void compare_final(Session& session) {
    const Gathered gathered(session, fabric_);
    for (const Parameter& p : session.parameters()) {
      for (const PublishedSlice& t : p.published) {
        if (!case_.has("final." + t.name)) continue;
        report_.weights("final." + t.name, gathered.tensor(p.name, t),
                        case_.values("final." + t.name), case_.settings().lr);
      }
    }
    report_.finish_weights();
  }

  const Case& case_;
  const Arguments& arguments_;
  Fabric& fabric_;
  Config config_;
  Report report_;
  std::map<std::string, std::vector<float>> collected_;
  std::map<std::string, std::vector<double>> trajectory_;
};

/// 0 passed, 1 failed, 2 not applicable.
int check_case(const std::string& folder, const Arguments& arguments, Fabric& fabric) {
  std::string name = folder;
  try {
    const Case c(folder);
    name = c.settings().name;
    const Report report = Run(c, arguments, fabric).run();
    if (fabric.rank() == 0) {
      for (const auto& [kind, error] : report.worst()) {
        std::printf("  %-32s %.3g\n", kind.c_str(), error);
      }
      if (report.passed()) {
        std::printf("PASS %s\n", name.c_str());
      } else {
        std::printf("FAIL %s %s\n", name.c_str(), report.failure().c_str());
      }
      std::fflush(stdout);
    }
    return report.passed() ? 0 : 1;
  } catch (const UserError& e) {
    if (fabric.rank() == 0) {
      std::string reason = e.what();
      for (char& c : reason) {
        if (c == '\n') c = ' ';
      }
      std::printf("N/A %s %s\n", name.c_str(), reason.c_str());
      std::fflush(stdout);
    }
    return 2;
  }
}

int run_all(const Arguments& arguments, Fabric& fabric) {
  int ran = 0, failed = 0;
  for (const std::string& folder : arguments.folders) {
    const int result = check_case(folder, arguments, fabric);
    ran += result != 2;
    failed += result == 1;
  }
  return failed == 0 && ran > 0 ? 0 : 1;
}

Arguments parse(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    auto next = [&]() -> std::string {
      if (i + 1 >= argc) throw UserError(word + " needs a value");
      return argv[++i];
    };
    if (word == "--set") {
      a.sets.push_back(next());
    } else if (word == "--precision") {
      const std::string p = next();
      if (p != "bf16" && p != "fp32") throw UserError("--precision takes fp32 or bf16, not " + p);
      a.bf16 = p == "bf16";
    } else if (word == "--reference") {
      a.reference = true;
    } else if (word.starts_with("--")) {
      throw UserError(cat("unknown option ", word,
                          "; usage: golden_check [--set key=value]... [--precision fp32|bf16] "
                          "[--reference] CASE_DIR..."));
    } else {
      a.folders.push_back(word);
    }
  }
  if (a.folders.empty()) throw UserError("golden_check needs at least one case folder");
  return a;
}

/// parallel.ranks_per_node of the command line: nodes are formed before any configuration is read.
int node_size(int argc, char** argv) {
  const std::string key = "parallel.ranks_per_node=";
  int size = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.starts_with(key) && word != key + "auto") size = std::atoi(word.c_str() + key.size());
  }
  return size;
}

}  // namespace

}  // namespace moetrain::golden

int main(int argc, char** argv) {
  using namespace moetrain;
  FabricOptions options;
  options.log_level = Severity::kWarning;
  options.ranks_per_node = golden::node_size(argc, argv);
  return run_on_fabric(
      options, [&](Fabric& fabric) { return golden::run_all(golden::parse(argc, argv), fabric); });
}
