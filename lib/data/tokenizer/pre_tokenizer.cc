// The rarer behaviours of Split: pieces dropped or glued to their neighbours.
#include "data/tokenizer/pre_tokenizer.h"

namespace moetrain {

PreTokenizer::PreTokenizer(const std::vector<PreTokenizerStep>& steps) {
  for (const PreTokenizerStep& spec : steps) {
    Step step;
    step.spec = spec;
    if (spec.kind == PreTokenizerStep::kSplit && !spec.literal)
      step.regex.emplace_back(spec.pattern, spec.where);
    steps_.push_back(std::move(step));
  }
}

std::vector<PreTokenizer::Span> PreTokenizer::spans(const Step& step, std::string_view text,
                                                    const Scratch& scratch) const {
  const bool invert = step.spec.invert;
  std::vector<Span> all;
  size_t done = 0;
  const auto put = [&](size_t begin, size_t end, bool match) {
    if (end > begin || match) all.push_back({begin, end, match != invert});
  };
  matches(step, text, scratch, [&](size_t begin, size_t end) {
    put(done, begin, false);
    put(begin, end, true);
    done = end;
  });
  put(done, text.size(), false);

  std::vector<Span> out;
  bool previous = false;
  switch (step.spec.behavior) {
    case SplitBehavior::kIsolated:
      return all;
    case SplitBehavior::kRemoved:
      for (const Span& s : all) {
        if (!s.match) out.push_back(s);
      }
      return out;
    case SplitBehavior::kContiguous:
      for (const Span& s : all) {
        if (!out.empty() && out.back().match == s.match) {
          out.back().end = s.end;
        } else {
          out.push_back(s);
        }
      }
      return out;
    case SplitBehavior::kMergedWithPrevious:
      for (const Span& s : all) {
        if (s.match && !previous && !out.empty()) {
          out.back().end = s.end;
        } else {
          out.push_back(s);
        }
        previous = s.match;
      }
      return out;
    case SplitBehavior::kMergedWithNext:
      for (size_t i = all.size(); i-- > 0;) {
        if (all[i].match && !previous && !out.empty()) {
          out.back().begin = all[i].begin;
        } else {
          out.push_back(all[i]);
        }
        previous = all[i].match;
      }
      return {out.rbegin(), out.rend()};
  }
  return all;
}

}  // namespace moetrain
