// The device waist: memory, lanes and kernels of one rank's processor. Nothing above it assumes a
// CPU.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "graph/op.h"
#include "runtime/lane.h"

namespace moetrain {

/// A kernel chosen for one op, attributes and types: what a launch needs besides its tensors.
struct KernelChoice {
  const void* handle = nullptr;  ///< the device's own
  std::string name;              ///< for traces and `plan`
  size_t workspace_bytes = 0;    ///< scratch the launch wants, for the largest row counts
  std::shared_ptr<const void> body;  ///< the device's own, for an op with attribute `body`
};

/// One rank's processor. All work is issued to lanes and runs in their order; pointers are device
/// memory, which the host may touch only through copies (a CPU shares it, callers must not rely on
/// it). Used from one thread. Errors of issued work surface when its lane is synchronised.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string describe() const = 0;

  /// Device memory, aligned to 64 bytes or better, contents undefined; freed by release().
  virtual std::byte* allocate(size_t bytes, const std::string& what) = 0;
  virtual void release(std::byte* memory) = 0;

  /// Lane `index` (plan.h's numbering); made on first use.
  virtual Lane& lane(int index) = 0;

  /// Issues: `seconds` = the steady clock when the lane comes here. Valid once a later event is
  /// reached.
  virtual void mark(double& seconds, Lane& lane) = 0;

  /// Chooses the most special kernel that accepts; throws UserError when the device has none. For a node
  /// with attribute `body` (independent ops in one launch) one for every part; `attrs` outlives the choice.
  virtual KernelChoice choose(const OpDef& op, const Attrs& attrs, std::span<const Type> inputs,
                              std::span<const Type> outputs) = 0;
  /// Issues a kernel. The tensors' shapes are actual (ragged: rows first); tensors, attributes and
  /// workspace stay valid until the lane has run it.
  virtual void launch(const KernelChoice& kernel, const OpDef& op, const Attrs& attrs,
                      std::span<const Tensor> inputs, std::span<Tensor> outputs,
                      std::byte* workspace, Lane& lane) = 0;

  /// Says that launches of `kernel` with these attributes will read `weight`, whose memory rarely
  /// changes, as operand `operand`, for products of about `rows` rows. The device may then keep the
  /// weight as its kernel likes it best from launch to launch; returns the memory it holds for that,
  /// bytes, 0 if it does not. It sees its own launches and copies write to the weight; of all other
  /// writers changed() must tell.
  virtual int64_t keep(const KernelChoice& /*kernel*/, const Attrs& /*attrs*/, size_t /*operand*/,
                       const Tensor& /*weight*/, int64_t /*rows*/) {
    return 0;
  }
  /// What keep() would return for a weight of this type that it does not keep yet; nothing is
  /// allocated.
  virtual int64_t kept_bytes(const KernelChoice& /*kernel*/, const Attrs& /*attrs*/,
                             size_t /*operand*/, const Type& /*weight*/, int64_t /*rows*/) const {
    return 0;
  }
  /// Something other than this device's launches and copies was issued that writes these bytes.
  virtual void changed(const void* /*memory*/, size_t /*bytes*/) {}

  /// Issues copies between host and device. The host buffer must stay valid until done.
  virtual void copy_in(void* device, const void* host, size_t bytes, Lane& lane) = 0;
  virtual void copy_out(void* host, const void* device, size_t bytes, Lane& lane) = 0;
  /// Issues a copy inside the device; ranges do not overlap.
  virtual void copy(void* to, const void* from, size_t bytes, Lane& lane) = 0;
};

/// Options of the CPU device.
struct CpuOptions {
  int threads = 1;         ///< of this rank
  bool reference = false;  ///< every op by its reference loops
  bool keep_packed =
      false;  ///< keep() weights that small products read: pays if they do so again and again
};
std::unique_ptr<Device> make_cpu_device(const CpuOptions& options);
/// The NPU of this rank. Throws UserError in a build without the vendor's toolkit.
std::unique_ptr<Device> make_ascend_device();

}  // namespace moetrain
