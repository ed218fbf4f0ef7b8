// What the measurements share: clocks, medians, agreement of ranks, and lines of tables.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "runtime/comm/comm.h"

namespace moetrain {

/// Wall seconds since some fixed moment.
double wall_seconds();
/// The middle value (of an even number the mean of both); 0 for none.
double median(std::vector<double> values);

/// printf into a string of at most 511 characters.
template <class... Args>
std::string format_line(const char* text, Args... args) {
  char buffer[512];
  std::snprintf(buffer, sizeof buffer, text, args...);
  return buffer;
}

/// `repeats` timed calls after one that is not, ranks starting together; gives the median over the
/// repeats of the slowest rank. The same on every rank. Collective.
double timed_together(Fabric& fabric, int repeats, const std::function<void()>& call);
/// Every rank's value, in rank order, on every rank. Collective.
std::vector<double> gather_numbers(Fabric& fabric, double mine);

/// Most memory this process ever held, bytes.
int64_t process_peak_bytes();
/// Ranks on this rank's node, itself included.
int neighbours_of(const Fabric& fabric);
/// Threads a rank gets when nothing says otherwise: the node's share of cores it may use.
int default_threads(const Fabric& fabric);

}  // namespace moetrain
