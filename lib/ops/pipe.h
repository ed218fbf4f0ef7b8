// Transfers between pipeline stages: the two ends of an edge that crosses.
#pragma once

#include "graph/graph.h"
#include "graph/op.h"

namespace moetrain::ops {

// Partition makes these; they have no sharding rule and no gradient. attrs of both: group (name of the
// stream; messages of one stream are received in the order they were sent), ranks (world ranks, sender
// first).

/// x -> nothing: gives x to the other rank. Buffered: does not wait for the receiver.
extern const OpDef kSend;
/// nothing -> x from the other rank. attrs: dtype, shape.
extern const OpDef kRecv;

/// Is this op one of the two?
bool is_transfer(const OpDef& op);

}  // namespace moetrain::ops
