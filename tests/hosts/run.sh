#!/bin/bash
# Tests of training over simulated hosts: run.sh NAME runs one of the functions test_NAME. 77: not possible here.
. "$(dirname "$0")/../cli/harness.sh"
here=$root/tests/hosts
name=${1:?run.sh NAME}
hosts=$root/scripts/sim_hosts.sh
SIM_HOSTS=test-$name-$(cksum <<< "$moetrain" | cut -d ' ' -f 1)
export SIM_HOSTS
"$hosts" possible || exit 77
trap '"$hosts" destroy; rm -rf "$scratch"' EXIT
small=(--config "$tiny" --resume none --set checkpoint.interval=0 --set train.validation_interval=0
  --set train.micro_batch_size=1 --set compute.threads=1 --set train.steps=4)

# train DIR [settings]: on all ranks of the hosts
train() {
  local dir=$1 arguments=()
  shift
  for setting in "$@"; do arguments+=(--set "$setting"); done
  "$hosts" run "$moetrain" train "${small[@]}" --set "run.output_dir=$dir" "${arguments[@]}"
}
alone() {
  local dir=$1 arguments=()
  shift
  for setting in "$@"; do arguments+=(--set "$setting"); done
  expect 0 "$moetrain" train "${small[@]}" --set "run.output_dir=$dir" "${arguments[@]}"
}
same() { judge same "$@"; }
# judge WHAT ARGUMENTS: compare.py, with what it found if that is wrong
judge() {
  local said
  said=$(python3 "$here/compare.py" "$@" 2>&1) && { echo "$said"; return; }
  echo "FAILED: compare.py $*: $said"
  failures=$((failures + 1))
}
# bytes sent through all interfaces so far
sent() {
  local total=0 n
  for n in $("$hosts" stats | awk 'NR > 1 { print $4 }'); do total=$((total + n)); done
  echo $total
}
wait_for() {  # TEXT FILE: until it is there, 20 s at most
  for _ in $(seq 1 400); do
    grep -qF -- "$1" "$2" 2> /dev/null && return
    sleep 0.05
  done
  echo "FAILED: no '$1' in $2"
  failures=$((failures + 1))
}
ranks_of() { pgrep -f "^[^ ]*moetrain train .*run.output_dir=$1( |\$)"; }
on_host() {  # HOST DIR: ranks of a run on that host
  local pid
  for pid in $(ranks_of "$2"); do
    [ "$(nsenter -t "$pid" -u hostname)" = "$1" ] && echo "$pid"
  done
}

# The headline's script from end to end on a model of no size: every part, and a switch's line in each table.
test_headline() {
  sed -e 's/hidden_size: 768/hidden_size: 64/; s/moe_intermediate_size: 224/moe_intermediate_size: 32/' \
    -e 's/num_hidden_layers: 3/num_hidden_layers: 2/; s/global_batch_size: 64/global_batch_size: 16/; s/sequence_length: 256/sequence_length: 32/' \
    "$root/configs/headline.yaml" > small.yaml
  check "every size was found and shrunk" test "$(diff "$root/configs/headline.yaml" small.yaml | grep -c '^>')" -eq 5
  export MOETRAIN=$moetrain
  expect 0 "$root/scripts/bench_headline.sh" --rounds 1 --rate 400mbit --config small.yaml
  for text in "4 hosts x 2 ranks, 400mbit between them" "the same, all but one" "no limit between them" \
    "2 hosts x 4 ranks, 400mbit between them" "8 hosts x 1 rank, top-1, 400mbit" "% of the plain step" \
    "only transfers beside computation" "without transfers beside computation"; do
    says "$text"
  done
  says "layers.1.moe.dispatch  alltoall (cheapest)"
}

# Memory inside a host, TCP between: every transport gives the numbers of one rank.
test_one_loss() {
  corpus
  alone one
  local shape transport
  for shape in "2 2" "4 1"; do
    read -r count ranks <<< "$shape"
    expect 0 "$hosts" create --hosts "$count" --ranks-per-host "$ranks"
    for transport in alltoall alltoall_once allgather dedup; do
      expect 0 train "$transport$count" parallel.expert=4 parallel.dispatch=$transport
      same one "$transport$count" "$ranks"
    done
  done
}

# Stages on different hosts, and tensor ranks apart and together.
test_pipelines() {
  corpus
  alone one
  expect 0 "$hosts" create --hosts 2 --ranks-per-host 2
  expect 0 train stages parallel.pipeline=2 parallel.expert=2
  same one stages
  expect 0 train fused parallel.pipeline=2 parallel.expert=2 parallel.schedule=fused_1f1b
  same one fused
  expect 0 train tensor parallel.tensor=2 parallel.expert=2 parallel.dispatch=dedup
  same one tensor
  expect 0 train zero3 parallel.expert=2 parallel.zero=3
  same one zero3
  expect 0 "$hosts" create --hosts 4 --ranks-per-host 1
  expect 0 train spread parallel.pipeline=2 parallel.tensor=2
  same one spread 1
}

