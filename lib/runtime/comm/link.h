// The link: messages between members of one group that need not share memory.
#pragma once

#include <cstdint>

namespace moetrain::comm {

/// Messages between group members; between one pair they match in order. Sizes are agreed beforehand
/// (a message of another size throws) and unlimited. Used by one thread at a time.
class Link {
 public:
  virtual ~Link() = default;
  /// Starts moving `bytes` > 0 to `member`; `data` must stay until finish().
  virtual void start_send(int member, const void* data, int64_t bytes) = 0;
  /// Starts receiving `bytes` > 0 from `member`.
  virtual void start_recv(int member, void* data, int64_t bytes) = 0;
  /// Blocks until everything started is done; throws PeerFailure if the job fails.
  virtual void finish() = 0;
  /// Copies the data out and returns; it arrives without further calls of this thread.
  virtual void send_buffered(int member, const void* data, int64_t bytes) = 0;
};

}  // namespace moetrain::comm
