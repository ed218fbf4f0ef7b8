// Reading and writing machine files.
#include "train/machine.h"

#include <cstdio>
#include <functional>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "checkpoint/file.h"
#include "config/scalar.h"
#include "config/yaml.h"

namespace moetrain {

namespace {

struct Row {
  const char* name;
  std::function<double*(Machine&)> place;
  Suffix suffix = Suffix::kCount;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> kRows = {
      {"bf16_flops", [](Machine& m) { return &m.bf16_flops; }},
      {"fp32_flops", [](Machine& m) { return &m.fp32_flops; }},
      {"memory_bandwidth", [](Machine& m) { return &m.memory_bandwidth; }, Suffix::kBytes},
      {"memory", [](Machine& m) { return &m.memory; }, Suffix::kBytes},
      {"intra_latency", [](Machine& m) { return &m.intra_latency; }, Suffix::kSeconds},
      {"intra_bandwidth", [](Machine& m) { return &m.intra_bandwidth; }, Suffix::kBytes},
      {"inter_latency", [](Machine& m) { return &m.inter_latency; }, Suffix::kSeconds},
      {"inter_bandwidth", [](Machine& m) { return &m.inter_bandwidth; }, Suffix::kBytes},
  };
  return kRows;
}

std::vector<std::string> key_names() {
  std::vector<std::string> names = {"name", "ranks_per_node"};
  for (const Row& row : rows()) names.push_back(row.name);
  return names;
}

/// Sets one key; "" or what is wrong with it.
std::string set_key(Machine& machine, const std::string& key, const YamlNode& value) {
  if (value.kind != YamlNode::kScalar)
    return cat(key, ": a single value belongs here, not ", value.kind_name());
  if (key == "name") {
    machine.name = value.scalar;
    return "";
  }
  if (key == "ranks_per_node") {
    const Read<int64_t> read = read_integer(value.scalar);
    if (!read.fault.empty()) return cat(key, ": '", value.scalar, "': ", read.fault);
    if (read.value < 1) return cat(key, ": ", read.value, " must be at least 1");
    machine.ranks_per_node = read.value;
    return "";
  }
  for (const Row& row : rows()) {
    if (key != row.name) continue;
    const Read<double> read = read_real(value.scalar, row.suffix);
    if (!read.fault.empty()) return cat(key, ": '", value.scalar, "': ", read.fault);
    if (!(read.value > 0)) return cat(key, ": ", value.scalar, " must be above 0");
    *row.place(machine) = read.value;
    return "";
  }
  const std::string near = nearest(key, key_names());
  return cat("unknown key '", key, "'",
             near.empty() ? cat("; there are ", join(key_names(), ", "))
                          : cat("; did you mean '", near, "'?"));
}

}  // namespace

LinkModel Machine::links() const {
  LinkModel links;
  links.inter_latency = inter_latency;
  links.inter_bandwidth = inter_bandwidth;
  links.intra_latency = intra_latency;
  links.intra_bandwidth = intra_bandwidth;
  links.memory_bandwidth = memory_bandwidth;
  links.fp32_flops = fp32_flops;
  links.bf16_flops = bf16_flops;
  links.ranks_per_node = static_cast<int>(ranks_per_node);
  return links;
}

Machine load_machine(const std::string& path) {
  Machine machine;
  if (path.empty()) return machine;
  machine.name = path;
  std::vector<Diagnostic> faults;
  const YamlNode document = parse_yaml(read_file(path), path, faults);
  if (document.kind != YamlNode::kMap && faults.empty()) {
    faults.push_back({path, "a machine file is a map of speeds"});
  }
  for (const YamlNode::Entry& entry : document.entries) {
    const std::string fault = set_key(machine, entry.key, entry.value);
    if (!fault.empty()) faults.push_back({entry.origin.where, fault});
  }
  if (!faults.empty()) throw UserError(faults);
  return machine;
}

std::string machine_yaml(const Machine& machine) {
  Machine copy = machine;
  std::string text =
      cat("name: \"", machine.name, "\"\nranks_per_node: ", machine.ranks_per_node, "\n");
  for (const Row& row : rows()) text += cat(row.name, ": ", real_text(*row.place(copy)), "\n");
  return text;
}

std::string machine_hash(const Machine& machine) {
  char hex[24];
  std::snprintf(hex, sizeof hex, "%016llx",
                static_cast<unsigned long long>(hash_bytes(machine_yaml(machine))));
  return std::string(hex, 12);
}

}  // namespace moetrain
