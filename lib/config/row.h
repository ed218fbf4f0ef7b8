// How description rows are written: row(...) with its target, unit, range and help.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/field.h"

namespace moetrain {

/// A row with its three obligatory parts; chain unit(), at_least() and so on behind it.
inline Field row(std::string name, Target target, std::string help) {
  Field field;
  field.name = std::move(name);
  field.target = std::move(target);
  field.help = std::move(help);
  return field;
}

/// Sets `most` as the upper bound of every whole-number row that has none: sizes beyond it are
/// typing errors, and below it products of a few sizes fit 64 bits.
Fields bounded(Fields rows, double most);

/// Targets. `place` must outlive the rows, and so must the struct around it.
template <class Enum>
Target choice(Enum* place, std::vector<std::string> names) {
  return Choice{std::move(names), [place] { return static_cast<int>(*place); },
                [place](int index) { *place = static_cast<Enum>(index); }};
}

template <class Struct>
Target group(Struct* place) {
  return Group{[place] { return describe(*place); }, nullptr, nullptr};
}

template <class Struct>
Target optional_group(std::optional<Struct>* place) {
  return Group{[place] { return describe(place->has_value() ? **place : place->emplace()); },
               [place] { return place->has_value(); },
               [place](bool present) {
                 if (!present)
                   place->reset();
                 else if (!place->has_value())
                   place->emplace();
               }};
}

template <class Struct>
Target records(std::vector<Struct>* place) {
  return Records{[place] { return place->size(); },
                 [place](size_t n) { place->assign(n, Struct{}); },
                 [place](size_t i) { return describe((*place)[i]); }};
}

}  // namespace moetrain
