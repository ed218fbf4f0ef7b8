// Checkpoints: resharding, atomic publication, retention, damage, and recovery after killed saves.
#include "checkpoint/store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "checkpoint/crc32c.h"
#include "checkpoint/reader.h"
#include "temp_folder.h"

namespace moetrain {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kE = 4, kOut = 6, kIn = 5;

/// The value of an element of the stacked state, the same whatever the layout.
float value_at(int64_t e, int64_t o, int64_t i, float shift) {
  return static_cast<float>((e * kOut + o) * kIn + i) + shift;
}

std::vector<float> fill(const Box& box, float shift) {
  std::vector<float> data;
  for (int64_t e = 0; e < box.extent[0]; ++e) {
    for (int64_t o = 0; o < box.extent[1]; ++o) {
      for (int64_t i = 0; i < box.extent[2]; ++i) {
        data.push_back(value_at(box.begin[0] + e, box.begin[1] + o, box.begin[2] + i, shift));
      }
    }
  }
  return data;
}

/// Splits the stacked state over a grid of ranks and saves it with a replicated scalar.
void save(const std::string& root, int64_t step, std::array<int64_t, 3> grid,
          bool publish_it = true, Retention retention = {}) {
  const int ranks = static_cast<int>(grid[0] * grid[1] * grid[2]);
  begin_save(root, step, 1 << 16);
  const float shift = static_cast<float>(step);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::array<int64_t, 3> at{rank / (grid[1] * grid[2]), rank / grid[2] % grid[1],
                                    rank % grid[2]};
    const std::array<int64_t, 3> global{kE, kOut, kIn};
    Box box;
    for (size_t d = 0; d < 3; ++d) {
      const int64_t first = global[d] * at[d] / grid[d];
      box.begin.push_back(first);
      box.extent.push_back(global[d] * (at[d] + 1) / grid[d] - first);
    }
    const std::vector<float> data = fill(box, shift);
    const int64_t count = step * 100;
    std::vector<ShardOut> shards{{"experts.w", DType::kF32, {kE, kOut, kIn}, box, data.data(), {}}};
    if (rank == ranks - 1) shards.push_back({"count", DType::kI64, {}, {}, &count, {}});
    write_shards(root, step, rank, shards);
  }
  if (publish_it) {
    publish(root, step, ranks, {{"samples", std::to_string(step * 8)}, {"lr", "0.5"}}, retention);
  }
}

void expect_complete(const std::string& folder, int64_t step) {
  const CheckpointReader reader(folder);
  EXPECT_EQ(reader.step(), step);
  const Box all = whole_box({kE, kOut, kIn});
  std::vector<float> out(kE * kOut * kIn);
  reader.read("experts.w", all, DType::kF32, out.data());
  EXPECT_EQ(out, fill(all, static_cast<float>(step)));
  int64_t count = 0;
  reader.read("count", {}, DType::kI64, &count);
  EXPECT_EQ(count, step * 100);
  EXPECT_EQ(reader.metadata_int("samples"), step * 8);
  EXPECT_EQ(reader.metadata_number("lr"), 0.5);
  reader.verify();
}

std::string find(const std::string& root, std::vector<std::string>* warnings,
                 Trust trust = Trust::kChecksums) {
  const std::string found = find_checkpoint(root, trust, warnings);
  return found.empty() ? "" : fs::path(found).filename().string();
}

TEST(Boxes, TextAndCoverage) {
  const Box box{{2, 0}, {3, 7}};
  EXPECT_EQ(to_string(box), "2:5,0:7");
  EXPECT_EQ(parse_box("2:5,0:7"), box);
  EXPECT_EQ(parse_box(".")->begin.size(), 0u);
  for (const char* bad : {"", "2", "2:", ":5", "5:2", "2:5,", "-1:2", "2:5 ", "a:b"}) {
    EXPECT_FALSE(parse_box(bad)) << bad;
  }
  EXPECT_EQ(coverage_fault({{{0, 0}, {2, 3}}, {{2, 0}, {2, 3}}}, {4, 3}), "");
  EXPECT_EQ(coverage_fault({{{0, 0}, {4, 1}}, {{0, 1}, {4, 2}}}, {4, 3}), "");
  EXPECT_NE(coverage_fault({{{0, 0}, {2, 3}}, {{1, 0}, {2, 3}}}, {4, 3}).find("overlap"),
            std::string::npos);
  EXPECT_EQ(coverage_fault({{{0, 0}, {2, 3}}}, {4, 3}), "boxes hold 6 of 12 elements");
  EXPECT_NE(coverage_fault({{{0, 0}, {5, 3}}}, {4, 3}), "");
  EXPECT_NE(coverage_fault({{{0}, {4}}}, {4, 3}), "");
  EXPECT_EQ(coverage_fault({Box{}}, {}), "");
  EXPECT_NE(coverage_fault({Box{}, Box{}}, {}), "");
  EXPECT_EQ(coverage_fault({}, {0, 3}), "");
}

