// metrics.jsonl, TensorBoard files, progress line and loss picture, across kills and restarts.
#include "train/metrics.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/error.h"
#include "checkpoint/json.h"
#include "train/curve.h"
#include "train/progress.h"
#include "train/tensorboard.h"

namespace moetrain {
namespace {

namespace fs = std::filesystem;

class Metrics : public testing::Test {
 protected:
  Metrics() {
    std::string pattern = testing::TempDir() + "moetrain_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    path_ = folder_ + "/metrics.jsonl";
  }
  ~Metrics() override { fs::remove_all(folder_); }
  static StepMetrics at(int64_t step, double loss = 3.5) {
    StepMetrics m;
    m.step = step;
    m.tokens = step * 512;
    m.samples = step * 8;
    m.loss = loss;
    m.learning_rate = 1e-3;
    m.step_time_s = 2;
    m.tokens_per_second = 12345;
    return m;
  }
  std::vector<int64_t> steps() const {
    std::vector<int64_t> steps;
    for (const LossPoint& p : read_losses(path_)) steps.push_back(p.step);
    return steps;
  }
  static void append_raw(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::app | std::ios::binary) << text;
  }
  std::string events_folder() const { return folder_ + "/tensorboard"; }
  /// All event files in order, restart markers honoured as TensorBoard does: (tag, step) -> values.
  std::map<std::pair<std::string, int64_t>, std::vector<float>> as_tensorboard(
      bool honour_markers) const {
    std::vector<std::string> files;
    for (const auto& e : fs::directory_iterator(events_folder()))
      files.push_back(e.path().string());
    std::sort(files.begin(), files.end());
    std::map<std::pair<std::string, int64_t>, std::vector<float>> seen;
    for (const std::string& file : files) {
      for (const ScalarEvent& e : read_events(file)) {
        if (!e.tag.empty()) seen[{e.tag, e.step}].push_back(e.value);
        if (e.tag.empty() && honour_markers) {
          std::erase_if(seen, [&](const auto& entry) { return entry.first.second >= e.step; });
        }
      }
    }
    return seen;
  }
  std::string folder_, path_;
};

TEST_F(Metrics, LineHoldsTheFields) {
  StepMetrics m = at(7);
  m.mtp_loss = 0.25;
  m.grad_norm = NAN;
  m.validation_loss = 4;
  m.max_violation = {0.5, 1.25};
  m.expert_load = ExpertLoad{0.5, 1, 2.25, 0.3};
  const Json json = parse_json(to_json_line(m), "line");
  for (const char* key :
       {"step", "tokens", "samples", "loss", "main_loss", "mtp_loss", "grad_norm", "learning_rate",
        "step_time_s", "tokens_per_second", "tflops_per_rank", "validation_loss", "skipped_steps",
        "max_violation", "expert_load", "bytes_inter_node", "bytes_intra_node", "exposed_comm_s",
        "memory_peak_bytes"}) {
    EXPECT_NE(json.find(key), nullptr) << key;
  }
  EXPECT_EQ(json.keys[0], "step");
  EXPECT_EQ(json.find("tokens")->integer, 7 * 512);
  EXPECT_EQ(json.find("max_violation")->number, 1.25);
  EXPECT_EQ(json.find("max_violation_per_layer")->items.size(), 2u);
  EXPECT_EQ(json.find("expert_load")->find("max")->number, 2.25);
  EXPECT_TRUE(json.find("grad_norm")->is(Json::Kind::kNull));
  EXPECT_EQ(parse_json(to_json_line(at(1)), "line").find("mtp_loss"), nullptr);
}

TEST_F(Metrics, RestartDropsLostStepsAndKeepsTheRest) {
  {
    MetricsLog log(path_, 0);
    for (int64_t s = 1; s <= 13; ++s) log.append(at(s));
  }
  append_raw(path_, "{\"step\": 14, \"lo");  // killed in a write
  {
    MetricsLog log(path_, 10);
    EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
    EXPECT_THROW(log.append(at(10)), InternalError);
    for (int64_t s = 11; s <= 20; ++s) log.append(at(s));
    EXPECT_THROW(log.append(at(20)), InternalError);
  }
  const auto all = steps();
  ASSERT_EQ(all.size(), 20u);
  for (int64_t s = 1; s <= 20; ++s) EXPECT_EQ(all[static_cast<size_t>(s - 1)], s);
  MetricsLog same(path_, 20);
  EXPECT_EQ(steps(), all);
  EXPECT_FALSE(fs::exists(path_ + ".tmp"));
  MetricsLog fresh(path_, 0);
  EXPECT_TRUE(steps().empty());
}

TEST_F(Metrics, TornLineWithoutLostStepsIsMended) {
  {
    MetricsLog log(path_, 0);
    log.append(at(1));
  }
  append_raw(path_, "{\"step\": 2}");  // whole JSON, but its newline was lost
  append_raw(path_, "");
  MetricsLog log(path_, 1);
  log.append(at(2));
  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2}));
}

TEST_F(Metrics, TensorBoardShowsEachStepOnceAfterARestart) {
  {
    EventWriter first(events_folder(), 0);
    for (int64_t s = 1; s <= 13; ++s) first.write(s, {{"loss", s}, {"lr", 0.5}});
  }
  std::string first_file;
  for (const auto& e : fs::directory_iterator(events_folder())) first_file = e.path().string();
  append_raw(first_file, std::string("\x20\0\0\0\0\0\0\0torn", 12));
  {
    EventWriter second(events_folder(), 10);
    EXPECT_GT(second.path(), first_file);
    for (int64_t s = 11; s <= 20; ++s) second.write(s, {{"loss", 100 + s}, {"lr", NAN}});
  }
  for (const bool honour_markers : {true, false}) {  // the old file is cut as well
    const auto seen = as_tensorboard(honour_markers);
    EXPECT_EQ(seen.size(), 40u);
    for (int64_t s = 1; s <= 20; ++s) {
      const auto& values = seen.at({"loss", s});
      ASSERT_EQ(values.size(), 1u) << s;
      EXPECT_EQ(values[0], static_cast<float>(s <= 10 ? s : 100 + s));
      EXPECT_EQ(std::isnan(seen.at({"lr", s})[0]), s > 10);
    }
  }
  EventWriter third(events_folder(), 0);
  EXPECT_TRUE(as_tensorboard(false).empty());
}

