// The watchdog of one process: hears whether its neighbour lives, and carries the first error to rank 0.
#pragma once

#include <mpi.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/comm/mpi_fabric.h"
#include "runtime/comm/wait.h"

namespace moetrain::comm {

/// A thread per process. Ranks form a ring: each sends heartbeats to the next and listens for those of
/// the one before, so a silent rank is named by the rank after it. The thread beats even while its rank
/// computes for long; a rank that lives but finishes no verb is caught by stall_seconds.
class Watchdog {
 public:
  /// `comm` is a duplicate of the world for the watchdog alone; `hosts` per rank.
  Watchdog(MPI_Comm comm, std::vector<std::string> hosts, const MpiOptions& options,
           std::shared_ptr<Health> health);
  ~Watchdog();

  /// Ends the job: the message goes to rank 0, which shows the first it gets and aborts. If rank 0
  /// does not take it within two seconds, this rank speaks for itself. Any thread; does not return.
  [[noreturn]] void end_job(const std::string& message, int exit_code);

 private:
  void run();
  void listen_for_errors();
  void watch_neighbour(double now);
  void watch_progress(double now);
  [[noreturn]] void speak_and_abort(const std::string& text, int exit_code);

  MPI_Comm comm_;
  std::vector<std::string> hosts_;
  MpiOptions options_;
  std::shared_ptr<Health> health_;
  int rank_ = 0, size_ = 1;

  MPI_Request sent_ = MPI_REQUEST_NULL, heard_ = MPI_REQUEST_NULL, error_ = MPI_REQUEST_NULL;
  int64_t beat_out_ = 0, beat_in_ = 0;
  std::vector<char> error_in_;
  double last_sent_ = 0, last_heard_ = 0, last_look_ = 0, last_progress_ = 0;
  int64_t last_beats_ = 0;
  bool was_stopped_ = false;  // this process has just come out of a pause

  std::mutex speaking_;  // never released: the first to end the job is the only one
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace moetrain::comm
