// Reading published Hugging Face folders strictly, including DeepSeek's block-quantised weights.
#include "checkpoint/hf.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <unordered_set>

#include "base/error.h"
#include "checkpoint/json.h"
#include "checkpoint/store.h"

namespace moetrain {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxNamed = 10;
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kScaleEnding = "_scale_inv";

void throw_faults(const std::string& where, std::vector<std::string> faults) {
  if (faults.empty()) return;
  std::vector<Diagnostic> list;
  for (size_t i = 0; i < std::min(faults.size(), kMaxNamed); ++i) {
    list.push_back({where, std::move(faults[i])});
  }
  if (faults.size() > kMaxNamed) {
    list.push_back(
        {where, cat("and ", faults.size() - kMaxNamed, " more (", faults.size(), " in all)")});
  }
  throw UserError(std::move(list));
}

/// Tensor name to file name, as the index says.
std::vector<std::pair<std::string, std::string>> read_index(const std::string& path) {
  const Json json = parse_json(read_file(path), path);
  const Json* map = json.find("weight_map");
  if (!map || !map->is(Json::Kind::kObject)) {
    throw UserError(cat(path, ": \"weight_map\" is missing or not an object"));
  }
  std::vector<std::pair<std::string, std::string>> entries;
  for (size_t i = 0; i < map->keys.size(); ++i) {
    const Json& file = map->items[i];
    if (!file.is(Json::Kind::kString) || file.string.empty() ||
        file.string.find('/') != std::string::npos) {
      throw UserError(cat(path, ": tensor \"", map->keys[i], "\" has no proper file name"));
    }
    entries.emplace_back(map->keys[i], file.string);
  }
  return entries;
}

/// Side of the square blocks that share one factor; 128 unless config.json says otherwise.
int64_t block_of(const std::string& config, const std::string& path) {
  const Json json = parse_json(config, path);
  const Json* quantization = json.find("quantization_config");
  const Json* block = quantization ? quantization->find("weight_block_size") : nullptr;
  if (!block) return 128;
  const bool good = block->items.size() == 2 && block->items[0].is(Json::Kind::kInt) &&
                    block->items[0].integer > 0 && block->items[1].is(Json::Kind::kInt) &&
                    block->items[1].integer == block->items[0].integer;
  if (!good) throw UserError(cat(path, ": weight_block_size is not two equal whole numbers > 0"));
  return block->items[0].integer;
}

bool ends_with_scale(const std::string& name) { return name.ends_with(kScaleEnding); }

}  // namespace

HfFolder::HfFolder(const std::string& folder) : folder_(folder) {
  if (!fs::is_directory(folder)) throw UserError(cat(folder, ": no such folder"));
  const std::string config_path = folder + "/config.json";
  config_ = read_file(config_path);
  block_ = block_of(config_, config_path);

  const bool indexed = fs::exists(folder + "/" + kIndex);
  std::vector<std::pair<std::string, std::string>> index;
  std::vector<std::string> file_names;
  if (indexed) {
    index = read_index(folder + "/" + kIndex);
    std::unordered_set<std::string> seen;
    for (const auto& [tensor, file] : index) {
      if (seen.insert(file).second) file_names.push_back(file);
    }
  } else {
    if (!fs::exists(folder + "/model.safetensors")) {
      throw UserError(cat(folder, ": neither ", kIndex, " nor model.safetensors is here"));
    }
    file_names.push_back("model.safetensors");
  }
  std::vector<std::string> faults;
  std::unordered_map<std::string, size_t> number;
  for (const std::string& name : file_names) {
    if (!fs::exists(folder + "/" + name)) {
      faults.push_back(cat("file ", name, " is missing"));
      continue;
    }
    number[name] = files_.size();
    files_.push_back(std::make_unique<SafetensorsFile>(folder + "/" + name));
    for (const FileTensor& tensor : files_.back()->tensors()) {
      if (!places_.emplace(tensor.name, Place{files_.size() - 1, &tensor}).second) {
        faults.push_back(cat("tensor \"", tensor.name, "\" is in two files"));
      }
    }
  }
  throw_faults(folder, std::move(faults));
  if (!indexed) return;
  std::unordered_set<std::string> listed;
  for (const auto& [tensor, file] : index) {
    listed.insert(tensor);
    const auto place = places_.find(tensor);
    if (place == places_.end() || place->second.file != number.at(file)) {
      faults.push_back(
          cat("the index puts tensor \"", tensor, "\" into ", file, ", which does not hold it"));
    }
  }
  for (const auto& file : files_) {
    for (const FileTensor& tensor : file->tensors()) {
      if (!listed.contains(tensor.name)) {
        faults.push_back(cat("tensor \"", tensor.name, "\" of ",
                             fs::path(file->path()).filename().string(), " is not in the index"));
      }
    }
  }
  throw_faults(folder, std::move(faults));
}

