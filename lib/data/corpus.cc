// Cutting mapped files into documents without copying them.
#include "data/corpus.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "data/json_io.h"
#include "data/tokenizer/utf8.h"

namespace moetrain {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos;
}

std::string_view without_line_end(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

std::vector<std::string> expand(const std::string& input) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(input, ignored)) return {input};
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(input, ignored)) {
    if (entry.is_regular_file(ignored)) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

Corpus::Corpus(CorpusOptions options) : options_(std::move(options)) {
  std::vector<Diagnostic> faults;
  if (options_.inputs.empty()) faults.push_back({"", "no input files are given"});
  if (options_.cut == DocumentCut::kSeparatorLine && options_.separator.empty()) {
    faults.push_back({"", "cutting documents at separator lines needs the separator"});
  }
  for (const std::string& input : options_.inputs) {
    const std::vector<std::string> files = expand(input);
    if (files.empty()) faults.push_back({input, "the folder holds no files"});
    for (const std::string& path : files) {
      try {
        maps_.emplace_back(path);
        paths_.push_back(path);
        total_bytes_ += static_cast<int64_t>(maps_.back().size());
      } catch (const UserError& error) {
        faults.insert(faults.end(), error.diagnostics().begin(), error.diagnostics().end());
      }
    }
  }
  if (!faults.empty()) throw UserError(std::move(faults));
}

bool Corpus::is_jsonl(const std::string& path) const {
  if (options_.format != TextFormat::kAuto) return options_.format == TextFormat::kJsonl;
  return path.ends_with(".jsonl") || path.ends_with(".ndjson");
}

// The rest of the current line with its end; moves on.
std::string_view Corpus::take_line() {
  const std::string_view rest = maps_[file_].text().substr(at_);
  const size_t end = rest.find('\n');
  const std::string_view line =
      rest.substr(0, end == std::string_view::npos ? rest.size() : end + 1);
  at_ += line.size();
  ++line_;
  return line;
}

// Lines up to the next cut; the last line end before it is not part of the text.
bool Corpus::next_cut(RawDocument& document) {
  const bool blank_lines = options_.cut == DocumentCut::kBlankLines;
  const std::string_view all = maps_[file_].text();
  size_t begin = at_, end = at_;
  document.line = line_;
  while (at_ < all.size()) {
    const std::string_view line = take_line();
    const bool cut = blank_lines ? is_blank(line) : without_line_end(line) == options_.separator;
    if (!cut) {
      end = at_;
      continue;
    }
    if (end > begin) break;
    begin = end = at_;
    document.line = line_;
  }
  document.bytes = without_line_end(all.substr(begin, end - begin));
  return end > begin;
}

bool Corpus::next(RawDocument& document) {
  for (; file_ < paths_.size(); ++file_, at_ = 0, line_ = 1, fresh_ = true) {
    const std::string_view all = maps_[file_].text();
    if (fresh_ && all.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
    fresh_ = false;
    document.file = file_;
    document.jsonl = is_jsonl(paths_[file_]);
    if (document.jsonl || options_.cut == DocumentCut::kLine) {
      while (at_ < all.size()) {
        document.line = line_;
        document.bytes = without_line_end(take_line());
        if (!is_blank(document.bytes)) return true;
      }
    } else if (options_.cut == DocumentCut::kFile) {
      document.bytes = all.substr(at_);
      document.line = 1;
      const bool any = at_ < all.size();
      at_ = all.size();
      if (any) return true;
    } else if (next_cut(document)) {
      return true;
    }
    done_bytes_ += static_cast<int64_t>(all.size());
  }
  at_ = 0;
  return false;
}

std::string_view Corpus::text(const RawDocument& document, std::string& storage) const {
  if (const size_t bad = utf8_find_invalid(document.bytes); bad != std::string_view::npos) {
    const std::string_view before = document.bytes.substr(0, bad);
    const auto line = document.line + std::count(before.begin(), before.end(), '\n');
    throw UserError(
        {{cat(paths_[document.file], ":", line),
          cat("not UTF-8: ill-formed byte ",
              static_cast<int>(static_cast<unsigned char>(document.bytes[bad])), " at offset ",
              document.bytes.data() + bad - maps_[document.file].text().data(), " of the file")}});
  }
  if (!document.jsonl) return document.bytes;
  std::string fault;
  if (!json_text(document.bytes, options_.key, storage, fault)) {
    throw UserError({{cat(paths_[document.file], ":", document.line), fault}});
  }
  return storage;
}

}  // namespace moetrain
