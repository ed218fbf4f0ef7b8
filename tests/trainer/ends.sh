# How runs end: signals, limits, non-finite numbers, dead ranks, second runs (BR-34, 40, 41, 42, 43).

long="$small --set train.steps=100000 --set checkpoint.interval=0 --set optimizer.schedule.kind=constant"

# stopped_by NAME TARGET SIGNAL DELAY: a run on 2 ranks ends with 75, saved, and goes on bit-equal. A signalled
# mpirun stops reading the ranks' output, sends them SIGTERM a second later, kills them a second after that, and
# ends with a code of its own.
stopped_by() {
  local dir=$1 target=$2 signal=$3 delay=$4 launcher code step wanted=75
  local every=100000
  [ "$target" = launcher ] && every=1  # output that nobody reads must not keep a run from saving
  local long="$long --set log.interval=$every"
  train "$dir" 2 $long > "$dir.log" 2>&1 &
  launcher=$!
  wait_for "step 1/" "$dir.log"
  sleep "$delay"
  case $target in
    one) kill "-$signal" "$(ranks_of "$dir" | tail -1)" ;;
    all) kill "-$signal" $(ranks_of "$dir" | tail -2) ;;
    launcher)
      kill "-$signal" "$(pgrep -f "^mpirun .*run.output_dir=$dir ")"
      wanted=1
      ;;
  esac
  wait "$launcher"
  code=$?
  check "$dir ended with $wanted, not $code: $(tail -5 "$dir.log")" test $code -eq $wanted
  step=$(newest "$dir")
  check "$dir saved the step it logged last" \
    test "$step" = "$(printf 'step_%08d' "$(wc -l < "$dir/metrics.jsonl")")"
  check "no process is left" test -z "$(ranks_of "$dir")"
  stopped_at=$((10#${step#step_}))
  expect 0 train "$dir" 2 $long --steps $((stopped_at + 3))
  says "after step $stopped_at"
}
test_signals() {
  corpus
  local most=0
  stopped_by sig_one one TERM 0.13
  most=$((stopped_at > most ? stopped_at : most))
  stopped_by sig_all all TERM 0.31
  most=$((stopped_at > most ? stopped_at : most))
  stopped_by sig_usr one USR1 0.07
  most=$((stopped_at > most ? stopped_at : most))
  stopped_by sig_int all INT 0.19
  most=$((stopped_at > most ? stopped_at : most))
  stopped_by sig_mpirun launcher TERM 0.11
  most=$((stopped_at > most ? stopped_at : most))
  # one unbroken run over all of them
  expect 0 train unbroken 2 $long --steps $((most + 3))
  local dir
  for dir in sig_one sig_all sig_usr sig_int sig_mpirun; do
    head -n "$(wc -l < "$dir/metrics.jsonl")" unbroken/metrics.jsonl > "$dir.expected"
    mkdir -p "$dir.whole" && mv "$dir.expected" "$dir.whole/metrics.jsonl"
    same_run "$dir.whole" "$dir"
  done
}

# A launcher that dies leaves its ranks about a second: they save what they have and end.
test_dead_launcher() {
  corpus
  train orphans 2 $long > orphans.log 2>&1 &
  wait_for "step 1/" orphans.log
  sleep 0.3
  kill -KILL "$(pgrep -f "^mpirun .*run.output_dir=orphans ")"
  wait $! 2> /dev/null
  for _ in $(seq 1 100); do
    [ -z "$(ranks_of orphans)" ] && break
    sleep 0.05
  done
  check "no process is left" test -z "$(ranks_of orphans)"
  check "the last step was saved" \
    test "$(newest orphans)" = "$(printf 'step_%08d' "$(wc -l < orphans/metrics.jsonl)")"
  expect 0 "$moetrain" checkpoint verify orphans
}

# Signals before the first step and during saves; a second one leaves at once.
test_early_and_second_signal() {
  corpus
  local i code
  for i in 1 2 3; do
    train "early$i" 2 $long --set checkpoint.interval=1 > "early$i.log" 2>&1 &
    wait_for "parameters" "early$i.log"
    kill -TERM $(ranks_of "early$i" | tail -2)
    wait $!
    code=$?
    check "early$i ended with 75, not $code" test $code -eq 75
    expect 0 "$moetrain" checkpoint verify "early$i"
  done
  train twice 2 $long --set checkpoint.interval=50 > twice.log 2>&1 &
  local launcher=$!
  wait_for "step 60/" twice.log
  # stopped ranks cannot finish the step that the first signal waits for
  local ranks=($(ranks_of twice | tail -2))
  kill -STOP "${ranks[0]}"
  kill -TERM "${ranks[1]}"
  sleep 0.7
  kill -TERM "${ranks[1]}"
  sleep 0.2
  kill -CONT "${ranks[0]}"
  wait $launcher
  code=$?
  check "a second signal is neither success nor 75: $code" test $code -ne 0 -a $code -ne 75
  expect 0 "$moetrain" checkpoint verify twice
  check "no process is left" test -z "$(ranks_of twice)"
}

test_time_limit() {
  corpus
  expect 75 train run 2 $long --set run.time_limit=1s
  says_once "run.time_limit"
  says "start the same command again"
  check "saved where it stopped" test "$(newest run)" = "$(printf 'step_%08d' "$(wc -l < run/metrics.jsonl)")"
}

# A kill, a fault or a hang of one rank ends the job in time, not with success, the checkpoint intact.
test_dead_rank() {
  corpus
  local signal code
  for signal in KILL SEGV; do
    train "dead$signal" 4 $long --set checkpoint.interval=20 > "dead$signal.log" 2>&1 &
    local launcher=$!
    wait_for "step 30/" "dead$signal.log"
    kill "-$signal" "$(ranks_of "dead$signal" | tail -1)"
    wait $launcher
    code=$?
    check "SIG$signal on one rank ends all, not with $code" test $code -ne 0 -a $code -ne 75
    check "no process is left" test -z "$(ranks_of "dead$signal")"
    expect 0 "$moetrain" checkpoint verify "dead$signal"
    expect 0 train "dead$signal" 4 $long --steps "$(($(wc -l < "dead$signal/metrics.jsonl") + 2))"
    check "no step twice" python3 "$here/compare.py" "dead$signal" "dead$signal"
  done
}
test_hung_rank() {
  corpus
  train hung 4 $long --set run.hang_timeout=2 > hung.log 2>&1 &
  local launcher=$! stopped code
  wait_for "step 30/" hung.log
  stopped=$(ranks_of hung | tail -1)
  kill -STOP "$stopped"
  wait $launcher
  code=$?
  check "a hang is no success: $code" test $code -ne 0 -a $code -ne 75
  kill -KILL "$stopped" 2> /dev/null
  sleep 0.2
  check "no process is left" test -z "$(ranks_of hung)"
}

# Steps without a finite gradient change nothing, are counted, and end the run when they do not end.
test_nonfinite() {
  corpus
  local common="$small --set train.steps=12 --set checkpoint.interval=1 --set checkpoint.keep=2"
  expect 0 train two 2 $common --set 'debug.inject_nonfinite_steps=[5]'
  says_once "step 5: the gradient is not finite"
  check "counted once, and every later loss is finite" python3 -c 'import json, math
rows = [json.loads(l) for l in open("two/metrics.jsonl")]
assert [r["skipped_steps"] for r in rows] == [0] * 4 + [1] * 8
assert all(r["loss"] is not None and math.isfinite(r["loss"]) for r in rows[5:])'
  expect 0 train split 2 $common --set 'debug.inject_nonfinite_steps=[5]' --steps 5
  expect 0 train split 2 $common --set 'debug.inject_nonfinite_steps=[5]'
  same_run two split
  expect 3 train many 2 $common --set 'debug.inject_nonfinite_steps=[5, 6, 7, 8, 9, 10, 11, 12]' \
    --set train.max_nonfinite_steps=3
  says "3 steps in a row"
  check "stopped at step 7" test "$(wc -l < many/metrics.jsonl)" -eq 7
  expect 0 "$moetrain" eval --checkpoint many --json
  check "the newest checkpoint is finite" python3 -c 'import json, math, sys
assert math.isfinite(json.loads(sys.argv[1])["validation_loss"])' "$result"
  # a learning rate that breaks every number
  expect 3 train wild 1 --set optimizer.learning_rate=1e30 --set train.steps=60 \
    --set train.max_nonfinite_steps=4 --set optimizer.schedule.kind=constant --set checkpoint.interval=0
}

# Two runs cannot share a folder; more ranks than the launcher knows are refused.
test_shared_folder() {
  corpus
  train run 1 $long > first.log 2>&1 &
  local first=$!
  wait_for "step 1/" first.log
  expect 2 train run 1 $long
  says "run"
  expect 2 train run 2 $long
  kill -TERM "$(ranks_of run | tail -1)"
  wait $first
  check "the first run ended well" test $? -eq 75
  expect 2 env SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_STEP_ID=0 "$moetrain" train --config "$tiny"
  says "4"
  expect 2 train eight 4 --set parallel.data=8
  says_once "world size 4"
}

# Eight ranks say what one says.
test_log_lines() {
  corpus
  expect 0 train one 1 $small --set train.steps=20
  local lines=$(wc -l <<< "$output")
  expect 0 train eight 8 $small --set train.steps=20 --set parallel.expert=4
  local eight=$(wc -l <<< "$output")
  check "log lines: $lines on 1 rank, $eight on 8" test $((eight - lines)) -le 5 -a $((lines - eight)) -le 5
  check "one line of metrics per step" test "$(wc -l < eight/metrics.jsonl)" -eq 20
}

# The whole job is killed at many moments around saves of every step: the next start takes the newest published
# checkpoint without help, and the end is that of the unbroken run.
test_killed_saves() {
  corpus
  local i launcher common="$small --set train.steps=120 --set checkpoint.interval=1 --set checkpoint.keep=2"
  for i in $(seq 1 8); do
    train cut 2 $common > "cut$i.log" 2>&1 &
    launcher=$!
    wait_for "step " "cut$i.log"
    sleep "0.0$((RANDOM % 10))"
    if [ $((i % 2)) -eq 0 ]; then
      kill -KILL $(ranks_of cut | tail -2)
    else
      kill -KILL "$(ranks_of cut | tail -1)"
    fi 2> /dev/null
    wait $launcher
    grep -q "done: step" "cut$i.log" && break
  done
  check "it was killed more than twice" test "$i" -gt 2
  echo > cut/checkpoints/latest
  expect 0 train cut 2 $common
  expect 0 train whole 2 $common --set checkpoint.interval=0
  same_run whole cut
  same_weights whole cut
}
