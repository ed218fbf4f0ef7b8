// Which of a launcher's processes speaks before any of them has joined the job.
#pragma once

#include <cstdlib>
#include <cstring>

namespace moetrain {

/// True alone, and in rank 0 under mpirun or srun.
inline bool is_first_process() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (const char* rank = std::getenv(name)) return std::strcmp(rank, "0") == 0;
  }
  return true;
}

}  // namespace moetrain
