// Event files by Protocol Buffers in TFRecord framing; the only file that includes protobuf.
#include "train/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/crc32c.h"
#include "tensorboard_event.pb.h"

namespace moetrain {
namespace {

namespace fs = std::filesystem;
using tensorboard::Event;

constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr const char* kVersion = "brain.Event:2";

/// A checksum stored beside what it covers is masked, so that checksums of checksums stay useful.
uint32_t masked_crc(const void* data, size_t size) {
  const uint32_t crc = crc32c(0, data, size);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string serialize(const Event& event) {
  std::string bytes;
  MT_CHECK(event.SerializeToString(&bytes), "event of step ", event.step());
  return frame_record(bytes);
}

/// Event files of `folder` by name, which is by time.
std::vector<std::string> event_files(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The seconds in an event file's name, or 0.
int64_t seconds_of(const std::string& name) {
  int64_t seconds = 0;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), seconds);
  return seconds;
}

/// Takes events after `last_step`, and a torn tail, out of a file; removes one that held nothing
/// else.
void cut_file(const std::string& path, int64_t last_step) {
  std::string kept;
  size_t whole = 0;
  bool changed = false, has_scalars = false;
  const std::string text = read_file(path);
  for (const std::string_view record : split_records(text, &whole)) {
    Event event;
    if (!event.ParseFromArray(record.data(), static_cast<int>(record.size())) ||
        event.step() > last_step) {
      changed = true;
      continue;
    }
    has_scalars = has_scalars || event.has_summary();
    kept += frame_record(record);
  }
  if (whole != text.size()) {
    log_info(cat(path, ": mending a torn last record"));
    changed = true;
  }
  if (!has_scalars) {
    fs::remove(path);
  } else if (changed) {
    write_file_atomically(path, kept);
  }
}

std::string host_name() {
  char name[256] = "localhost";
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

std::string frame_record(std::string_view data) {
  const uint64_t size = data.size();
  const uint32_t size_crc = masked_crc(&size, 8), data_crc = masked_crc(data.data(), data.size());
  std::string out(reinterpret_cast<const char*>(&size), 8);
  out.append(reinterpret_cast<const char*>(&size_crc), 4);
  out.append(data);
  return out.append(reinterpret_cast<const char*>(&data_crc), 4);
}

std::vector<std::string_view> split_records(std::string_view file, size_t* whole) {
  std::vector<std::string_view> records;
  *whole = 0;
  while (file.size() - *whole >= 16) {
    const char* at = file.data() + *whole;
    uint64_t size;
    uint32_t size_crc, data_crc;
    std::memcpy(&size, at, 8);
    std::memcpy(&size_crc, at + 8, 4);
    if (size_crc != masked_crc(&size, 8) || size > file.size() - *whole - 16) break;
    std::memcpy(&data_crc, at + 12 + size, 4);
    if (data_crc != masked_crc(at + 12, size)) break;
    records.push_back(file.substr(*whole + 12, size));
    *whole += 16 + size;
  }
  return records;
}

EventWriter::EventWriter(const std::string& folder, int64_t resume_step) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw UserError(cat(folder, ": cannot make the folder: ", error.message()));
  int64_t newest = 0;
  bool earlier = false;
  for (const std::string& name : event_files(folder)) {
    if (name.ends_with(".tmp")) {  // a mending that was killed
      fs::remove(folder + "/" + name);
      continue;
    }
    earlier = true;
    newest = std::max(newest, seconds_of(name));
    cut_file(folder + "/" + name, resume_step);
  }
  // Readers take files in the order of their names: the new one must sort behind all others.
  const double time = now();
  const int64_t seconds = std::max(static_cast<int64_t>(time), newest + 1);
  out_ = std::make_unique<FileWriter>(
      cat(folder, "/", kPrefix, seconds, ".", host_name(), ".", ::getpid(), ".0"));
  Event head;
  head.set_wall_time(time);
  head.set_file_version(kVersion);
  std::string bytes = serialize(head);
  if (earlier || resume_step > 0) {
    Event start;
    start.set_wall_time(time);
    start.set_step(resume_step + 1);
    start.mutable_session_log()->set_status(tensorboard::SessionLog::START);
    bytes += serialize(start);
  }
  out_->write(bytes);
}

void EventWriter::write(int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  Event event;
  event.set_wall_time(now());
  event.set_step(step);
  for (const auto& [tag, value] : scalars) {
    auto* entry = event.mutable_summary()->add_value();
    entry->set_tag(tag);
    entry->set_simple_value(static_cast<float>(value));
  }
  out_->write(serialize(event));
}

std::vector<ScalarEvent> read_events(const std::string& path) {
  const std::string text = read_file(path);
  std::vector<ScalarEvent> events;
  size_t whole = 0;
  for (const std::string_view record : split_records(text, &whole)) {
    Event event;
    if (!event.ParseFromArray(record.data(), static_cast<int>(record.size()))) break;
    if (event.has_session_log()) events.push_back({event.step(), "", 0});
    for (const auto& value : event.summary().value()) {
      events.push_back({event.step(), value.tag(), value.simple_value()});
    }
  }
  return events;
}

}  // namespace moetrain
