// One rank of the tests under mpirun: `mpi_comm_rank CASE [ranks_per_node] [victim]`.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/error.h"
#include "comm/conformance.h"
#include "runtime/comm/fault.h"
#include "runtime/comm/launch.h"

namespace moetrain {
namespace {

void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

/// What the victim does while the others wait for it in a collective.
void misbehave(const std::string& what, Fabric& fabric) {
  if (what == "throw") throw std::runtime_error("cannot read shard 7");
  if (what == "user_error") throw UserError("data.train[0].prefix: no such file");
  if (what == "numbers") fabric.abort("loss is not finite", kExitNumbers);
  if (what == "thread_throw") std::thread([] { throw std::runtime_error("helper thread"); }).join();
  if (what == "bad_alloc") throw std::bad_alloc();
  if (what == "exit0") std::exit(0);
  if (what == "exit3") std::exit(3);
  if (what == "quick_exit") _exit(0);
  if (what == "segv") raise(SIGSEGV);
  if (what == "kill") raise(SIGKILL);
  if (what == "stop") raise(SIGSTOP);
  if (what == "sleep") sleep_seconds(100);
  if (what == "leave") return;
}

int run(const std::string& name, int victim, Fabric& fabric) {
  if (name == "verbs") {
    test::check_fabric(fabric);
    test::check_summation_order(fabric);
  } else if (name == "huge") {
    test::check_huge_message(fabric);
  } else if (name == "nodes") {
    std::string nodes;
    for (int r = 0; r < fabric.size(); ++r) nodes += std::to_string(fabric.node_of(r));
    if (fabric.rank() == 0) std::printf("nodes %s\n", nodes.c_str());
  } else if (name == "code") {
    return fabric.rank() == victim ? kExitResubmit : 0;
  } else if (name == "signal") {
    // A training loop: steps of 20 ms until any rank has been asked to stop, all at the same step.
    std::vector<int> all(fabric.size());
    for (int r = 0; r < fabric.size(); ++r) all[r] = r;
    const auto group = fabric.make_group(all, "world");
    const auto lane = make_threaded_lane();
    if (fabric.rank() == victim) raise(SIGTERM);
    for (int step = 0; step < 500; ++step) {
      float x = 1;
      group->all_reduce(&x, 1, DType::kF32, ReduceOp::kSum, *lane);
      lane->synchronize();
      if (fabric.max_over_ranks(stop_requested()) != 0) {
        std::printf("stopped at step %d\n", step);
        return kExitResubmit;
      }
      sleep_seconds(0.02);
    }
  } else if (name == "second_signal") {
    if (fabric.rank() == victim) {
      raise(SIGTERM);
      raise(SIGTERM);  // the same, delivered twice
      sleep_seconds(0.7);
      raise(SIGTERM);
    }
    sleep_seconds(20);
  } else {
    fabric.barrier();
    if (fabric.rank() == victim) {
      misbehave(name, fabric);
    } else {
      fabric.barrier();
      fabric.barrier();
    }
  }
  return 0;
}

}  // namespace
}  // namespace moetrain

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "verbs";
  moetrain::MpiOptions options;
  options.ranks_per_node = argc > 2 ? std::atoi(argv[2]) : 0;
  options.silence_seconds = 3;
  options.stall_seconds = name == "huge" ? 300 : 4;
  const int victim = argc > 3 ? std::atoi(argv[3]) : 0;
  return moetrain::run_job(options,
                           [&](moetrain::Fabric& fabric) { return moetrain::run(name, victim, fabric); });
}
