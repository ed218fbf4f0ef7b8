// Ops that only exist on one rank's graph: block copies around collectives, collectives, row exchange.
#pragma once

#include "graph/graph.h"
#include "graph/op.h"
#include "ops/rows.h"

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

/// Is this op one that the executor gives to the communicator?
bool is_collective(const OpDef& op);
/// Is the node's output its operand's memory under another type, so that nothing runs?
bool only_renames(const Node& node);

}  // namespace moetrain::ops