TEST(Store, AnyLayoutReadsAnyOther) {
  const TempFolder folder;
  const std::array<int64_t, 3> grids[] = {{1, 1, 1}, {4, 1, 1}, {2, 3, 1}, {1, 2, 5}, {3, 1, 2}};
  int64_t step = 0;
  for (const auto& grid : grids) {
    save(folder.path(), ++step, grid);
    const CheckpointReader reader(folder / step_folder(step));
    EXPECT_EQ(reader.manifest().files.size(), static_cast<size_t>(grid[0] * grid[1] * grid[2]));
    expect_complete(reader.folder(), step);
    for (int64_t e = 0; e < kE; ++e) {  // every box, so every pair of layouts
      for (int64_t o = 0; o < kOut; ++o) {
        for (int64_t i = 0; i < kIn; ++i) {
          const Box want{{e, o, i}, {kE - e, std::min<int64_t>(2, kOut - o), kIn - i}};
          std::vector<float> out(static_cast<size_t>(volume(want)), -1);
          reader.read("experts.w", want, DType::kF32, out.data());
          ASSERT_EQ(out, fill(want, static_cast<float>(step)));
        }
      }
    }
    std::vector<uint16_t> half(kIn);
    reader.read("experts.w", {{1, 2, 0}, {1, 1, kIn}}, DType::kBF16, half.data());
    EXPECT_EQ(half[3], float_to_bf16(value_at(1, 2, 3, static_cast<float>(step))));
  }
}

TEST(Store, StrictAboutNamesShapesAndTypes) {
  const TempFolder folder;
  save(folder.path(), 1, {2, 1, 1});
  const CheckpointReader reader(folder / step_folder(1));
  const StateSpec experts{"experts.w", DType::kF32, {kE, kOut, kIn}};
  const StateSpec count{"count", DType::kI64, {}};
  EXPECT_NO_THROW(reader.check({experts, count}));
  EXPECT_REFUSED(reader.check({experts}), "extra tensor \"count\"");
  EXPECT_REFUSED(reader.check({experts, count, {"m", DType::kF32, {3}}}),
                 "missing tensor \"m\" [3]");
  EXPECT_REFUSED(reader.check({{"experts.w", DType::kF32, {kE, kIn, kOut}}, count}),
                 "tensor \"experts.w\" has shape [4, 6, 5], this run needs [4, 5, 6]");
  EXPECT_REFUSED(reader.check({{"experts.w", DType::kBF16, {kE, kOut, kIn}}, count}),
                 "is f32, this run needs bf16");
  EXPECT_NO_THROW(reader.check({{"experts.w", DType::kBF16, {kE, kOut, kIn}}, count}, false));
  std::vector<StateSpec> many{experts, count};
  for (int i = 0; i < 25; ++i) many.push_back({cat("more.", i), DType::kF32, {1}});
  const std::string message = message_of<UserError>([&] { reader.check(many); });
  EXPECT_NE(message.find("and 15 more like these (25 in all)"), std::string::npos) << message;
  EXPECT_EQ(message.find("more.10"), std::string::npos);
  float x;
  EXPECT_REFUSED(reader.read("absent", {}, DType::kF32, &x), "missing tensor \"absent\"");
  EXPECT_REFUSED(reader.read("count", {}, DType::kF32, &x), "cannot be read as f32");
  EXPECT_REFUSED(reader.metadata("seed"), "does not record \"seed\"");
  EXPECT_NE(reader.describe().find("experts.w  f32 [4, 6, 5]  in 2 boxes"), std::string::npos);
}

