// How a moetrain process becomes a rank of a job, and how it ends.
#pragma once

#include <functional>

#include "runtime/comm/comm.h"
#include "runtime/comm/mpi_fabric.h"

namespace moetrain {

/// Was this process started by mpirun or srun in a way that MPI can join (PMIx or PMI)? Without, a run is
/// one rank and needs no MPI at all.
bool launched_under_mpi();

/// Throws UserError if a launcher's environment names another number of ranks than `world_size`: N
/// processes that each believe to be alone would all write the same files.
void check_launcher(int world_size);

/// Settings of malloc for long runs: freed memory is kept, because the first touch of a page costs tens
/// of microseconds. Call once, before threads start.
void tune_allocator();

/// Runs `body` as this process's rank: under a launcher with MPI, else as the only rank. Catches whatever
/// body throws and ends the whole job with one message: UserError with its own exit code, JobAborted
/// likewise, anything else with kExitFailure. Returns the exit code for main, the largest of all ranks.
/// Calls tune_allocator() and catch_stop_signals().
int run_job(const MpiOptions& options, const std::function<int(Fabric&)>& body);

}  // namespace moetrain
