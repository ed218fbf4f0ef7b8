// Puts the layers of a configuration over one another: default, config.json, file, settings.
#include "config/load.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/text.h"
#include "config/hf_config.h"
#include "config/reader.h"
#include "config/yaml.h"

namespace moetrain {

namespace {

namespace fs = std::filesystem;

std::string read_file(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error))
    throw UserError(cat(path, ": is a directory; give a YAML file"));
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UserError(cat(path, ": cannot open this file"));
  std::ostringstream buffer;
  if (file.peek() != std::ifstream::traits_type::eof()) buffer << file.rdbuf();
  if (file.bad() || buffer.bad()) throw UserError(cat(path, ": cannot read this file"));
  return buffer.str();
}

/// Relative to the YAML file when written there, to the working directory when given by --set.
std::string locate(const YamlNode& value, const std::string& dir) {
  const fs::path path(value.scalar);
  if (path.is_absolute() || value.origin.kind == Origin::kSet || dir.empty()) return value.scalar;
  return (fs::path(dir) / path).lexically_normal().string();
}

void apply_settings(YamlNode& document, const std::vector<std::string>& sets,
                    std::vector<Diagnostic>& faults) {
  for (const std::string& set : sets) apply_setting(document, parse_setting(set, faults), faults);
}

/// Line and column of `file:line:column`, behind everything else.
std::pair<int64_t, int64_t> position(const std::string& where, const std::string& file) {
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  long long line = kLast, column = kLast;
  if (where.rfind(file + ":", 0) == 0)
    std::sscanf(where.c_str() + file.size(), ":%lld:%lld", &line, &column);
  return {line, column};
}

/// Throws what was found, each complaint once, in the order of the file.
void fail_if_any(std::vector<Diagnostic>& faults, const std::string& file) {
  if (faults.empty()) return;
  std::vector<Diagnostic> unique;
  for (Diagnostic& d : faults) {
    const bool seen = std::any_of(unique.begin(), unique.end(), [&](const Diagnostic& other) {
      return other.where == d.where && other.message == d.message;
    });
    if (!seen) unique.push_back(std::move(d));
  }
  std::stable_sort(unique.begin(), unique.end(), [&](const Diagnostic& x, const Diagnostic& y) {
    return position(x.where, file) < position(y.where, file);
  });
  throw UserError(std::move(unique));
}

void place_paths(YamlNode& document, const std::string& dir) {
  static const char* const kPaths[][2] = {{"model", "hf_config"}, {"compute", "machine"}};
  for (const auto& [section, key] : kPaths) {
    YamlNode* map = document.find(section);
    YamlNode* value = map == nullptr ? nullptr : map->find(key);
    if (value != nullptr && value->kind == YamlNode::kScalar) value->scalar = locate(*value, dir);
  }
}

}  // namespace

Config parse_config(const std::string& text, const std::string& name, const std::string& dir,
                    const std::vector<std::string>& sets) {
  Reading reading;
  YamlNode document = parse_yaml(text, name, reading.faults);
  // After a syntax error only a part of the file was seen: to go on would report keys as missing.
  const bool readable = reading.faults.empty() || document.kind == YamlNode::kMap;
  if (readable && document.kind != YamlNode::kMap) {
    reading.faults.push_back(
        {name, document.kind == YamlNode::kNull
                   ? "the file is empty; it needs at least the sections model, data and train"
                   : cat("must be a map of sections, not ", document.kind_name())});
  }
  if (!readable || document.kind != YamlNode::kMap) fail_if_any(reading.faults, name);
  apply_settings(document, sets, reading.faults);
  place_paths(document, dir);

  Config config;
  config.file = name;
  const Fields rows = describe(config);
  const YamlNode* model = document.find("model");
  const YamlNode* hf = model == nullptr ? nullptr : model->find("hf_config");
  if (hf != nullptr && hf->kind == YamlNode::kScalar && !hf->scalar.empty()) {
    const size_t before = reading.faults.size();
    const YamlNode published = read_hf_config(hf->scalar, reading.faults);
    // An unreadable file is one fault, not one per key it would have given.
    if (reading.faults.size() != before) reading.refused.insert("model");
    read_map(published, describe(config.model), "model", reading);
    // An inline value replaces a contradictory one, so complaints about replaced keys are dropped.
    const auto replaced = [&](const Diagnostic& d) {
      for (const YamlNode::Entry& entry : model->entries)
        if (d.message.rfind(cat("`model.", entry.key, ":"), 0) == 0) return true;
      return false;
    };
    reading.faults.erase(std::remove_if(reading.faults.begin() + static_cast<long>(before),
                                        reading.faults.end(), replaced),
                         reading.faults.end());
  }
  read_map(document, rows, "", reading);
  require_all(rows, "", name, reading);
  fail_if_any(reading.faults, name);
  config.origins = std::move(reading.origins);
  return config;
}

Config load_config(const std::string& path, const std::vector<std::string>& sets) {
  return parse_config(read_file(path), path, fs::path(path).parent_path().string(), sets);
}

Config config_from_hf(const std::string& path, const std::vector<std::string>& sets) {
  Reading reading;
  Config config;
  config.file = path;
  const YamlNode document = read_hf_config(path, reading.faults);
  YamlNode settings;
  settings.kind = YamlNode::kMap;
  apply_settings(settings, sets, reading.faults);
  place_paths(settings, "");
  if (reading.faults.empty()) {
    read_map(document, describe(config.model), "model", reading);
    read_map(settings, describe(config), "", reading);
    require_all(describe(config.model), "model", path, reading);
  }
  fail_if_any(reading.faults, path);
  config.model.hf_config = path;
  config.origins = std::move(reading.origins);
  return config;
}

ModelConfig load_hf_model(const std::string& path) { return config_from_hf(path).model; }

std::string Config::where(const std::string& path) const {
  for (std::string key = path; !key.empty();) {
    const auto found = origins.find(key);
    if (found != origins.end() && found->second.kind != Origin::kDefault &&
        found->second.kind != Origin::kAuto)
      return found->second.where;
    const size_t dot = key.rfind('.');
    key = dot == std::string::npos ? "" : key.substr(0, dot);
  }
  return file;
}

}  // namespace moetrain