TEST(Store, WrongPathsAreRefused) {
  const TempFolder folder;
  std::vector<std::string> warnings;
  EXPECT_EQ(find(folder / "absent", &warnings), "");
  EXPECT_EQ(find(folder.path(), &warnings), "");
  EXPECT_TRUE(warnings.empty());
  EXPECT_REFUSED(resolve_checkpoint(folder / "absent", &warnings), "no such checkpoint folder");
  EXPECT_REFUSED(resolve_checkpoint(folder.path(), &warnings), "no checkpoint here");
  EXPECT_REFUSED(CheckpointReader(folder / "step_00000999"), "step_00000999");
  save(folder / "checkpoints", 3, {1, 1, 1});
  const std::string expected = folder / "checkpoints/step_00000003";
  EXPECT_EQ(resolve_checkpoint(folder.path(), &warnings), expected);
  EXPECT_EQ(resolve_checkpoint(folder / "checkpoints", &warnings), expected);
  EXPECT_EQ(resolve_checkpoint(expected, &warnings), expected);
}

TEST(Store, EveryDamagedByteIsFound) {
  const TempFolder folder;
  save(folder.path(), 1, {2, 1, 1});
  const std::string one = folder / "step_00000001";
  for (const std::string name :
       {"rank_00000.safetensors", "rank_00001.safetensors", "manifest.json"}) {
    const std::string path = one + "/" + name;
    const std::string good = read_bytes(path);
    for (size_t at = 0; at < good.size(); at += 3) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 4);
      write_bytes(path, bad);
      EXPECT_THROW(verify_checkpoint(one), UserError) << name << " byte " << at;
    }
    for (const size_t size : {size_t{0}, size_t{7}, good.size() / 2, good.size() - 1}) {
      write_bytes(path, good.substr(0, size));
      EXPECT_THROW(verify_checkpoint(one), UserError) << name << " cut to " << size;
    }
    write_bytes(path, good + "x");
    EXPECT_THROW(verify_checkpoint(one), UserError);
    fs::remove(path);
    EXPECT_THROW(CheckpointReader{one}, UserError);
    write_bytes(path, good);
  }
  expect_complete(one, 1);
  std::string bytes = read_bytes(one + "/rank_00001.safetensors");
  bytes[bytes.size() - 1] ^= 1;
  write_bytes(one + "/rank_00001.safetensors", bytes);
  EXPECT_REFUSED(verify_checkpoint(one), "tensor \"experts.w@2:4,0:6,0:5\" is damaged");
  std::vector<float> out(kE * kOut * kIn);
  EXPECT_REFUSED(
      CheckpointReader(one).read("experts.w", whole_box({kE, kOut, kIn}), DType::kF32, out.data()),
      "is damaged");
  EXPECT_NO_THROW(CheckpointReader(one).verify(0, 2));  // the first rank's share is whole
  EXPECT_THROW(CheckpointReader(one).verify(1, 2), UserError);
}

TEST(Store, MutatedManifestsNeverCrash) {
  const TempFolder folder;
  save(folder.path(), 1, {2, 1, 1});
  const std::string good = read_bytes(folder / "step_00000001/manifest.json");
  const CounterRandom random(2, "manifest mutations");
  const size_t head = good.find('\n', 3) + 1;
  for (uint64_t round = 0; round < 5000; ++round) {
    std::string bytes = good;
    const size_t at = head + random.bits(round * 4) % (bytes.size() - head);
    const uint32_t value = random.bits(round * 4 + 1);
    switch (random.bits(round * 4 + 2) % 4) {
      case 0:
        bytes[at] = static_cast<char>(value);
        break;
      case 1:
        bytes.erase(at, 1 + value % 20);
        break;
      case 2:
        bytes[at] = "0123456789-,:\"[]{} "[value % 19];
        break;
      default:
        bytes.insert(at, bytes.substr(value % bytes.size(), value % 30));
        break;
    }
    if (bytes.size() > head) {  // with a matching checksum, so that the reader behind it is reached
      const std::string body = bytes.substr(head);
      bytes = "{\n\"crc32c\": \"" + crc_text(crc32c(0, body.data(), body.size())) + "\",\n" + body;
    }
    try {
      for (const StoredState& s : parse_manifest(bytes, "m").states) {
        for (const StoredBox& b : s.boxes) ASSERT_TRUE(inside(b.box, s.global));
      }
    } catch (const UserError&) {
    }
  }
}

