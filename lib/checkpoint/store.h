// Saving checkpoints: every rank writes the boxes it owns, rank 0 publishes the whole or nothing.
//
// One save, in order (root is `checkpoints/` of the output folder):
//   rank 0:     begin_save(root, step, bytes)    clears leftovers, checks space, makes step_N.tmp
//   barrier
//   every rank: write_shards(root, step, rank, shards)
//   barrier; if any rank failed, rank 0 calls abandon_save and all stop
//   rank 0:     publish(root, step, ranks, ...)  manifest, rename, `latest`, then old ones go
//   barrier
// A crash at any moment leaves either the earlier checkpoints and a `.tmp` folder, or the new one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/box.h"

namespace moetrain {

/// A box of a state that this rank owns. Over all ranks the boxes of a state must cover it once:
/// of several copies exactly one rank (any) hands it in.
struct ShardOut {
  std::string name;
  DType dtype = DType::kF32;
  Shape global;
  Box box;
  const void* data = nullptr;              ///< the box, row-major; or, if null,
  std::function<void(void* out)> produce;  ///< called once, when its turn comes, to fill `out`
};

/// Which published checkpoints stay: the newest `keep_last` (0: all), and every one whose step is a
/// multiple of `keep_every` (0: none besides).
struct Retention {
  int64_t keep_last = 0;
  int64_t keep_every = 0;
};

/// "step_00000010".
std::string step_folder(int64_t step);
/// Steps of the published folders in `root`, ascending. Does not look inside them.
std::vector<int64_t> published_steps(const std::string& root);

/// Bytes that these shards take on the disk (data and header, rounded up).
uint64_t shard_bytes(const std::vector<ShardOut>& shards);

/// At start-up, rank 0: makes `root`, removes leftovers of killed saves, proves that it can be
/// written, and refuses (UserError) if not even one checkpoint of `bytes` fits. Returns a warning
/// if fewer than `copies` fit, else "".
std::string prepare_root(const std::string& root, uint64_t bytes, int64_t copies);

/// Rank 0, before the others write: UserError if `bytes` (of all ranks together) do not fit.
void begin_save(const std::string& root, int64_t step, uint64_t bytes);

/// Writes this rank's file and a note for publish(), both brought to the disk.
void write_shards(const std::string& root, int64_t step, int rank,
                  const std::vector<ShardOut>& shards);

/// Rank 0, after all ranks have written: checks that the boxes of `ranks` ranks cover every state
/// once, writes the manifest, renames the folder into place (replacing one of the same step), makes
/// `latest` point to it, and only then applies `retention`. Checkpoints of later steps (the run was
/// rolled back) are renamed to `superseded_step_N`. Returns the checkpoint's folder.
std::string publish(const std::string& root, int64_t step, int ranks,
                    const std::map<std::string, std::string>& metadata, const Retention& retention);

/// Rank 0, after a failed save: removes what was written of it.
void abandon_save(const std::string& root, int64_t step);

/// Writes a complete, unpublished-by-name checkpoint into `folder` itself (for import), through
/// the same temporary folder and rename. `folder` must not exist.
void write_single(const std::string& folder, int64_t step, const std::vector<ShardOut>& shards,
                  const std::map<std::string, std::string>& metadata);

/// What find_checkpoint looks at before it trusts a checkpoint.
enum class Trust {
  kSizes,      ///< manifest intact, every file there with its exact size
  kChecksums,  ///< also every byte
};

/// The checkpoint to resume from in `root`: the published one (`latest`), or if that is damaged or
/// the pointer is unreadable the newest complete one. Appends to `warnings` what was skipped and
/// why. `unusable` (names like step_00000010) are skipped without a word: the caller found out.
/// "" if there is no checkpoint at all; UserError if there are some but none is complete.
std::string find_checkpoint(const std::string& root, Trust trust,
                            std::vector<std::string>* warnings,
                            const std::vector<std::string>& unusable = {});

/// A checkpoint given by a user: its folder, a `checkpoints` folder, or an output folder. UserError
/// if there is none.
std::string resolve_checkpoint(const std::string& path, std::vector<std::string>* warnings);

}  // namespace moetrain