TEST_F(Metrics, RecordsMatchThePublishedFraming) {
  // The first record of an event file, byte for byte: length, masked crc, `brain.Event:2`.
  const std::string record = frame_record("abc");
  ASSERT_EQ(record.size(), 19u);
  EXPECT_EQ(record.substr(0, 8), std::string("\3\0\0\0\0\0\0\0", 8));
  size_t whole = 0;
  EXPECT_EQ(split_records(record + record, &whole).size(), 2u);
  EXPECT_EQ(whole, 38u);
  for (size_t i = 0; i < record.size(); ++i) {
    std::string bad = record;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    EXPECT_TRUE(split_records(bad, &whole).empty()) << i;
    EXPECT_TRUE(split_records(record.substr(0, i), &whole).empty()) << i;
  }
  EventWriter writer(events_folder(), 0);
  writer.write(3, {{"loss", 1.5}});
  std::ifstream in(writer.path(), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto records = split_records(text, &whole);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].substr(0, 1), "\x09");  // wall_time: field 1, 64 bit
  EXPECT_EQ(records[0].substr(9),
            "\x1a\x0d"
            "brain.Event:2");  // file_version: field 3
  // step: field 2; summary: field 5 { value: field 1 { tag: field 1; simple_value: field 2, float }
  // }
  EXPECT_EQ(records[1].substr(9),
            std::string("\x10\x03\x2a\x0d\x0a\x0b\x0a\x04loss\x15\x00\x00\xc0\x3f", 17));
}

TEST_F(Metrics, ScalarsFollowTheLine) {
  StepMetrics m = at(1);
  m.max_violation = {1, 2};
  std::map<std::string, double> tags;
  for (const auto& [tag, value] : scalars_of(m))
    EXPECT_TRUE(tags.emplace(tag, value).second) << tag;
  EXPECT_EQ(tags.at("loss/total"), 3.5);
  EXPECT_EQ(tags.at("router/max_violation"), 2);
  EXPECT_EQ(tags.at("router/max_violation_layer_0"), 1);
  EXPECT_FALSE(tags.contains("loss/validation"));
}

TEST_F(Metrics, ProgressInBatchAndOnTerminal) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* out = ::open_memstream(&text, &size);
  {
    ProgressLine plain(20, 5, false, out);
    for (int64_t s = 1; s <= 20; ++s) {
      StepMetrics m = at(s);
      if (s == 7) m.validation_loss = 4;
      plain.update(m);
    }
  }
  std::fflush(out);
  const std::string batch(text, size);
  EXPECT_EQ(std::count(batch.begin(), batch.end(), '\n'), 6);  // 1, 5, 7, 10, 15, 20
  EXPECT_EQ(batch.find('\r'), std::string::npos);
  EXPECT_NE(batch.find("step 10/20 | loss 3.5000"), std::string::npos) << batch;
  EXPECT_NE(batch.find("12.3K tok/s"), std::string::npos);
  EXPECT_NE(batch.find("| ETA 20s\n"), std::string::npos);
  {
    ProgressLine line(20, 5, true, out);
    line.update(at(1));
    line.update(at(2));
  }
  std::fclose(out);
  const std::string terminal(text + batch.size(), size - batch.size());
  ::free(text);
  EXPECT_EQ(std::count(terminal.begin(), terminal.end(), '\r'), 2);
  EXPECT_EQ(terminal.back(), '\n');
  EXPECT_EQ(std::count(terminal.begin(), terminal.end(), '\n'), 1);
  EXPECT_EQ(human_duration(59.4), "59s");
  EXPECT_EQ(human_duration(3725), "1h02m");
  EXPECT_EQ(human_duration(NAN), "?");
}

TEST_F(Metrics, PictureOfTheLoss) {
  {
    MetricsLog log(path_, 0);
    for (int64_t s = 1; s <= 3000; ++s) {
      StepMetrics m = at(s, s == 50 ? NAN : 5.0 / std::sqrt(static_cast<double>(s)));
      if (s % 1000 == 0) m.validation_loss = 0.2;
      log.append(m);
    }
  }
  write_loss_curve(path_, folder_ + "/loss.svg", "a < b");
  const std::string svg = read_file(folder_ + "/loss.svg");
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  EXPECT_NE(svg.find("a &lt; b: loss 0.0912"), std::string::npos);
  size_t circles = 0;
  for (size_t at = svg.find("<circle"); at != std::string::npos; at = svg.find("<circle", at + 1))
    ++circles;
  EXPECT_EQ(circles, 3u);
  EXPECT_LT(svg.size(), 60000u);
  for (const auto& points : {std::vector<LossPoint>{}, std::vector<LossPoint>{{1, NAN, {}}},
                             std::vector<LossPoint>{{5, 2.0, {}}}}) {
    const std::string tiny = loss_curve_svg(points, "t");
    EXPECT_EQ(tiny.find("nan"), std::string::npos);
    EXPECT_EQ(tiny.find("inf"), std::string::npos);
    EXPECT_TRUE(tiny.ends_with("</svg>\n"));
  }
}

}  // namespace
}  // namespace moetrain