TEST(Store, KilledSavesAreInvisibleAndCleaned) {
  const TempFolder folder;
  std::vector<std::string> warnings;
  save(folder.path(), 5, {2, 1, 1});
  save(folder.path(), 10, {2, 1, 1}, false);  // killed before publication
  EXPECT_TRUE(fs::exists(folder / "step_00000010.tmp"));
  EXPECT_EQ(find(folder.path(), &warnings), "step_00000005");
  EXPECT_TRUE(warnings.empty());
  EXPECT_EQ(prepare_root(folder.path(), 100, 2), "");
  EXPECT_FALSE(fs::exists(folder / "step_00000010.tmp"));
  save(folder.path(), 10, {2, 1, 1}, false);
  save(folder.path(), 15, {1, 1, 1});  // the next save also clears it
  EXPECT_FALSE(fs::exists(folder / "step_00000010.tmp"));
  EXPECT_EQ(find(folder.path(), &warnings), "step_00000015");
  begin_save(folder.path(), 20, 1);
  EXPECT_REFUSED(publish(folder.path(), 20, 1, {}, {}), "rank 0 wrote nothing here");
  abandon_save(folder.path(), 20);
  EXPECT_EQ(published_steps(folder.path()), (std::vector<int64_t>{5, 15}));
}

TEST(Store, RenamedButNotYetPointedTo) {
  const TempFolder folder;
  std::vector<std::string> warnings;
  save(folder.path(), 5, {1, 1, 1});
  save(folder.path(), 10, {1, 1, 1});
  write_bytes(folder / "latest", "step_00000005\n");  // killed between rename and pointer
  EXPECT_EQ(find(folder.path(), &warnings), "step_00000005");
  save(folder.path(), 10, {2, 1, 1});  // the run gets there again and replaces it
  expect_complete(folder / "step_00000010", 10);
  EXPECT_EQ(find(folder.path(), &warnings), "step_00000010");
  EXPECT_FALSE(fs::exists(folder / "step_00000010.tmp"));
  save(folder.path(), 7, {1, 1, 1});  // rolled back: 10 is no longer this run's future
  EXPECT_EQ(published_steps(folder.path()), (std::vector<int64_t>{5, 7}));
  expect_complete(folder / "superseded_step_00000010", 10);
}

TEST(Store, DamagedPointerOrCheckpointFallsBack) {
  const TempFolder folder;
  for (const int64_t step : {5, 10, 15}) save(folder.path(), step, {2, 1, 1});
  for (const std::string pointer : {"", "garbage", "step_00000099\n", "step_15", "../x"}) {
    std::vector<std::string> warnings;
    write_bytes(folder / "latest", pointer);
    EXPECT_EQ(find(folder.path(), &warnings), "step_00000015") << pointer;
    EXPECT_EQ(warnings.size(), 1u) << pointer;
  }
  std::vector<std::string> warnings;
  const auto next = [&](const std::vector<std::string>& unusable) {
    return fs::path(find_checkpoint(folder.path(), Trust::kSizes, &warnings, unusable)).filename();
  };
  write_bytes(folder / "latest", "step_00000015\n");
  EXPECT_EQ(next({"step_00000015"}), "step_00000010");
  EXPECT_EQ(next({"step_00000010"}), "step_00000015");
  EXPECT_TRUE(warnings.empty());
  EXPECT_REFUSED(next({"step_00000005", "step_00000010", "step_00000015"}), "none is complete");
  fs::remove(folder / "latest");
  EXPECT_EQ(find(folder.path(), &warnings), "step_00000015");
  EXPECT_EQ(warnings.size(), 1u);
  write_bytes(folder / "latest", "step_00000015\n");
  write_bytes(folder / "step_00000015/rank_00001.safetensors", "");
  warnings.clear();
  EXPECT_EQ(find(folder.path(), &warnings, Trust::kSizes), "step_00000010");
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("file rank_00001.safetensors has 0 bytes"), std::string::npos);
  std::string bytes = read_bytes(folder / "step_00000010/rank_00000.safetensors");
  bytes.back() ^= 1;
  write_bytes(folder / "step_00000010/rank_00000.safetensors", bytes);
  warnings.clear();
  EXPECT_EQ(find(folder.path(), &warnings), "step_00000005");
  EXPECT_EQ(warnings.size(), 2u);
  fs::remove(folder / "step_00000005/manifest.json");
  EXPECT_REFUSED(find(folder.path(), &warnings), "none is complete");
  for (const char* step : {"step_00000005", "step_00000010", "step_00000015"}) {
    fs::remove_all(folder / step);
  }
  EXPECT_REFUSED(find(folder.path(), &warnings), "none is complete");
}

