// The Hugging Face tokenizer.json front: byte-level BPE with added tokens.
#pragma once

#include <memory>
#include <string>

#include "data/tokenizer/tokenizer.h"

namespace moetrain {

/// Reads a tokenizer.json (see open_tokenizer). UserError names file, place and reason.
std::unique_ptr<Tokenizer> open_bpe_tokenizer(const std::string& path,
                                              const std::string& eod_token);

}  // namespace moetrain
