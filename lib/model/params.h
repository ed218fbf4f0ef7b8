// The one table of parameters: graph states, published tensor names and slices, initial values, decay groups.
#pragma once

#include <string>
#include <vector>

#include "base/box.h"
#include "base/tensor.h"
#include "config/model.h"

namespace moetrain {

/// A published tensor and the part of the state it is. A stacked expert state [E, out, in] has one per
/// expert, of published shape [out, in].
struct PublishedSlice {
  std::string name;
  Shape shape;
  Box slice;
};

enum class Initial { kNormal, kOnes, kZeros };

/// A parameter. The state is named after the published tensor; routed experts are stacked:
/// "model.layers.3.mlp.experts.gate_proj.weight" [E, out, in].
struct Parameter {
  std::string name;
  Shape shape;
  Initial initial = Initial::kNormal;
  bool trained = true;  ///< false: the routing bias, moved by its own rule
  bool decayed = true;  ///< weight decay applies: published tensors with two or more dims
  bool fp32 = false;    ///< stays float32 in bf16 runs: norms, router, its bias, embedding
  int layer = -1;
  std::vector<PublishedSlice> published;
};

/// All parameters in the published order of names: embedding, layers, MTP layers, final norm, head (absent
/// when tied).
std::vector<Parameter> parameters(const ModelConfig& model);

/// Parameters of all published tensors, and those a token passes (embedding and head counted).
struct ParameterCounts {
  int64_t total = 0, active = 0;
};
ParameterCounts count_parameters(const ModelConfig& model);

/// Fills the box of a state with its initial values (float32, row-major): normal(0, initializer_range) by a
/// counter-based generator keyed by (seed, published name, element), ones or zeros. Any box of any layout
/// gets the same numbers.
void initial_values(const Parameter& parameter, const ModelConfig& model, uint64_t seed,
                    const Box& box, float* out);

/// Names of the other states of a parameter.
inline std::string master_name(const std::string& p) { return "master:" + p; }
inline std::string first_moment_name(const std::string& p) { return "m:" + p; }
inline std::string second_moment_name(const std::string& p) { return "v:" + p; }
/// The read copy of a parameter on a pipeline stage that is not its own.
inline std::string copy_name(const std::string& p, int stage) {
  return p + ".copy" + std::to_string(stage);
}
inline std::string gradient_name(const std::string& p) { return "grad:" + p; }

}  // namespace moetrain
