// Heartbeats around the ring of ranks, and the one way a job under MPI ends badly.
#include "runtime/comm/mpi_watchdog.h"

#include <dlfcn.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "runtime/comm/fault.h"
#include "runtime/comm/mpi_link.h"

namespace moetrain::comm {

namespace {

constexpr int kBeatTag = 1, kErrorTag = 2;
constexpr int kErrorBytes = 64 * 1024;
constexpr double kLook = 0.1;  // seconds between looks
constexpr double kPatience = 2;  // seconds rank 0 has to take an error
constexpr double kKilling = 10;  // seconds the launcher has to kill us before we try harder
constexpr double kWaitingFactor = 1.25;  // who waits is blamed later than who does not come

double now_seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

void nap(double seconds) {
  timespec t{static_cast<time_t>(seconds), static_cast<long>(1e9 * std::fmod(seconds, 1.0))};
  while (nanosleep(&t, &t) != 0 && errno == EINTR) {
  }
}

/// Ends the job through the process manager MPI itself uses. MPI_Abort does the same but prints a block of
/// its own below our message; it is left for where PMIx is not at hand.
void abort_through_pmix(int exit_code) {
  using Abort = int(int status, const char* message, void* procs, size_t count);
  void* pmix = dlopen("libpmix.so.2", RTLD_NOW | RTLD_NOLOAD);
  if (pmix == nullptr) return;
  if (auto* abort = reinterpret_cast<Abort*>(dlsym(pmix, "PMIx_Abort"))) {
    abort(exit_code, "", nullptr, 0);
    nap(kKilling);
  }
}

}  // namespace

Watchdog::Watchdog(MPI_Comm comm, std::vector<std::string> hosts, const MpiOptions& options,
                   std::shared_ptr<Health> health)
    : comm_(comm), hosts_(std::move(hosts)), options_(options), health_(std::move(health)) {
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  last_heard_ = last_look_ = last_progress_ = now_seconds();
  thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
  for (MPI_Request* request : {&heard_, &error_}) {
    if (*request == MPI_REQUEST_NULL) continue;
    MPI_Cancel(request);
    MPI_Wait(request, MPI_STATUS_IGNORE);
  }
  if (sent_ != MPI_REQUEST_NULL) MPI_Request_free(&sent_);
}

void Watchdog::run() {
  if (rank_ == 0) {
    error_in_.resize(kErrorBytes);
    MPI_Irecv(error_in_.data(), kErrorBytes, MPI_BYTE, MPI_ANY_SOURCE, kErrorTag, comm_, &error_);
  }
  std::unique_lock lock(mutex_);
  while (!closing_) {
    lock.unlock();
    const double now = now_seconds();
    // After a pause of our own (a stopped job that goes on) nobody can be blamed for silence yet.
    was_stopped_ = now - last_look_ > options_.silence_seconds / 2;
    if (was_stopped_) last_heard_ = last_progress_ = now;
    last_look_ = now;
    if (rank_ == 0) listen_for_errors();
    if (size_ > 1) watch_neighbour(now);
    if (options_.stall_seconds > 0) watch_progress(now);
    lock.lock();
    if (!closing_) changed_.wait_for(lock, std::chrono::duration<double>(kLook));
  }
}

void Watchdog::listen_for_errors() {
  int arrived = 0;
  MPI_Status status;
  if (MPI_Test(&error_, &arrived, &status) != MPI_SUCCESS || !arrived) return;
  int n = 0;
  MPI_Get_count(&status, MPI_BYTE, &n);
  int32_t exit_code = kExitFailure;
  if (n < static_cast<int>(sizeof exit_code)) return;
  std::memcpy(&exit_code, error_in_.data(), sizeof exit_code);
  std::string text(error_in_.data() + sizeof exit_code, n - sizeof exit_code);
  if (was_stopped_) text.clear();  // the sender gave up on us and has spoken for itself
  speak_and_abort(text, exit_code);
}

void Watchdog::watch_neighbour(double now) {
  const double period = std::clamp(options_.silence_seconds / 8, kLook, 1.0);
  int done = 1;
  if (sent_ != MPI_REQUEST_NULL) MPI_Test(&sent_, &done, MPI_STATUS_IGNORE);
  if (done && now - last_sent_ >= period) {
    ++beat_out_;
    MPI_Isend(&beat_out_, 1, MPI_INT64_T, (rank_ + 1) % size_, kBeatTag, comm_, &sent_);
    last_sent_ = now;
  }
  const int before = (rank_ + size_ - 1) % size_;
  for (;;) {
    if (heard_ == MPI_REQUEST_NULL) {
      MPI_Irecv(&beat_in_, 1, MPI_INT64_T, before, kBeatTag, comm_, &heard_);
    }
    int arrived = 0;
    if (MPI_Test(&heard_, &arrived, MPI_STATUS_IGNORE) != MPI_SUCCESS || !arrived) break;
    last_heard_ = now;
  }
  if (now - last_heard_ > options_.silence_seconds) {
    end_job(cat("rank ", before, " (host ", hosts_[before], ") has given no sign of life for ",
                options_.silence_seconds, " s: its process is stopped, or its host or network is gone"),
            kExitFailure);
  }
}

void Watchdog::watch_progress(double now) {
  const int64_t beats = health_->beats();
  if (beats != last_beats_) {
    last_beats_ = beats;
    last_progress_ = now;
    return;
  }
  const std::string verb = health_->current_verb();
  const double limit = options_.stall_seconds * (verb.empty() ? 1 : kWaitingFactor);
  if (now - last_progress_ <= limit) return;
  end_job(cat("rank ", rank_, " has made no progress for ", limit, " s, ",
              verb.empty() ? std::string("busy outside any communication") : "waiting in " + verb),
          kExitFailure);
}

void Watchdog::speak_and_abort(const std::string& text, int exit_code) {
  if (!speaking_.try_lock()) {
    for (;;) nap(60);  // somebody is ending the job already
  }
  write_error(text);
  signal(SIGTERM, SIG_DFL);  // which the launcher sends now
  signal(SIGALRM, SIG_DFL);
  alarm(static_cast<unsigned>(3 * kKilling));  // in case MPI cannot even abort
  abort_through_pmix(exit_code);
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

void Watchdog::end_job(const std::string& message, int exit_code) {
  const std::string text = failure_text(rank_, size_, message, exit_code);
  if (rank_ == 0) speak_and_abort(text, exit_code);
  // Leaked on purpose: MPI may still read it while this process is being killed.
  auto* parcel = new std::vector<char>(sizeof(int32_t) + std::min<size_t>(text.size(), kErrorBytes - 4));
  const int32_t code = exit_code;
  std::memcpy(parcel->data(), &code, sizeof code);
  std::memcpy(parcel->data() + sizeof code, text.data(), parcel->size() - sizeof code);
  MPI_Request request;
  // Synchronous: it is done when rank 0's watchdog has taken it.
  MPI_Issend(parcel->data(), static_cast<int>(parcel->size()), MPI_BYTE, 0, kErrorTag, comm_, &request);
  const double start = now_seconds();
  int taken = 0;
  bool reachable = true;  // if not, rank 0 is probably ending already, and we have nothing to add
  while (!taken && now_seconds() - start < kPatience) {
    if (reachable) reachable = MPI_Test(&request, &taken, MPI_STATUS_IGNORE) == MPI_SUCCESS;
    nap(0.02);
  }
  if (taken) {
    signal(SIGTERM, SIG_DFL);
    nap(kKilling);
  }
  speak_and_abort(taken ? "" : text, exit_code);
}

}  // namespace moetrain::comm
