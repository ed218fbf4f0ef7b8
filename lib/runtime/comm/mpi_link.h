// The link over MPI messages, and the outbox that finishes buffered sends.
#pragma once

#include <mpi.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/comm/link.h"
#include "runtime/comm/wait.h"

namespace moetrain::comm {

/// Throws InternalError with MPI's own text unless `code` is MPI_SUCCESS.
void mpi_check(int code, const char* what);

/// Owns the data of buffered sends until they are through. Its thread polls MPI only while there are
/// any: MPI makes no progress on its own. Thread-safe.
class Outbox {
 public:
  Outbox();
  ~Outbox();  // waits for what is under way
  void send(MPI_Comm comm, int member, const void* data, int64_t bytes);

 private:
  struct Parcel {
    std::vector<char> data;
    std::vector<MPI_Request> requests;
  };
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Parcel> parcels_;
  std::vector<std::vector<char>> spare_;  // buffers to use again: first touch of memory is dear
  bool closing_ = false;
  std::thread thread_;
};

class MpiLink : public Link {
 public:
  /// `comm` has the group's members in group order and lives until MPI ends. `ranks` are their world ranks.
  MpiLink(MPI_Comm comm, std::vector<int> ranks, std::shared_ptr<Outbox> outbox,
          std::shared_ptr<Health> health);
  void start_send(int member, const void* data, int64_t bytes) override;
  void start_recv(int member, void* data, int64_t bytes) override;
  void finish() override;
  void send_buffered(int member, const void* data, int64_t bytes) override;

 private:
  struct Expected {
    size_t request;
    int64_t bytes;
    int member;
  };
  MPI_Comm comm_;
  std::vector<int> ranks_;
  std::shared_ptr<Outbox> outbox_;
  std::shared_ptr<Health> health_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<Expected> expected_;
};

}  // namespace moetrain::comm