const FileTensor* HfFolder::find(const std::string& name) const {
  const auto it = places_.find(name);
  return it == places_.end() ? nullptr : it->second.tensor;
}

std::string HfFolder::fault_of(const PublishedTensor& row) const {
  const FileTensor* tensor = find(row.published);
  if (tensor == nullptr) {
    return row.copy ? "" : cat("missing tensor \"", row.published, "\" ", to_string(row.shape));
  }
  if (tensor->shape != row.shape) {
    return cat("tensor \"", row.published, "\" has shape ", to_string(tensor->shape),
               ", the model needs ", to_string(row.shape));
  }
  if (tensor->type == FileType::kF32 || tensor->type == FileType::kBF16) return "";
  if (tensor->type != FileType::kF8E4M3) {
    return cat("tensor \"", row.published, "\" is ", name_of(tensor->type),
               ", import understands BF16, F32 and F8_E4M3");
  }
  if (row.shape.size() != 2) return cat("tensor \"", row.published, "\" is F8_E4M3 but no matrix");
  const std::string scale_name = row.published + kScaleEnding;
  const Shape wanted{(row.shape[0] + block_ - 1) / block_, (row.shape[1] + block_ - 1) / block_};
  const FileTensor* scale = find(scale_name);
  if (scale == nullptr || scale->type != FileType::kF32 || scale->shape != wanted) {
    return cat("tensor \"", row.published, "\" is F8_E4M3 and needs \"", scale_name, "\", F32 ",
               to_string(wanted),
               scale ? ", which has another type or shape" : ", which is missing");
  }
  return "";
}

void HfFolder::check(const std::vector<PublishedTensor>& table,
                     const std::vector<std::string>& may_ignore) const {
  std::vector<std::string> faults;
  std::unordered_set<std::string> known;
  for (const PublishedTensor& row : table) {
    known.insert(row.published);
    if (std::string fault = fault_of(row); !fault.empty()) faults.push_back(std::move(fault));
    const FileTensor* tensor = find(row.published);
    if (tensor && tensor->type == FileType::kF8E4M3) known.insert(row.published + kScaleEnding);
  }
  for (const auto& file : files_) {
    for (const FileTensor& tensor : file->tensors()) {
      const bool ignored = std::any_of(may_ignore.begin(), may_ignore.end(),
                                       [&](const auto& p) { return glob_match(p, tensor.name); });
      if (known.contains(tensor.name) || ignored) continue;
      faults.push_back(cat("extra tensor \"", tensor.name, "\" ", to_string(tensor.shape),
                           ends_with_scale(tensor.name) ? " belongs to no F8_E4M3 tensor"
                                                        : " that this model does not have"));
    }
  }
  throw_faults(folder_, std::move(faults));
}

void HfFolder::read_f8(const Place& place, DType as, void* out) const {
  const SafetensorsFile& file = *files_[place.file];
  const Place scale_place = places_.at(place.tensor->name + kScaleEnding);
  const FileTensor& scale_tensor = *scale_place.tensor;
  std::vector<float> scale(static_cast<size_t>(numel(scale_tensor.shape)));
  files_[scale_place.file]->read(scale_tensor, DType::kF32, scale.data());
  const int64_t rows = place.tensor->shape[0], cols = place.tensor->shape[1];
  const int64_t scale_cols = (cols + block_ - 1) / block_;
  const auto* codes = reinterpret_cast<const uint8_t*>(file.data(*place.tensor));
  std::vector<float> band;  // one row of blocks at a time
  for (int64_t r = 0; r < rows; r += block_) {
    const int64_t n = std::min(block_, rows - r);
    band.resize(static_cast<size_t>(n * cols));
    dequantize_f8_blocks(codes + r * cols, scale.data() + r / block_ * scale_cols, n, cols, block_,
                         band.data());
    convert_elements(FileType::kF32, band.data(), as,
                     static_cast<char*>(out) + r * cols * static_cast<int64_t>(size_of(as)),
                     n * cols);
  }
}

