// Ops that only exist on one rank's graph: block copies around collectives, collectives, row exchange.
#pragma once

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

// Partition makes these; they have no sharding rule (their rule is empty) and no gradient.

/// x -> block `index` of `parts` equal blocks of dim `dim`. attrs: dim, parts, index.
extern const OpDef kSliceBlock;
/// x[.., m*c, ..] -> [m, .., c, ..]: the m blocks of dim `dim` become the leading dim. attrs: dim, parts,
/// plain (1: nothing moves in memory, the result is an alias).
extern const OpDef kStack;
/// Inverse of kStack: x[m, .., c, ..] -> [.., m*c, ..]. attrs: dim, plain.
extern const OpDef kUnstack;
/// x when attr keep is 1, zeros otherwise: turns equal copies into a pending sum.
extern const OpDef kKeepOnFirst;
/// x -> flat u8 buffer of boxes, one after the other. attrs: boxes (integers: per box rank begins then
/// rank extents).
extern const OpDef kPackBoxes;
/// flat u8 buffer -> y whose boxes are filled from it in order. attrs: boxes, shape, dtype (as integer).
extern const OpDef kUnpackBoxes;

// Collectives (reference null; the executor calls the communicator). attrs: axes (mesh axes of the
// group, major first) and, for reductions, maximum (1: max instead of sum).
/// x -> [m, x...].
extern const OpDef kAllGather;
/// [m, x...] -> [x...], element-wise reduction of the members' own block.
extern const OpDef kReduceScatter;
/// x -> x reduced over the group.
extern const OpDef kAllReduce;
/// [m, x...] -> [m, x...]: block i to member i.
extern const OpDef kAllToAll;
/// Flat u8 exchange of known sizes. attrs: send_bytes, recv_bytes (integers per member).
extern const OpDef kExchange;

// Token rows. `counts` tensors are i32 [members, local experts].
/// idx[b, s, K] -> plan (see experts.h) over members x local experts virtual experts, destination-major;
/// counts[members, local experts]. attrs: first_experts (integers: first global expert of each member),
/// local_experts.
extern const OpDef kDispatchCount;
/// counts received [members, local experts] -> offsets [local experts + 1] i32 of expert-major rows.
extern const OpDef kRowOffsets;
/// Any number of i32 count tensors -> one i32 [n] host-visible handle: the executor waits for the host,
/// copies every operand to the host and binds extent i to the sum of operand i.
extern const OpDef kBind;
/// (x[b, s, d], plan, bind) -> rows ragged[E, cap, d] in plan order. attrs: experts, which (extent index
/// of bind), capacity.
extern const OpDef kGatherRows;
/// (rows, bind) -> rows: ragged all-to-all; block i goes to member i. attrs: axes, send, recv (operand
/// indices of bind that hold the counts), which, experts, capacity. Collective.
extern const OpDef kRowsAllToAll;
/// (rows source-major, counts, bind) -> rows expert-major. attrs: inverse (1: expert-major back to
/// source-major), which, experts, capacity.
extern const OpDef kRegroupRows;

/// Is this op one that the executor gives to the communicator?
bool is_collective(const OpDef& op);

}  // namespace moetrain::ops
