// The one file of this room that knows the JSON library.
#include "data/json_io.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "data/tokenizer/normalizer.h"

namespace moetrain {

const char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

using nlohmann::json;

constexpr int kDeepest = 8;

// One file being read: every fault names it and the place inside.
class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)) {}

  [[noreturn]] void refuse(const std::string& place, const std::string& what) const {
    throw UserError({{path_, place.empty() ? what : cat(place, ": ", what)}});
  }

  const json& member(const json& object, const char* key, const std::string& place) const {
    if (!object.is_object()) refuse(place, "expected an object");
    const auto it = object.find(key);
    if (it == object.end()) refuse(place, cat("\"", key, "\" is missing"));
    return *it;
  }

  std::string text(const json& object, const char* key, const std::string& place) const {
    const json& value = member(object, key, place);
    if (!value.is_string())
      refuse(place, cat("\"", key, "\" must be a string, found ", value.type_name()));
    return value.get<std::string>();
  }

  bool flag(const json& object, const char* key, const std::string& place, bool fallback) const {
    const auto it = object.find(key);
    if (it == object.end() || it->is_null()) return fallback;
    if (!it->is_boolean())
      refuse(place, cat("\"", key, "\" must be true or false, found ", it->type_name()));
    return it->get<bool>();
  }

  /// `place` is a function: there are 128,000 ids and hardly ever one to complain about.
  template <class Place>
  int64_t id(const json& value, Place&& place) const {
    constexpr uint64_t kMost = uint64_t{1} << 22;
    if (value.is_number_unsigned() && value.get<uint64_t>() < kMost) return value.get<int64_t>();
    if (!value.is_number_integer())
      refuse(place(), cat("an id must be an integer, found ", value.type_name()));
    if (value.is_number_unsigned())
      refuse(place(), cat("id ", value.get<uint64_t>(), " is beyond ", kMost - 1));
    refuse(place(), cat("id ", value.get<int64_t>(), " is negative"));
  }

  /// Visits `value` or, if it is a Sequence, its members one after the other.
  template <class Visit>
  void sequence(const json& value, const char* list, const std::string& place, int depth,
                Visit&& visit) const {
    if (value.is_null()) return;
    if (depth > kDeepest) refuse(place, "Sequence nested too deeply");
    const std::string type = text(value, "type", place);
    if (type != "Sequence") return visit(value, type, place);
    const json& items = member(value, list, place);
    if (!items.is_array()) refuse(place, cat("\"", list, "\" must be a list"));
    for (size_t i = 0; i < items.size(); ++i) {
      if (items[i].is_null()) refuse(cat(place, ".", list, "[", i, "]"), "null is no step");
      sequence(items[i], list, cat(place, ".", list, "[", i, "]"), depth + 1, visit);
    }
  }

  void read(const json& root, TokenizerSpec& spec) const;

 private:
  void read_model(const json& model, TokenizerSpec& spec) const;
  void read_merges(const json& merges, TokenizerSpec& spec) const;
  void read_added(const json& list, TokenizerSpec& spec) const;
  void read_pre_tokenizer(const json& root, TokenizerSpec& spec) const;
  SplitBehavior behavior(const json& step, const std::string& place, const char* fallback) const;
  void read_split(const json& step, const std::string& place, TokenizerSpec& spec) const;
  void refuse_unless_null(const json& object, const char* key, const std::string& place) const;

  std::string path_;
};

json parse_file(const std::string& path) {
  const MappedFile file(path);
  json root = json::parse(file.text());
  if (!root.is_object()) throw UserError({{path, "expected a JSON object"}});
  return root;
}

void Reader::refuse_unless_null(const json& object, const char* key,
                                const std::string& place) const {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return;
  if (it->is_string() && it->get<std::string>().empty()) return;
  if (it->is_number() && it->get<double>() == 0.0) return;
  refuse(place, cat("\"", key, "\": ", it->dump().substr(0, 60), " is not supported"));
}

void Reader::read(const json& root, TokenizerSpec& spec) const {
  refuse_unless_null(root, "truncation", "");
  refuse_unless_null(root, "padding", "");
  if (root.contains("normalizer")) {
    sequence(root["normalizer"], "normalizers", "normalizer", 0,
             [&](const json&, const std::string& type, const std::string& place) {
               if (type != "NFC") {
                 refuse(place, cat("normalizer \"", type, "\" is not supported (NFC is)"));
               }
               if (!has_nfc()) refuse(place, "normalizer \"NFC\" needs a build with utf8proc");
               spec.nfc = true;
             });
  }
  read_pre_tokenizer(root, spec);
  read_model(member(root, "model", ""), spec);
  if (root.contains("added_tokens") && !root["added_tokens"].is_null())
    read_added(root["added_tokens"], spec);
  // The post-processor is not read: documents are encoded without added special tokens.
  spec.byte_level_decoder = false;
  if (root.contains("decoder")) {
    sequence(root["decoder"], "decoders", "decoder", 0,
             [&](const json&, const std::string& type, const std::string& place) {
               if (type != "ByteLevel" || spec.byte_level_decoder)
                 refuse(place, cat("decoder \"", type, "\" is not supported (one ByteLevel is)"));
               spec.byte_level_decoder = true;
             });
  }
}

