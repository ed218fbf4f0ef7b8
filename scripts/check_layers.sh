#!/bin/bash
# Which room may include which: the direction of the house as a test. One line per room, rooms it may use.
cd "$(dirname "$0")/.." || exit 1
declare -A may=(
  [base]=""
  [config]="base"
  [graph]="base"
  [ops]="base graph"
  [model]="base config graph ops"
  [plan]="base graph"
  [compile]="base graph ops plan"
  [runtime]="base graph ops plan"
  [simulate]="base graph plan"
  [data]="base"
  [checkpoint]="base"
  [train]="base config graph ops model plan compile runtime simulate data checkpoint"
)
bad=0
complain() { echo "$1"; bad=1; }

while IFS=: read -r file line text; do
  room=${file#lib/}; room=${room%%/*}
  used=$(sed -E 's/.*"([^"]+)".*/\1/' <<< "$text")
  other=${used%%/*}
  [ -d "lib/$other" ] || continue
  [ "$room" = "$other" ] && continue
  [ -n "${may[$room]+x}" ] || { complain "$file:$line: room $room has no line in $0"; continue; }
  [[ " ${may[$room]} " == *" $other "* ]] ||
    complain "$file:$line: $room may not include $used (allowed: ${may[$room]:-nothing})"
done < <(grep -rnE '^#include "' lib --include='*.h' --include='*.cc')

# foreign headers and the only files that may know them
only() {  # header pattern, file pattern
  while IFS=: read -r file line text; do
    [[ $file =~ $2 ]] || complain "$file:$line: only $2 includes $1"
  done < <(grep -rnE "^#include <$1" lib apps --include='*.h' --include='*.cc')
}
only 'mpi\.h' '^lib/runtime/comm/mpi'
only 'yaml-cpp/' '^lib/config/yaml\.cc$'
only 'CLI/' '^apps/moetrain/cli\.cc$'
only 'spdlog/' '^lib/base/log\.cc$'
only 'hwy/' '^lib/runtime/device/cpu/'
only 'oneapi/' '^lib/runtime/device/cpu/peer/'
only 'pcre2\.h' '^lib/data/tokenizer/'
only '(acl|hccl|aclnn)' '^lib/runtime/(device/ascend|comm/hccl)'

# headers of apps stay in apps
grep -rnE '^#include "(apps|tests)/' lib && complain "lib may not include apps or tests"
[ $bad -eq 0 ] && echo "layers: every include goes downwards"
exit $bad
