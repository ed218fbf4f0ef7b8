// Writing and mending metrics.jsonl.
#include "train/metrics.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/json.h"

namespace moetrain {
namespace {

/// Calls `line(text, complete)` for every line; `complete` is false for a last one without newline.
void for_each_line(const std::string& text,
                   const std::function<void(std::string_view, bool)>& line) {
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = text.find('\n', begin);
    const bool complete = end != std::string::npos;
    const size_t stop = complete ? end : text.size();
    line(std::string_view(text).substr(begin, stop - begin), complete);
    begin = stop + 1;
  }
}

/// The object on a line, or nothing if it is not one with a whole-number step.
std::optional<Json> parse_line(std::string_view line) {
  try {
    Json json = parse_json(line, "line");
    const Json* step = json.find("step");
    if (json.is(Json::Kind::kObject) && step && step->is(Json::Kind::kInt)) return json;
  } catch (const UserError&) {
  }
  return std::nullopt;
}

class LineWriter {
 public:
  void add(const char* key, int64_t value) { put(key, std::to_string(value)); }
  void add(const char* key, double value) { put(key, json_number(value)); }
  void add(const char* key, const std::optional<double>& value) {
    if (value) add(key, *value);
  }
  void put(const char* key, const std::string& json) {
    text_ += cat(text_.size() > 1 ? ", " : "", '"', key, "\": ", json);
  }
  std::string finish() { return text_ + "}"; }

 private:
  std::string text_ = "{";
};

/// The largest violation; NaN stays visible.
double largest(const std::vector<double>& values) {
  double most = -std::numeric_limits<double>::infinity();
  for (const double v : values) {
    if (std::isnan(v)) return v;
    most = std::max(most, v);
  }
  return most;
}

}  // namespace

std::string to_json_line(const StepMetrics& m) {
  LineWriter line;
  line.add("step", m.step);
  line.add("tokens", m.tokens);
  line.add("samples", m.samples);
  line.add("global_batch_size", m.global_batch_size);
  line.add("loss", m.loss);
  line.add("main_loss", m.main_loss);
  line.add("mtp_loss", m.mtp_loss);
  line.add("balance_loss", m.balance_loss);
  line.add("grad_norm", m.grad_norm);
  line.add("learning_rate", m.learning_rate);
  line.add("step_time_s", m.step_time_s);
  line.add("tokens_per_second", m.tokens_per_second);
  line.add("tflops_per_rank", m.tflops_per_rank);
  line.add("mfu", m.mfu);
  line.add("validation_loss", m.validation_loss);
  line.add("skipped_steps", m.skipped_steps);
  if (!m.max_violation.empty()) {
    line.add("max_violation", largest(m.max_violation));
    std::vector<std::string> layers;
    for (const double v : m.max_violation) layers.push_back(json_number(v));
    line.put("max_violation_per_layer", cat("[", join(layers, ", "), "]"));
  }
  if (m.expert_load) {
    LineWriter load;
    load.add("min", m.expert_load->min);
    load.add("mean", m.expert_load->mean);
    load.add("max", m.expert_load->max);
    load.add("std", m.expert_load->std);
    line.put("expert_load", load.finish());
  }
  line.add("bytes_inter_node", m.bytes_inter_node);
  line.add("bytes_intra_node", m.bytes_intra_node);
  line.add("comm_s", m.comm_s);
  line.add("exposed_comm_s", m.exposed_comm_s);
  LineWriter kinds;
  for (const auto& [kind, seconds] : m.exposed_comm_by_kind) kinds.add(kind.c_str(), seconds);
  line.put("exposed_comm_by_kind", kinds.finish());
  line.add("memory_peak_bytes", m.memory_peak_bytes);
  return line.finish();
}

std::vector<std::pair<std::string, double>> scalars_of(const StepMetrics& m) {
  std::vector<std::pair<std::string, double>> out;
  const auto add = [&](const std::string& tag, auto value) {
    out.emplace_back(tag, static_cast<double>(value));
  };
  const auto add_if = [&](const std::string& tag, const std::optional<double>& value) {
    if (value) out.emplace_back(tag, *value);
  };
  add("loss/total", m.loss);
  add("loss/main", m.main_loss);
  add_if("loss/mtp", m.mtp_loss);
  add_if("loss/balance", m.balance_loss);
  add_if("loss/validation", m.validation_loss);
  add("train/grad_norm", m.grad_norm);
  add("train/learning_rate", m.learning_rate);
  add("train/tokens", m.tokens);
  add("train/samples", m.samples);
  add("train/global_batch_size", m.global_batch_size);
  add("train/skipped_steps", m.skipped_steps);
  add("speed/step_time_s", m.step_time_s);
  add("speed/tokens_per_second", m.tokens_per_second);
  add("speed/tflops_per_rank", m.tflops_per_rank);
  add_if("speed/mfu", m.mfu);
  add("speed/comm_s", m.comm_s);
  add("speed/exposed_comm_s", m.exposed_comm_s);
  add("speed/bytes_inter_node", m.bytes_inter_node);
  add("speed/bytes_intra_node", m.bytes_intra_node);
  add("memory/peak_bytes", m.memory_peak_bytes);
  if (!m.max_violation.empty()) add("router/max_violation", largest(m.max_violation));
  for (size_t i = 0; i < m.max_violation.size(); ++i) {
    add(cat("router/max_violation_layer_", i), m.max_violation[i]);
  }
  if (m.expert_load) {
    add("router/expert_load_min", m.expert_load->min);
    add("router/expert_load_max", m.expert_load->max);
    add("router/expert_load_std", m.expert_load->std);
  }
  return out;
}

MetricsLog::MetricsLog(const std::string& path, int64_t resume_step) : last_step_(resume_step) {
  if (std::filesystem::exists(path)) {
    const std::string text = read_file(path);
    std::string kept;
    int64_t last = 0, unreadable = 0;
    for_each_line(text, [&](std::string_view line, bool complete) {
      const auto json = complete ? parse_line(line) : std::nullopt;
      if (!json) {
        ++unreadable;
        return;
      }
      const int64_t step = json->find("step")->integer;
      if (step > resume_step || step <= last) return;
      last = step;
      kept.append(line);
      kept += '\n';
    });
    if (unreadable > 0)
      log_warning(cat(path, ": dropping ", unreadable, " torn or foreign line(s)"));
    if (kept != text) write_file_atomically(path, kept);
  }
  out_ = std::make_unique<FileWriter>(path, FileWriter::Mode::kAppend);
}

void MetricsLog::append(const StepMetrics& metrics) {
  MT_CHECK(metrics.step > last_step_, "step ", metrics.step, " after ", last_step_);
  last_step_ = metrics.step;
  out_->write(to_json_line(metrics) + "\n");
}

std::vector<LossPoint> read_losses(const std::string& path) {
  const std::string text = read_file(path);
  std::vector<LossPoint> points;
  for_each_line(text, [&](std::string_view line, bool) {
    const auto json = parse_line(line);
    if (!json) return;
    const auto number = [&](const char* key) -> std::optional<double> {
      const Json* value = json->find(key);
      if (!value || (!value->is(Json::Kind::kInt) && !value->is(Json::Kind::kNumber))) return {};
      return value->number;
    };
    points.push_back({json->find("step")->integer,
                      number("loss").value_or(std::numeric_limits<double>::quiet_NaN()),
                      number("validation_loss")});
  });
  return points;
}

}  // namespace moetrain
