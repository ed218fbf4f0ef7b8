// oneDNN as a peer: its matmul primitive on our operands, weights in the order it asks for.
#include <omp.h>

#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

#include "runtime/device/cpu/peer/peer.h"

namespace {

using dnnl::memory;
using moetrain::cpu::PeerForm;
using moetrain::cpu::PeerProduct;
using Tag = memory::format_tag;

struct Prepared {
  int threads = 1;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul product;
  std::vector<memory> first, second, result;
};

/// dims of first, second and result, and how the first two lie in memory; result is row-major.
struct Layouts {
  memory::dims a, b, c;
  Tag a_tag, b_tag;
};

Layouts layouts_of(const PeerProduct& p) {
  switch (p.form) {
    case PeerForm::kForward:
      return {{p.m, p.k}, {p.k, p.n}, {p.m, p.n}, Tag::ab, Tag::ba};
    case PeerForm::kInputGradient:
      return {{p.m, p.n}, {p.n, p.k}, {p.m, p.k}, Tag::ab, Tag::ab};
    case PeerForm::kWeightGradient:
      break;
  }
  return {{p.n, p.m}, {p.m, p.k}, {p.n, p.k}, Tag::ba, Tag::ab};
}

void* at(const void* base, const memory::dims& dims, int64_t index, bool bf16) {
  return static_cast<char*>(const_cast<void*>(base)) + index * dims[0] * dims[1] * (bf16 ? 2 : 4);
}

std::unique_ptr<Prepared> prepare(const PeerProduct& p) {
  omp_set_num_threads(p.threads);
  auto made = std::make_unique<Prepared>();
  made->threads = p.threads;
  const bool weight_gradient = p.form == PeerForm::kWeightGradient;
  const auto in = p.bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  const auto out = weight_gradient ? memory::data_type::f32 : in;
  const Layouts l = layouts_of(p);
  const memory::desc a(l.a, in, l.a_tag), plain(l.b, in, l.b_tag), c(l.c, out, Tag::ab);
  const memory::desc b = weight_gradient ? plain : memory::desc(l.b, in, Tag::any);
  dnnl::primitive_attr attributes;
  if (weight_gradient) {
    dnnl::post_ops added;
    added.append_sum(1.0f);
    attributes.set_post_ops(added);
  }
  const dnnl::matmul::primitive_desc chosen(dnnl::matmul::desc(a, b, c), attributes, made->engine);
  made->product = dnnl::matmul(chosen);
  for (int64_t e = 0; e < p.experts; ++e) {
    made->first.emplace_back(a, made->engine, at(p.first, l.a, e, p.bf16));
    made->result.emplace_back(c, made->engine, at(p.result, l.c, e, p.bf16 && !weight_gradient));
    memory second(plain, made->engine, at(p.second, l.b, e, p.bf16));
    if (chosen.weights_desc() != plain) {
      memory packed(chosen.weights_desc(), made->engine);
      dnnl::reorder(second, packed).execute(made->stream, second, packed);
      made->stream.wait();
      second = packed;
    }
    made->second.push_back(second);
  }
  return made;
}

}  // namespace

extern "C" {

const char* moetrain_peer_name() {
  static const std::string name = [] {
    const dnnl_version_t* v = dnnl_version();
    return "oneDNN " + std::to_string(v->major) + "." + std::to_string(v->minor) + "." +
           std::to_string(v->patch);
  }();
  return name.c_str();
}

void* moetrain_peer_prepare(const PeerProduct* product) {
  try {
    return prepare(*product).release();
  } catch (const dnnl::error&) {
    return nullptr;
  }
}

void moetrain_peer_run(void* prepared) {
  Prepared& p = *static_cast<Prepared*>(prepared);
  omp_set_num_threads(p.threads);
  for (size_t e = 0; e < p.first.size(); ++e) {
    p.product.execute(
        p.stream,
        {{DNNL_ARG_SRC, p.first[e]}, {DNNL_ARG_WEIGHTS, p.second[e]}, {DNNL_ARG_DST, p.result[e]}});
  }
  p.stream.wait();
}

void moetrain_peer_release(void* prepared) { delete static_cast<Prepared*>(prepared); }
}
