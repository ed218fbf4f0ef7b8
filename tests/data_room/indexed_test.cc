// The .bin/.idx format: golden bytes, every fault refused by name, 64-bit positions.
#include "data/indexed.h"

#include <fcntl.h>

#include <cstring>

#include "files.h"

namespace moetrain {
namespace {

using test::from_hex;
using test::read_file;
using test::refusal;
using test::Scratch;
using test::write_file;

const std::string kGoldenIdx = from_hex(
    "4d4d494449445800000100000000000000080300000000000000030000000000000003000000020000000100000000"
    "0000000000000006"
    "000000000000000a00000000000000000000000000000002000000000000000300000000000000");
const std::string kGoldenBin = from_hex("010002000300040005000600");

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

template <class T>
void put(std::string& bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

TEST(Indexed, WritesTheGoldenBytes) {
  Scratch dir;
  IndexedWriter writer(dir / "a", TokenType::kU16);
  writer.add_sequence(std::vector<int32_t>{1, 2, 3});
  writer.add_sequence(std::vector<int32_t>{4, 5});
  writer.end_document();
  writer.add_document(std::vector<int32_t>{6});
  writer.finish();
  EXPECT_EQ(read_file(dir / "a.idx"), kGoldenIdx);
  EXPECT_EQ(read_file(dir / "a.bin"), kGoldenBin);
  EXPECT_EQ(dir.files(), 2u);
}

TEST(Indexed, ReadsTheGoldenBytes) {
  Scratch dir;
  write_file(dir / "a.idx", kGoldenIdx);
  write_file(dir / "a.bin", kGoldenBin);
  const IndexedDataset data(dir / "a", {.vocab_size = 7});
  EXPECT_EQ(data.sequences(), 3);
  EXPECT_EQ(data.documents(), 2);
  EXPECT_EQ(data.tokens(), 6);
  EXPECT_EQ(data.document_begin(1), 2);
  int32_t two[2];
  data.read(1, 0, 2, two);
  EXPECT_EQ(two[0], 4);
  EXPECT_EQ(two[1], 5);
  data.read(0, 2, 1, two);
  EXPECT_EQ(two[0], 3);
}

TEST(Indexed, NothingRemainsWithoutFinish) {
  Scratch dir;
  { IndexedWriter(dir / "a", TokenType::kU16).add_document(std::vector<int32_t>{1}); }
  EXPECT_EQ(dir.files(), 0u);
  IndexedWriter writer(dir / "a", TokenType::kU16);
  EXPECT_TRUE(has(refusal([&] { writer.add_document(std::vector<int32_t>{70000}); }),
                  "70000 does not fit uint16"));
  EXPECT_TRUE(
      has(refusal([&] { writer.add_document(std::vector<int32_t>{-1}); }), "-1 does not fit"));
  EXPECT_TRUE(has(refusal([&] { IndexedWriter(dir / "none/a", TokenType::kU16); }),
                  "none/a.bin: cannot create"));
}

TEST(Indexed, EveryIntegerTypeReadsRight) {
  for (TokenType type : {TokenType::kU8, TokenType::kI8, TokenType::kI16, TokenType::kI32,
                         TokenType::kI64, TokenType::kU16}) {
    Scratch dir;
    IndexedWriter writer(dir / "a", type);
    writer.add_document(std::vector<int32_t>{0, 127, 5});
    writer.finish();
    const IndexedDataset data(dir / "a");
    int32_t three[3];
    data.read(0, 0, 3, three);
    EXPECT_EQ(three[1], 127) << name_of(type);
    EXPECT_EQ(three[2], 5) << name_of(type);
  }
  EXPECT_EQ(token_type_for(65499), TokenType::kU16);
  EXPECT_EQ(token_type_for(65500), TokenType::kI32);
}

TEST(Indexed, EveryFaultIsRefusedByName) {
  struct Case {
    const char* message;
    void (*damage)(std::string& idx, std::string& bin);
  };
  const Case cases[] = {
      {"last document boundary: expected 3 (the number of sequences), found 2",
       [](std::string& idx, std::string&) { put<int64_t>(idx, 34 + 36 + 16, 2); }},
      {"magic: expected", [](std::string& idx, std::string&) { idx[0] = 'X'; }},
      {"version: expected 1, found 2",
       [](std::string& idx, std::string&) { put<uint64_t>(idx, 9, 2); }},
      {"dtype code: expected 1 to 8, found 9", [](std::string& idx, std::string&) { idx[17] = 9; }},
      {"dtype code: expected 1 to 8, found 0", [](std::string& idx, std::string&) { idx[17] = 0; }},
      {"dtype code: 6 (float64)", [](std::string& idx, std::string&) { idx[17] = 6; }},
      {"sequence count: 1000000",
       [](std::string& idx, std::string&) { put<uint64_t>(idx, 18, 1000000); }},
      {"sequence count: 18446744073709551615",
       [](std::string& idx, std::string&) { put<uint64_t>(idx, 18, ~0ull); }},
      {"document count: 9223372036854775808",
       [](std::string& idx, std::string&) { put<uint64_t>(idx, 26, 1ull << 63); }},
      {"document count: expected at least 1",
       [](std::string& idx, std::string&) { put<uint64_t>(idx, 26, 0); }},
      {"document boundary 2: expected at least 4, found 3",
       [](std::string& idx, std::string&) { put<int64_t>(idx, 34 + 36 + 8, 4); }},
      {"document boundary 0: expected 0, found 1",
       [](std::string& idx, std::string&) { put<int64_t>(idx, 34 + 36, 1); }},
      {"file size: expected 94 bytes", [](std::string& idx, std::string&) { idx.pop_back(); }},
      {"file size: expected 94 bytes", [](std::string& idx, std::string&) { idx += "12"; }},
      {"multimodal modes are not supported", [](std::string& idx, std::string&) { idx += "123"; }},
      {"header: expected at least 34 bytes, found 0",
       [](std::string& idx, std::string&) { idx.clear(); }},
      {"header: expected at least 34 bytes, found 20",
       [](std::string& idx, std::string&) { idx.resize(20); }},
      {"pointer of sequence 1: expected 6 (running sum",
       [](std::string& idx, std::string&) { put<int64_t>(idx, 34 + 12 + 8, 8); }},
      {"pointer of sequence 0: expected 0",
       [](std::string& idx, std::string&) { put<int64_t>(idx, 34 + 12, -6); }},
      {"length of sequence 2: expected 0 or more, found -1",
       [](std::string& idx, std::string&) { put<int32_t>(idx, 34 + 8, -1); }},
      {"a.bin: file size: expected 12 bytes",
       [](std::string&, std::string& bin) { bin.pop_back(); }},
      {"a.bin: file size: expected 12 bytes", [](std::string&, std::string& bin) { bin.clear(); }},
  };
  for (const Case& c : cases) {
    Scratch dir;
    std::string idx = kGoldenIdx, bin = kGoldenBin;
    c.damage(idx, bin);
    write_file(dir / "a.idx", idx);
    write_file(dir / "a.bin", bin);
    const std::string message = refusal([&] { IndexedDataset(dir / "a"); });
    EXPECT_TRUE(has(message, c.message)) << message << "\n expected: " << c.message;
    EXPECT_TRUE(has(message, dir / "a.")) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
  Scratch dir;
  EXPECT_TRUE(has(refusal([&] { IndexedDataset(dir / "a"); }), "a.idx: no such file"));
  EXPECT_TRUE(has(refusal([&] { IndexedDataset(dir / "a.bin"); }), "without .bin or .idx"));
}

// Any single byte changed: either still a well-formed file, or a UserError; never anything else.
TEST(Indexed, MutatedIndexNeverCrashes) {
  Scratch dir;
  write_file(dir / "a.bin", kGoldenBin);
  int refused = 0;
  for (size_t at = 0; at < kGoldenIdx.size(); ++at) {
    for (int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      std::string idx = kGoldenIdx;
      idx[at] = static_cast<char>(value);
      write_file(dir / "a.idx", idx);
      try {
        const IndexedDataset data(dir / "a");
        data.verify_tokens();
      } catch (const UserError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 300);
}

TEST(Indexed, TokenBeyondTheVocabularyIsNamed) {
  for (int64_t verify : {int64_t{1} << 20, int64_t{-1}}) {
    Scratch dir;
    IndexedWriter writer(dir / "a", TokenType::kI32);
    for (int d = 0; d < 9; ++d)
      writer.add_document(std::vector<int32_t>{1, 2, 3, d == 7 ? 100 : 4, 5});
    writer.finish();
    EXPECT_NO_THROW(IndexedDataset(dir / "a", {.vocab_size = 101, .verify_bytes = verify}));
    const std::string message = refusal([&] {
      const IndexedDataset data(dir / "a", {.vocab_size = 100, .verify_bytes = verify});
      int32_t five[5];
      for (int64_t i = 0; i < data.sequences(); ++i) data.read(i, 0, 5, five);
    });
    EXPECT_TRUE(has(
        message,
        "a.bin: document 7, sequence 7, position 3: token id 100 but the vocabulary has 100 ids"))
        << message;
  }
}

TEST(Indexed, WrappingTypeIsWarnedAbout) {
  Scratch dir;
  write_file(dir / "a.idx", kGoldenIdx);
  write_file(dir / "a.bin", kGoldenBin);
  EXPECT_TRUE(IndexedDataset(dir / "a", {.vocab_size = 65536}).warnings().empty());
  const IndexedDataset data(dir / "a", {.vocab_size = 129280});
  ASSERT_EQ(data.warnings().size(), 1u);
  EXPECT_TRUE(has(data.warnings()[0], "uint16"));
  EXPECT_TRUE(has(data.warnings()[0], "129280"));
}

TEST(Indexed, PositionsBeyondFourGiB) {
  Scratch dir;
  // Two sequences: the first fills 4 GiB + 8 bytes (sparse), the second holds three tokens.
  const int64_t first = ((int64_t{1} << 32) + 8) / 4;
  std::string idx(34 + 12 * 2 + 8 * 2, '\0');
  std::memcpy(idx.data(), kGoldenIdx.data(), 17);
  idx[17] = 4;
  put<uint64_t>(idx, 18, 2);
  put<uint64_t>(idx, 26, 2);
  put<int32_t>(idx, 34, static_cast<int32_t>(first));
  put<int32_t>(idx, 38, 3);
  put<int64_t>(idx, 42, 0);
  put<int64_t>(idx, 50, first * 4);
  put<int64_t>(idx, 58, 0);
  put<int64_t>(idx, 66, 2);
  write_file(dir / "a.idx", idx);
  const int fd = ::open((dir / "a.bin").c_str(), O_WRONLY | O_CREAT, 0600);
  const int32_t tail[3] = {11, 12, 13};
  if (::pwrite(fd, tail, sizeof tail, first * 4) != static_cast<ssize_t>(sizeof tail)) {
    ::close(fd);
    GTEST_SKIP() << "the file system holds no sparse file of 4 GiB";
  }
  ::close(fd);
  const IndexedDataset data(dir / "a", {.vocab_size = 100});
  int32_t three[3];
  data.read(1, 0, 3, three);
  EXPECT_EQ(three[0], 11);
  EXPECT_EQ(three[2], 13);
  EXPECT_EQ(data.tokens(), first + 3);
}

TEST(Indexed, MergeShiftsBoundaries) {
  Scratch dir;
  write_file(dir / "a.idx", kGoldenIdx);
  write_file(dir / "a.bin", kGoldenBin);
  const IndexedDataset a(dir / "a");
  IndexedWriter writer(dir / "b", TokenType::kU16);
  writer.append(a);
  writer.append(a);
  writer.finish();
  const IndexedDataset b(dir / "b");
  EXPECT_EQ(b.documents(), 4);
  EXPECT_EQ(b.document_begin(2), 3);
  EXPECT_EQ(b.document_begin(4), 6);
  EXPECT_EQ(b.tokens(), 12);
  IndexedWriter wide(dir / "c", TokenType::kI32);
  EXPECT_TRUE(has(refusal([&] { wide.append(a); }), "merging needs equal types"));
}

TEST(Indexed, EmptyDatasetIsWellFormed) {
  Scratch dir;
  IndexedWriter(dir / "a", TokenType::kU16).finish();
  const IndexedDataset data(dir / "a");
  EXPECT_EQ(data.sequences(), 0);
  EXPECT_EQ(data.documents(), 0);
}

}  // namespace
}  // namespace moetrain
