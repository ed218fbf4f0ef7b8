// `data inspect`: checks a dataset completely and says in words what it holds.
#pragma once

#include <cstdint>
#include <string>

#include "data/tokenizer/tokenizer.h"

namespace moetrain {

/// Opens PREFIX.bin/.idx, checks everything including every token id, and returns a description of
/// several lines: documents, tokens, type, lengths with a histogram, largest id, first tokens (as
/// text too with a tokenizer). `vocab_size` 0 takes the tokenizer's, or checks no upper bound.
/// UserError on any fault.
std::string inspect_dataset(const std::string& prefix, const Tokenizer* tokenizer = nullptr,
                            int64_t vocab_size = 0);

}  // namespace moetrain
