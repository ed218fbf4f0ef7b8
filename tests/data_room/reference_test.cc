// Agreement with reference ids on awkward text: DeepSeek-V3's and GPT-2's real vocabularies,
// fetched by scripts/fetch_tokenizers.sh.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/tokenizer/tokenizer.h"
#include "files.h"

namespace moetrain {
namespace {

using nlohmann::json;

// MOETRAIN_TOKENIZERS, else build/tokenizers beside this program's folder.
std::string tokenizer_path(const std::string& name) {
  const char* given = std::getenv("MOETRAIN_TOKENIZERS");
  const auto folder =
      given != nullptr
          ? std::filesystem::path(given)
          : std::filesystem::canonical("/proc/self/exe").parent_path().parent_path() / "tokenizers";
  return (folder / name / "tokenizer.json").string();
}

std::vector<json> cases(const std::string& name) {
  std::ifstream in(std::string(MOETRAIN_TEST_DATA) + "/data_room/" + name);
  std::vector<json> all;
  for (std::string line; std::getline(in, line);) all.push_back(json::parse(line));
  return all;
}

class Reference : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    path_ = tokenizer_path(GetParam());
    if (!std::filesystem::exists(path_))
      GTEST_SKIP() << "skipped: no " << path_ << " (scripts/fetch_tokenizers.sh fetches it)";
    tokenizer_ = open_tokenizer(path_);
  }
  std::string path_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(Reference, EncodesAndDecodes) {
  const auto all = cases(std::string(GetParam()) + ".jsonl");
  ASSERT_GT(all.size(), 20u);
  for (const json& c : all) {
    const auto text = c["text"].get<std::string>();
    const auto ids = c["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer_->encode(text), ids) << c["note"] << ": " << c["text"];
    EXPECT_EQ(tokenizer_->decode(ids), c["decoded"].get<std::string>()) << c["note"];
    StreamDecoder stream(*tokenizer_, false);
    std::string pieces;
    for (int32_t id : ids) pieces += stream.push(id);
    EXPECT_EQ(pieces + stream.finish(), c["decoded"].get<std::string>()) << c["note"];
  }
}

TEST_P(Reference, LongPiecesAreNotQuadratic) {
  const std::string million(1000000, 'a');
  std::vector<int32_t> ids;
  const auto start = std::chrono::steady_clock::now();
  tokenizer_->encode(million, ids);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 20.0);
  EXPECT_EQ(tokenizer_->decode(ids), million);
  if (std::string_view(GetParam()) == "deepseek_v3") {
    EXPECT_EQ(ids.size(), 125000u);
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, Reference, testing::Values("deepseek_v3", "gpt2"));

TEST(DeepSeek, DecodesCutCharactersAndSpecials) {
  const std::string path = tokenizer_path("deepseek_v3");
  if (!std::filesystem::exists(path))
    GTEST_SKIP() << "skipped: no " << path << " (scripts/fetch_tokenizers.sh fetches it)";
  const auto tokenizer = open_tokenizer(path);
  for (const json& c : cases("deepseek_v3_decode.jsonl")) {
    const auto ids = c["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer->decode(ids), c["decoded"].get<std::string>()) << c["note"];
    EXPECT_EQ(tokenizer->decode(ids, true), c["decoded_skip_special"].get<std::string>())
        << c["note"];
  }
  EXPECT_EQ(tokenizer->vocab_size(), 128815);
  EXPECT_EQ(tokenizer->eod(), 1);  // from tokenizer_config.json
}

}  // namespace
}  // namespace moetrain