# What crosses the interfaces is what metrics.jsonl says crosses, and protocol headers.
test_wire() {
  corpus
  local shape settings transport before steps=4 sizes=()
  for shape in "2 2" "4 1"; do
    read -r count ranks <<< "$shape"
    expect 0 "$hosts" create --hosts "$count" --ranks-per-host "$ranks"
    for settings in "expert=4 dispatch=alltoall" "expert=4 dispatch=dedup" "pipeline=2 expert=2"; do
      sizes=()
      for n in $steps $((2 * steps)); do
        before=$(sent)
        # shellcheck disable=SC2086
        expect 0 train wire $(printf 'parallel.%s ' $settings) train.steps=$n model.hidden_size=128 \
          optimizer.schedule.kind=constant data.sequence_length=64
        sizes+=($(($(sent) - before)))
      done
      echo "$count hosts x $ranks ranks, $settings"
      judge wire "${sizes[@]}" wire $steps
    done
  done
}

# The formulas of rows per token, at the interfaces of four hosts: routing drawn uniformly.
test_volumes() {
  local transport before runs=4 sizes
  expect 0 "$hosts" create --hosts 4 --ranks-per-host 2
  for transport in alltoall alltoall_once allgather dedup; do
    sizes=()
    for n in $runs $((2 * runs)); do
      before=$(sent)
      expect 0 "$hosts" run "$moetrain" bench dispatch --transport $transport --routing uniform --repeats "$n" \
        --experts 64 --top-k 8 --tokens 256 --hidden 1024 --precision bf16 --threads 1
      sizes+=($(($(sent) - before)))
    done
    judge volume $transport "${sizes[@]}" $runs 4 8 256 8 64 2048
  done
}

# ends_soon DIR SIGNAL SECONDS: a run on 2 x 2 ranks, one of which on the second host gets the signal
ends_soon() {
  local dir=$1 signal=$2 seconds=$3 launcher victim begun code took
  expect 0 "$hosts" create --hosts 2 --ranks-per-host 2
  train "$dir" parallel.expert=4 train.steps=100000 run.hang_timeout=2 optimizer.schedule.kind=constant \
    > "$dir.log" 2>&1 &
  launcher=$!
  wait_for "step 20/" "$dir.log"
  victim=$(on_host host1 "$dir" | tail -1)
  check "a rank runs on host1" test -n "$victim"
  begun=$(date +%s%N)
  kill "-$signal" "$victim"
  wait $launcher
  code=$?
  took=$((($(date +%s%N) - begun) / 1000000))
  check "SIG$signal ends the run in $seconds s, it took $took ms" test $took -lt $((seconds * 1000))
  check "SIG$signal is no success: $code" test $code -ne 0 -a $code -ne 75
  kill -KILL "$victim" 2> /dev/null
  sleep 0.3
  check "no process is left" test -z "$(ranks_of "$dir")"
  output=$(grep -v '^step' "$dir.log")
}
test_dead_rank() {
  corpus
  ends_soon dead KILL 6
  says "exited on signal 9"
  says "host1"
}
test_stopped_rank() {
  corpus
  ends_soon stopped STOP 10
  says "has made no progress for"
}

# The link of a host goes down: nothing arrives any more, and nothing says so.
test_lost_host() {
  corpus
  local launcher begun took
  expect 0 "$hosts" create --hosts 2 --ranks-per-host 2
  train lost parallel.expert=4 train.steps=100000 run.hang_timeout=2 optimizer.schedule.kind=constant \
    > lost.log 2>&1 &
  launcher=$!
  wait_for "step 20/" lost.log
  begun=$(date +%s%N)
  expect 0 "$hosts" exec host1 ip link set eth0 down
  while [ -n "$(ranks_of lost)" ] && [ $(($(date +%s%N) - begun)) -lt 30000000000 ]; do sleep 0.1; done
  took=$((($(date +%s%N) - begun) / 1000000))
  echo "ranks ended after $took ms"
  check "a lost host ends all ranks in 30 s, it took $took ms" test -z "$(ranks_of lost)"
  "$hosts" destroy  # mpirun itself waits for its daemon behind the link
  wait $launcher
  output=$(grep -v '^step' lost.log)
  says "has made no progress for"
}

"test_$name"
[ $failures -eq 0 ] && echo "$name: good"
exit $((failures > 0))
