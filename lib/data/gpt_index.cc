// The four steps of GPT sample construction: epochs, document order, sample rows, sample order.
#include "data/gpt_index.h"

#include <limits>
#include <numeric>

#include "base/error.h"
#include "data/numpy_random.h"

namespace moetrain {
namespace {

constexpr int64_t kExtra = 1;  // the label of the last position
constexpr int64_t kMostSequences = int64_t{1} << 34;

}  // namespace

GptIndex::GptIndex(const Lengths& length, SequenceRange range, const GptIndexOptions& options)
    : length_(length), sequence_length_(options.sequence_length), first_(range.begin) {
  MT_CHECK(sequence_length_ > 0 && range.size() >= 0 && options.samples <= kMostSamples,
           sequence_length_, " ", options.samples);
  for (int64_t i = range.begin; i < range.end; ++i) tokens_per_epoch_ += length_(i);
  if (tokens_per_epoch_ == 0) {
    throw UserError(
        cat("no tokens in this part of the data: ", range.size(), " sequences, 0 tokens"));
  }
  int64_t before_last = 0;  // samples before the last epoch, when that one is shuffled apart
  NumpyRandom random(options.seed);
  if (options.samples >= 0) {
    const int64_t wanted = options.samples * sequence_length_ + kExtra;
    epochs_ = std::max<int64_t>(1, (wanted + tokens_per_epoch_ - 1) / tokens_per_epoch_);
  }
  if (epochs_ > 1) {
    before_last = ((epochs_ - 1) * tokens_per_epoch_ - kExtra) / sequence_length_;
    const int64_t from_last = options.samples - before_last;
    const int64_t per_epoch = (tokens_per_epoch_ - kExtra) / sequence_length_;
    MT_CHECK(from_last >= 0 && from_last <= per_epoch + 1, from_last, " of ", per_epoch);
    last_epoch_apart_ = from_last < static_cast<int64_t>(0.80 * static_cast<double>(per_epoch));
  }
  const int64_t n = range.size();
  if (n > std::numeric_limits<int32_t>::max())
    throw UserError("more than 2147483647 sequences in one dataset");
  if (epochs_ > kMostSequences / n) {
    throw UserError(cat("this part of the data has ", tokens_per_epoch_,
                        " tokens and would be repeated ", epochs_,
                        " times; use more data or fewer steps"));
  }
  order_.resize(static_cast<size_t>(n * epochs_));
  for (size_t i = 0; i < order_.size(); ++i)
    order_[i] = static_cast<int32_t>(static_cast<int64_t>(i) % n);
  const std::span<int32_t> all(order_);
  const size_t joint = static_cast<size_t>(last_epoch_apart_ ? n * (epochs_ - 1) : n * epochs_);
  random.shuffle(all.first(joint));
  if (last_epoch_apart_) random.shuffle(all.subspan(joint));

  build_rows(options.keep_partial);

  const auto count = static_cast<size_t>(samples_);
  const size_t cut = last_epoch_apart_ ? static_cast<size_t>(before_last) : count;
  const auto fill = [&](auto& index) {
    index.resize(count);
    std::iota(index.begin(), index.end(), 0);
    const std::span whole(index);
    random.shuffle(whole.first(cut));
    if (cut < count) random.shuffle(whole.subspan(cut));
  };
  if (samples_ >= int64_t{0xffffffff} - 1) {
    fill(wide_);
  } else {
    fill(shuffle_);
  }
}

GptIndex::GptIndex(const Lengths& length, std::vector<int32_t> order, int64_t sequence_length)
    : length_(length), sequence_length_(sequence_length), order_(std::move(order)) {
  for (int32_t i : order_) tokens_per_epoch_ += length_(i);
  build_rows(false);
  shuffle_.resize(static_cast<size_t>(samples_));
  std::iota(shuffle_.begin(), shuffle_.end(), 0);
}

void GptIndex::build_rows(bool keep_partial) {
  const int64_t usable = epochs_ * tokens_per_epoch_ - kExtra;
  samples_ = (usable + (keep_partial ? sequence_length_ - 1 : 0)) / sequence_length_;
  rows_.reserve(static_cast<size_t>(samples_ / kStride + 1));
  Row row;
  for (int64_t r = 0;; ++r) {
    if (r % kStride == 0) rows_.push_back(row);
    if (r == samples_) break;
    row = advance(row);
  }
}

// One sample further. A sequence that covers the rest leaves the offset one before the used end:
// the extra token is read again as the first of the next sample.
GptIndex::Row GptIndex::advance(Row row) const {
  int64_t need = sequence_length_ + kExtra;
  const auto last = static_cast<int64_t>(order_.size()) - 1;
  for (;;) {
    const int64_t left = length_(document_at(row.document)) - row.offset;
    need -= left;
    if (need <= 0) {
      row.offset += need + left - kExtra;
      return row;
    }
    if (row.document == last) {
      row.offset = length_(document_at(last)) - kExtra;
      return row;
    }
    ++row.document;
    row.offset = 0;
  }
}

GptIndex::Row GptIndex::row(int64_t r) const {
  MT_CHECK(r >= 0 && r <= samples_, "row ", r, " of ", samples_);
  Row at = rows_[static_cast<size_t>(r / kStride)];
  for (int64_t i = 0; i < r % kStride; ++i) at = advance(at);
  return at;
}

void GptIndex::parts(int64_t k, std::vector<Part>& out) const {
  MT_CHECK(k >= 0 && k < samples_, "sample ", k, " of ", samples_);
  out.clear();
  const Row begin = row(shuffled(k));
  const Row end = advance(begin);
  for (int64_t p = begin.document; p <= end.document; ++p) {
    const int64_t sequence = document_at(p);
    const int64_t from = p == begin.document ? begin.offset : 0;
    const int64_t to = p == end.document ? end.offset + kExtra : length_(sequence);
    if (to > from) out.push_back({sequence, from, to - from});
  }
}

}  // namespace moetrain
