// The tokenizer's parts on a small vocabulary of our own: splits, added tokens, decoding, refusals,
// damaged files.
#include "data/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "data/build.h"
#include "data/tokenizer/bpe_trainer.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/unicode.h"
#include "data/tokenizer/utf8.h"
#include "files.h"

namespace moetrain {
namespace {

using nlohmann::json;
using test::read_file;
using test::refusal;
using test::Scratch;
using test::write_file;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const char* const kText =
    "the cat sat on the mat. the cat's hat, the bat's hat; they'll chat at that.\n"
    "1234 cats and 12 hats\n\nna\xC3\xAFve caf\xC3\xA9s \xE4\xB8\xAD\xE6\x96\x87 "
    "\xE4\xB8\xAD\xE6\x96\x87  the end\n";

json small_tokenizer() {
  BpeTrainer trainer({.vocab_size = 300, .min_count = 1});
  trainer.add(kText);
  return json::parse(dump_tokenizer_json(trainer.finish()));
}

std::unique_ptr<Tokenizer> open_json(const json& root) {
  Scratch dir;
  write_file(dir / "tokenizer.json", root.dump());
  return open_tokenizer(dir / "tokenizer.json");
}

std::vector<std::string> pieces_of(std::vector<PreTokenizerStep> steps, std::string_view text) {
  const PreTokenizer cutter(steps);
  PreTokenizer::Scratch scratch;
  std::vector<std::string> out;
  cutter.each(text, scratch, [&](std::string_view piece) { out.emplace_back(piece); });
  return out;
}

PreTokenizerStep split(const std::string& pattern,
                       SplitBehavior behavior = SplitBehavior::kIsolated, bool invert = false,
                       bool literal = false) {
  PreTokenizerStep step;
  step.pattern = pattern;
  step.behavior = behavior;
  step.invert = invert;
  step.literal = literal;
  step.where = "test";
  return step;
}

using Strings = std::vector<std::string>;

TEST(Bytes, EveryByteIsAnId) {
  const auto bytes = open_tokenizer("bytes");
  EXPECT_EQ(bytes->vocab_size(), 257);
  EXPECT_EQ(bytes->eod(), 256);
  const std::string text("a\0\xff\xC3\xA9", 5);
  EXPECT_EQ(bytes->encode(text), (std::vector<int32_t>{97, 0, 255, 195, 169}));
  const std::vector<int32_t> ids{97, 0, 195, 169, 256, 300, -1};
  EXPECT_EQ(bytes->decode(ids, true), std::string("a\0\xC3\xA9", 4));
  EXPECT_THROW(open_tokenizer("bytes", "</s>"), UserError);
}

TEST(Utf8, RepairsMaximalIllFormedParts) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(utf8_lossy("a\xC3(b"), "a" + r + "(b");
  EXPECT_EQ(utf8_lossy("x\xE4\xB8"), "x" + r);
  EXPECT_EQ(utf8_lossy("\xED\xA0\x80"), r + r + r);
  EXPECT_EQ(utf8_lossy("\xF0\x9F\x98\xF0\x9F\x98\x80"), r + "\xF0\x9F\x98\x80");
  EXPECT_EQ(utf8_find_invalid("abcdefgh\xC3\xA9ijklmnopqrs\xC0"), 21u);
  EXPECT_EQ(utf8_find_invalid("all fine \xF4\x8F\xBF\xBF"), std::string_view::npos);
  EXPECT_EQ(utf8_unfinished_tail("a\xE4\xB8"), 2u);
  EXPECT_EQ(utf8_unfinished_tail("a\xE4\xB8\xAD"), 0u);
  EXPECT_EQ(utf8_unfinished_tail("\x80\x80"), 0u);
}

TEST(Unicode, ClassesAreUnicode16WhateverTheLibraryHas) {
  EXPECT_TRUE(contains(unicode_class('S'), 0x1FAE8));
  EXPECT_FALSE(contains(unicode_class('s'), 0x180E));
  const std::string shaking = "\xF0\x9F\xAB\xA8";  // U+1FAE8, Unicode 15
  EXPECT_EQ(pieces_of({split(" ?\\p{S}+")}, "a " + shaking), (Strings{"a", " " + shaking}));
  EXPECT_EQ(pieces_of({split("[^\\P{S}]+")}, "a " + shaking), (Strings{"a ", shaking}));
  const std::string separator = "\xE1\xA0\x8E";  // U+180E is white space for PCRE2 only
  EXPECT_EQ(pieces_of({split("\\s+")}, "a " + separator + " b"),
            (Strings{"a", " ", separator, " ", "b"}));
  EXPECT_EQ(pieces_of({split("[\\S]+")}, "a" + separator + " b"),
            (Strings{"a" + separator, " ", "b"}));
  const CodeRange a[] = {{10, 20}, {30, 40}}, b[] = {{0, 12}, {15, 16}, {20, 35}};
  const auto rest = difference(a, b);
  ASSERT_EQ(rest.size(), 3u);
  EXPECT_EQ(rest[0].first, 13u);
  EXPECT_EQ(rest[1].last, 19u);
  EXPECT_EQ(rest[2].first, 36u);
}

TEST(Split, EveryBehaviour) {
  const std::string text = "a--b-c-";
  EXPECT_EQ(pieces_of({split("-")}, text), (Strings{"a", "-", "-", "b", "-", "c", "-"}));
  EXPECT_EQ(pieces_of({split("-", SplitBehavior::kRemoved)}, text), (Strings{"a", "b", "c"}));
  EXPECT_EQ(pieces_of({split("-", SplitBehavior::kContiguous)}, text),
            (Strings{"a", "--", "b", "-", "c", "-"}));
  EXPECT_EQ(pieces_of({split("-", SplitBehavior::kMergedWithPrevious)}, text),
            (Strings{"a-", "-", "b-", "c-"}));
  EXPECT_EQ(pieces_of({split("-", SplitBehavior::kMergedWithNext)}, text),
            (Strings{"a", "-", "-b", "-c", "-"}));
  EXPECT_EQ(pieces_of({split("[abc]", SplitBehavior::kRemoved, true)}, text),
            (Strings{"a", "b", "c"}));
  EXPECT_EQ(pieces_of({split("--", SplitBehavior::kIsolated, false, true)}, text),
            (Strings{"a", "--", "b-c-"}));
  EXPECT_EQ(pieces_of({split("x*")}, "axb"), (Strings{"a", "x", "b"}));
}

// The end of a piece is the end of the subject: "a  1" keeps both spaces together.
TEST(Split, StepsSeeOnlyTheirPiece) {
  EXPECT_EQ(pieces_of({split("\\p{N}{1,3}"), split("\\s+(?!\\S)|\\s+")}, "a  1234"),
            (Strings{"a", "  ", "123", "4"}));
  EXPECT_EQ(pieces_of({split("\\p{N}{1,3}|\\s+(?!\\S)|\\s+")}, "a  1"),
            (Strings{"a", " ", " ", "1"}));
}

TEST(Split, WhatLibrariesReadDifferentlyIsRefused) {
  for (const char* bad :
       {"\\d", "\\w+", "\\bx", "\\p{Lu}", "\\p{Han}", "[a[b]]", "[a&&b]", "(?<n>x)", "a{2}+",
        "a{,2}", "[a", "(a", "\\", "(*UTF)x", "\\h", "[\\s-x]", "\\x{zz}", "\\p{L"}) {
    const std::string message = refusal([&] { pieces_of({split(bad)}, "x"); });
    EXPECT_TRUE(has(message, "test: regular expression")) << bad << ": " << message;
  }
  EXPECT_EQ(pieces_of({split("\\x61|\\x{62}|\\u0063|[\\]\\-]")}, "abc]d"),
            (Strings{"a", "b", "c", "]", "d"}));
}

TEST(Bpe, RoundTripAndMerges) {
  const auto tokenizer = open_json(small_tokenizer());
  EXPECT_EQ(tokenizer->vocab_size(), 300);
  EXPECT_EQ(tokenizer->eod(), 299);
  std::vector<std::string> texts{kText,
                                 "",
                                 " ",
                                 "\r\n\t ",
                                 "unseen words, 98765!",
                                 std::string("nul\0nul", 7),
                                 "\xF0\x9F\x98\x80 smile",
                                 std::string(500, 't'),
                                 " the"};
  for (const std::string& text : texts) {
    const auto ids = tokenizer->encode(text);
    EXPECT_EQ(tokenizer->decode(ids), text);
    for (int32_t id : ids) EXPECT_LT(id, 299);
    EXPECT_EQ(tokenizer->encode(text), ids) << "from the cache";
  }
  EXPECT_EQ(tokenizer->encode(" the").size(), 1u);
  EXPECT_LT(tokenizer->encode(kText).size(), std::string_view(kText).size() * 2 / 3);
  EXPECT_TRUE(has(refusal([&] { tokenizer->encode("ab\xff"); }), "ill-formed at byte 2"));
}

// Long pieces take the heap, short ones the scan: both must give what merging by hand gives.
TEST(Bpe, HeapEqualsPlainRescan) {
  const json root = small_tokenizer();
  const auto tokenizer = open_json(root);
  std::map<std::pair<std::string, std::string>, int> ranks;
  for (const auto& merge : root["model"]["merges"]) {
    const auto line = merge.get<std::string>();
    ranks.emplace(std::pair(line.substr(0, line.find(' ')), line.substr(line.find(' ') + 1)),
                  static_cast<int>(ranks.size()));
  }
  uint32_t state = 1;
  for (int round = 0; round < 60; ++round) {
    std::string piece;
    for (int i = 0; i < 5 + round * 3; ++i) {
      state = state * 1664525u + 1013904223u;
      piece += "thecats"[(state >> 16) % 7];
    }
    std::vector<std::string> symbols;
    for (char c : piece) symbols.emplace_back(1, c);
    for (;;) {
      int best = 1 << 30;
      size_t at = 0;
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        const auto it = ranks.find({symbols[i], symbols[i + 1]});
        if (it != ranks.end() && it->second < best) best = it->second, at = i;
      }
      if (best == 1 << 30) break;
      symbols[at] += symbols[at + 1];
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
    std::vector<int32_t> expected;
    for (const auto& s : symbols) expected.push_back(root["model"]["vocab"][s].get<int32_t>());
    EXPECT_EQ(tokenizer->encode(piece), expected) << piece;
  }
}

TEST(Bpe, AddedTokensOfEveryKind) {
  json root = small_tokenizer();
  const auto add = [&](const std::string& content, bool special, bool normalized, bool word,
                       bool left, bool right) {
    root["added_tokens"].push_back({{"id", 299 + root["added_tokens"].size()},
                                    {"content", content},
                                    {"special", special},
                                    {"normalized", normalized},
                                    {"single_word", word},
                                    {"lstrip", left},
                                    {"rstrip", right}});
  };
  add("<a>", true, false, false, false, false);        // 300
  add("<a>b", true, false, false, false, false);       // 301: longest wins
  add("<L>", false, true, false, true, false);         // 302
  add("<R>", false, true, false, false, true);         // 303
  add("WORD", false, true, true, false, false);        // 304
  add("q\xC3\xA9", false, true, false, false, false);  // 305: decodes as bytes by rule
  const auto t = open_json(root);
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(t->encode("x<a>b<a>"), (Ids{'x', 301, 300}));
  EXPECT_EQ(t->encode("x  <L> y"), (Ids{'x', 302, ' ', 'y'}));
  EXPECT_EQ(t->encode("x <R>  y"), (Ids{'x', ' ', 303, 'y'}));
  EXPECT_EQ(t->encode("<L> <L>"), (Ids{302, 302}));
  EXPECT_EQ(t->encode("WORD"), (Ids{304}));
  EXPECT_EQ(t->encode("(WORD)"), (Ids{'(', 304, ')'}));
  EXPECT_FALSE(has(t->decode(t->encode("xWORD WORD_"), true), "304"));
  for (int32_t id : t->encode("xWORD WORD_")) EXPECT_NE(id, 304);
  EXPECT_EQ(t->decode(Ids{305}), "q\xEF\xBF\xBD");
  EXPECT_EQ(t->decode(Ids{300, 302, 'x'}, true), "<L>x");
  EXPECT_EQ(t->decode(Ids{300, 302, 'x', 9999}, false), "<a><L>x");
}

TEST(Bpe, StreamHoldsUnfinishedCharacters) {
  const auto bytes = open_tokenizer("bytes");
  StreamDecoder stream(*bytes);
  EXPECT_EQ(stream.push(0xE4), "");
  EXPECT_EQ(stream.push(0xB8), "");
  EXPECT_EQ(stream.push(0xAD), "\xE4\xB8\xAD");
  EXPECT_EQ(stream.push(0xE4), "");
  EXPECT_EQ(stream.push('x'), "\xEF\xBF\xBDx");
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
}

TEST(Bpe, VariantsOfTheFile) {
  const json root = small_tokenizer();
  const auto plain = open_json(root)->encode(kText);
  json pairs = root;
  for (auto& merge : pairs["model"]["merges"]) {
    const auto line = merge.get<std::string>();
    merge = json::array({line.substr(0, line.find(' ')), line.substr(line.find(' ') + 1)});
  }
  EXPECT_EQ(open_json(pairs)->encode(kText), plain);
  json nested = root;
  nested["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers", json::array({root["pre_tokenizer"]})}};
  nested["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array()}};
  EXPECT_EQ(open_json(nested)->encode(kText), plain);
  json prefixed = root;
  prefixed["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_EQ(open_json(prefixed)->encode("the"), open_json(root)->encode(" the"));
  json composed = root;
  composed["normalizer"] = {{"type", "NFC"}};
  if (has_nfc()) {
    const auto nfc = open_json(composed);
    EXPECT_EQ(nfc->encode("cafe\xCC\x81 e"), open_json(root)->encode("caf\xC3\xA9 e"));
    EXPECT_EQ(nfc->encode(kText), plain);
  } else {
    EXPECT_TRUE(has(refusal([&] { open_json(composed); }), "needs a build with utf8proc"));
  }
  json digits = root;
  digits["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       json::array({{{"type", "Digits"}, {"individual_digits", true}}, root["pre_tokenizer"]})}};
  EXPECT_EQ(open_json(digits)->encode("12").size(), 2u);
  json whole = root;
  whole["model"]["ignore_merges"] = true;
  EXPECT_EQ(open_json(whole)->encode(kText), plain);
  json bare = root;
  bare["decoder"] = nullptr;
  const auto spaced = open_json(bare);
  EXPECT_EQ(spaced->decode(std::vector<int32_t>{'a', ' '}), "a \xC4\xA0");
}

TEST(Bpe, UnsupportedPartsAreRefusedByName) {
  struct Case {
    const char* message;
    void (*change)(json&);
  };
  const Case cases[] = {
      {"normalizer \"NFKC\" is not supported",
       [](json& r) {
         r["normalizer"] = {{"type", "NFKC"}};
       }},
      {"normalizer.normalizers[0]: normalizer \"Lowercase\"",
       [](json& r) {
         r["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}};
       }},
      {"pre-tokenizer \"Metaspace\" is not supported",
       [](json& r) {
         r["pre_tokenizer"] = {{"type", "Metaspace"}};
       }},
      {"no ByteLevel", [](json& r) { r["pre_tokenizer"] = nullptr; }},
      {"after ByteLevel",
       [](json& r) {
         r["pre_tokenizer"] = {{"type", "Sequence"},
                               {"pretokenizers", {r["pre_tokenizer"], {{"type", "Digits"}}}}};
       }},
      {"decoder \"Metaspace\"",
       [](json& r) {
         r["decoder"] = {{"type", "Metaspace"}};
       }},
      {"model \"Unigram\"", [](json& r) { r["model"]["type"] = "Unigram"; }},
      {"\"byte_fallback\": true", [](json& r) { r["model"]["byte_fallback"] = true; }},
      {"\"dropout\": 0.1", [](json& r) { r["model"]["dropout"] = 0.1; }},
      {"\"continuing_subword_prefix\"",
       [](json& r) { r["model"]["continuing_subword_prefix"] = "##"; }},
      {"\"truncation\"",
       [](json& r) {
         r["truncation"] = {{"max_length", 5}};
       }},
      {"model.merges[0]: \"zz\" is not in the vocabulary",
       [](json& r) { r["model"]["merges"][0] = "zz t"; }},
      {"model.merges[0]: expected", [](json& r) { r["model"]["merges"][0] = "abc"; }},
      {"no token for byte 97",
       [](json& r) { r["model"]["vocab"].erase("a"), r["model"]["vocab"]["unused"] = 97; }},
      {"belongs to", [](json& r) { r["model"]["vocab"]["a"] = 98; }},
      {"is negative", [](json& r) { r["model"]["vocab"]["a"] = -1; }},
      {"is beyond", [](json& r) { r["model"]["vocab"]["a"] = 4294967296; }},
      {"has id 400 but the reference would use 299",
       [](json& r) { r["added_tokens"][0]["id"] = 400; }},
      {"\"vocab\" is missing", [](json& r) { r["model"].erase("vocab"); }},
      {"\"content\" must be a string", [](json& r) { r["added_tokens"][0]["content"] = 1; }},
      {"behavior \"Sideways\" is unknown",
       [](json& r) {
         r["pre_tokenizer"] = {
             {"type", "Split"}, {"pattern", {{"Regex", "x"}}}, {"behavior", "Sideways"}};
       }},
  };
  for (const Case& c : cases) {
    json root = small_tokenizer();
    c.change(root);
    const std::string message = refusal([&] { open_json(root); });
    EXPECT_TRUE(has(message, c.message)) << message << "\n expected " << c.message;
    EXPECT_TRUE(has(message, "tokenizer.json")) << message;
  }
  Scratch dir;
  EXPECT_TRUE(has(refusal([&] { open_tokenizer(dir / "none.json"); }), "cannot open"));
  write_file(dir / "t.json", "{\"a\": ");
  EXPECT_TRUE(
      has(refusal([&] { open_tokenizer(dir / "t.json"); }), "t.json: not a tokenizer.json"));
  write_file(dir / "t.json", "[]");
  EXPECT_TRUE(has(refusal([&] { open_tokenizer(dir / "t.json"); }), "expected a JSON object"));
}

// Bytes changed, cut out or doubled: the file still works or is a UserError, nothing else.
TEST(Bpe, MutatedFilesNeverCrash) {
  BpeTrainer trainer({.vocab_size = 270});
  trainer.add(kText);
  const std::string good = dump_tokenizer_json(trainer.finish());
  Scratch dir;
  uint32_t state = 7;
  const auto random = [&](size_t below) {
    state = state * 1664525u + 1013904223u;
    return static_cast<size_t>(state >> 8) % below;
  };
  int refused = 0;
  for (int round = 0; round < 400; ++round) {
    std::string bytes = good;
    for (size_t edits = 1 + random(3); edits > 0; --edits) {
      const size_t at = random(bytes.size());
      switch (random(4)) {
        case 0:
          bytes[at] = static_cast<char>(random(256));
          break;
        case 1:
          bytes.erase(at, 1 + random(40));
          break;
        case 2:
          bytes.insert(at, bytes.substr(random(bytes.size()), 1 + random(40)));
          break;
        default:
          bytes[at] = "0123456789{}[],:\"\\"[random(18)];
          break;
      }
    }
    write_file(dir / "t.json", bytes);
    try {
      const auto tokenizer = open_tokenizer(dir / "t.json");
      tokenizer->decode(tokenizer->encode(kText));
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 200);
  EXPECT_LT(refused, 400);
}

TEST(Trainer, IsDeterministicAndOrderFree) {
  const auto learn = [](std::vector<std::string_view> texts) {
    BpeTrainer trainer({.vocab_size = 320});
    for (auto text : texts) trainer.add(text);
    return dump_tokenizer_json(trainer.finish());
  };
  EXPECT_EQ(learn({kText, "other text of others\n"}), learn({"other text of others\n", kText}));
  const json few = json::parse(learn({"ab ab"}));  // one pair occurs twice
  EXPECT_EQ(few["model"]["merges"], json::array({"a b"}));
  const json tie = json::parse(learn({"xy.ab.xy.ab"}));  // equal counts: the older tokens first
  EXPECT_EQ(tie["model"]["merges"], json::array({"a b", "x y"}));
  EXPECT_THROW(BpeTrainer({.vocab_size = 256}), UserError);
}

// Every merge must be the most frequent pair at its time, counted from scratch.
TEST(Trainer, AlwaysTakesTheMostFrequentPair) {
  BpeTrainer trainer({.vocab_size = 330});
  trainer.add(kText);
  const TokenizerSpec spec = trainer.finish();
  std::vector<std::vector<std::string>> words;
  PreTokenizer cutter({split(kGpt2Pattern)});
  PreTokenizer::Scratch scratch;
  const auto symbol_of = [&](unsigned char c) { return spec.vocab[c].first; };
  cutter.each(kText, scratch, [&](std::string_view piece) {
    words.emplace_back();
    for (char c : piece) words.back().push_back(symbol_of(static_cast<unsigned char>(c)));
  });
  for (const auto& merge : spec.merges) {
    std::map<std::pair<std::string, std::string>, int> counts;
    int most = 0;
    for (const auto& word : words) {
      for (size_t i = 0; i + 1 < word.size(); ++i)
        most = std::max(most, ++counts[{word[i], word[i + 1]}]);
    }
    EXPECT_EQ(counts[merge], most) << merge.first << " " << merge.second;
    for (auto& word : words) {
      for (size_t i = 0; i + 1 < word.size(); ++i) {
        if (word[i] != merge.first || word[i + 1] != merge.second) continue;
        word[i] += word[i + 1];
        word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    }
  }
  EXPECT_GT(spec.merges.size(), 15u);
}

}  // namespace
}  // namespace moetrain
