// Ops that move token rows between ranks: counting, tables of counts, gathering, the exchange,
// regrouping.
#pragma once

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

// Partition makes these (compile/transport.h says how they compose). `counts` tensors are i32
// [members, local experts]. Plans have the form of experts.h: offsets of the bins, then the source
// slot (token * K + slot) of every row, bin by bin. Tokens that were themselves received are ragged
// [1, capacity, ...] values; plans over them are sized for the capacity.

/// idx[b, s, K] -> plan over members x local experts bins, destination-major; counts[members, local
/// experts]. Experts of no member are ignored. attrs: first_experts (integers: first global expert
/// of each member), local_experts.
extern const OpDef kDispatchCount;
/// idx[b, s, K] -> plan with one bin per unit and one row per (token, unit) that has at least one
/// of the token's experts (source slot: the first of them; rows in token order); counts[units, 1 +
/// experts of a unit]: rows to the unit, then the slots of each of its experts. A unit is
/// `per_unit` consecutive members. attrs as kDispatchCount, per_unit.
extern const OpDef kOnceCount;
/// (counts of kOnceCount, exchanged) -> rows sent [units, 1], rows received [units, 1], and for the
/// ranks of the own node: slots sent [per_unit, local experts], slots received [per_unit, local
/// experts]. `exchanged` is what every member sent about this rank: [units, w] by all_to_all where
/// per_unit is 1, else everybody's counts [members, units, w] by all_gather. attrs: unit, place (of
/// this rank in it).
extern const OpDef kCountTables;
/// counts received [members, local experts] -> offsets [local experts + 1] i32 of expert-major
/// rows.
extern const OpDef kRowOffsets;
/// Any number of i32 count tensors -> one i32 [n] host-visible handle: the executor waits for the
/// host, copies every operand to the host and binds extent i to the sum of operand i.
extern const OpDef kBind;
/// (idx[b, s, K] i32, weight[b, s, K] f32) -> i32 [b, s, 2K]: routing that travels as one row.
extern const OpDef kPackRouting;
/// Inverse of kPackRouting -> idx, weight.
extern const OpDef kUnpackRouting;
/// (x[b, s, d], plan, bind) -> rows ragged[E, cap, d] in plan order. attrs: experts, which (extent
/// index of bind), capacity, top_k.
extern const OpDef kGatherRows;
/// (rows, bind) -> rows: ragged all-to-all; block i goes to member i. attrs: axes or ranks, send,
/// recv (operand indices of bind that hold the counts), which, experts, capacity. Collective.
extern const OpDef kRowsAllToAll;
/// (rows source-major, counts, bind) -> rows expert-major. attrs: inverse (1: expert-major back to
/// source-major), which, experts, capacity.
extern const OpDef kRegroupRows;

}  // namespace moetrain::ops
