// A named piece of memory that processes of one machine share, whose name disappears as soon as all have it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace moetrain::comm {

/// Creates `bytes` of zeroed shared memory under a fresh name. The memory is reserved at once, so a full
/// /dev/shm is reported here as UserError and not later as a bus error.
std::shared_ptr<void> create_segment(int64_t bytes, std::string& name);
/// Maps what a neighbour created.
std::shared_ptr<void> open_segment(const std::string& name, int64_t bytes);
/// Takes the name away; the memory lives until the last mapping goes.
void unlink_segment(const std::string& name);

/// Removes what killed runs of this user left in /dev/shm: our own segments of dead processes and Open
/// MPI's `vader_segment.*`, if older than a minute and mapped by no process. Returns how many.
int remove_stale_segments();

}  // namespace moetrain::comm
