// Enumerating and ranking layouts.
#include "train/search_plan.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/error.h"
#include "config/validate.h"
#include "train/inspect_plan.h"

namespace moetrain {

namespace {

struct Candidate {
  int64_t tensor, context, expert, zero;
  double seconds = 0, memory = 0, mfu = 0;
};

}  // namespace

std::string search_plans(const Config& config, int64_t world, const Machine& machine,
                         int64_t most) {
  std::vector<Candidate> found;
  int64_t tried = 0, left_out = 0, refused = 0;
  for (int64_t tensor = 1; tensor <= world; tensor *= 2) {
    for (int64_t context = 1; tensor * context <= world; context *= 2) {
      if (world % (tensor * context) != 0) continue;
      for (int64_t expert = 1; expert <= world / tensor; expert *= 2) {
        for (const int64_t zero : {1, 3}) {
          Config c = config;
          c.parallel.tensor = tensor;
          c.parallel.context = context;
          c.parallel.expert = expert;
          c.parallel.zero = zero;
          c.parallel.pipeline = 1;
          c.parallel.data = {};
          c.parallel.sequence_parallel = {};
          c.parallel.tp_extend_ep = {};
          resolve(c, world, machine.ranks_per_node);
          if (!check(c, world).empty()) continue;
          if (++tried > most) {
            ++left_out;
            continue;
          }
          try {
            const PlanInspection plan(c, 0, world, machine);
            found.push_back({tensor, context, expert, zero, plan.time().step,
                             static_cast<double>(plan.memory().total()), plan.time().mfu});
          } catch (const UserError&) {
            ++refused;
          }
        }
      }
    }
  }
  if (found.empty()) {
    throw UserError(cat("no layout without pipeline stages fits ", world,
                        " ranks: change the batch, or the number of ranks"));
  }
  std::stable_sort(found.begin(), found.end(), [&](const Candidate& a, const Candidate& b) {
    const bool fits_a = a.memory <= machine.memory, fits_b = b.memory <= machine.memory;
    return fits_a != fits_b ? fits_a : a.seconds < b.seconds;
  });
  std::string out = "tensor context expert zero    step s    MFU %       memory\n";
  for (const Candidate& c : found) {
    char line[160];
    std::snprintf(line, sizeof line, "%6lld %7lld %6lld %4lld %9.4g %8.3g %12s%s\n",
                  static_cast<long long>(c.tensor), static_cast<long long>(c.context),
                  static_cast<long long>(c.expert), static_cast<long long>(c.zero), c.seconds,
                  c.mfu * 100, human_bytes(c.memory).c_str(),
                  c.memory > machine.memory ? "  does not fit" : "");
    out += line;
  }
  if (left_out > 0) out += cat(left_out, " more were not compiled\n");
  if (refused > 0) out += cat(refused, " were refused by the compiler\n");
  return out;
}

}  // namespace moetrain
