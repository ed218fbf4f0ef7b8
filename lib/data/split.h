// Training, validation and test parts of one dataset, by sequence, as the field cuts them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace moetrain {

enum class Split { kTrain = 0, kValidation = 1, kTest = 2 };
const char* name_of(Split split);

/// Sum in NumPy's order (pairwise blocks, eight running sums): the last bit can decide a tie.
double numpy_sum(std::span<const double> values);
/// Each value divided by numpy_sum.
std::vector<double> normalized(std::span<const double> values);

/// "99,1,0" to shares that sum to 1; absent trailing parts are 0. UserError on anything else.
std::array<double, 3> parse_split(std::string_view text);

struct SequenceRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

/// Sequences of one part: cumulative shares times `sequences`, rounded half to even.
SequenceRange split_range(const std::array<double, 3>& shares, int64_t sequences, Split split);

}  // namespace moetrain
