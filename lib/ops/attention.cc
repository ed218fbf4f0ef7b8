// Causal attention with a rotary key part shared by all heads (MLA), forward and backward.
#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/common.h"

namespace moetrain::ops {
namespace {

using Types = std::span<const Type>;
using Tensors = std::span<const Tensor>;

/// Sizes: batch, queries, keys, heads; widths of the own key part, the shared part, the value.
struct Sizes {
  int64_t b, s, z, h, n, r, v;
};

Sizes sizes_of(const Attrs& attrs, const Shape& q, const Shape& kv, const Shape& kr) {
  const int64_t n = attrs.integer("nope");
  return {q[0], q[1], kv[1], q[2], n, kr[2], kv[3] - n};
}

/// Checks q, kv, kr, q_pos, k_pos, q_start (in this order).
Sizes check_operands(const Attrs& attrs, const Type& q, const Type& kv, const Type& kr,
                     const Type& q_pos, const Type& k_pos, const Type& q_start) {
  MT_CHECK(q.shape.size() == 4 && kv.shape.size() == 4 && kr.shape.size() == 3 &&
               is_float(q.dtype) && is_float(kv.dtype) && is_float(kr.dtype),
           "attention: q ", to_string(q), ", kv ", to_string(kv), ", kr ", to_string(kr));
  const Sizes d = sizes_of(attrs, q.shape, kv.shape, kr.shape);
  MT_CHECK(d.n >= 0 && d.v > 0 && q.shape == Shape({d.b, d.s, d.h, d.n + d.r}) &&
               kv.shape == Shape({d.b, d.z, d.h, d.n + d.v}) && kr.shape == Shape({d.b, d.z, d.r}),
           "attention with nope ", d.n, ": q ", to_string(q), ", kv ", to_string(kv), ", kr ",
           to_string(kr));
  MT_CHECK(q_pos == (Type{DType::kI32, {d.b, d.s}}) && k_pos == (Type{DType::kI32, {d.b, d.z}}) &&
               q_start == q_pos,
           "attention: positions ", to_string(q_pos), ", ", to_string(k_pos), ", ",
           to_string(q_start));
  attrs.real("scale");
  return d;
}

std::vector<Type> infer_attention(const Attrs& attrs, Types inputs) {
  check_count("attention", inputs.size(), 6);
  const Sizes d =
      check_operands(attrs, inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], inputs[5]);
  return {{inputs[0].dtype, {d.b, d.s, d.h, d.v}}, {DType::kF32, {d.b, d.s, d.h}}};
}

// x, y, r, v are widths inside a head; a softmax over z needs all keys (a cp split shards s alone).
std::string rule_attention(const Attrs&, Types) {
  return "bshx,bzhy,bzr,bs,bz,bs->bshv,bsh; whole xyrzv";
}

std::vector<Value> vjp_attention(Graph& graph, int node, std::span<const Value> dy) {
  MT_CHECK(dy[0].valid() && !dy[1].valid(), "attention: only o has a gradient");
  const Attrs attrs = graph.nodes[node].attrs;
  const std::vector<Value> in = graph.nodes[node].inputs;
  const int grad = graph.append(
      kAttentionGrad, {dy[0], in[0], in[1], in[2], {node, 0}, {node, 1}, in[3], in[4], in[5]}, attrs,
      "grad");
  return {{grad, 0}, {grad, 1}, {grad, 2}, {}, {}, {}};
}

// A causal query sees (z + 1) / 2 keys on average, also when a rank holds a part of the queries.
double pairs(const Sizes& d) {
  return static_cast<double>(d.b) * static_cast<double>(d.s) * static_cast<double>(d.h) *
         static_cast<double>(d.z + 1) / 2;
}

Cost cost_attention(const Attrs& attrs, Types inputs, Types outputs) {
  const Sizes d = sizes_of(attrs, inputs[0].shape, inputs[1].shape, inputs[2].shape);
  return {2 * pairs(d) * static_cast<double>(d.n + d.r + d.v), 6 * pairs(d),
          bytes_of(inputs) + bytes_of(outputs)};
}

/// The operands as double, and which keys a query sees.
struct Operands {
  Sizes d;
  double scale;
  std::vector<double> q, kv, kr;
  std::vector<int64_t> q_pos, k_pos, q_start;

