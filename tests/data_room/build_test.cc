// Text to .bin/.idx: documents, threads, faults with file and line, nothing left behind,
// inspection.
#include "data/build.h"

#include <gtest/gtest.h>

#include "data/inspect.h"
#include "files.h"

namespace moetrain {
namespace {

using test::read_file;
using test::refusal;
using test::Scratch;
using test::write_file;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<std::string> documents_of(const std::string& prefix) {
  const IndexedDataset data(prefix);
  const auto bytes = make_byte_tokenizer();
  std::vector<std::string> out;
  for (int64_t i = 0; i < data.sequences(); ++i) {
    std::vector<int32_t> ids(static_cast<size_t>(data.length(i)));
    data.read(i, 0, data.length(i), ids.data());
    EXPECT_EQ(ids.back(), 256);
    out.push_back(bytes->decode(ids, true));
  }
  return out;
}

BuildOptions options_for(const Scratch& dir, std::vector<std::string> inputs) {
  BuildOptions options;
  for (const auto& name : inputs) options.corpus.inputs.push_back(dir / name);
  options.prefix = dir / "out/tokens";
  return options;
}

using Strings = std::vector<std::string>;

TEST(Build, CutsPlainText) {
  Scratch dir;
  write_file(dir / "a.txt", "\xEF\xBB\xBFone\ntwo\n\n\n \nthree\r\n\nfour");
  write_file(dir / "b.txt", "");
  const auto bytes = make_byte_tokenizer();
  BuildOptions options = options_for(dir, {"a.txt", "b.txt"});
  BuildReport report = build_dataset(*bytes, options);
  EXPECT_EQ(documents_of(options.prefix), (Strings{"one\ntwo\n\n\n \nthree\r\n\nfour"}));
  EXPECT_EQ(report.documents, 1);
  EXPECT_EQ(report.type, TokenType::kU16);
  options.corpus.cut = DocumentCut::kBlankLines;
  build_dataset(*bytes, options);
  EXPECT_EQ(documents_of(options.prefix), (Strings{"one\ntwo", "three", "four"}));
  options.corpus.cut = DocumentCut::kLine;
  build_dataset(*bytes, options);
  EXPECT_EQ(documents_of(options.prefix), (Strings{"one", "two", "three", "four"}));
  write_file(dir / "a.txt", "---\none\n\n---\n---\r\ntwo\nthree\n---\n");
  options.corpus.cut = DocumentCut::kSeparatorLine;
  options.corpus.separator = "---";
  build_dataset(*bytes, options);
  EXPECT_EQ(documents_of(options.prefix), (Strings{"one\n", "two\nthree"}));
}

TEST(Build, ReadsJsonlWithItsEscapes) {
  Scratch dir;
  write_file(dir / "a.jsonl",
             "{\"body\": \"a\\nb\\u0000\\ud83d\\ude00\", \"n\": 1}\n\n{\"body\": "
             "\"\"}\r\n{\"body\": \"last\"}");
  BuildOptions options = options_for(dir, {"a.jsonl"});
  options.corpus.key = "body";
  const BuildReport report = build_dataset(*make_byte_tokenizer(), options);
  EXPECT_EQ(documents_of(options.prefix),
            (Strings{std::string("a\nb\0\xF0\x9F\x98\x80", 8), "last"}));
  EXPECT_EQ(report.empty_documents, 1);
  EXPECT_TRUE(has(report.text(), "2 documents, 14 tokens (uint16)")) << report.text();
}

TEST(Build, SameBytesForAnyNumberOfThreads) {
  Scratch dir;
  std::string lines;
  for (int i = 0; i < 3000; ++i)
    lines += "{\"text\": \"document " + std::to_string(i * i) + " of the the set\"}\n";
  write_file(dir / "a.jsonl", lines);
  train_tokenizer({.inputs = {dir / "a.jsonl"},
                   .format = TextFormat::kAuto,
                   .key = "text",
                   .cut = DocumentCut::kFile,
                   .separator = ""},
                  {.vocab_size = 400}, dir / "t.json");
  const auto tokenizer = open_tokenizer(dir / "t.json");
  std::string bin, idx;
  for (int threads : {1, 2, 5}) {
    BuildOptions options = options_for(dir, {"a.jsonl"});
    options.threads = threads;
    int64_t done = 0, total = -1;
    options.progress = [&](int64_t d, int64_t t) { done = d, total = t; };
    build_dataset(*tokenizer, options);
    EXPECT_EQ(done, total);
    EXPECT_EQ(total, static_cast<int64_t>(lines.size()));
    if (bin.empty())
      bin = read_file(options.prefix + ".bin"), idx = read_file(options.prefix + ".idx");
    EXPECT_EQ(read_file(options.prefix + ".bin"), bin);
    EXPECT_EQ(read_file(options.prefix + ".idx"), idx);
  }
  const IndexedDataset data(dir / "out/tokens");
  EXPECT_EQ(data.documents(), 3000);
  std::vector<int32_t> ids(static_cast<size_t>(data.length(7)));
  data.read(7, 0, data.length(7), ids.data());
  EXPECT_EQ(ids.back(), tokenizer->eod());
  EXPECT_EQ(tokenizer->decode(ids, true), "document 49 of the the set");
}

TEST(Build, FaultsNameFileAndLineAndLeaveNothing) {
  struct Case {
    const char* name;
    const char* content;
    const char* message;
  };
  const Case cases[] = {
      {"a.jsonl", "{\"text\": \"x\"}\n{\"text\": 3}\n",
       "a.jsonl:2: \"text\" must be a string, found number"},
      {"a.jsonl", "{\"text\": \"x\"}\n\n{\"txt\": \"y\"}\n",
       "a.jsonl:3: no key \"text\"; did you mean \"txt\"?"},
      {"a.jsonl", "{\"text\": \"x\"\n", "a.jsonl:1: "},
      {"a.jsonl", "{\"text\": \"x\"}\n[1]\n", "a.jsonl:2: expected a JSON object, found array"},
      {"a.jsonl", "{\"text\": \"ok\"}\n{\"text\": \"\xC3(\"}\n",
       "a.jsonl:2: not UTF-8: ill-formed byte 195 at offset 25"},
      {"a.jsonl", "{\"text\": \"\\ud800\"}\n", "a.jsonl:1: "},
      {"a.txt",
       "one\ntwo\nthr\xff"
       "ee\n",
       "a.txt:3: not UTF-8: ill-formed byte 255 at offset 11"},
      {"a.txt", "", "no documents with text in 1 files"},
  };
  for (const Case& c : cases) {
    Scratch dir;
    write_file(dir / c.name, c.content);
    BuildOptions options = options_for(dir, {c.name});
    options.threads = 3;
    const std::string message = refusal([&] { build_dataset(*make_byte_tokenizer(), options); });
    EXPECT_TRUE(has(message, c.message)) << message << "\n expected " << c.message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_TRUE(std::filesystem::is_empty(dir / "out"));
  }
  Scratch dir;
  const std::string both = refusal([&] {
    build_dataset(*make_byte_tokenizer(), options_for(dir, {"x.txt", "y.txt"}));
  });
  EXPECT_TRUE(has(both, "x.txt: cannot open") && has(both, "y.txt: cannot open")) << both;
}

TEST(Build, AFailedRebuildKeepsTheOldFiles) {
  Scratch dir;
  write_file(dir / "a.txt", "good");
  const BuildOptions options = options_for(dir, {"a.txt"});
  build_dataset(*make_byte_tokenizer(), options);
  write_file(dir / "a.txt", "bad\xff");
  EXPECT_THROW(build_dataset(*make_byte_tokenizer(), options), UserError);
  EXPECT_EQ(documents_of(options.prefix), (Strings{"good"}));
}

TEST(Build, FoldersAreTakenInOrder) {
  Scratch dir;
  std::filesystem::create_directories(dir / "in/sub");
  write_file(dir / "in/b.txt", "B");
  write_file(dir / "in/a.txt", "A");
  write_file(dir / "in/sub/c.txt", "C");
  const BuildOptions options = options_for(dir, {"in"});
  build_dataset(*make_byte_tokenizer(), options);
  EXPECT_EQ(documents_of(options.prefix), (Strings{"A", "B", "C"}));
}

TEST(Inspect, DescribesAndChecks) {
  Scratch dir;
  write_file(dir / "a.txt", "one two\n\nthree");
  BuildOptions options = options_for(dir, {"a.txt"});
  options.corpus.cut = DocumentCut::kBlankLines;
  const auto bytes = make_byte_tokenizer();
  build_dataset(*bytes, options);
  const std::string text = inspect_dataset(options.prefix, bytes.get());
  for (const char* part :
       {"documents  2", "tokens     14", "uint16", "6 to 8, mean 7",
        "largest id 256 of a vocabulary of 257", "end-of-document tokens 2", "as text  one two"}) {
    EXPECT_TRUE(has(text, part)) << text;
  }
  EXPECT_TRUE(has(refusal([&] { inspect_dataset(options.prefix, nullptr, 200); }),
                  "token id 256 but the vocabulary has 200 ids"));
  EXPECT_FALSE(inspect_dataset(options.prefix).empty());
}

}  // namespace
}  // namespace moetrain
