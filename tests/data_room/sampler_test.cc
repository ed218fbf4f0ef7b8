// Sample construction and micro-batches: golden rows, ends of data, tiny sets, resume, masks.
#include "data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "data/numpy_random.h"
#include "files.h"

namespace moetrain {
namespace {

using test::refusal;
using test::Scratch;
using test::write_lengths;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

GptIndex::Lengths lengths_of(std::vector<int> lengths) {
  return [lengths](int64_t i) { return static_cast<int64_t>(lengths[static_cast<size_t>(i)]); };
}

TEST(GptIndex, GoldenRows) {
  const GptIndex index(lengths_of({5, 3, 9, 4}), {2, 0, 3, 1}, 4);
  std::vector<std::pair<int64_t, int64_t>> rows;
  for (int64_t r = 0; r <= index.samples(); ++r)
    rows.emplace_back(index.row(r).document, index.row(r).offset);
  const std::vector<std::pair<int64_t, int64_t>> expected{{0, 0}, {0, 4}, {0, 8},
                                                          {1, 3}, {2, 2}, {3, 2}};
  EXPECT_EQ(rows, expected);
}

TEST(GptIndex, SamplesAtTheVeryEnd) {
  const std::map<int, int64_t> expected{{4, 0}, {5, 1}, {15, 3}, {16, 3}, {17, 4}};
  for (const auto& [tokens, samples] : expected) {
    const GptIndex index(lengths_of({tokens}), SequenceRange{0, 1}, {.sequence_length = 4});
    EXPECT_EQ(index.samples(), samples) << tokens;
  }
}

// De-overlapped, the rows give the shuffled documents in order, each token once.
TEST(GptIndex, StreamEqualsShuffledDocuments) {
  const std::vector<int> lengths{0, 1, 40, 0, 7, 3, 1, 0, 12, 5};
  for (int64_t wanted : {int64_t{-1}, int64_t{30}, int64_t{100}}) {
    const GptIndex index(lengths_of(lengths), SequenceRange{0, 10},
                         {.sequence_length = 4, .samples = wanted});
    std::vector<std::pair<int64_t, int64_t>> stream, expected;
    const int64_t documents = 10 * index.epochs();
    for (int64_t p = 0; p < documents; ++p) {
      const int64_t d = index.document_at(p);
      for (int64_t t = 0; t < lengths[static_cast<size_t>(d)]; ++t) expected.emplace_back(d, t);
    }
    std::vector<int64_t> order(static_cast<size_t>(index.samples()));
    for (int64_t k = 0; k < index.samples(); ++k) order[static_cast<size_t>(index.shuffled(k))] = k;
    std::vector<GptIndex::Part> parts;
    for (int64_t k : order) {  // order is a permutation, or this reads the wrong samples
      index.parts(k, parts);
      if (!stream.empty()) stream.pop_back();
      int64_t count = 0;
      for (const GptIndex::Part& part : parts) {
        for (int64_t t = 0; t < part.count; ++t)
          stream.emplace_back(part.sequence, part.offset + t);
        count += part.count;
      }
      EXPECT_EQ(count, 5);
    }
    ASSERT_LE(stream.size(), expected.size());
    EXPECT_LT(expected.size() - stream.size(), 4u);
    expected.resize(stream.size());
    EXPECT_EQ(stream, expected) << wanted;
  }
}

TEST(GptIndex, LastEpochIsShuffledApart) {
  // 3 documents of 10 tokens, S = 5: 30 tokens, 5 samples an epoch.
  const auto build = [](int64_t samples) {
    return GptIndex(lengths_of({10, 10, 10}), SequenceRange{0, 3},
                    {.sequence_length = 5, .samples = samples, .seed = 7});
  };
  EXPECT_EQ(build(5).epochs(), 1);
  const GptIndex apart = build(7);  // 5 before the last epoch, 2 from it: fewer than int(0.8 * 5)
  EXPECT_EQ(apart.epochs(), 2);
  EXPECT_TRUE(apart.last_epoch_apart());
  for (int64_t k = 0; k < 5; ++k) EXPECT_LT(apart.shuffled(k), 5);
  const GptIndex joint = build(10);
  EXPECT_FALSE(joint.last_epoch_apart());
  // The exact order, step by step with the generator itself.
  NumpyRandom random(7);
  std::vector<int64_t> first{0, 1, 2}, last{0, 1, 2};
  random.shuffle(std::span(first));
  random.shuffle(std::span(last));
  std::vector<int64_t> head(5), tail(apart.samples() - 5);
  std::iota(head.begin(), head.end(), 0);
  std::iota(tail.begin(), tail.end(), 5);
  random.shuffle(std::span(head));
  random.shuffle(std::span(tail));
  for (int64_t p = 0; p < 3; ++p) {
    EXPECT_EQ(apart.document_at(p), first[static_cast<size_t>(p)]);
    EXPECT_EQ(apart.document_at(3 + p), last[static_cast<size_t>(p)]);
  }
  for (int64_t k = 0; k < apart.samples(); ++k) {
    EXPECT_EQ(apart.shuffled(k),
              k < 5 ? head[static_cast<size_t>(k)] : tail[static_cast<size_t>(k - 5)]);
  }
}

SamplerOptions options_for(const std::string& prefix, int64_t s, int64_t samples) {
  SamplerOptions options;
  options.parts = {{prefix, {}}};
  options.sequence_length = s;
  options.samples = samples;
  return options;
}

TEST(Sampler, ShiftsForEveryDepth) {
  Scratch dir;
  write_lengths(dir / "a", {30});
  SamplerOptions options = options_for(dir / "a", 6, 4);
  options.depths = 2;
  const Sampler sampler(options, Split::kTrain);
  Batch batch;
  sampler.fill(0, 4, batch);
  for (int64_t row = 0; row < 4; ++row) {
    const int32_t start = batch.tokens_at(0)[row * 6];
    EXPECT_EQ(start % 6, 0);
    for (int64_t k = 0; k <= 2; ++k) {
      for (int64_t i = 0; i < 6; ++i) {
        const int64_t at = row * 6 + i;
        EXPECT_EQ(batch.pos[static_cast<size_t>(at)], i);
        EXPECT_EQ(batch.doc_start[static_cast<size_t>(at)], 0);
        EXPECT_EQ(batch.valid_at(k)[at], i < 6 - k ? 1.0f : 0.0f);
        if (i >= 6 - k) continue;
        EXPECT_EQ(batch.tokens_at(k)[at], start + i + k);
        EXPECT_EQ(batch.labels_at(k)[at], start + i + k + 1);
      }
    }
  }
  EXPECT_EQ(sampler.valid_counts(0, 4), (std::vector<int64_t>{24, 20, 16}));
  EXPECT_TRUE(has(refusal([&] { sampler.fill(2, 3, batch); }), "sample 4 of the train data"));
}

TEST(Sampler, DocumentsInsideASample) {
  Scratch dir;
  IndexedWriter writer(dir / "a", TokenType::kU16);
  writer.add_document(
      std::vector<int32_t>{1, 2, 9, 3, 9});  // 9 ends a document, also inside a sequence
  writer.add_document(std::vector<int32_t>{4, 5, 6, 9});
  writer.finish();
  SamplerOptions options = options_for(dir / "a", 8, 1);
  options.eod = 9;
  options.depths = 1;
  options.document_mask = true;
  options.eod_mask_loss = true;
  const Sampler sampler(options, Split::kTrain);
  Batch batch;
  sampler.fill(0, 1, batch);
  if (batch.tokens[0] == 1) {
    EXPECT_EQ(batch.doc_start, (std::vector<int32_t>{0, 0, 0, 3, 3, 5, 5, 5}));
  } else {
    EXPECT_EQ(batch.doc_start, (std::vector<int32_t>{0, 0, 0, 0, 4, 4, 4, 7}));
  }
  std::vector<int64_t> counted(2, 0);
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(batch.valid_at(0)[i], batch.tokens_at(0)[i] == 9 ? 0.0f : 1.0f);
    EXPECT_EQ(batch.valid_at(1)[i], i == 7 || batch.tokens_at(0)[i + 1] == 9 ? 0.0f : 1.0f);
    counted[0] += batch.valid_at(0)[i] > 0;
    counted[1] += batch.valid_at(1)[i] > 0;
  }
  EXPECT_EQ(sampler.valid_counts(0, 1), counted);
}

TEST(Sampler, KeptPartialSampleIsMasked) {
  Scratch dir;
  write_lengths(dir / "a", {7});
  SamplerOptions options = options_for(dir / "a", 4, 1);
  options.keep_partial = true;
  const Sampler sampler(options, Split::kValidation);
  int64_t short_count = sampler.valid_counts(0, 1)[0];
  EXPECT_TRUE(short_count == 4 || short_count == 2) << short_count;
  const GptIndex index(lengths_of({7}), SequenceRange{0, 1},
                       {.sequence_length = 4, .keep_partial = true});
  EXPECT_EQ(index.samples(), 2);
  Sampler::Sample sample;
  sampler.read(0, sample);
  EXPECT_EQ(sample.present, short_count + 1);
}

// 65 tokens are one sample of 64; a global batch of 8 repeats epochs, the same on every rank.
TEST(Sampler, TinySetRepeatsEpochs) {
  Scratch dir;
  write_lengths(dir / "a", {65});
  const Sampler sampler(options_for(dir / "a", 64, 8), Split::kTrain);
  Batch batch;
  sampler.fill(0, 8, batch);
  EXPECT_TRUE(has(sampler.describe(), "8 epochs")) << sampler.describe();
  write_lengths(dir / "b", {3});  // less than a sample: epochs are laid end to end
  const Sampler smaller(options_for(dir / "b", 64, 2), Split::kTrain);
  smaller.fill(0, 2, batch);
  EXPECT_EQ(batch.tokens[0], 0);
  EXPECT_EQ(batch.tokens[3], 0);
}

TEST(Sampler, EmptyPartsAreDefined) {
  Scratch dir;
  write_lengths(dir / "a", {40, 40});
  SamplerOptions options = options_for(dir / "a", 4, 4);
  options.split = "99,1,0";
  EXPECT_EQ(open_optional_sampler(options, Split::kValidation), nullptr);
  EXPECT_EQ(open_optional_sampler(options, Split::kTest), nullptr);
  EXPECT_TRUE(has(refusal([&] { Sampler(options, Split::kValidation); }),
                  "the validation part has no tokens"));
  options.split = "0,1,0";
  EXPECT_NE(open_optional_sampler(options, Split::kValidation), nullptr);
  EXPECT_TRUE(has(refusal([&] { Sampler(options, Split::kTrain); }),
                  "the train part is empty: 0 of 2 sequences"));
  write_lengths(dir / "none", {});
  write_lengths(dir / "hollow", {0, 0});
  for (const char* name : {"none", "hollow"}) {
    EXPECT_TRUE(
        has(refusal([&] { Sampler(options_for(dir / name, 4, 4), Split::kTrain); }), "0 tokens"));
  }
  const Sampler nothing(options_for(dir / "a", 4, 0),
                        Split::kTrain);  // zero steps: nothing to draw
  EXPECT_EQ(nothing.valid_counts(0, 0), (std::vector<int64_t>{0}));
}

TEST(Sampler, FaultyOptionsAreAllNamed) {
  Scratch dir;
  write_lengths(dir / "a", {40});
  SamplerOptions options = options_for(dir / "a", 0, -1);
  options.seed = uint64_t{1} << 32;
  options.eod_mask_loss = true;
  const std::string message = refusal([&] { Sampler(options, Split::kTrain); });
  for (const char* part : {"sequence_length", "negative", "seed", "eod_mask_loss"})
    EXPECT_TRUE(has(message, part)) << message;
  const auto blend = [&](std::optional<double> a, std::optional<double> b) {
    SamplerOptions o = options_for(dir / "a", 4, 4);
    o.parts = {{dir / "a", a}, {dir / "a", b}};
    return o;
  };
  for (double bad : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(
        has(refusal([&] { Sampler(blend(1.0, bad), Split::kTrain); }), "not a positive number"))
        << bad;
  }
  EXPECT_TRUE(has(refusal([&] { Sampler(blend(1.0, {}), Split::kTrain); }),
                  "1 of 2 datasets have a weight"));
  SamplerOptions none = options_for(dir / "a", 4, 4);
  none.parts.clear();
  EXPECT_TRUE(has(refusal([&] { Sampler(none, Split::kTrain); }), "no dataset is listed"));
}

TEST(Sampler, BlendsFollowTheIndex) {
  Scratch dir;
  write_lengths(dir / "a", {200});
  IndexedWriter writer(dir / "b", TokenType::kI32);
  writer.add_document(std::vector<int32_t>(100, 7777));
  writer.finish();
  for (const bool weighted : {true, false}) {
    SamplerOptions options = options_for(dir / "a", 8, 200);
    options.parts = {{dir / "a", {}}, {dir / "b", {}}};
    if (weighted) options.parts[0].weight = 0.999, options.parts[1].weight = 0.001;
    const Sampler sampler(options, Split::kTrain);
    Batch batch;
    sampler.fill(0, 200, batch);
    int64_t from_b = 0;
    for (int64_t row = 0; row < 200; ++row)
      from_b += batch.tokens[static_cast<size_t>(row * 8)] == 7777;
    if (weighted) {
      EXPECT_NEAR(static_cast<double>(from_b), 0.2, 1.0);
    } else {  // 24 and 12 samples a pass
      EXPECT_NEAR(static_cast<double>(from_b), 200.0 / 3, 1.0);
    }
  }
}

TEST(Sampler, SameSetTwiceIsTwoStreamsOfOneOrder) {
  Scratch dir;
  write_lengths(dir / "a", {200});
  SamplerOptions options = options_for(dir / "a", 8, 20);
  options.parts = {{dir / "a", 0.5}, {dir / "a", 0.5}};
  const Sampler sampler(options, Split::kTrain);
  Batch batch;
  sampler.fill(0, 20, batch);
  std::map<int32_t, int> seen;
  for (int64_t row = 0; row < 20; ++row) ++seen[batch.tokens[static_cast<size_t>(row * 8)]];
  for (const auto& [token, times] : seen) EXPECT_EQ(times, 2) << token;
}

TEST(Sampler, AbsurdRunsAreRefusedBeforeMemoryIsAskedFor) {
  Scratch dir;
  write_lengths(dir / "a", {3});
  for (int64_t samples : {int64_t{1} << 35, int64_t{1} << 60}) {
    EXPECT_THROW(Sampler(options_for(dir / "a", 4096, samples), Split::kTrain), UserError);
  }
}

// Reading in any grouping from any start gives the samples of the unbroken run, over epoch ends
// too.
TEST(Sampler, ResumeIsOnlyAPosition) {
  Scratch dir;
  write_lengths(dir / "a", {129});  // 16 samples of 8
  const Sampler whole(options_for(dir / "a", 8, 48), Split::kTrain);
  Batch all;
  whole.fill(0, 48, all);
  for (int64_t stop : {12, 16, 20, 32}) {
    const Sampler again(options_for(dir / "a", 8, 48), Split::kTrain);
    for (int64_t first = stop; first < 48; first += 4) {
      Batch four;
      again.fill(first, 4, four);
      EXPECT_TRUE(
          std::equal(four.tokens.begin(), four.tokens.end(), all.tokens.begin() + first * 8))
          << stop;
      EXPECT_EQ(again.fingerprint(first, 4), whole.fingerprint(first, 4));
    }
  }
  std::map<int32_t, int> seen;
  for (int64_t row = 0; row < 48; ++row) ++seen[all.tokens[static_cast<size_t>(row * 8)]];
  EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0,
                            [](int n, const auto& e) { return n + e.second; }),
            48);
  SamplerOptions other = options_for(dir / "a", 8, 48);
  other.seed = 5;
  EXPECT_NE(Sampler(other, Split::kTrain).fingerprint(0, 48), whole.fingerprint(0, 48));
}

}  // namespace
}  // namespace moetrain
