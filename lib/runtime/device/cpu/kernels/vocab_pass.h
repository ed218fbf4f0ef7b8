// One pass of tokens over the vocabulary: logits, softmax statistics and gradients, chunk by chunk.
#pragma once

#include "runtime/device/cpu/kernels/families.h"
#include "runtime/device/cpu/kernels/micro.h"

namespace moetrain::cpu {

/// What a pass computes, and from what. x[t, d], w[v, d] of one dtype.
struct VocabPass {
  int64_t tokens, vocab, width;
  DType dtype;
  const void *x, *w;
  const int32_t* labels;  ///< [t]
  int64_t vocab_begin;    ///< label - vocab_begin is the row of w
  /// Called for every token, in order, with this w's maximum logit, sum of exp(logit - maximum) and
  /// the label's logit (0 if not a row of w). Returns the log-sum-exp to use in the gradient, and
  /// sets *coefficient to what the softmax gradient is multiplied with.
  double (*settle)(void* context, int64_t token, float maximum, double sum, float label_logit,
                   float* coefficient);
  void* context;
  void* dx;   ///< [t, d] in dtype, or null: no gradients
  float* dw;  ///< [v, d], overwritten
};

size_t vocab_pass_workspace(int64_t vocab, int64_t width, bool gradient, int threads);

/// Runs the pass. Sums over tokens (dw) go panel by panel in token order, sums over the vocabulary
/// block by block: the same bits for any number of workers.
void run_vocab_pass(const VocabPass& pass, std::byte* workspace, size_t workspace_bytes,
                    ThreadPool& pool);

}  // namespace moetrain::cpu
