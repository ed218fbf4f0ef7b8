// One pass over lengths and tokens.
#include "data/inspect.h"

#include <algorithm>
#include <bit>
#include <iomanip>
#include <sstream>
#include <vector>

#include "base/text.h"
#include "data/indexed.h"

namespace moetrain {
namespace {

void histogram(const std::vector<int64_t>& buckets, int64_t total, std::ostringstream& out) {
  constexpr int64_t kBar = 40;
  const int64_t most = *std::max_element(buckets.begin(), buckets.end());
  for (size_t k = 0; k < buckets.size(); ++k) {
    if (buckets[k] == 0) continue;
    const int64_t low = k == 0 ? 0 : int64_t{1} << (k - 1),
                  high = k == 0 ? 0 : (int64_t{1} << k) - 1;
    out << "  " << std::setw(10) << low << " .. " << std::setw(10) << high << " tokens  "
        << std::setw(10) << buckets[k] << "  "
        << std::string(static_cast<size_t>(std::max<int64_t>(1, buckets[k] * kBar / most)), '#')
        << "\n";
  }
  out << "  " << std::setw(24) << "all sequences"
      << "  " << std::setw(17) << total << "\n";
}

}  // namespace

std::string inspect_dataset(const std::string& prefix, const Tokenizer* tokenizer,
                            int64_t vocab_size) {
  IndexedOptions options;
  options.vocab_size = vocab_size > 0         ? vocab_size
                       : tokenizer != nullptr ? tokenizer->vocab_size()
                                              : 0;
  options.verify_bytes = -1;  // every token is read below
  const IndexedDataset data(prefix, options);
  std::ostringstream out;
  out << prefix << "\n  documents  " << data.documents() << "\n  sequences  " << data.sequences()
      << "\n  tokens     " << data.tokens() << "\n  type       " << name_of(data.type()) << ", "
      << human_bytes(static_cast<double>(data.tokens() * size_of(data.type()))) << "\n";
  for (const std::string& warning : data.warnings()) out << "  warning: " << warning << "\n";

  std::vector<int64_t> buckets(33, 0);
  std::vector<int32_t> tokens;
  int64_t shortest = 0, longest = 0, eods = 0;
  int32_t largest = -1;
  for (int64_t i = 0; i < data.sequences(); ++i) {
    const int64_t n = data.length(i);
    shortest = i == 0 ? n : std::min(shortest, n);
    longest = std::max(longest, n);
    ++buckets[static_cast<size_t>(std::bit_width(static_cast<uint64_t>(n)))];
    tokens.resize(static_cast<size_t>(n));
    data.read(i, 0, n, tokens.data());
    for (int32_t id : tokens) {
      largest = std::max(largest, id);
      eods += tokenizer != nullptr && id == tokenizer->eod();
    }
  }
  if (data.sequences() == 0) return out.str() + "  no sequences: nothing to train on\n";
  out << "  lengths    " << shortest << " to " << longest << ", mean "
      << data.tokens() / data.sequences() << "\n";
  histogram(buckets, data.sequences(), out);
  out << "  largest id " << largest;
  if (options.vocab_size > 0) out << " of a vocabulary of " << options.vocab_size;
  out << "\n";
  if (tokenizer != nullptr && tokenizer->eod() >= 0)
    out << "  end-of-document tokens " << eods << "\n";
  constexpr int64_t kShown = 16;
  for (int64_t i = 0; i < std::min<int64_t>(2, data.sequences()); ++i) {
    tokens.resize(static_cast<size_t>(std::min(kShown, data.length(i))));
    data.read(i, 0, static_cast<int64_t>(tokens.size()), tokens.data());
    out << "  sequence " << i << " starts  " << join(tokens, " ") << "\n";
    if (tokenizer == nullptr) continue;
    std::string text = tokenizer->decode(tokens);
    std::replace_if(
        text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 32; }, ' ');
    out << "    as text  " << text << "\n";
  }
  return out.str();
}

}  // namespace moetrain
