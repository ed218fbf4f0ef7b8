// Cuts the ranks of a stage where any of its axes begins, and names the pieces.
#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "compile/strategy/parallel_options.h"

namespace moetrain {
namespace {

/// An axis as the ranks between two strides: [begin, end) in ranks, minor end first.
struct Span {
  int64_t begin, end;
};

std::string product_text(const std::vector<std::pair<std::string, int>>& axes) {
  std::vector<std::string> parts;
  for (const auto& [name, size] : axes) parts.push_back(cat(name, " ", size));
  return join(parts, " x ");
}

}  // namespace

Mesh build_mesh(const ParallelOptions& o, int first_rank) {
  std::vector<Diagnostic> faults;
  for (const auto& [key, size] : {std::pair{"parallel.data", o.data},
                                  {"parallel.context", o.context},
                                  {"parallel.tensor", o.tensor},
                                  {"parallel.expert", o.expert}}) {
    if (size < 1) faults.push_back({"", cat(key, " is ", size, "; it must be at least 1")});
  }
  if (!faults.empty()) throw UserError(faults);
  const int dense = o.data * o.context;
  if (dense % o.expert != 0) {
    throw UserError(cat("parallel.expert ", o.expert, " must divide data x context = ", o.data,
                        " x ", o.context, " = ", dense));
  }
  // Every view lists axes major first and covers all ranks of the stage.
  using View = std::vector<std::pair<std::string, int>>;
  std::vector<View> views{{{"dp", o.data}, {"cp", o.context}, {"tp", o.tensor}},
                          {{"edp", dense / o.expert}, {"ep", o.expert}, {"tp", o.tensor}}};
  if (!o.mesh.empty()) {
    int64_t product = 1;
    for (const auto& [name, size] : o.mesh) {
      for (const char* taken : {"dp", "cp", "tp", "edp", "ep"}) {
        if (name == taken) {
          faults.push_back({"", cat("LAYOUT_ALIAS: parallel.mesh axis '", name,
                                    "' has the name of a built-in axis; choose another name")});
        }
      }
      if (name == "interleaved_parallel") {
        faults.push_back(
            {"", cat("LAYOUT_INTERLEAVE: parallel.mesh axis '", name, "' ",
                     o.mesh.back().first != name
                         ? "must come last, and "
                         : "",
                     "cuts a rank's work in time, which is no layout; drop the axis and use more, "
                     "smaller micro-batches (parallel.schedule: fused_1f1b runs two at a time)")});
      }
      if (name.empty() || name == "None" || name == "-") {
        faults.push_back({"", cat("LAYOUT_ALIAS: '", name, "' cannot name an axis")});
      }
      if (std::count_if(o.mesh.begin(), o.mesh.end(),
                        [&, n = name](const auto& axis) { return axis.first == n; }) > 1) {
        faults.push_back({"", cat("LAYOUT_ALIAS: parallel.mesh names '", name, "' twice")});
      }
      if (size < 1) {
        faults.push_back({"", cat("LAYOUT_ARG: parallel.mesh axis '", name, "' has size ", size)});
      }
      product *= size;
    }
    if (product != o.stage_ranks()) {
      faults.push_back({"", cat("LAYOUT_DEVICES: parallel.mesh ", product_text(o.mesh), " = ",
                                product, " ranks, but a stage has data x context x tensor = ",
                                o.data, " x ", o.context, " x ", o.tensor, " = ",
                                o.stage_ranks())});
    }
    if (!faults.empty()) throw UserError(faults);
    views.push_back(o.mesh);
  }
  std::map<std::string, Span> spans;
  std::map<int64_t, std::string> cuts{{1, "1"}};  // stride -> how it came about
  for (const View& view : views) {
    int64_t stride = 1;
    for (size_t i = view.size(); i-- > 0;) {
      const auto& [name, size] = view[i];
      spans[name] = {stride, stride * size};
      stride *= size;
      const View minor(view.begin() + static_cast<std::ptrdiff_t>(i), view.end());
      cuts.emplace(stride, product_text(minor));
    }
  }
  Mesh mesh;
  mesh.first_rank = first_rank;
  std::vector<Span> pieces;
  for (auto next = std::next(cuts.begin()); next != cuts.end(); ++next) {
    const auto& [low, low_text] = *std::prev(next);
    const auto& [high, high_text] = *next;
    if (high % low != 0) {
      throw UserError(cat("LAYOUT_DEVICES: the ranks of a stage cannot be cut for all axes at once: ",
                          high_text, " = ", high, " is no multiple of ", low_text, " = ", low,
                          "; choose sizes so that one divides the other (e.g. expert a multiple "
                          "or a divisor of context)"));
    }
    pieces.push_back({low, high});
  }
  std::reverse(pieces.begin(), pieces.end());
  std::map<std::string, int> pieces_of;
  auto dense_name = [&](const Span& piece) -> std::string {
    for (const char* name : {"dp", "cp", "tp"}) {
      const Span& span = spans.at(name);
      if (piece.begin >= span.begin && piece.end <= span.end) return name;
    }
    return "x";
  };
  for (const Span& piece : pieces) ++pieces_of[dense_name(piece)];
  std::map<std::string, int> numbered;
  for (const Span& piece : pieces) {
    std::string name = dense_name(piece);
    if (pieces_of[name] > 1) name += std::to_string(numbered[name]++);
    for (const auto& [axis, span] : spans) {
      if (piece.begin >= span.begin && piece.end <= span.end) {
        mesh.names[axis].push_back(static_cast<Axis>(mesh.atoms.size()));
      }
    }
    mesh.names[name] = pieces_of[dense_name(piece)] > 1
                           ? std::vector<Axis>{static_cast<Axis>(mesh.atoms.size())}
                           : mesh.names[name];
    mesh.atoms.push_back({name, static_cast<int>(piece.end / piece.begin)});
  }
  for (const auto& [axis, span] : spans) mesh.names[axis];  // an axis of one rank is an empty run
  return mesh;
}

}  // namespace moetrain
