// Handlers for terminate, exit and signals. They need process-wide state, which stays in this file.
#include "runtime/comm/fault.h"

#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "runtime/comm/wait.h"

namespace moetrain {

namespace comm {

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

std::string failure_text(int rank, int ranks, const std::string& message, int exit_code) {
  std::string text(72, '=');
  text += cat("\nmoetrain failed on rank ", rank, " of ", ranks, " (host ", host_name(),
              ", process ", getpid(), "):\n");
  size_t begin = 0;
  while (begin <= message.size()) {
    const size_t end = std::min(message.find('\n', begin), message.size());
    text += "  " + message.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  text += cat("The job ends with exit code ", exit_code, ".\n", std::string(72, '='), "\n");
  return text;
}

void write_error(const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(STDERR_FILENO, text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) break;
    if (n > 0) done += static_cast<size_t>(n);
  }
}

}  // namespace comm

namespace {

[[maybe_unused]] constexpr int kDeadly[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

FaultGuard::Abort* active_abort = nullptr;  // of the guard that is alive
std::mutex active_mutex;
std::terminate_handler previous_terminate = nullptr;
char death_note[320];
size_t death_note_size = 0;

std::atomic<int> stop_signal{0};
std::atomic<int64_t> stop_time_ns{0};

/// Takes the guard's action out, so that it runs once.
FaultGuard::Abort take_abort() {
  std::lock_guard lock(active_mutex);
  if (!active_abort) return nullptr;
  FaultGuard::Abort abort = std::move(*active_abort);
  delete active_abort;
  active_abort = nullptr;
  return abort;
}

void on_terminate() {
  if (FaultGuard::Abort abort = take_abort()) {
    const std::exception_ptr failure = std::current_exception();
    abort(failure ? "unhandled: " + comm::describe(failure) : "std::terminate was called",
          kExitFailure);
  }
  std::abort();
}

void on_exit_early(int status, void*) {
  if (FaultGuard::Abort abort = take_abort()) {
    abort(cat("exit(", status, ") was called before the job's end"),
          status != 0 ? status & 255 : kExitFailure);
  }
}

/// Only async-signal-safe calls (backtrace is warmed up beforehand).
void on_deadly_signal(int number) {
  const char* name = number == SIGSEGV ? "SIGSEGV (invalid memory access)\n"
                     : number == SIGBUS
                         ? "SIGBUS (memory could not be provided; is /dev/shm full?)\n"
                     : number == SIGFPE ? "SIGFPE\n"
                     : number == SIGILL ? "SIGILL (does this processor fit the build?)\n"
                                        : "SIGABRT\n";
  [[maybe_unused]] ssize_t ignored = write(STDERR_FILENO, death_note, death_note_size);
  ignored = write(STDERR_FILENO, name, strlen(name));
  void* frames[48];
  backtrace_symbols_fd(frames, backtrace(frames, 48), STDERR_FILENO);
  signal(number, SIG_DFL);
  raise(number);
}

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * int64_t{1'000'000'000} + t.tv_nsec;
}

/// mpirun no longer reads what we say once it was told to end: a blocking write to its terminal or
/// pipe, even one begun before this signal, would then keep the run from saving. Lines may get lost
/// instead. Opened anew, so that nobody who shares the terminal is affected.
void never_block_on_output() {
  for (const auto& [fd, path] : {std::pair{1, "/proc/self/fd/1"}, {2, "/proc/self/fd/2"}}) {
    struct stat about;
    if (fstat(fd, &about) != 0 || !(S_ISCHR(about.st_mode) || S_ISFIFO(about.st_mode))) continue;
    const int fresh = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY);
    if (fresh < 0) continue;
    dup2(fresh, fd);
    close(fresh);
  }
}

void on_stop_signal(int number) {
  const int saved_errno = errno;
  int none = 0;
  if (stop_signal.compare_exchange_strong(none, number)) {
    stop_time_ns.store(now_ns());
    never_block_on_output();
    errno = saved_errno;
    return;
  }
  if (number == SIGUSR1) return;
  if (now_ns() - stop_time_ns.load() < 500'000'000) return;
  _exit(128 + number);
}

void set_handler(int number, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(number, &action, nullptr);
}

void for_deadly_signals([[maybe_unused]] void (*handler)(int)) {
#ifndef MOETRAIN_SANITIZED  // sanitizers report these themselves
  for (int number : kDeadly) set_handler(number, handler);
#endif
}

}  // namespace

FaultGuard::FaultGuard(int rank, int ranks, Abort abort) {
  {
    std::lock_guard lock(active_mutex);
    MT_CHECK(active_abort == nullptr, "two fault guards in one process");
    active_abort = new Abort(std::move(abort));
  }
  const std::string note = cat("moetrain: rank ", rank, " of ", ranks, " (host ", comm::host_name(),
                               ", process ", getpid(), ") was killed by ");
  death_note_size = std::min(note.size(), sizeof death_note);
  memcpy(death_note, note.data(), death_note_size);
  void* warm_up[1];
  backtrace(warm_up, 1);  // loads libgcc now, not inside a handler
  for_deadly_signals(on_deadly_signal);
  static std::once_flag registered;  // exit handlers cannot be withdrawn
  std::call_once(registered, [] { on_exit(on_exit_early, nullptr); });
  previous_terminate = std::set_terminate(on_terminate);
}

FaultGuard::~FaultGuard() {
  take_abort();
  std::set_terminate(previous_terminate);
  for_deadly_signals(SIG_DFL);
}

void catch_stop_signals() {
  for (int number : {SIGTERM, SIGINT, SIGUSR1}) set_handler(number, on_stop_signal);
}

void stop_when_launcher_dies() { prctl(PR_SET_PDEATHSIG, SIGUSR1); }

int stop_requested() { return stop_signal.load(); }

}  // namespace moetrain
