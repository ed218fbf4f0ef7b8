// Saving, publishing, keeping and finding checkpoints.
#include "checkpoint/store.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"

namespace moetrain {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDraft = ".tmp";  // ending of folders that are not published
constexpr std::string_view kPrefix = "step_";

std::string rank_name(int rank, const char* ending) {
  char name[40];
  std::snprintf(name, sizeof name, "rank_%05d%s", rank, ending);
  return name;
}

std::string draft_folder(const std::string& root, int64_t step) {
  return cat(root, "/", step_folder(step), kDraft);
}

/// The step of a published folder's name, or -1.
int64_t step_of(const std::string& name) {
  int64_t step = -1;
  if (!name.starts_with(kPrefix)) return -1;
  const char* end = name.data() + name.size();
  const auto r = std::from_chars(name.data() + kPrefix.size(), end, step);
  return r.ec == std::errc{} && r.ptr == end && step >= 0 && step_folder(step) == name ? step : -1;
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error)
    throw UserError(cat(path, ": cannot make the folder: ", error.message()), kExitFailure);
}

void remove_tree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw UserError(cat(path, ": cannot remove: ", error.message()), kExitFailure);
}

/// Folders and files that a killed save left behind.
void remove_leftovers(const std::string& root) {
  std::vector<std::string> leftovers;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    const bool step_draft =
        name.ends_with(kDraft) && step_of(name.substr(0, name.size() - kDraft.size())) >= 0;
    if (step_draft || name == "latest.tmp" || name == "writable.tmp") {
      leftovers.push_back(entry.path().string());
    }
  }
  for (const std::string& path : leftovers) remove_tree(path);
}

std::string space_message(const std::string& root, const std::string& what, uint64_t bytes,
                          uint64_t free) {
  return cat(root, ": ", what, " needs ", human_bytes(static_cast<double>(bytes)), " (", bytes,
             " bytes) but only ", human_bytes(static_cast<double>(free)), " (", free,
             " bytes) are free; free some space, keep fewer checkpoints or move run.output_dir");
}

/// Puts `draft` in the place of `final`, whether or not `final` exists.
void rename_into_place(const std::string& draft, const std::string& final) {
  if (fs::exists(final)) {
    if (::renameat2(AT_FDCWD, draft.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE) == 0) return;
    // A file system without exchange: the older one of the same step goes first.
    remove_tree(final);
  }
  if (std::rename(draft.c_str(), final.c_str()) != 0) {
    throw UserError(cat(draft, ": cannot rename to ", final, ": ", std::strerror(errno)),
                    kExitFailure);
  }
}

/// Writes the shards of a rank into `folder`: data, then the note that publish collects.
void write_rank(const std::string& folder, int64_t step, int rank,
                const std::vector<ShardOut>& shards) {
  Manifest note;
  note.step = step;
  std::vector<FileTensorSpec> specs;
  for (const ShardOut& shard : shards) {
    MT_CHECK(inside(shard.box, shard.global), shard.name, " ", to_string(shard.box), " of ",
             to_string(shard.global));
    MT_CHECK(shard.data || shard.produce || volume(shard.box) == 0, shard.name, " has no data");
    specs.push_back({tensor_name(shard.name, shard.box, shard.global), file_type_of(shard.dtype),
                     shard.box.extent});
    note.states.push_back({shard.name, shard.dtype, shard.global, {{0, shard.box, 0}}});
  }
  const std::string name = rank_name(rank, ".safetensors");
  if (!shards.empty()) {
    SafetensorsWriter writer(folder + "/" + name, specs, {{"format", "moetrain"}});
    std::vector<char> produced;
    for (const size_t i : writer.order()) {
      const ShardOut& shard = shards[i];
      const uint64_t bytes = static_cast<uint64_t>(volume(shard.box)) * size_of(shard.dtype);
      const void* data = shard.data;
      if (data == nullptr) {
        produced.resize(bytes);
        if (shard.produce) shard.produce(produced.data());
        data = produced.data();
      }
      note.states[i].boxes[0].crc = writer.append(data, bytes);
    }
    writer.finish();
    note.files.push_back({name, writer.written(), writer.header_crc()});
  }
  FileWriter out(folder + "/" + rank_name(rank, ".note"));
  out.write(render_manifest(note));
  out.finish();
  sync_directory(folder);
}

/// All ranks' notes as one manifest.
Manifest collect_notes(const std::string& folder, int64_t step, int ranks) {
  Manifest all;
  all.step = step;
  std::map<std::string, StoredState> states;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string path = folder + "/" + rank_name(rank, ".note");
    if (!fs::exists(path)) {
      throw UserError(cat(path, ": rank ", rank, " wrote nothing here; all nodes must see the same",
                          " output folder (run.output_dir on a shared file system)"),
                      kExitFailure);
    }
    Manifest note = parse_manifest(read_file(path), path, false);
    for (StoredState& state : note.states) {
      StoredState& joined = states[state.name];
      if (joined.boxes.empty()) {
        joined = {state.name, state.dtype, state.global, {}};
      }
      MT_CHECK(joined.dtype == state.dtype && joined.global == state.global, state.name,
               " differs between ranks (seen on rank ", rank, ")");
      for (StoredBox& box : state.boxes) {
        box.file = all.files.size();
        joined.boxes.push_back(std::move(box));
      }
    }
    for (StoredFile& file : note.files) all.files.push_back(std::move(file));
  }
  for (auto& [name, state] : states) all.states.push_back(std::move(state));
  return all;
}