void HfFolder::read(const PublishedTensor& row, DType as, void* out) const {
  if (std::string fault = fault_of(row); !fault.empty()) throw UserError(cat(folder_, ": ", fault));
  const auto it = places_.find(row.published);
  MT_CHECK(it != places_.end(), "optional tensor ", row.published, " is not there");
  if (it->second.tensor->type == FileType::kF8E4M3) return read_f8(it->second, as, out);
  files_[it->second.file]->read(*it->second.tensor, as, out);
}

HfStates::HfStates(const HfFolder& folder, const std::vector<PublishedTensor>& table)
    : folder_(folder) {
  for (const PublishedTensor& row : table) {
    if (!row.copy) rows_[row.state].push_back(&row);
  }
}

void HfStates::read(const std::string& state, const Box& want, DType as, void* out) const {
  const auto rows = rows_.find(state);
  if (rows == rows_.end()) {
    throw UserError(cat(folder_.folder(), ": nothing published belongs to \"", state, "\""));
  }
  const size_t size = size_of(as);
  std::vector<char> buffer;
  int64_t covered = 0;
  for (const PublishedTensor* row : rows->second) {
    MT_CHECK(row->slice.begin.size() == want.begin.size(), state, " ", to_string(want));
    const auto part = intersect(row->slice, want);
    if (!part) continue;
    buffer.resize(static_cast<size_t>(numel(row->shape)) * size);
    folder_.read(*row, as, buffer.data());
    for_each_run(*part, row->slice, want, [&](int64_t from, int64_t to, int64_t count) {
      std::memcpy(static_cast<char*>(out) + static_cast<size_t>(to) * size,
                  buffer.data() + static_cast<size_t>(from) * size,
                  static_cast<size_t>(count) * size);
    });
    covered += volume(*part);
  }
  MT_CHECK(covered == volume(want), state, " ", to_string(want), ": the name table covers ",
           covered);
}

void import_hf(const HfFolder& folder, const std::vector<PublishedTensor>& table,
               const std::vector<StateSpec>& states, const std::string& checkpoint,
               const std::map<std::string, std::string>& metadata,
               const std::vector<std::string>& may_ignore) {
  folder.check(table, may_ignore);
  std::unordered_map<std::string, const StateSpec*> specs;
  for (const StateSpec& spec : states) specs[spec.name] = &spec;
  std::vector<const PublishedTensor*> all_copies;
  for (const PublishedTensor& row : table) {
    if (row.copy && folder.find(row.published)) all_copies.push_back(&row);
  }
  std::vector<ShardOut> shards;
  for (const PublishedTensor& row : table) {
    const auto spec = specs.find(row.state);
    MT_CHECK(spec != specs.end(), row.published, " belongs to the unknown state ", row.state);
    if (row.copy) continue;
    std::vector<const PublishedTensor*> copies;
    for (const PublishedTensor* other : all_copies) {
      if (other->state == row.state && other->slice == row.slice) copies.push_back(other);
    }
    const DType dtype = spec->second->dtype;
    const size_t bytes = static_cast<size_t>(numel(row.shape)) * size_of(dtype);
    shards.push_back({row.state, dtype, spec->second->global, row.slice, nullptr,
                      [&folder, &row, copies, dtype, bytes](void* out) {
                        folder.read(row, dtype, out);
                        std::vector<char> other(copies.empty() ? 0 : bytes);
                        for (const PublishedTensor* copy : copies) {
                          folder.read(*copy, dtype, other.data());
                          if (std::memcmp(out, other.data(), bytes) == 0) continue;
                          throw UserError(cat(folder.folder(), ": tensor \"", copy->published,
                                              "\" differs from \"", row.published,
                                              "\", which the model shares with it"));
                        }
                      }});
  }
  write_single(checkpoint, 0, shards, metadata);
}

}  // namespace moetrain
