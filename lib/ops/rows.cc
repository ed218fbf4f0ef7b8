// Types and reference loops of the row ops. All of them move or count integers: any order gives the
// same bits.
#include "ops/rows.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "ops/common.h"

namespace moetrain::ops {

namespace {

using Types = std::span<const Type>;
using Tensors = std::span<const Tensor>;

Type integers(Shape shape) { return {DType::kI32, std::move(shape), false}; }

// counting ---------------------------------------------------------------------------------------

/// Global expert -> member * local experts + its place there, -1 for experts of no member.
std::vector<int32_t> bins_of_experts(const Attrs& attrs) {
  const auto& first = attrs.integers("first_experts");
  const int64_t local = attrs.integer("local_experts");
  std::vector<int32_t> bins;
  for (size_t m = 0; m < first.size(); ++m) {
    if (static_cast<int64_t>(bins.size()) < first[m] + local) bins.resize(first[m] + local, -1);
    for (int64_t e = 0; e < local; ++e) {
      bins[first[m] + e] = static_cast<int32_t>(static_cast<int64_t>(m) * local + e);
    }
  }
  return bins;
}

int32_t bin_of(const std::vector<int32_t>& bins, int32_t expert) {
  return expert < 0 || expert >= static_cast<int32_t>(bins.size()) ? -1 : bins[expert];
}

std::vector<Type> dispatch_count_types(const Attrs& attrs, Types in) {
  const int64_t members = static_cast<int64_t>(attrs.integers("first_experts").size());
  const int64_t local = attrs.integer("local_experts");
  return {integers({members * local + 1 + numel(in[0].shape)}), integers({members, local})};
}

void dispatch_count_run(const Attrs& attrs, Tensors in, std::span<Tensor> out) {
  const std::vector<int32_t> bins = bins_of_experts(attrs);
  const int64_t count = out[1].numel(), slots = in[0].numel();
  const int32_t* idx = in[0].as<const int32_t>();
  int32_t* offsets = out[0].as<int32_t>();
  int32_t* source = offsets + count + 1;
  int32_t* counts = out[1].as<int32_t>();
  std::fill(counts, counts + count, 0);
  for (int64_t i = 0; i < slots; ++i) {
    if (const int32_t bin = bin_of(bins, idx[i]); bin >= 0) ++counts[bin];
  }
  offsets[0] = 0;
  for (int64_t b = 0; b < count; ++b) offsets[b + 1] = offsets[b] + counts[b];
  std::vector<int32_t> next(offsets, offsets + count);
  for (int64_t i = 0; i < slots; ++i) {
    if (const int32_t bin = bin_of(bins, idx[i]); bin >= 0) {
      source[next[bin]++] = static_cast<int32_t>(i);
    }
  }
}

std::vector<Type> once_count_types(const Attrs& attrs, Types in) {
  const int64_t members = static_cast<int64_t>(attrs.integers("first_experts").size());
  const int64_t per_unit = attrs.integer("per_unit"), local = attrs.integer("local_experts");
  MT_CHECK(per_unit > 0 && members % per_unit == 0, members, " members in units of ", per_unit);
  const int64_t units = members / per_unit;
  // A token makes at most min(units, K) <= K rows.
  return {integers({units + 1 + numel(in[0].shape)}), integers({units, 1 + per_unit * local})};
}

void once_count_run(const Attrs& attrs, Tensors in, std::span<Tensor> out) {
  const std::vector<int32_t> bins = bins_of_experts(attrs);
  const int64_t units = out[1].shape[0], width = out[1].shape[1], per_unit = width - 1;
  const int64_t slots = in[0].numel(), top_k = in[0].cols();
  const int32_t* idx = in[0].as<const int32_t>();
  int32_t* offsets = out[0].as<int32_t>();
  int32_t* source = offsets + units + 1;
  int32_t* counts = out[1].as<int32_t>();
  std::fill(counts, counts + out[1].numel(), 0);
  std::vector<int64_t> last(units, -1);  // token that touched the unit last
  auto each_first = [&](auto touch) {
    std::fill(last.begin(), last.end(), -1);
    for (int64_t i = 0; i < slots; ++i) {
      const int32_t bin = bin_of(bins, idx[i]);
      if (bin < 0) continue;
      const int64_t unit = bin / per_unit, token = i / top_k;
      touch(unit, bin % per_unit, i, last[unit] != token);
      last[unit] = token;
    }
  };
  each_first([&](int64_t unit, int64_t expert, int64_t, bool first) {
    counts[unit * width] += first;
    ++counts[unit * width + 1 + expert];
  });
  offsets[0] = 0;
  for (int64_t u = 0; u < units; ++u) offsets[u + 1] = offsets[u] + counts[u * width];
  std::vector<int32_t> next(offsets, offsets + units);
  each_first([&](int64_t unit, int64_t, int64_t slot, bool first) {
    if (first) source[next[unit]++] = static_cast<int32_t>(slot);
  });
}

std::vector<Type> count_tables_types(const Attrs&, Types in) {
  const int64_t units = in[0].shape[0], width = in[0].shape[1];
  const int64_t per_unit = in[1].shape.size() == 3 ? in[1].shape[0] / units : 1;
  const Shape near{per_unit, (width - 1) / per_unit};
  return {integers({units, 1}), integers({units, 1}), integers(near), integers(near)};
}

void count_tables_run(const Attrs& attrs, Tensors in, std::span<Tensor> out) {
  const int64_t units = in[0].shape[0], width = in[0].shape[1];
  const int64_t per_unit = out[2].shape[0], local = out[2].shape[1];
  const int64_t mine = attrs.integer("unit"), place = attrs.integer("place");
  const int32_t* counts = in[0].as<const int32_t>();
  const bool everybody = in[1].shape.size() == 3;
  /// What the member at `place_there` of `unit` sends to ranks of the own unit.
  auto sent_by = [&](int64_t unit, int64_t place_there) {
    const int32_t* all = in[1].as<const int32_t>();
    return everybody ? all + ((unit * per_unit + place_there) * units + mine) * width
                     : all + unit * width;
  };
  std::memset(out[2].data, 0, out[2].bytes());
  std::memset(out[3].data, 0, out[3].bytes());
  for (int64_t u = 0; u < units; ++u) {
    out[0].as<int32_t>()[u] = counts[u * width];
    out[1].as<int32_t>()[u] = sent_by(u, place)[0];
    for (int64_t e = 0; e < per_unit * local; ++e) {
      out[2].as<int32_t>()[e] += sent_by(u, place)[1 + e];
    }
    for (int64_t r = 0; r < per_unit; ++r) {
      for (int64_t e = 0; e < local; ++e) {
        out[3].as<int32_t>()[r * local + e] += sent_by(u, r)[1 + place * local + e];
      }
    }
  }
}

std::vector<Type> row_offsets_types(const Attrs&, Types in) {
  return {integers({in[0].shape[1] + 1})};
}

void row_offsets_run(const Attrs&, Tensors in, std::span<Tensor> out) {
  const int64_t members = in[0].shape[0], experts = in[0].shape[1];
  const int32_t* counts = in[0].as<const int32_t>();
  int32_t* offsets = out[0].as<int32_t>();
  offsets[0] = 0;
  for (int64_t e = 0; e < experts; ++e) {
    int32_t rows = 0;
    for (int64_t m = 0; m < members; ++m) rows += counts[m * experts + e];
    offsets[e + 1] = offsets[e] + rows;
  }
}

std::vector<Type> bind_types(const Attrs&, Types in) {
  return {integers({static_cast<int64_t>(in.size())})};
}

// moving -----------------------------------------------------------------------------------------

std::vector<Type> pack_routing_types(const Attrs&, Types in) {
  MT_CHECK(in[0].shape == in[1].shape && in[0].dtype == DType::kI32 && in[1].dtype == DType::kF32,
           "pack_routing of ", to_string(in[0]), " and ", to_string(in[1]));
  Type out = in[0];
  out.shape.back() *= 2;
  return {out};
}

void pack_routing_run(const Attrs&, Tensors in, std::span<Tensor> out) {
  const int64_t top_k = in[0].cols(), rows = in[0].rows();
  int32_t* to = out[0].as<int32_t>();
  for (int64_t r = 0; r < rows; ++r, to += 2 * top_k) {
    std::memcpy(to, in[0].as<const int32_t>() + r * top_k, top_k * sizeof(int32_t));
    std::memcpy(to + top_k, in[1].as<const float>() + r * top_k, top_k * sizeof(float));
  }
}

std::vector<Type> unpack_routing_types(const Attrs&, Types in) {
  Type idx = in[0];
  idx.shape.back() /= 2;
  Type weight = idx;
  weight.dtype = DType::kF32;
  return {idx, weight};
}

void unpack_routing_run(const Attrs&, Tensors in, std::span<Tensor> out) {
  const int64_t top_k = out[0].cols(), rows = out[0].rows();
  const int32_t* from = in[0].as<const int32_t>();
  for (int64_t r = 0; r < rows; ++r, from += 2 * top_k) {
    std::memcpy(out[0].as<int32_t>() + r * top_k, from, top_k * sizeof(int32_t));
    std::memcpy(out[1].as<float>() + r * top_k, from + top_k, top_k * sizeof(float));
  }
}

std::vector<Type> gather_rows_types(const Attrs& attrs, Types in) {
  return {{in[0].dtype,
           {attrs.integer("experts"), attrs.integer("capacity"), in[0].shape.back()},
           true}};
}

void gather_rows_run(const Attrs& attrs, Tensors in, std::span<Tensor> out) {
  const int64_t experts = attrs.integer("experts"), top_k = attrs.integer("top_k");
  const int32_t* plan = in[1].as<const int32_t>();
  const int64_t rows = plan[experts], line = in[0].cols() * size_of(in[0].dtype);
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(out[0].as<char>() + r * line,
                in[0].as<char>() + plan[experts + 1 + r] / top_k * line, line);
  }
}

std::vector<Type> moved_rows_types(const Attrs& attrs, Types in) {
  Type out = in[0];
  out.shape[0] = attrs.integer("experts");
  out.shape[1] = attrs.integer("capacity");
  return {out};
}

void regroup_run(const Attrs& attrs, Tensors in, std::span<Tensor> out) {
  const int64_t members = in[1].shape[0], experts = in[1].shape[1];
  const int32_t* counts = in[1].as<const int32_t>();
  const bool inverse = attrs.integer("inverse") != 0;
  const int64_t line = in[0].cols() * size_of(in[0].dtype);
  int64_t expert_row = 0;
  for (int64_t e = 0; e < experts; ++e) {
    int64_t source_row = 0;
    for (int64_t m = 0; m < members; ++m) {
      for (int64_t k = 0; k < e; ++k) source_row += counts[m * experts + k];
      const int64_t rows = counts[m * experts + e];
      const int64_t from = inverse ? expert_row : source_row;
      const int64_t to = inverse ? source_row : expert_row;
      if (rows > 0) {
        std::memcpy(out[0].as<char>() + to * line, in[0].as<char>() + from * line, rows * line);
      }
      for (int64_t k = e; k < experts; ++k) source_row += counts[m * experts + k];
      expert_row += rows;
    }
  }
}

}  // namespace

