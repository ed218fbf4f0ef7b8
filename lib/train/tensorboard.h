// TensorBoard event files: scalars per step, safe against kills and free of overlap after restarts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/file.h"

namespace moetrain {

/// Writes one run's event file. Rank 0 only.
class EventWriter {
 public:
  /// Starts a new file in `folder` (made if need be). Steps after `resume_step` that an earlier
  /// life of the run left there are cut out of its files, torn tails too, and the new file opens
  /// with a SessionLog START event of step resume_step + 1, at which TensorBoard forgets whatever
  /// it may have read of them already. resume_step 0: a new run, earlier files go.
  EventWriter(const std::string& folder, int64_t resume_step);
  /// One record with all scalars of a step, in one write. NaN and infinities stay what they are.
  void write(int64_t step, const std::vector<std::pair<std::string, double>>& scalars);
  void sync() { out_->sync(); }
  const std::string& path() const { return out_->path(); }

 private:
  std::unique_ptr<FileWriter> out_;
};

/// One scalar, or a restart marker (empty tag), as read back.
struct ScalarEvent {
  int64_t step = 0;
  std::string tag;
  float value = 0;
};

/// The whole records of an event file in order; stops at the first that is torn or damaged.
std::vector<ScalarEvent> read_events(const std::string& path);

/// TFRecord framing: u64 length, its masked crc32c, the data, its masked crc32c.
std::string frame_record(std::string_view data);
/// The records in `file`; stops at the first that is torn or damaged. `whole` bytes were good.
std::vector<std::string_view> split_records(std::string_view file, size_t* whole);

}  // namespace moetrain
