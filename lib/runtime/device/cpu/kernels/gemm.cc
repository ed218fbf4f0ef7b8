// Runs batches of products: all workers take tasks, each with its own packing buffers.
#include "runtime/device/cpu/kernels/gemm.h"

#include <cstring>
#include <new>

#include "base/error.h"
#include "runtime/device/cpu/kernels/gemm_parts.h"

namespace moetrain::cpu {

using namespace products;

namespace {

constexpr size_t kPanelWords = static_cast<size_t>(kBlock) * kMaxTileCols;
constexpr size_t kAWords =
    static_cast<size_t>(kPackRows / kTileRows) *
    (tile_pitch(kBlockPackedA) + (kMaxSegments - 1) * tile_pitch(0) + (kMaxSegments - 1) * 16);
/// Rows of a strip carry a vector of padding.
constexpr size_t kStripWords =
    static_cast<size_t>(kStripRows) * (kMaxTileCols * kPanelsPackedA + 16);

size_t words_per_worker(bool strip) { return kPanelWords + kAWords + (strip ? kStripWords : 0); }

void clear(void* c, const Gemm& g, DType type) {
  if (!c || g.accumulate) return;
  const size_t size = size_of(type);
  for (int64_t i = 0; i < g.m; ++i)
    std::memset(static_cast<std::byte*>(c) + i * g.ldc * static_cast<int64_t>(size), 0, g.n * size);
}

}  // namespace

size_t gemm_workspace(DType c_type, int64_t k, int threads, Epilogue epilogue, int64_t members) {
  const bool strip = (c_type != DType::kF32 || epilogue != Epilogue::kNone) &&
                     (k > kBlockPackedA || members > kMaxSegments);
  return threads * (words_per_worker(strip) * sizeof(float) + sizeof(Note) + sizeof(Blocks)) + 64;
}

int64_t packed_b_floats(int64_t n, int64_t k, DType operands) {
  const MicroSet& set = micro_set(operands);
  return ceil_div(n, set.tile_cols()) * set.tile_cols() * ceil_div(k, set.pair);
}

void pack_b(const GemmBatch& batch, DType operands, float* out, ThreadPool& pool) {
  const Gemm first = batch.at(0, 0);
  const MicroSet& set = micro_set(operands);
  const int64_t width = set.tile_cols(), panels = ceil_div(first.n, width);
  const int64_t step = ceil_div(first.k, set.pair) * width;
  pool.run(batch.count * panels, [&](int64_t task, int) {
    const Gemm g = batch.at(task / panels, 0);
    const int64_t j = task % panels * width;
    pack_panel(set, g, operands, 0, g.k, j, std::min(width, g.n - j), out + task * step, width);
  });
}

void run_gemm(const GemmBatch& batch, DType operands, DType c_type, std::byte* workspace,
              size_t workspace_bytes, ThreadPool& pool) {
  if (batch.count == 0 || batch.members == 0) return;
  const Form form = form_of(batch, operands, c_type);
  const Tasks tasks(form, batch, pool.size());
  const size_t words = words_per_worker(form.strip);
  std::byte* aligned = workspace + (-reinterpret_cast<uintptr_t>(workspace) & 63);
  Note* notes = reinterpret_cast<Note*>(aligned + pool.size() * words * sizeof(float));
  Blocks* blocks = reinterpret_cast<Blocks*>(notes + pool.size());
  MT_CHECK(reinterpret_cast<std::byte*>(blocks + pool.size()) <= workspace + workspace_bytes,
           "workspace of ", workspace_bytes, " bytes is too small");
  for (int w = 0; w < pool.size(); ++w) new (notes + w) Note, new (blocks + w) Blocks;

  for (int64_t i = 0; i < batch.count; ++i) {
    if (batch.at(i, 0).k > 0) continue;
    for (int64_t member = 0; member < batch.members; ++member) {
      const Gemm g = batch.at(i, member);
      clear(g.c, g, c_type), clear(g.result, g, c_type);
    }
  }
  pool.run(tasks.count(), [&](int64_t number, int worker) {
    float* base = reinterpret_cast<float*>(aligned) + worker * words;
    const Scratch scratch{base, base + kPanelWords, base + kPanelWords + kAWords, notes + worker,
                          blocks + worker};
    const bool mine = number >= pool.share(tasks.count(), worker);  // else it was another's last
    run_task(form, batch, tasks, number, mine ? pool.share(tasks.count(), worker + 1) : 0, scratch);
  });
}

}  // namespace moetrain::cpu