/// Checks the union of all ranks and turns `folder` into a complete, durable checkpoint.
void complete(const std::string& folder, int64_t step, int ranks,
              const std::map<std::string, std::string>& metadata) {
  Manifest manifest = collect_notes(folder, step, ranks);
  manifest.metadata = metadata;
  for (const StoredState& state : manifest.states) {
    std::vector<Box> boxes;
    for (const StoredBox& stored : state.boxes) boxes.push_back(stored.box);
    const std::string fault = coverage_fault(boxes, state.global);
    MT_CHECK(fault.empty(), "state ", state.name, ": ", fault);
  }
  for (const StoredFile& file : manifest.files) {
    std::error_code error;
    const uint64_t bytes = fs::file_size(folder + "/" + file.name, error);
    if (error || bytes != file.bytes) {
      throw UserError(
          cat(folder, "/", file.name, ": not as its rank wrote it (", file.bytes, " bytes)"),
          kExitFailure);
    }
  }
  FileWriter out(folder + "/manifest.json");
  out.write(render_manifest(manifest));
  out.finish();
  for (int rank = 0; rank < ranks; ++rank) fs::remove(folder + "/" + rank_name(rank, ".note"));
  sync_directory(folder);
}

/// Later steps than the one just published come from an earlier life of the run that was rolled
/// back. They must not be mistaken for its future: they are set aside under another name.
void set_aside_later(const std::string& root, int64_t newest) {
  for (const int64_t step : published_steps(root)) {
    if (step <= newest) continue;
    const std::string aside = cat(root, "/superseded_", step_folder(step));
    remove_tree(aside);
    std::error_code ignored;
    fs::rename(root + "/" + step_folder(step), aside, ignored);
    log_warning(cat(root, "/", step_folder(step), " is of an earlier run beyond step ", newest,
                    "; it is now ", aside));
  }
}

/// Removes published checkpoints that `retention` does not want; never `newest`.
void retain(const std::string& root, int64_t newest, const Retention& retention) {
  if (retention.keep_last <= 0) return;
  std::vector<int64_t> steps = published_steps(root);
  int64_t kept = 0;
  for (auto it = steps.rbegin(); it != steps.rend(); ++it) {
    const bool landmark = retention.keep_every > 0 && *it % retention.keep_every == 0;
    if (*it == newest || landmark || kept < retention.keep_last) {
      ++kept;
      continue;
    }
    // Out of sight first, so that a crash while deleting leaves a leftover, not a damaged one.
    const std::string path = cat(root, "/", step_folder(*it));
    const std::string doomed = cat(path, kDraft);
    if (std::rename(path.c_str(), doomed.c_str()) != 0) continue;
    remove_tree(doomed);
  }
  sync_directory(root);
}

/// "" if the checkpoint can be trusted, else why not.
std::string fault_of(const std::string& folder, Trust trust) {
  try {
    const CheckpointReader reader(folder);
    if (trust == Trust::kChecksums) reader.verify();
    return "";
  } catch (const UserError& e) {
    return e.what();
  }
}

}  // namespace

std::string step_folder(int64_t step) {
  char name[40];
  std::snprintf(name, sizeof name, "step_%08lld", static_cast<long long>(step));
  return name;
}

