// Point-to-point messages only: one-sided windows between hosts fail in Open MPI 4.1, and own loops wait kindly.
#include "runtime/comm/mpi_link.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace moetrain::comm {

namespace {

constexpr int64_t kLargest = int64_t{1} << 30;  // bytes of one MPI message: its counts are ints
constexpr int kTag = 1;

/// Calls use(offset, bytes) for the messages a transfer is split into.
template <class Use>
void split(int64_t bytes, Use use) {
  for (int64_t at = 0; at < bytes; at += kLargest) {
    use(at, static_cast<int>(std::min(kLargest, bytes - at)));
  }
}

}  // namespace

void mpi_check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw InternalError(cat(what, ": ", text));
}

Outbox::Outbox() : thread_([this] { run(); }) {}

Outbox::~Outbox() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Outbox::send(MPI_Comm comm, int member, const void* data, int64_t bytes) {
  Parcel parcel;
  {
    std::lock_guard lock(mutex_);
    if (!spare_.empty()) {
      parcel.data = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  const char* from = static_cast<const char*>(data);
  parcel.data.assign(from, from + bytes);
  split(bytes, [&](int64_t at, int n) {
    mpi_check(MPI_Isend(parcel.data.data() + at, n, MPI_BYTE, member, kTag, comm,
                        &parcel.requests.emplace_back()),
              "MPI_Isend");
  });
  {
    std::lock_guard lock(mutex_);
    parcels_.push_back(std::move(parcel));
  }
  changed_.notify_one();
}

void Outbox::run() {
  Backoff backoff;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (parcels_.empty()) {
      if (closing_) return;
      changed_.wait(lock);
      backoff = Backoff();
      continue;
    }
    for (size_t i = 0; i < parcels_.size();) {
      Parcel& parcel = parcels_[i];
      int done = 0;
      // A failing send means a failing job: the receiver's side or the launcher reports it.
      if (MPI_Testall(static_cast<int>(parcel.requests.size()), parcel.requests.data(), &done,
                      MPI_STATUSES_IGNORE) != MPI_SUCCESS) {
        return;
      }
      if (done) {
        spare_.push_back(std::move(parcel.data));
        parcel = std::move(parcels_.back());
        parcels_.pop_back();
        backoff = Backoff();
      } else {
        ++i;
      }
    }
    lock.unlock();
    backoff.pause();
    lock.lock();
  }
}

MpiLink::MpiLink(MPI_Comm comm, std::vector<int> ranks, std::shared_ptr<Outbox> outbox,
                 std::shared_ptr<Health> health)
    : comm_(comm), ranks_(std::move(ranks)), outbox_(std::move(outbox)), health_(std::move(health)) {}

void MpiLink::start_send(int member, const void* data, int64_t bytes) {
  split(bytes, [&](int64_t at, int n) {
    mpi_check(MPI_Isend(static_cast<const char*>(data) + at, n, MPI_BYTE, member, kTag, comm_,
                        &requests_.emplace_back()),
              "MPI_Isend");
  });
}

void MpiLink::start_recv(int member, void* data, int64_t bytes) {
  split(bytes, [&](int64_t at, int n) {
    expected_.push_back({requests_.size(), n, member});
    mpi_check(MPI_Irecv(static_cast<char*>(data) + at, n, MPI_BYTE, member, kTag, comm_,
                        &requests_.emplace_back()),
              "MPI_Irecv");
  });
}

void MpiLink::finish() {
  if (requests_.empty()) return;
  statuses_.resize(requests_.size());
  Backoff backoff;
  for (;;) {
    int done = 0;
    const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                                 statuses_.data());
    if (code == MPI_ERR_IN_STATUS) {
      for (const MPI_Status& status : statuses_) {
        if (status.MPI_ERROR != MPI_ERR_PENDING) mpi_check(status.MPI_ERROR, "a message");
      }
    }
    mpi_check(code, "MPI_Testall");
    if (done) break;
    health_->check();
    backoff.pause();
  }
  for (const Expected& e : expected_) {
    int n = 0;
    MPI_Get_count(&statuses_[e.request], MPI_BYTE, &n);
    MT_CHECK(n == e.bytes, "rank ", ranks_[e.member], " sent ", n, " bytes where ", e.bytes,
             " were expected");
  }
  requests_.clear();
  expected_.clear();
}

void MpiLink::send_buffered(int member, const void* data, int64_t bytes) {
  outbox_->send(comm_, member, data, bytes);
}

}  // namespace moetrain::comm
