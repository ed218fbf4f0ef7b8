// Export and import of Hugging Face folders: exact index, strict import, block-quantised weights.
#include "checkpoint/hf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <set>

#include "base/error.h"
#include "checkpoint/json.h"
#include "checkpoint/store.h"
#include "temp_folder.h"

namespace moetrain {
namespace {

namespace fs = std::filesystem;

const std::string kConfig = "{\"model_type\": \"deepseek_v3\"}";
const std::string kBias = "model.layers.1.mlp.gate.e_score_correction_bias";

/// Two stacked experts [2, 3, 4], an embedding with a second name, and an fp32 routing bias.
std::vector<PublishedTensor> table() {
  return {
      {"model.embed_tokens.weight", "embed", {{0, 0}, {5, 4}}, {5, 4}, DType::kBF16, false},
      {"model.layers.1.mlp.experts.0.up_proj.weight",
       "up",
       {{0, 0, 0}, {1, 3, 4}},
       {3, 4},
       DType::kBF16,
       false},
      {"model.layers.1.mlp.experts.1.up_proj.weight",
       "up",
       {{1, 0, 0}, {1, 3, 4}},
       {3, 4},
       DType::kBF16,
       false},
      {kBias, "bias", {{0}, {2}}, {2}, DType::kF32, false},
      {"model.layers.2.embed_tokens.weight", "embed", {{0, 0}, {5, 4}}, {5, 4}, DType::kBF16, true},
  };
}

const std::vector<StateSpec> kStates = {
    {"embed", DType::kF32, {5, 4}}, {"up", DType::kF32, {2, 3, 4}}, {"bias", DType::kF32, {2}}};

std::vector<float> numbers(int64_t n, float scale) {
  std::vector<float> v(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) v[static_cast<size_t>(i)] = scale * static_cast<float>(i - 3);
  return v;
}

class Hf : public testing::Test {
 protected:
  Hf() {
    embed_ = numbers(20, 0.25f);
    up_ = numbers(24, 0.5f);
    bias_ = {1.0009766f, -0.001f};  // neither survives bf16
    write_single(folder_ / "checkpoint", 7,
                 {{"embed", DType::kF32, {5, 4}, whole_box({5, 4}), embed_.data(), {}},
                  {"up", DType::kF32, {2, 3, 4}, whole_box({2, 3, 4}), up_.data(), {}},
                  {"bias", DType::kF32, {2}, whole_box({2}), bias_.data(), {}}},
                 {});
  }
  void write_export(uint64_t max_file_bytes = 60) {
    HfExportOptions options;
    options.max_file_bytes = max_file_bytes;
    export_hf(CheckpointReader(folder_ / "checkpoint"), table(),
              {{"config.json", kConfig}, {"generation_config.json", "{}"}}, folder_ / "hf",
              options);
  }
  /// A folder with a single file of these tensors.
  std::string single(const std::string& name, const std::vector<NamedTensor>& tensors) {
    fs::create_directory(folder_ / name);
    write_bytes(folder_ / name + "/config.json", kConfig);
    save_safetensors(folder_ / name + "/model.safetensors", tensors);
    return folder_ / name;
  }
  TempFolder folder_;
  std::vector<float> embed_, up_, bias_;
};

TEST_F(Hf, IndexListsExactlyWhatTheFilesHold) {
  write_export();
  const std::string path = folder_ / "hf/model.safetensors.index.json";
  const Json index = parse_json(read_bytes(path), path);
  EXPECT_EQ(index.find("metadata")->find("total_size")->integer, 20 * 2 * 2 + 12 * 2 * 2 + 2 * 4);
  const Json& map = *index.find("weight_map");
  std::set<std::string> listed, held;
  for (size_t i = 0; i < map.keys.size(); ++i)
    listed.insert(map.keys[i] + " " + map.items[i].string);
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(folder_ / "hf")) {
    if (entry.path().extension() != ".safetensors") continue;
    ++files;
    const SafetensorsFile file(entry.path().string());
    EXPECT_EQ(file.metadata().at("format"), "pt");
    for (const FileTensor& t : file.tensors())
      held.insert(t.name + " " + entry.path().filename().string());
  }
  EXPECT_EQ(files, 3u);
  EXPECT_EQ(listed, held);
  EXPECT_TRUE(fs::exists(folder_ / "hf/model-00001-of-00003.safetensors"));
  EXPECT_EQ(read_bytes(folder_ / "hf/config.json"), kConfig);
  EXPECT_EQ(read_bytes(folder_ / "hf/generation_config.json"), "{}");
  EXPECT_FALSE(fs::exists(folder_ / "hf.tmp"));
}

TEST_F(Hf, RoundTripKeepsSlicesAndTheBiasBitForBit) {
  write_export();
  const HfFolder in(folder_ / "hf");
  EXPECT_EQ(in.config(), kConfig);
  const FileTensor& bias = *in.find(kBias);
  EXPECT_EQ(bias.type, FileType::kF32);
  import_hf(in, table(), kStates, folder_ / "back", {{"source", "hf"}});
  const CheckpointReader back(folder_ / "back");
  back.check(kStates);
  back.verify();
  EXPECT_EQ(back.step(), 0);
  std::vector<float> out(24);
  back.read("bias", whole_box({2}), DType::kF32, out.data());
  EXPECT_EQ(std::memcmp(out.data(), bias_.data(), 8), 0);
  back.read("up", whole_box({2, 3, 4}), DType::kF32, out.data());
  EXPECT_EQ(out, up_);  // exact in bf16
  EXPECT_EQ(back.find("up")->boxes.size(), 2u);
  std::vector<float> part(4);
  HfStates(in, table()).read("up", {{0, 1, 1}, {2, 1, 2}}, DType::kF32, part.data());
  EXPECT_EQ(part, (std::vector<float>{up_[5], up_[6], up_[17], up_[18]}));
}

TEST_F(Hf, RefusesWhatDoesNotFit) {
  write_export();
  const HfFolder in(folder_ / "hf");
  auto rows = table();
  rows.push_back({"model.norm.weight", "norm", {{0}, {4}}, {4}, DType::kBF16, false});
  EXPECT_REFUSED(in.check(rows), "missing tensor \"model.norm.weight\" [4]");
  rows = table();
  std::swap(rows[1].shape[0], rows[1].shape[1]);
  EXPECT_REFUSED(in.check(rows), "has shape [3, 4], the model needs [4, 3]");
  rows = table();
  rows.erase(rows.begin() + 3);
  EXPECT_REFUSED(in.check(rows), "extra tensor \"" + kBias + "\"");
  EXPECT_NO_THROW(in.check(rows, {"*correction_bias"}));
  EXPECT_REFUSED(export_hf(CheckpointReader(folder_ / "checkpoint"), table(), {{"config.json", ""}},
                           folder_ / "hf"),
                 "not an empty folder");
  rows = table();
  rows[0].state = "embedding";
  EXPECT_REFUSED(export_hf(CheckpointReader(folder_ / "checkpoint"), rows, {{"config.json", ""}},
                           folder_ / "other"),
                 "missing tensor \"embedding\"");
  EXPECT_FALSE(fs::exists(folder_ / "other"));
}

TEST_F(Hf, FolderAndIndexMustAgree) {
  write_export();
  const std::string index = folder_ / "hf/model.safetensors.index.json";
  const std::string good = read_bytes(index);
  std::string text = good;
  text.replace(text.find(kBias), 5, "nodel");
  write_bytes(index, text);
  const std::string message = message_of<UserError>([&] { HfFolder in(folder_ / "hf"); });
  EXPECT_NE(message.find("which does not hold it"), std::string::npos) << message;
  EXPECT_NE(message.find("\"" + kBias + "\" of model-0000"), std::string::npos) << message;
  write_bytes(index, good);
  fs::rename(folder_ / "hf/model-00002-of-00003.safetensors", folder_ / "elsewhere");
  EXPECT_REFUSED(HfFolder(folder_ / "hf"), "file model-00002-of-00003.safetensors is missing");
  fs::rename(folder_ / "elsewhere", folder_ / "hf/model-00002-of-00003.safetensors");
  EXPECT_NO_THROW(HfFolder(folder_ / "hf"));
  fs::remove(index);
  EXPECT_REFUSED(HfFolder(folder_ / "hf"), "neither");
  EXPECT_REFUSED(HfFolder(folder_ / "nowhere"), "no such folder");
}

TEST_F(Hf, SharedCopiesMayBeAbsentButMustNotDiffer) {
  auto other = embed_;
  std::vector<NamedTensor> tensors{
      {"model.embed_tokens.weight", {embed_.data(), DType::kF32, {5, 4}}},
      {"model.layers.1.mlp.experts.0.up_proj.weight", {up_.data(), DType::kF32, {3, 4}}},
      {"model.layers.1.mlp.experts.1.up_proj.weight", {up_.data() + 12, DType::kF32, {3, 4}}},
      {kBias, {bias_.data(), DType::kF32, {2}}}};
  import_hf(HfFolder(single("without", tensors)), table(), kStates, folder_ / "a", {});
  std::vector<float> out(20);
  CheckpointReader(folder_ / "a").read("embed", whole_box({5, 4}), DType::kF32, out.data());
  EXPECT_EQ(out, embed_);
  tensors.push_back({"model.layers.2.embed_tokens.weight", {other.data(), DType::kF32, {5, 4}}});
  import_hf(HfFolder(single("same", tensors)), table(), kStates, folder_ / "b", {});
  other[7] += 1;
  EXPECT_REFUSED(
      import_hf(HfFolder(single("differs", tensors)), table(), kStates, folder_ / "c", {}),
      "\"model.layers.2.embed_tokens.weight\" differs from");
  EXPECT_FALSE(fs::exists(folder_ / "c"));
  EXPECT_FALSE(fs::exists(folder_ / "c.tmp"));
}

TEST_F(Hf, DequantisesPublishedEightBitWeights) {
  // One 3 x 130 weight: blocks 128 and 2 wide, factors 0.5 and 2.
  const int64_t cols = 130;
  std::vector<uint8_t> codes(3 * cols, 0x38);  // 1.0
  codes[cols + 129] = 0xc0;                    // -2.0 in row 1, second block
  const std::vector<float> scale{0.5f, 2.0f};
  fs::create_directory(folder_ / "f8");
  write_bytes(folder_ / "f8/config.json",
              R"({"quantization_config":{"weight_block_size":[128,128]}})");
  const auto write = [&](FileType type, const Shape& scale_shape) {
    SafetensorsWriter out(folder_ / "f8/model.safetensors",
                          {{"w", type, {3, cols}}, {"w_scale_inv", FileType::kF32, scale_shape}});
    for (const size_t i : out.order()) {
      if (i == 0) out.append(codes.data(), codes.size());
      if (i == 1) out.append(scale.data(), 8);
    }
    out.finish();
  };
  write(FileType::kF8E4M3, {1, 2});
  const std::vector<PublishedTensor> rows{
      {"w", "w", whole_box({3, cols}), {3, cols}, DType::kBF16, false}};
  const HfFolder in(folder_ / "f8");
  in.check(rows);
  std::vector<float> out(3 * cols);
  in.read(rows[0], DType::kF32, out.data());
  EXPECT_EQ(out[0], 0.5f);
  EXPECT_EQ(out[127], 0.5f);
  EXPECT_EQ(out[128], 2.0f);
  EXPECT_EQ(out[cols + 129], -4.0f);
  write(FileType::kF8E4M3, {2, 1});
  EXPECT_REFUSED(HfFolder(folder_ / "f8").check(rows), "needs \"w_scale_inv\", F32 [1, 2]");
  write(FileType::kU8, {1, 2});
  EXPECT_REFUSED(HfFolder(folder_ / "f8").check(rows), "import understands BF16, F32 and F8_E4M3");
}

}  // namespace
}  // namespace moetrain
