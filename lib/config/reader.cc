// One function per type of knob: checks shape, spelling and range, then fills the typed place.
#include "config/reader.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "config/advice.h"
#include "config/scalar.h"

namespace moetrain {

namespace {

std::string join_path(const std::string& path, const std::string& key) {
  return path.empty() ? key : cat(path, ".", key);
}

std::string bound_text(double bound) {
  constexpr double kExact = 1e15;
  if (bound == std::floor(bound) && std::abs(bound) < kExact)
    return cat(static_cast<int64_t>(bound));
  return real_text(bound);
}

Suffix suffix_of(const Field& field) {
  if (field.unit_name == "bytes") return Suffix::kBytes;
  if (field.unit_name == "seconds") return Suffix::kSeconds;
  return Suffix::kCount;
}

/// Reads one knob. Each `take` leaves the target alone and records a fault when the value is
/// refused.
class ValueReader {
 public:
  ValueReader(const Field& field, const YamlNode& node, std::string path, Reading& reading)
      : field_(field), node_(node), path_(std::move(path)), reading_(reading) {}

  void run() {
    std::visit([this](auto& target) { take(target); }, field_.target);
  }

 private:
  void refuse(const YamlNode& node, const std::string& fault) {
    reading_.faults.push_back({node.origin.where, complaint(path_, node, fault)});
    reading_.refused.insert(path_);
  }
  void accept() { reading_.origins[path_] = node_.origin; }

  std::string bounds() const {
    if (field_.low == field_.high) return "must be " + bound_text(field_.low);
    std::vector<std::string> parts;
    if (std::isfinite(field_.low))
      parts.push_back(
          cat(field_.above_low ? "greater than " : "at least ", bound_text(field_.low)));
    if (std::isfinite(field_.high))
      parts.push_back(cat(field_.below_high ? "less than " : "at most ", bound_text(field_.high)));
    return "must be " + join(parts, " and ");
  }
  bool in_range(double value) const {
    return (field_.above_low ? value > field_.low : value >= field_.low) &&
           (field_.below_high ? value < field_.high : value <= field_.high);
  }
  bool is_allowed(const std::string& text) const {
    return field_.only.empty() ||
           std::find(field_.only.begin(), field_.only.end(), text) != field_.only.end();
  }
  std::string allowed() const {
    return cat("must be ", field_.only.size() > 1 ? "one of " : "", join(field_.only, ", "));
  }

  bool is_scalar(const YamlNode& node, const char* expected) {
    if (node.kind == YamlNode::kScalar) return true;
    refuse(node, cat("must be ", expected, ", not ", node.kind_name()));
    return false;
  }
  /// The words after "must be" when a word like auto or null is accepted as well.
  bool number(const YamlNode& node, int64_t& out, const char* expected = "a whole number") {
    if (!is_scalar(node, expected)) return false;
    if (node.quoted)
      return refuse(node, cat("must be ", expected, ", not text; remove the quotes")), false;
    const Read<int64_t> read = read_integer(node.scalar, suffix_of(field_));
    return finish(node, read, expected, out);
  }
  bool number(const YamlNode& node, double& out, const char* expected = "a number") {
    if (!is_scalar(node, expected)) return false;
    if (node.quoted)
      return refuse(node, cat("must be ", expected, ", not text; remove the quotes")), false;
    const Read<double> read = read_real(node.scalar, suffix_of(field_));
    return finish(node, read, expected, out);
  }
  template <class T>
  bool finish(const YamlNode& node, const Read<T>& read, const char* expected, T& out) {
    if (!read.fault.empty()) {
      refuse(node, read.fault == "is not a number" ? cat("must be ", expected) : read.fault);
      return false;
    }
    if (!in_range(static_cast<double>(read.value))) return refuse(node, bounds()), false;
    if (!is_allowed(cat(read.value))) return refuse(node, allowed()), false;
    out = read.value;
    return true;
  }
  bool truth(const YamlNode& node, bool& out, const char* expected = "true or false") {
    if (!is_scalar(node, expected)) return false;
    if (node.quoted)
      return refuse(node, cat("must be ", expected, ", not text; remove the quotes")), false;
    const Read<bool> read = read_bool(node.scalar);
    if (!read.fault.empty()) {
      refuse(node, read.fault == "must be true or false" ? cat("must be ", expected) : read.fault);
      return false;
    }
    if (!is_allowed(read.value ? "true" : "false"))
      return refuse(node, cat(allowed(), ": ", field_.help)), false;
    out = read.value;
    return true;
  }
  bool word(const YamlNode& node, std::string& out) {
    if (!is_scalar(node, "text")) return false;
    if (node.scalar.empty()) return refuse(node, "must not be empty"), false;
    if (!is_allowed(node.scalar)) return refuse(node, cat(allowed(), ": ", field_.help)), false;
    out = node.scalar;
    return true;
  }
  bool is_word(const char* expected) const {
    return node_.kind == YamlNode::kScalar && !node_.quoted && node_.scalar == expected;
  }

