// The head's loss with and without gradients, and the two halves of the vocabulary-parallel form.
#include "kernels/harness.h"
#include "ops/vocab_loss.h"
#include "ops/vocab_parallel.h"

namespace moetrain::cpu::testing {
namespace {

using Vocab = EachTarget;

struct Head {
  int64_t tokens, vocab, width;
};

const Head kHeads[] = {{1, 3, 2}, {9, 70, 13}, {70, 400, 8}, {300, 193, 34}};

std::vector<int32_t> labels_of(const Head& h) {
  std::vector<int32_t> labels;
  for (int64_t t = 0; t < h.tokens; ++t) labels.push_back(static_cast<int32_t>(t * 37 % h.vocab));
  return labels;
}

std::vector<float> valid_of(const Head& h) {
  std::vector<float> valid;
  for (int64_t t = 0; t < h.tokens; ++t) valid.push_back(t % 5 == 3 ? 0.0f : 1.0f);
  return valid;
}

TEST_P(Vocab, Loss) {
  for (DType t : {DType::kF32, DType::kBF16}) {
    // With bf16 operands the gradient of the logits is rounded to bf16 before it is multiplied.
    const double gradient = t == DType::kBF16 ? 0x1p-7 : 3e-6;
    for (const Head& h : kHeads) {
      for (int64_t with : {0, 1}) {
        Case c(ops::kVocabLoss, {{"gradient", with}});
        c.normal(t, {1, h.tokens, h.width})
            .normal(t, {h.vocab, h.width})
            .integers({1, h.tokens}, labels_of(h))
            .floats({1, h.tokens}, valid_of(h))
            .floats({}, {0.01f});
        if (with)
          c.check({Bound{2e-6}, Bound{2e-6}, Bound{gradient}, Bound{gradient}});
        else
          c.check({Bound{2e-6}, Bound{2e-6}});
      }
    }
  }
}

TEST_P(Vocab, SpreadOverRanks) {
  const Head h{75, 210, 12};
  std::vector<int32_t> labels;
  for (int64_t t = 0; t < h.tokens; ++t)
    labels.push_back(static_cast<int32_t>(t * 11 % (2 * h.vocab)));
  for (DType t : {DType::kF32, DType::kBF16}) {
    const Attrs attrs{{"vocab_begin", h.vocab}, {"gradient", int64_t{1}}};
    Case statistics(ops::kVocabStatistics, attrs);
    statistics.normal(t, {h.tokens, h.width})
        .normal(t, {h.vocab, h.width})
        .integers({h.tokens}, labels);
    statistics.check({Bound{3e-6}});
    std::vector<float> both;
    const auto own = statistics.reference(false);
    for (double v : own[0]) both.push_back(static_cast<float>(v));
    // The other rank: a larger maximum, some mass, and its own labels.
    for (int64_t i = 0; i < 3 * h.tokens; ++i)
      both.push_back(i < h.tokens ? 3.0f : i < 2 * h.tokens ? 2.0f : 0.5f);
    const double gradient = t == DType::kBF16 ? 0x1p-7 : 3e-6;
    for (int64_t with : {0, 1}) {
      Case finish(ops::kVocabLossFinish, {{"vocab_begin", h.vocab}, {"gradient", with}});
      finish.normal(t, {h.tokens, h.width})
          .normal(t, {h.vocab, h.width})
          .integers({h.tokens}, labels)
          .floats({h.tokens}, valid_of(h))
          .floats({}, {0.02f})
          .floats({2, 3, h.tokens}, both);
      if (with)
        finish.check({Bound{2e-6}, Bound{2e-6}, Bound{gradient}, Bound{gradient}});
      else
        finish.check({Bound{2e-6}, Bound{2e-6}});
    }
  }
}

MOETRAIN_ON_EACH_TARGET(Vocab);

}  // namespace
}  // namespace moetrain::cpu::testing
