// Launchers are recognised by the environment they set; everything that can go wrong ends in one
// message.
#include "runtime/comm/launch.h"

#include <malloc.h>

#include <cstdlib>

#include "base/error.h"
#include "runtime/comm/fault.h"
#include "runtime/comm/wait.h"

namespace moetrain {

namespace {

/// The closest launcher's number of ranks, 0 if none speaks.
int launcher_ranks(const char*& variable) {
  // mpirun inside a Slurm allocation sets its own, which counts; the allocation may be larger.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS",
                           "SLURM_NTASKS", "SLURM_NPROCS"}) {
    const char* value = std::getenv(name);
    const int ranks = value ? std::atoi(value) : 0;
    if (ranks > 0) {
      variable = name;
      return ranks;
    }
  }
  return 0;
}

int exit_code_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const UserError& error) {
    return error.exit_code();
  } catch (const JobAborted& error) {
    return error.exit_code();
  } catch (...) {
    return kExitFailure;
  }
}

}  // namespace

bool launched_under_mpi() {
  for (const char* name : {"PMIX_RANK", "PMI_RANK", "PMI_FD"}) {
    if (std::getenv(name)) return true;
  }
  return false;
}

void check_launcher(int world_size) {
  const char* variable = "";
  const int ranks = launcher_ranks(variable);
  if (ranks <= 1 || ranks == world_size) return;
  // A Slurm allocation may well be larger than what mpirun was asked for.
  if (world_size > 1 && std::string(variable).starts_with("SLURM")) return;
  throw UserError(cat("the launcher says ", ranks, " ranks (", variable, "=", ranks,
                      "), but MPI's world has ", world_size,
                      ": each process would train on its own. Start with mpirun, or with srun "
                      "--mpi=pmix (srun --mpi=list shows what this Slurm offers); for one rank on "
                      "purpose use mpirun -n 1 or unset ",
                      variable));
}

void tune_allocator() {
  // Values of 1 GiB and more, or "never": see mallopt(3).
  if (mallopt(M_MMAP_THRESHOLD, 1 << 30) == 0) mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, 64 << 20);
}

int run_job(const MpiOptions& options, const std::function<int(Fabric&)>& body) {
  tune_allocator();
  catch_stop_signals();
  if (launched_under_mpi()) stop_when_launcher_dies();
  std::unique_ptr<Fabric> fabric;
  std::exception_ptr failure;
  try {
    if (launched_under_mpi()) {
      fabric = make_mpi_fabric(options);
      check_launcher(fabric->size());
    } else {
      check_launcher(1);
      fabric = make_single_fabric();
    }
    return static_cast<int>(fabric->max_over_ranks(body(*fabric)));
  } catch (...) {
    failure = std::current_exception();
  }
  const int code = exit_code_of(failure);
  const std::string message = comm::describe(failure);
  if (fabric && fabric->size() > 1) fabric->abort(message, code);
  comm::write_error(comm::failure_text(0, 1, message, code));
  fabric.reset();
  return code;
}

}  // namespace moetrain