  void take(bool* place) {
    if (truth(node_, *place)) accept();
  }
  void take(int64_t* place) {
    if (number(node_, *place)) accept();
  }
  void take(double* place) {
    if (number(node_, *place)) accept();
  }
  void take(std::string* place) {
    if (word(node_, *place)) accept();
  }

  void take(std::optional<int64_t>* place) { take_optional(*place); }
  void take(std::optional<double>* place) { take_optional(*place); }
  void take(std::optional<std::string>* place) {
    std::string value;
    if (node_.kind == YamlNode::kNull) {
      place->reset();
      accept();
    } else if (word(node_, value)) {
      *place = value;
      accept();
    }
  }
  template <class T>
  void take_optional(std::optional<T>& place) {
    T value{};
    if (node_.kind == YamlNode::kNull) {
      place.reset();
      accept();
    } else if (number(node_, value,
                      std::is_same_v<T, double> ? "a number or null" : "a whole number or null")) {
      place = value;
      accept();
    }
  }

  void take(Auto<int64_t>* place) {
    int64_t value = 0;
    if (is_word("auto")) {
      *place = {};
      accept();
    } else if (number(node_, value, "a whole number or auto")) {
      *place = value;
      accept();
    }
  }
  void take(Auto<bool>* place) {
    bool value = false;
    if (is_word("auto")) {
      *place = {};
      accept();
    } else if (truth(node_, value, "true, false or auto")) {
      *place = value;
      accept();
    }
  }
  void take(Auto<std::vector<int64_t>>* place) {
    std::vector<int64_t> value;
    if (is_word("auto")) {
      *place = {};
      accept();
    } else if (numbers(value, "a list of whole numbers or auto")) {
      *place = value;
      accept();
    }
  }

  template <class T>
  bool numbers(std::vector<T>& out, const char* expected) {
    // `99,1,0` is as good as [99, 1, 0]; a single number is a list of one.
    YamlNode list = node_;
    if (node_.kind == YamlNode::kScalar && !node_.scalar.empty()) {
      list.kind = YamlNode::kList;
      std::string part;
      for (const char c : node_.scalar + ",") {
        if (c == ',') {
          YamlNode item = node_;
          item.quoted = node_.quoted && node_.scalar.find(',') == std::string::npos;
          const size_t from = part.find_first_not_of(' ');
          item.scalar = from == std::string::npos
                            ? ""
                            : part.substr(from, part.find_last_not_of(' ') - from + 1);
          list.items.push_back(std::move(item));
          part.clear();
        } else {
          part += c;
        }
      }
    } else if (node_.kind != YamlNode::kList) {
      refuse(node_, cat("must be ", expected, ", not ", node_.kind_name()));
      return false;
    }
    if (field_.length != 0 && list.items.size() != field_.length) {
      refuse(node_, cat("must be a list of ", field_.length, " numbers, has ", list.items.size()));
      return false;
    }
    std::vector<T> values;
    for (const YamlNode& item : list.items) {
      T value{};
      if (number(item, value)) values.push_back(value);
    }
    if (values.size() != list.items.size()) return false;
    out = values;
    return true;
  }
  void take(std::vector<int64_t>* place) {
    if (numbers(*place, "a list of whole numbers")) accept();
  }
  void take(std::vector<double>* place) {
    if (numbers(*place, "a list of numbers")) accept();
  }

