// debug.dump: named activations and gradients of a step as one safetensors file.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/comm/comm.h"
#include "train/session.h"

namespace moetrain {

/// Writes what the last train_step of `session` (made with SessionOptions::dump) left in its
/// outputs to DIR/step_NNNNNNNN.safetensors: hidden.*, logits, mtp.*, route.* of its last
/// micro-batch, and grad.* of the whole step under the published tensor names. Integers stay
/// integers. Only rank 0 writes. Blocking; collective with pipeline stages.
void dump_step(const Session& session, int rank, int64_t step, const std::string& dir);

}  // namespace moetrain