  Operands(const Attrs& attrs, const Tensor& q_t, const Tensor& kv_t, const Tensor& kr_t,
           const Tensor& q_pos_t, const Tensor& k_pos_t, const Tensor& q_start_t)
      : d(sizes_of(attrs, q_t.shape, kv_t.shape, kr_t.shape)),
        scale(attrs.real("scale")),
        q(load(q_t)),
        kv(load(kv_t)),
        kr(load(kr_t)),
        q_pos(load_integers(q_pos_t)),
        k_pos(load_integers(k_pos_t)),
        q_start(load_integers(q_start_t)) {}

  int64_t q_at(int64_t b, int64_t s, int64_t h) const {
    return ((b * d.s + s) * d.h + h) * (d.n + d.r);
  }
  int64_t kv_at(int64_t b, int64_t z, int64_t h) const {
    return ((b * d.z + z) * d.h + h) * (d.n + d.v);
  }
  int64_t kr_at(int64_t b, int64_t z) const { return (b * d.z + z) * d.r; }
  bool sees(int64_t b, int64_t s, int64_t z) const {
    const int64_t key = k_pos[b * d.z + z];
    return q_start[b * d.s + s] <= key && key <= q_pos[b * d.s + s];
  }
  double score(int64_t b, int64_t s, int64_t h, int64_t z) const {
    const double* query = q.data() + q_at(b, s, h);
    const double* own = kv.data() + kv_at(b, z, h);
    const double* shared = kr.data() + kr_at(b, z);
    double sum = 0;
    for (int64_t c = 0; c < d.n; ++c) sum += query[c] * own[c];
    for (int64_t c = 0; c < d.r; ++c) sum += query[d.n + c] * shared[c];
    return scale * sum;
  }
};

void reference_attention(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const Operands in(attrs, inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], inputs[5]);
  const Sizes& d = in.d;
  std::vector<double> scores(d.z), o(d.v);
  for (int64_t b = 0; b < d.b; ++b) {
    for (int64_t s = 0; s < d.s; ++s) {
      for (int64_t h = 0; h < d.h; ++h) {
        double largest = -std::numeric_limits<double>::infinity(), total = 0;
        for (int64_t z = 0; z < d.z; ++z) {
          if (!in.sees(b, s, z)) continue;
          scores[z] = in.score(b, s, h, z);
          largest = std::max(largest, scores[z]);
        }
        std::fill(o.begin(), o.end(), 0.0);
        for (int64_t z = 0; z < d.z; ++z) {
          if (!in.sees(b, s, z)) continue;
          const double p = std::exp(scores[z] - largest);
          total += p;
          const double* value = &in.kv[in.kv_at(b, z, h) + d.n];
          for (int64_t c = 0; c < d.v; ++c) o[c] += p * value[c];
        }
        const int64_t row = (b * d.s + s) * d.h + h;
        for (int64_t c = 0; c < d.v; ++c) {
          set_element(outputs[0], row * d.v + c, total > 0 ? o[c] / total : 0.0);
        }
        set_element(outputs[1], row, largest + std::log(total));  // -inf without any key
      }
    }
  }
}

// ---- backward ----

std::vector<Type> infer_grad(const Attrs& attrs, Types inputs) {
  check_count("attention_grad", inputs.size(), 9);
  const Sizes d =
      check_operands(attrs, inputs[1], inputs[2], inputs[3], inputs[6], inputs[7], inputs[8]);
  const Shape o{d.b, d.s, d.h, d.v};
  MT_CHECK(inputs[0].shape == o && is_float(inputs[0].dtype) && inputs[4].shape == o &&
               inputs[5].shape == Shape({d.b, d.s, d.h}),
           "attention_grad: do ", to_string(inputs[0]), ", o ", to_string(inputs[4]), ", lse ",
           to_string(inputs[5]));
  return {inputs[1], inputs[2], inputs[3]};
}

