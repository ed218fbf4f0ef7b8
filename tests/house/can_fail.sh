#!/bin/bash
# Puts faults into a copy of the tree and expects the checks to find them.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r "$root/lib" "$root/apps" "$root/scripts" "$copy/"
mkdir -p "$copy/tests/checkpoint" "$copy/tests/config" "$copy/tests/data_room" "$copy/tests/train_metrics"
bad=0
expect_fault() {  # check, text it must print
  output=$("$copy/scripts/check_$1.sh" 2>&1) && { echo "check_$1 found nothing"; bad=1; }
  grep -qF "$2" <<< "$output" || { echo "check_$1 did not name '$2'"; bad=1; }
}
cat > "$copy/lib/base/fault.cc" <<'C'
// A fault.
#include "compile/compile.h"
#include <mpi.h>
C
expect_fault layers "lib/base/fault.cc:2: base may not include compile/compile.h"
expect_fault layers "lib/base/fault.cc:3: only"
rm "$copy/lib/base/fault.cc"
yes '// line' | head -501 > "$copy/lib/base/long.cc"
expect_fault sizes "lib/base/long.cc: 501 lines"
printf '// x\t\n' > "$copy/lib/base/long.cc"
expect_fault format "lib/base/long.cc:1: a tab"
printf '// TO''DO later\n' > "$copy/lib/base/long.cc"
expect_fault words "lib/base/long.cc:1"
exit $bad
