// The CPU as a device: host memory in huge pages, kernels from the ordered table, reference loops
// last.
#include <sys/mman.h>

#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/device/cpu/kernels/kernels.h"
#include "runtime/device/cpu/packed_weights.h"
#include "runtime/device/cpu/threads.h"
#include "runtime/device/cpu/together.h"
#include "runtime/device/device.h"

namespace moetrain {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
/// Products with more rows than this pack a weight as they go, hidden behind their own arithmetic;
/// a copy would only cost memory.
constexpr int64_t kFewRows = 256;

/// Operands of a launch whose packed copies are looked up.
constexpr size_t kMostOperands = 16;
struct Copies {
  size_t count = 0;
  std::array<float*, kMostOperands> data{};
  std::array<bool, kMostOperands> stale{};
};

class CpuDevice : public Device {
 public:
  explicit CpuDevice(const CpuOptions& options) : options_(options), pool_(options.threads) {}

  ~CpuDevice() override {
    lanes_ = {};
    for (const auto& [memory, size] : sizes_) munmap(memory, size);
  }

  std::string describe() const override { return cat("cpu, ", pool_.size(), " threads per rank"); }

  std::byte* allocate(size_t bytes, const std::string& what) override {
    // Not rounded up to whole huge pages: many buffers of a few MiB would take a third more.
    const size_t size = (std::max<size_t>(bytes, 64) + 4095) / 4096 * 4096;
    const bool huge = size >= kHugePage;
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      throw UserError(cat("out of memory: ", human_bytes(static_cast<double>(size)), " for ", what,
                          "; use more ranks, a smaller micro-batch or recomputation"),
                      kExitFailure);
    }
    if (huge) madvise(memory, size, MADV_HUGEPAGE);
    sizes_[memory] = size;
    return static_cast<std::byte*>(memory);
  }

  void release(std::byte* memory) override {
    auto at = sizes_.find(memory);
    MT_CHECK(at != sizes_.end(), "memory released twice");
    const size_t size = at->second;
    sizes_.erase(at);
    munmap(memory, size);
    for (float* copy : packed_.forget(memory, size)) release(reinterpret_cast<std::byte*>(copy));
  }

  Lane& lane(int index) override {
    auto& lane = lanes_.at(index);
    if (!lane) lane = index == 0 ? make_inline_lane() : make_threaded_lane();
    return *lane;
  }

  KernelChoice choose(const OpDef& op, const Attrs& attrs, std::span<const Type> inputs,
                      std::span<const Type> outputs) override {
    KernelChoice choice;
    if (attrs.has("body") && !options_.reference) {
      const auto body = std::make_shared<const cpu::Together>(attrs, inputs, outputs, pool_.size());
      while (teams_.size() < body->leaders()) {
        teams_.push_back(std::make_unique<ThreadPool>(ThreadPool::Borrowed(),
                                                      cpu::Together::team_size(pool_.size())));
      }
      choice.name = body->name();
      choice.workspace_bytes = body->workspace_bytes();
      choice.body = body;
      return choice;
    }
    const cpu::Kernel* kernel =
        options_.reference ? nullptr : cpu::find_kernel(op.name, attrs, inputs, outputs);
    if (kernel) {
      choice.handle = kernel;
      choice.name = kernel->name;
      if (kernel->workspace) {
        choice.workspace_bytes = kernel->workspace(attrs, inputs, outputs, pool_.size());
      }
      return choice;
    }
    MT_CHECK(op.reference != nullptr, "op ", op.name, " has neither kernel nor reference");
    choice.name = "reference";
    return choice;
  }

  void launch(const KernelChoice& choice, const OpDef& op, const Attrs& attrs,
              std::span<const Tensor> inputs, std::span<Tensor> outputs, std::byte* workspace,
              Lane& lane) override {
    const auto* kernel = static_cast<const cpu::Kernel*>(choice.handle);
    Copies copies;
    // One lane runs what it gets in order, so what is fresh at issue is packed when it runs.
    if (kernel && kernel->packed_floats && &lane == lanes_[0].get()) {
      copies.count = std::min(inputs.size(), kMostOperands);
      for (size_t i = 0; i < copies.count; ++i) {
        cpu::PackedWeights::Copy* copy = packed_.find(*kernel, inputs[i]);
        copies.data[i] = copy ? copy->data : nullptr;
        copies.stale[i] = copy && !std::exchange(copy->fresh, true);
      }
    }
    for (const Tensor& t : outputs) packed_.changed(t.data, static_cast<size_t>(t.bytes()));
    if (choice.body) {
      const auto* body = static_cast<const cpu::Together*>(choice.body.get());
      host(lane).post([this, body, inputs, outputs, workspace] {
        body->run(inputs, outputs, workspace, pool_, teams_);
      });
      return;
    }
    host(lane).post([this, kernel, &op, &attrs, inputs, outputs, workspace, copies,
                     bytes = choice.workspace_bytes] {
      if (!kernel) return op.reference(attrs, inputs, outputs);
      for (size_t i = 0; i < copies.count; ++i) {
        if (copies.stale[i]) kernel->pack(inputs[i], copies.data[i], pool_);
      }
      kernel->run({attrs, inputs, outputs, workspace, bytes, pool_,
                   {copies.data.data(), copies.count}});
    });
  }

  int64_t kept_bytes(const KernelChoice& choice, const Attrs& attrs, size_t operand,
                     const Type& weight, int64_t rows) const override {
    const auto* kernel = static_cast<const cpu::Kernel*>(choice.handle);
    if (!options_.keep_packed || !kernel || !kernel->packed_floats || operand >= kMostOperands)
      return 0;
    const int64_t products = weight.shape.size() == 3 ? weight.shape[0] : 1;
    if (weight.shape.size() < 2 || numel(weight.shape) == 0 || rows > kFewRows * products) return 0;
    return kernel->packed_floats(attrs, weight, operand) * static_cast<int64_t>(sizeof(float));
  }

  int64_t keep(const KernelChoice& choice, const Attrs& attrs, size_t operand, const Tensor& weight,
               int64_t rows) override {
    const int64_t bytes =
        kept_bytes(choice, attrs, operand, {weight.dtype, weight.shape, false}, rows);
    const auto* kernel = static_cast<const cpu::Kernel*>(choice.handle);
    if (bytes == 0 || packed_.keeps(*kernel, weight)) return 0;
    packed_.keep(*kernel, weight,
                 reinterpret_cast<float*>(allocate(static_cast<size_t>(bytes), "packed weights")));
    return bytes;
  }
  void changed(const void* memory, size_t bytes) override { packed_.changed(memory, bytes); }

  void mark(double& seconds, Lane& lane) override {
    host(lane).post([&seconds] {
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
                    .count();
    });
  }

  void copy_in(void* device, const void* from, size_t bytes, Lane& lane) override {
    copy(device, from, bytes, lane);
  }
  void copy_out(void* to, const void* device, size_t bytes, Lane& lane) override {
    host(lane).post([=] { std::memcpy(to, device, bytes); });
  }
  void copy(void* to, const void* from, size_t bytes, Lane& lane) override {
    packed_.changed(to, bytes);
    host(lane).post([=] { std::memcpy(to, from, bytes); });
  }

 private:
  static HostLane& host(Lane& lane) { return static_cast<HostLane&>(lane); }

  const CpuOptions options_;
  ThreadPool pool_;
  std::vector<std::unique_ptr<ThreadPool>> teams_;  // for kernels that run together
  std::map<void*, size_t> sizes_;
  cpu::PackedWeights packed_;
  std::array<std::unique_ptr<HostLane>, 8> lanes_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(const CpuOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace moetrain