// dkv lacks s and dkr lacks s and h, so they come out partial over the axes of those factors.
std::string rule_grad(const Attrs&, Types) {
  return "bshv,bshx,bzhy,bzr,bshv,bsh,bs,bz,bs->bshx,bzhy,bzr; whole xyrzv; linear 0";
}

// Scores again, dP = do v^T, dV = P^T do, dQ = dS K, dK = dS^T Q.
Cost cost_grad(const Attrs& attrs, Types inputs, Types outputs) {
  const Sizes d = sizes_of(attrs, inputs[1].shape, inputs[2].shape, inputs[3].shape);
  return {2 * pairs(d) * static_cast<double>(3 * (d.n + d.r) + 2 * d.v), 8 * pairs(d),
          bytes_of(inputs) + bytes_of(outputs)};
}

void reference_grad(const Attrs& attrs, Tensors inputs, std::span<Tensor> outputs) {
  const Operands in(attrs, inputs[1], inputs[2], inputs[3], inputs[6], inputs[7], inputs[8]);
  const Sizes& d = in.d;
  const std::vector<double> grad = load(inputs[0]), o = load(inputs[4]), lse = load(inputs[5]);
  std::vector<double> dq(in.q.size(), 0.0), dkv(in.kv.size(), 0.0), dkr(in.kr.size(), 0.0);
  for (int64_t b = 0; b < d.b; ++b) {
    for (int64_t s = 0; s < d.s; ++s) {
      for (int64_t h = 0; h < d.h; ++h) {
        const int64_t row = (b * d.s + s) * d.h + h;
        const double* g = &grad[row * d.v];
        double dot = 0;
        for (int64_t c = 0; c < d.v; ++c) dot += g[c] * o[row * d.v + c];
        const double* query = &in.q[in.q_at(b, s, h)];
        double* dquery = &dq[in.q_at(b, s, h)];
        for (int64_t z = 0; z < d.z; ++z) {
          if (!in.sees(b, s, z)) continue;
          const double p = std::exp(in.score(b, s, h, z) - lse[row]);
          const double* own = &in.kv[in.kv_at(b, z, h)];
          double* down = &dkv[in.kv_at(b, z, h)];
          double dp = 0;
          for (int64_t c = 0; c < d.v; ++c) {
            dp += g[c] * own[d.n + c];
            down[d.n + c] += p * g[c];
          }
          const double ds = in.scale * p * (dp - dot);
          for (int64_t c = 0; c < d.n; ++c) {
            dquery[c] += ds * own[c];
            down[c] += ds * query[c];
          }
          const int64_t shared = in.kr_at(b, z);
          for (int64_t c = 0; c < d.r; ++c) {
            dquery[d.n + c] += ds * in.kr[shared + c];
            dkr[shared + c] += ds * query[d.n + c];
          }
        }
      }
    }
  }
  store(dq, outputs[0]);
  store(dkv, outputs[1]);
  store(dkr, outputs[2]);
}

}  // namespace

constinit const OpDef kAttention = {"attention",   infer_attention, rule_attention,
                                    vjp_attention, cost_attention,  reference_attention};
constinit const OpDef kAttentionGrad = {"attention_grad", infer_grad, rule_grad,
                                        nullptr,          cost_grad,  reference_grad};

Value attention(Graph& g, Value q, Value kv, Value kr, Value q_pos, Value k_pos, Value q_start,
                int64_t nope, double scale, const std::string& name) {
  return g.add(kAttention, {q, kv, kr, q_pos, k_pos, q_start}, {{"nope", nope}, {"scale", scale}},
               name);
}

}  // namespace moetrain::ops
