// The fabric of a job under mpirun or srun.
#pragma once

#include <memory>

#include "runtime/comm/comm.h"

namespace moetrain {

struct MpiOptions {
  /// Nodes of this many consecutive ranks instead of the real hosts; must not join ranks of different
  /// hosts. 0: the real hosts.
  int ranks_per_node = 0;
  /// A process that gives no sign of life for this long (stopped, or its host gone) ends the job.
  double silence_seconds = 60;
  /// A rank that lives but finishes no verb for this long ends the job. 0: never.
  double stall_seconds = 1800;
};

/// Starts MPI (with MPI_THREAD_MULTIPLE) and joins the job; collective over all its processes. Installs a
/// FaultGuard: unhandled exceptions, early exits and deadly signals end the whole job. The destructor
/// is collective and ends MPI; while an exception is in flight it aborts the job instead. One fabric per
/// process, once. UserError if MPI cannot give what is needed; a wrong ranks_per_node aborts with
/// kExitRefused, shown once.
std::unique_ptr<Fabric> make_mpi_fabric(const MpiOptions& options);

}  // namespace moetrain