const OpDef kDispatchCount{"dispatch_count", dispatch_count_types, no_rule, nullptr,
                           moving_cost,        dispatch_count_run};
const OpDef kOnceCount{"once_count", once_count_types, no_rule, nullptr, moving_cost, once_count_run};
const OpDef kCountTables{"count_tables", count_tables_types, no_rule,
                         nullptr,        moving_cost,          count_tables_run};
const OpDef kRowOffsets{"row_offsets", row_offsets_types, no_rule,
                        nullptr,       moving_cost,         row_offsets_run};
const OpDef kBind{"bind", bind_types, no_rule, nullptr, moving_cost, nullptr};
const OpDef kPackRouting{"pack_routing", pack_routing_types, no_rule,
                         nullptr,        moving_cost,          pack_routing_run};
const OpDef kUnpackRouting{"unpack_routing", unpack_routing_types, no_rule, nullptr,
                           moving_cost,        unpack_routing_run};
const OpDef kGatherRows{"gather_rows", gather_rows_types, no_rule,
                        nullptr,       moving_cost,         gather_rows_run};
const OpDef kRowsAllToAll{"rows_all_to_all", moved_rows_types, no_rule,
                          nullptr,           moving_cost,        nullptr};
const OpDef kRegroupRows{"regroup_rows", moved_rows_types, no_rule,
                         nullptr,        moving_cost,        regroup_run};

}  // namespace moetrain::ops
