// The vocabulary loss over columns that are spread over ranks.
#include "ops/vocab_parallel.h"

#include <cmath>

#include "base/error.h"
#include "ops/common.h"
#include "ops/vocab_loss.h"

namespace moetrain::ops {

namespace {

Cost statistics_cost(const Attrs&, std::span<const Type> in, std::span<const Type> out) {
  const double tokens = static_cast<double>(numel(in[2].shape));
  const double product = static_cast<double>(numel(in[1].shape)) * tokens;
  return {2 * product, 4 * product, bytes_of(in) + bytes_of(out)};
}

Cost finish_cost(const Attrs& attrs, std::span<const Type> in, std::span<const Type> out) {
  Cost cost = statistics_cost(attrs, in, out);
  cost.matmul_flops *= attrs.integer_or("gradient", 0) ? 3 : 0;
  return cost;
}

std::vector<Type> statistics_types(const Attrs&, std::span<const Type> in) {
  check_count("vocab_statistics", in.size(), 3);
  Shape shape = in[2].shape;
  shape.insert(shape.begin(), 3);
  return {{DType::kF32, shape, false}};
}

/// Logits of one token against this rank's columns.
void token_logits(const std::vector<double>& x, const std::vector<double>& w, int64_t token,
                  int64_t columns, int64_t width, std::vector<double>& logits) {
  logits.assign(columns, 0);
  for (int64_t v = 0; v < columns; ++v) {
    for (int64_t d = 0; d < width; ++d) logits[v] += x[token * width + d] * w[v * width + d];
  }
}

void statistics(const Attrs& attrs, std::span<const Tensor> in, std::span<Tensor> out) {
  const std::vector<double> x = load(in[0]), w = load(in[1]);
  const std::vector<int64_t> labels = load_integers(in[2]);
  const int64_t tokens = in[2].numel(), columns = in[1].shape[0], width = in[1].shape[1];
  const int64_t begin = attrs.integer("vocab_begin");
  std::vector<double> logits;
  for (int64_t t = 0; t < tokens; ++t) {
    token_logits(x, w, t, columns, width, logits);
    double top = logits[0], sum = 0;
    for (double z : logits) top = std::max(top, z);
    for (double z : logits) sum += std::exp(z - top);
    const int64_t mine = labels[t] - begin;
    set_element(out[0], t, top);
    set_element(out[0], tokens + t, sum);
    set_element(out[0], 2 * tokens + t, mine >= 0 && mine < columns ? logits[mine] : 0);
  }
}

std::vector<Type> finish_types(const Attrs& attrs, std::span<const Type> in) {
  check_count("vocab_loss_finish", in.size(), 6);
  std::vector<Type> out{{DType::kF32, {}, false}, {DType::kF32, {}, false}};
  if (attrs.integer_or("gradient", 0)) {
    out.push_back(in[0]);
    out.push_back({DType::kF32, in[1].shape, false});
  }
  return out;
}

void finish(const Attrs& attrs, std::span<const Tensor> in, std::span<Tensor> out) {
  const std::vector<double> x = load(in[0]), w = load(in[1]);
  const std::vector<int64_t> labels = load_integers(in[2]);
  const int64_t tokens = in[2].numel(), columns = in[1].shape[0], width = in[1].shape[1];
  const int64_t begin = attrs.integer("vocab_begin"), members = in[5].shape[0];
  const bool gradient = attrs.integer_or("gradient", 0) != 0;
  const double scale = get_element(in[4], 0);
  std::vector<double> dx(gradient ? tokens * width : 0), dw(gradient ? columns * width : 0), logits;
  double total = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const double valid = get_element(in[3], t);
    double top = -INFINITY, sum = 0, target = 0;
    auto stat = [&](int64_t m, int64_t k) { return get_element(in[5], (m * 3 + k) * tokens + t); };
    for (int64_t m = 0; m < members; ++m) top = std::max(top, stat(m, 0));
    for (int64_t m = 0; m < members; ++m) {
      sum += stat(m, 1) * std::exp(stat(m, 0) - top);
      target += stat(m, 2);
    }
    const double log_sum = top + std::log(sum);
    if (valid != 0) total += valid * (log_sum - target);
    if (!gradient || valid == 0) continue;
    token_logits(x, w, t, columns, width, logits);
    for (int64_t v = 0; v < columns; ++v) {
      const double dz =
          scale * valid * (std::exp(logits[v] - log_sum) - (labels[t] - begin == v ? 1 : 0));
      for (int64_t d = 0; d < width; ++d) {
        dx[t * width + d] += dz * w[v * width + d];
        dw[v * width + d] += dz * x[t * width + d];
      }
    }
  }
  set_element(out[0], 0, scale * total);
  set_element(out[1], 0, total);
  if (gradient) {
    store(dx, out[2]);
    store(dw, out[3]);
  }
}

}  // namespace

const OpDef kVocabStatistics{"vocab_statistics", statistics_types, no_rule, nullptr,
                             statistics_cost,    statistics};
const OpDef kVocabLossFinish{"vocab_loss_finish", finish_types, no_rule, nullptr, finish_cost,
                             finish};

}  // namespace moetrain::ops
