// Names of the verbs, for comparing and reporting what ranks are doing.
#pragma once

#include <cstdint>
#include <string>

namespace moetrain::comm {

enum class Verb : int32_t {
  kAllGather = 1,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kAllToAllV,
  kSend,
  kRecv,
  kBarrier,
  kGatherBlocks,
};

/// "all_gather".
const char* name_of(Verb verb);
/// "reduce_scatter(detail 16, size 42)".
std::string describe_verb(int32_t verb, int32_t detail, int64_t size);

}  // namespace moetrain::comm