void Reader::read_model(const json& model, TokenizerSpec& spec) const {
  const std::string type =
      model.contains("type") && !model["type"].is_null() ? text(model, "type", "model") : "BPE";
  if (type != "BPE") refuse("model", cat("model \"", type, "\" is not supported (BPE is)"));
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
    refuse_unless_null(model, key, "model");
  if (flag(model, "byte_fallback", "model", false))
    refuse("model", "\"byte_fallback\": true is not supported");
  spec.ignore_merges = flag(model, "ignore_merges", "model", false);
  const json& vocab = member(model, "vocab", "model");
  if (!vocab.is_object()) refuse("model.vocab", "expected an object of token to id");
  spec.vocab.reserve(vocab.size());
  for (const auto& [token, value] : vocab.get_ref<const json::object_t&>()) {
    spec.vocab.emplace_back(
        token, id(value, [&] { return cat("model.vocab[", json(token).dump(), "]"); }));
  }
  read_merges(member(model, "merges", "model"), spec);
}

void Reader::read_merges(const json& merges, TokenizerSpec& spec) const {
  if (!merges.is_array()) refuse("model.merges", "expected a list");
  spec.merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const json& merge = merges[i];
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      spec.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    static const std::string kNone;
    const std::string& line = merge.is_string() ? merge.get_ref<const std::string&>() : kNone;
    const size_t space = line.find(' ');
    if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos) {
      refuse(cat("model.merges[", i, "]"), "expected \"a b\" or [\"a\", \"b\"]");
    }
    spec.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
}

void Reader::read_added(const json& list, TokenizerSpec& spec) const {
  if (!list.is_array()) refuse("added_tokens", "expected a list");
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string place = cat("added_tokens[", i, "]");
    AddedToken token;
    token.content = text(list[i], "content", place);
    token.id = id(member(list[i], "id", place), [&] { return place; });
    token.special = flag(list[i], "special", place, false);
    token.normalized = flag(list[i], "normalized", place, !token.special);
    token.single_word = flag(list[i], "single_word", place, false);
    token.lstrip = flag(list[i], "lstrip", place, false);
    token.rstrip = flag(list[i], "rstrip", place, false);
    spec.added.push_back(std::move(token));
  }
}

SplitBehavior Reader::behavior(const json& step, const std::string& place,
                               const char* fallback) const {
  const std::string name =
      fallback != nullptr && !step.contains("behavior") ? fallback : text(step, "behavior", place);
  static constexpr std::pair<std::string_view, SplitBehavior> kNames[] = {
      {"Isolated", SplitBehavior::kIsolated},
      {"Removed", SplitBehavior::kRemoved},
      {"Contiguous", SplitBehavior::kContiguous},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext}};
  for (const auto& [known, value] : kNames) {
    if (name == known) return value;
  }
  refuse(place, cat("behavior \"", name, "\" is unknown"));
}

void Reader::read_split(const json& step, const std::string& place, TokenizerSpec& spec) const {
  PreTokenizerStep split;
  const json& pattern = member(step, "pattern", place);
  split.literal = pattern.is_object() && pattern.contains("String");
  split.pattern = text(pattern, split.literal ? "String" : "Regex", place + ".pattern");
  split.behavior = behavior(step, place, nullptr);
  split.invert = flag(step, "invert", place, false);
  split.where = cat(path_, ": ", place);
  spec.steps.push_back(std::move(split));
}

