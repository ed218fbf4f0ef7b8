// Workers take parts to lead, heaviest first, and then help the leaders that are not done.
#include "runtime/device/cpu/together.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

#include "base/error.h"
#include "base/text.h"
#include "graph/op.h"

namespace moetrain::cpu {

namespace {

/// Looks for work this often before it leaves the core to others.
constexpr int kLooks = 2000;

double bytes_of(std::span<const Type> types) {
  double bytes = 0;
  for (const Type& t : types) bytes += static_cast<double>(numel(t.shape)) * static_cast<double>(size_of(t.dtype));
  return bytes;
}

}  // namespace

Together::Together(const Attrs& attrs, std::span<const Type> inputs, std::span<const Type> outputs,
                   int threads)
    : threads_(threads) {
  size_t in = 0, out = 0;
  for (const BodyPart& body : attrs.body("body")) {
    TogetherPart part{body.op, nullptr, &body.attrs, in, static_cast<size_t>(body.inputs),
                      out, static_cast<size_t>(body.outputs)};
    const auto own_in = inputs.subspan(in, part.inputs), own_out = outputs.subspan(out, part.outputs);
    part.kernel = find_kernel(body.op->name, body.attrs, own_in, own_out);
    MT_CHECK(part.kernel || body.op->reference, "op ", body.op->name, " has neither kernel nor reference");
    if (part.kernel && part.kernel->workspace)
      part.workspace = part.kernel->workspace(body.attrs, own_in, own_out, team_size(threads));
    part.bytes = bytes_of(own_in) + bytes_of(own_out);
    region_ = std::max(region_, (part.workspace + 63) / 64 * 64);
    in += part.inputs;
    out += part.outputs;
    parts_.push_back(part);
  }
  std::stable_sort(parts_.begin(), parts_.end(),
                   [](const TogetherPart& a, const TogetherPart& b) { return a.bytes > b.bytes; });
}

std::string Together::name() const {
  std::vector<std::string> names;
  for (const TogetherPart& part : parts_)
    names.push_back(part.kernel ? part.kernel->name : cat(part.op->name, " (reference)"));
  return join(names, " | ");
}

void Together::run_part(const TogetherPart& part, std::span<const Tensor> in, std::span<Tensor> out,
                        std::byte* workspace, ThreadPool& pool) const {
  const auto own_in = in.subspan(part.first_in, part.inputs);
  const auto own_out = out.subspan(part.first_out, part.outputs);
  if (!part.kernel) return part.op->reference(*part.attrs, own_in, own_out);
  part.kernel->run({*part.attrs, own_in, own_out, workspace, part.workspace, pool});
}

void Together::run(std::span<const Tensor> in, std::span<Tensor> out, std::byte* workspace, ThreadPool& pool,
                   std::span<const std::unique_ptr<ThreadPool>> teams) const {
  if (pool.size() == 1) {
    for (const TogetherPart& part : parts_) run_part(part, in, out, workspace, pool);
    return;
  }
  const size_t count = parts_.size();
  std::atomic<size_t> next{0}, finished{0}, leading{0};
  // Who comes late, or again, finds no part left to lead.
  pool.run_in_order(pool.size(), [&](int64_t, int worker) {
    std::exception_ptr failure;
    size_t own = count;  // this leader's team and region
    for (size_t i; (i = next.fetch_add(1)) < count; finished.fetch_add(1, std::memory_order_acq_rel)) {
      if (own == count) own = leading.fetch_add(1);
      try {
        run_part(parts_[i], in, out, workspace + own * region_, *teams[own]);
      } catch (...) {
        failure = std::current_exception();
      }
    }
    for (int looks = 0; finished.load(std::memory_order_acquire) < count; ++looks) {
      const size_t teams_at_work = leading.load();
      for (size_t team = 0; team < teams_at_work; ++team) {
        if (team != own) teams[team]->help(worker + 1);  // 0 is its leader
      }
      if (looks > kLooks) std::this_thread::yield();
    }
    if (failure) std::rethrow_exception(failure);
  });
}

}  // namespace moetrain::cpu