  void take(NamedSizes* place) {
    if (node_.kind != YamlNode::kMap)
      return refuse(node_, cat("must be a map {NAME: SIZE}, not ", node_.kind_name()));
    NamedSizes sizes;
    bool fine = true;
    for (const YamlNode::Entry& entry : node_.entries) {
      int64_t size = 0;
      if (number(entry.value, size))
        sizes.emplace_back(entry.key, size);
      else
        fine = false;
    }
    if (!fine) return;
    *place = sizes;
    accept();
  }
  void take(std::vector<ShardRow>* place) {
    *place = read_shard_rows(node_, path_, reading_);
    accept();
  }
  void take(const Choice& place) {
    if (!is_scalar(node_, cat("one of ", join(place.names, ", ")).c_str())) return;
    const auto found = std::find(place.names.begin(), place.names.end(), node_.scalar);
    if (found == place.names.end()) {
      const std::string near = nearest(node_.scalar, place.names);
      return refuse(node_, cat("must be one of ", join(place.names, ", "),
                               near.empty() ? "" : cat("; did you mean `", near, "`?")));
    }
    place.set(static_cast<int>(found - place.names.begin()));
    accept();
  }
  void take(const Group& place) {
    if (node_.kind == YamlNode::kNull && place.present) {
      place.set_present(false);
      return accept();
    }
    if (node_.kind == YamlNode::kNull)
      return refuse(node_, "this section is empty; give it keys or remove it");
    if (node_.kind != YamlNode::kMap)
      return refuse(node_, cat("must be a map of keys", place.present ? " or null" : "", ", not ",
                               node_.kind_name()));
    if (place.present) place.set_present(true);
    accept();
    read_map(node_, place.fields(), path_, reading_);
  }
  void take(const Records& place) {
    if (node_.kind != YamlNode::kList)
      return refuse(node_, cat("must be a list of maps, not ", node_.kind_name()));
    place.resize(node_.items.size());
    accept();
    for (size_t i = 0; i < node_.items.size(); ++i) {
      const YamlNode& item = node_.items[i];
      const std::string inner = cat(path_, ".", i);
      if (item.kind != YamlNode::kMap) {
        std::vector<std::string> keys;
        for (const Field& row : place.at(i)) keys.push_back(row.name);
        reading_.faults.push_back(
            {item.origin.where, complaint(inner, item,
                                          cat("must be a map with keys ", join(keys, ", "),
                                              ", not ", item.kind_name()))});
        continue;
      }
      read_map(item, place.at(i), inner, reading_);
      require_all(place.at(i), inner, item.origin.where, reading_);
    }
  }

  const Field& field_;
  const YamlNode& node_;
  std::string path_;
  Reading& reading_;
};

}  // namespace

std::string complaint(const std::string& path, const YamlNode& value, const std::string& fault) {
  return cat("`", path, ": ", value.text(), "` ", fault);
}

void read_map(const YamlNode& node, const Fields& rows, const std::string& path, Reading& reading) {
  for (const YamlNode::Entry& entry : node.entries) {
    const auto field = std::find_if(rows.begin(), rows.end(),
                                    [&](const Field& row) { return row.name == entry.key; });
    if (field == rows.end()) {
      reading.faults.push_back({entry.origin.where, cat("unknown key `", join_path(path, entry.key),
                                                        "`; ", advice(entry.key, rows, path))});
      continue;
    }
    ValueReader(*field, entry.value, join_path(path, entry.key), reading).run();
  }
}

void require_all(const Fields& rows, const std::string& path, const std::string& where,
                 Reading& reading) {
  for (const Field& field : rows) {
    const std::string inner = join_path(path, field.name);
    const auto given = reading.origins.find(inner);
    if (reading.refused.count(inner) != 0) continue;
    if (const Group* place = std::get_if<Group>(&field.target)) {
      if (place->present) continue;
      std::vector<std::string> needed;
      for (const Field& key : place->fields())
        if (key.is_required) needed.push_back(key.name);
      if (given != reading.origins.end())
        require_all(place->fields(), inner, given->second.where, reading);
      else if (!needed.empty())
        reading.faults.push_back(
            {where, cat("missing section `", inner, "`; it must give ", join(needed, ", "))});
    } else if (field.is_required && given == reading.origins.end()) {
      reading.faults.push_back({where, cat("missing key `", inner, "`: ", field.help)});
    }
  }
}

}  // namespace moetrain
