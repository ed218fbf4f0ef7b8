// debug.dump: named activations and gradients of a step as safetensors.
#pragma once

#include <string>

#include "train/session.h"

namespace moetrain {

/// Writes every activation and gradient the session names (of its last micro-batch and step) to
/// `folder`/step_N.safetensors under published tensor names, stacked experts split; rank 0 writes, others
/// only read their outputs. The session must have been made with SessionOptions::dump.
void dump_step(Session& session, int rank, int64_t step, const std::string& folder);

}  // namespace moetrain
