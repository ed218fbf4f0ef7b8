#!/bin/bash
# Tests of whole training runs under mpirun: run.sh NAME runs one of the functions test_NAME.
. "$(dirname "$0")/../cli/harness.sh"
export OMPI_MCA_rmaps_base_oversubscribe=1
here=$root/tests/trainer
small="--set train.validation_interval=0 --set model.num_nextn_predict_layers=0 --set train.micro_batch_size=1"

# train DIR RANKS [arguments]: one training command into output folder DIR
train() {
  local dir=$1 ranks=$2
  shift 2
  if [ "$ranks" -eq 1 ]; then
    "$moetrain" train --config "$tiny" --set "run.output_dir=$dir" "$@"
  else
    mpirun -n "$ranks" "$moetrain" train --config "$tiny" --set "run.output_dir=$dir" "$@"
  fi
}
# same_run A B [TOLERANCE]: both logs hold every step once, in order, with the same numbers
same_run() { check "the same run: $*" python3 "$here/compare.py" "$@"; }
# same_weights A B: the newest checkpoints hold the same bytes
same_weights() {
  check "the same bytes: $1 and $2" python3 "$here/states.py" "$1" "$2"
}
newest() { ls "$1/checkpoints" | grep '^step_' | tail -1; }
# wait_for TEXT FILE: until it is there, 20 s at most
wait_for() {
  for _ in $(seq 1 400); do
    grep -qF -- "$1" "$2" 2> /dev/null && return
    sleep 0.05
  done
  echo "FAILED: no '$1' in $2"
  failures=$((failures + 1))
}
# ranks_of DIR: processes that train into output folder DIR
ranks_of() { pgrep -f "^[^ ]*moetrain train .*run.output_dir=$1( |\$)"; }

. "$here/resume.sh"
. "$here/ends.sh"
. "$here/edges.sh"

name=${1:?run.sh NAME}
"test_$name"
[ $failures -eq 0 ] && echo "$name: good"
exit $((failures > 0))
