// Tries checkpoints, newest first, until one reads without damage.
#include "train/resume.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "train/fabric.h"

namespace moetrain {

namespace {

/// A checkpoint of another model is the user's mistake, not damage.
void check_names(const Session& session, const CheckpointReader& reader) {
  std::vector<StateSpec> expected;
  for (const auto& [name, shape] : session.checkpoint_states()) {
    expected.push_back({name, DType::kF32, shape});
  }
  reader.check(expected);
}

/// The first fault of any rank, or "".
std::string first_fault(Fabric& fabric, const std::string& mine) {
  const std::vector<std::string> all = fabric.gather(mine);
  const auto at = std::find_if(all.begin(), all.end(), [](auto& text) { return !text.empty(); });
  return at == all.end() ? "" : *at;
}

}  // namespace

std::string restore_session(Session& session, Fabric& fabric, std::string from,
                            const std::string& root) {
  std::vector<std::string> damaged;
  for (;;) {
    std::string fault;
    agree(fabric, [&] {
      const CheckpointReader reader(from);
      const bool imported = reader.step() == 0;
      if (root.empty() || imported) return session.restore(reader);
      check_names(session, reader);
      try {
        session.restore(reader);
      } catch (const UserError& e) {
        fault = e.what();
      }
    });
    fault = first_fault(fabric, fault);
    if (fault.empty()) return from;
    damaged.push_back(std::filesystem::path(from).filename().string());
    std::string next;
    agree(fabric, [&] {
      if (fabric.rank() != 0) return;
      log_warning(cat("checkpoint ", damaged.back(), " cannot be used: ", fault));
      std::vector<std::string> warnings;
      next = find_checkpoint(root, Trust::kSizes, &warnings, damaged);
      for (const std::string& w : warnings) log_warning(w);
    });
    from = fabric.broadcast(next);
  }
}

}  // namespace moetrain
