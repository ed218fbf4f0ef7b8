// The Ascend NPU behind the device waist. This build has no CANN toolkit, so asking for it is refused.
#include "base/error.h"
#include "runtime/device/device.h"

namespace moetrain {

std::unique_ptr<Device> make_ascend_device() {
  throw UserError(
      "compute.backend: this build drives CPUs only (it was made without the vendor's CANN toolkit); "
      "set compute.backend to cpu");
}

}  // namespace moetrain