TEST(Store, RetentionKeepsTheNewestAndLandmarks) {
  const TempFolder folder;
  for (int64_t step = 1; step <= 9; ++step) save(folder.path(), step, {1, 1, 1}, true, {2, 4});
  EXPECT_EQ(published_steps(folder.path()), (std::vector<int64_t>{4, 8, 9}));
  save(folder.path(), 10, {1, 1, 1}, true, {1, 0});
  EXPECT_EQ(published_steps(folder.path()), (std::vector<int64_t>{10}));
  save(folder.path(), 11, {1, 1, 1}, true, {0, 0});
  EXPECT_EQ(published_steps(folder.path()), (std::vector<int64_t>{10, 11}));
}

TEST(Store, SpaceIsCheckedFirst) {
  const TempFolder folder;
  save(folder.path(), 1, {1, 1, 1});
  const uint64_t too_much = uint64_t{1} << 60;
  EXPECT_REFUSED(begin_save(folder.path(), 2, too_much), "the checkpoint of step 2 needs");
  EXPECT_REFUSED(prepare_root(folder.path(), too_much, 1), "bytes) are free");
  EXPECT_NE(prepare_root(folder.path(), 1 << 20, int64_t{1} << 40), "");
  EXPECT_EQ(published_steps(folder.path()), std::vector<int64_t>{1});
  std::vector<std::string> warnings;
  EXPECT_EQ(find(folder.path(), &warnings), "step_00000001");
  write_bytes(folder / "file", "x");
  EXPECT_REFUSED(prepare_root(folder / "file", 1, 1), "cannot make the folder");
}

TEST(Store, LeavesForeignFilesAlone) {
  const TempFolder folder;
  write_bytes(folder / "notes.tmp", "mine");
  fs::create_directory(folder / "step_best");
  save(folder.path(), 1, {1, 1, 1}, true, {1, 0});
  save(folder.path(), 2, {1, 1, 1}, true, {1, 0});
  EXPECT_EQ(read_bytes(folder / "notes.tmp"), "mine");
  EXPECT_TRUE(fs::exists(folder / "step_best"));
}

TEST(Store, OverlappingOrMissingBoxesAreOurBug) {
  const TempFolder folder;
  const std::vector<float> data(4);
  begin_save(folder.path(), 1, 1);
  write_shards(folder.path(), 1, 0, {{"w", DType::kF32, {4}, {{0}, {2}}, data.data(), {}}});
  write_shards(folder.path(), 1, 1, {{"w", DType::kF32, {4}, {{1}, {3}}, data.data(), {}}});
  EXPECT_THROW(publish(folder.path(), 1, 2, {}, {}), InternalError);
  EXPECT_THROW(publish(folder.path(), 1, 1, {}, {}), InternalError);
  EXPECT_TRUE(published_steps(folder.path()).empty());
}

TEST(Store, StreamsProducedTensors) {
  const TempFolder folder;
  int calls = 0;
  std::vector<ShardOut> shards;
  for (int64_t row = 0; row < 3; ++row) {
    shards.push_back(
        {"w", DType::kF32, {3, 2}, {{row, 0}, {1, 2}}, nullptr, [&calls, row](void* out) {
           ++calls;
           static_cast<float*>(out)[0] = static_cast<float>(row);
           static_cast<float*>(out)[1] = 7;
         }});
  }
  write_single(folder / "made", 0, shards, {{"source", "test"}});
  EXPECT_EQ(calls, 3);
  std::vector<float> out(6);
  CheckpointReader(folder / "made").read("w", whole_box({3, 2}), DType::kF32, out.data());
  EXPECT_EQ(out, (std::vector<float>{0, 7, 1, 7, 2, 7}));
  EXPECT_REFUSED(write_single(folder / "made", 0, shards, {}), "exists already");
  EXPECT_FALSE(fs::exists(folder / "made.tmp"));
}

}  // namespace
}  // namespace moetrain