void Reader::read_pre_tokenizer(const json& root, TokenizerSpec& spec) const {
  bool bytes = false;
  const auto add = [&](std::string pattern, SplitBehavior behavior, const std::string& place) {
    PreTokenizerStep split;
    split.pattern = std::move(pattern);
    split.behavior = behavior;
    split.where = cat(path_, ": ", place);
    spec.steps.push_back(std::move(split));
  };
  const json none;
  const json& value = root.contains("pre_tokenizer") ? root["pre_tokenizer"] : none;
  sequence(value, "pretokenizers", "pre_tokenizer", 0,
           [&](const json& step, const std::string& type, const std::string& place) {
             if (bytes)
               refuse(place, cat("pre-tokenizer \"", type, "\" after ByteLevel is not supported"));
             if (type == "Split") {
               read_split(step, place, spec);
             } else if (type == "Digits") {
               add(flag(step, "individual_digits", place, false) ? "\\p{N}" : "\\p{N}+",
                   SplitBehavior::kIsolated, place);
             } else if (type == "Punctuation") {
               add("[\\p{P}$+<=>^`|~]", behavior(step, place, "Isolated"), place);
             } else if (type == "WhitespaceSplit") {
               add("\\s", SplitBehavior::kRemoved, place);
             } else if (type == "ByteLevel") {
               bytes = true;
               if (flag(step, "add_prefix_space", place, true))
                 spec.steps.emplace_back().kind = PreTokenizerStep::kPrefixSpace;
               if (flag(step, "use_regex", place, true))
                 add(kGpt2Pattern, SplitBehavior::kIsolated, place);
             } else {
               refuse(place, cat("pre-tokenizer \"", type,
                                 "\" is not supported (Split, Digits, Punctuation, WhitespaceSplit "
                                 "and ByteLevel are)"));
             }
           });
  if (!bytes) refuse("pre_tokenizer", "no ByteLevel: only byte-level BPE is supported");
}

}  // namespace

TokenizerSpec load_tokenizer_json(const std::string& path) {
  TokenizerSpec spec;
  try {
    Reader(path).read(parse_file(path), spec);
  } catch (const json::exception& error) {
    throw UserError({{path, cat("not a tokenizer.json: ", error.what())}});
  }
  return spec;
}

std::string dump_tokenizer_json(const TokenizerSpec& spec) {
  const json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  nlohmann::ordered_json root;
  root["version"] = "1.0";
  root["truncation"] = nullptr;
  root["padding"] = nullptr;
  root["added_tokens"] = nlohmann::ordered_json::array();
  for (const AddedToken& token : spec.added) {
    root["added_tokens"].push_back({{"id", token.id},
                                    {"content", token.content},
                                    {"single_word", token.single_word},
                                    {"lstrip", token.lstrip},
                                    {"rstrip", token.rstrip},
                                    {"normalized", token.normalized},
                                    {"special", token.special}});
  }
  root["normalizer"] = nullptr;
  root["pre_tokenizer"] = byte_level;
  root["post_processor"] = nullptr;
  root["decoder"] = byte_level;
  nlohmann::ordered_json model = {{"type", "BPE"},
                                  {"dropout", nullptr},
                                  {"unk_token", nullptr},
                                  {"continuing_subword_prefix", nullptr},
                                  {"end_of_word_suffix", nullptr},
                                  {"fuse_unk", false},
                                  {"byte_fallback", false}};
  model["vocab"] = nlohmann::ordered_json::object();
  // An ordered object searches all its keys at every insertion; the underlying list does not.
  auto& vocab = model["vocab"].get_ref<nlohmann::ordered_json::object_t&>();
  for (const auto& [token, id] : spec.vocab) vocab.push_back({token, id});
  model["merges"] = nlohmann::ordered_json::array();
  for (const auto& [a, b] : spec.merges) model["merges"].push_back(cat(a, " ", b));
  root["model"] = std::move(model);
  return root.dump(1) + "\n";
}

std::string eos_token_beside(const std::string& tokenizer_path) {
  const std::string path =
      (std::filesystem::path(tokenizer_path).parent_path() / "tokenizer_config.json").string();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  try {
    const json root = parse_file(path);
    const auto it = root.find("eos_token");
    if (it == root.end() || it->is_null()) return {};
    if (it->is_string()) return it->get<std::string>();
    return it->at("content").get<std::string>();
  } catch (const json::exception& error) {
    throw UserError({{path, error.what()}});
  }
}

bool json_text(std::string_view line, const std::string& key, std::string& text,
               std::string& fault) {
  try {
    const json root = json::parse(line);
    if (!root.is_object()) {
      fault = cat("expected a JSON object, found ", root.type_name());
      return false;
    }
    const auto it = root.find(key);
    if (it == root.end()) {
      std::vector<std::string> keys;
      for (const auto& item : root.items()) keys.push_back(item.key());
      const std::string near = nearest(key, keys);
      fault = cat("no key \"", key, "\"",
                  near.empty() ? cat("; keys are: ", join(keys, ", "))
                               : cat("; did you mean \"", near, "\"?"));
      return false;
    }
    if (!it->is_string()) {
      fault = cat("\"", key, "\" must be a string, found ", it->type_name());
      return false;
    }
    text = it->get<std::string>();
    return true;
  } catch (const json::exception& error) {
    fault = error.what();
    return false;
  }
}

}  // namespace moetrain