std::vector<int64_t> published_steps(const std::string& root) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (auto it = fs::directory_iterator(root, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const int64_t step = step_of(it->path().filename().string());
    if (step >= 0) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

uint64_t shard_bytes(const std::vector<ShardOut>& shards) {
  uint64_t bytes = 4096;
  for (const ShardOut& shard : shards) {
    // The header and the manifest each name the tensor, its shape and its place.
    bytes += static_cast<uint64_t>(volume(shard.box)) * size_of(shard.dtype) +
             3 * (shard.name.size() + 64 + 24 * shard.global.size());
  }
  return bytes;
}

std::string prepare_root(const std::string& root, uint64_t bytes, int64_t copies) {
  try {
    make_folder(root);
    remove_leftovers(root);
    const std::string probe = root + "/writable.tmp";
    FileWriter out(probe);
    out.write("x");
    out.finish();
    remove_tree(probe);
  } catch (const UserError& e) {
    throw UserError(cat(e.what(), "; checkpoints could not be saved here (run.output_dir)"));
  }
  const uint64_t free = free_bytes(root);
  if (free < bytes) throw UserError(space_message(root, "one checkpoint", bytes, free));
  const uint64_t wanted = bytes * static_cast<uint64_t>(std::max<int64_t>(copies, 1));
  if (free >= wanted) return "";
  return space_message(root, cat("keeping ", copies, " checkpoints at once"), wanted, free);
}

void begin_save(const std::string& root, int64_t step, uint64_t bytes) {
  make_folder(root);
  remove_leftovers(root);
  const uint64_t free = free_bytes(root);
  if (free < bytes) {
    throw UserError(space_message(root, cat("the checkpoint of step ", step), bytes, free),
                    kExitFailure);
  }
  make_folder(draft_folder(root, step));
  sync_directory(root);
}

void write_shards(const std::string& root, int64_t step, int rank,
                  const std::vector<ShardOut>& shards) {
  write_rank(draft_folder(root, step), step, rank, shards);
}

std::string publish(const std::string& root, int64_t step, int ranks,
                    const std::map<std::string, std::string>& metadata,
                    const Retention& retention) {
  const std::string draft = draft_folder(root, step);
  const std::string final = root + "/" + step_folder(step);
  complete(draft, step, ranks, metadata);
  rename_into_place(draft, final);
  sync_directory(root);
  write_file_atomically(root + "/latest", step_folder(step) + "\n");
  remove_tree(draft);  // the replaced one, if any
  set_aside_later(root, step);
  retain(root, step, retention);
  return final;
}

void abandon_save(const std::string& root, int64_t step) { remove_tree(draft_folder(root, step)); }

void write_single(const std::string& folder, int64_t step, const std::vector<ShardOut>& shards,
                  const std::map<std::string, std::string>& metadata) {
  if (fs::exists(folder)) throw UserError(cat(folder, ": exists already; choose a new folder"));
  const std::string draft = folder + std::string(kDraft);
  remove_tree(draft);
  make_folder(draft);
  const uint64_t free = free_bytes(draft);
  const uint64_t bytes = shard_bytes(shards);
  if (free < bytes) {
    remove_tree(draft);
    throw UserError(space_message(folder, "the checkpoint", bytes, free), kExitFailure);
  }
  try {
    write_rank(draft, step, 0, shards);
    complete(draft, step, 1, metadata);
    rename_into_place(draft, folder);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(draft, ignored);
    throw;
  }
  const std::string parent = fs::path(folder).parent_path().string();
  sync_directory(parent.empty() ? "." : parent);
}

std::string find_checkpoint(const std::string& root, Trust trust,
                            std::vector<std::string>* warnings,
                            const std::vector<std::string>& unusable) {
  const std::vector<int64_t> steps = published_steps(root);
  const std::string pointer = root + "/latest";
  std::vector<std::string> skipped = unusable;
  const auto skip = [&](const std::string& name) {
    return std::find(skipped.begin(), skipped.end(), name) != skipped.end();
  };
  std::string last_fault = unusable.empty() ? "" : unusable.back() + " is damaged";
  if (fs::exists(pointer)) {
    std::string name = read_file(pointer);
    while (!name.empty() && (name.back() == '\n' || name.back() == ' ')) name.pop_back();
    if (step_of(name) < 0) {
      warnings->push_back(
          cat(pointer, ": does not name a checkpoint; looking for the newest complete one"));
    } else if (!skip(name)) {
      last_fault = fault_of(root + "/" + name, trust);
      if (last_fault.empty()) return root + "/" + name;
      warnings->push_back(cat("the published checkpoint ", name, " cannot be used: ", last_fault));
      skipped.push_back(name);
    }
  } else if (!steps.empty()) {
    warnings->push_back(cat(pointer, ": missing; looking for the newest complete checkpoint"));
  }
  for (auto it = steps.rbegin(); it != steps.rend(); ++it) {
    const std::string name = step_folder(*it);
    if (skip(name)) continue;
    const std::string fault = fault_of(root + "/" + name, trust);
    if (fault.empty()) return root + "/" + name;
    warnings->push_back(cat("skipping checkpoint ", name, ": ", fault));
    last_fault = fault;
  }
  if (steps.empty() && !fs::exists(pointer)) return "";
  throw UserError(cat(root, ": there were checkpoints but none is complete (last fault: ",
                      last_fault.empty() ? "all are gone" : last_fault,
                      "); remove or mend them, or start anew with --resume none"));
}

std::string resolve_checkpoint(const std::string& path, std::vector<std::string>* warnings) {
  if (!fs::is_directory(path)) throw UserError(cat(path, ": no such checkpoint folder"));
  if (fs::exists(path + "/manifest.json")) return path;
  for (const std::string& root : {path, path + "/checkpoints"}) {
    const std::string found = find_checkpoint(root, Trust::kSizes, warnings);
    if (!found.empty()) return found;
  }
  throw UserError(cat(path, ": no checkpoint here (neither manifest.json nor step_* folders)"));
}

}  // namespace moetrain
