# Resuming: an interrupted run equals the unbroken one (BR-24, 28, 29, 30, 43, 44).

# Several stop points, repeatedly, in the same layout: equal numbers and bytes.
resumes_equal() {  # resumes_equal RANKS NAME SETTINGS...
  local ranks=$1 name=$2
  shift 2
  expect 0 train "whole_$name" "$ranks" --set train.steps=12 "$@"
  expect 0 train "parts_$name" "$ranks" --set train.steps=12 "$@" --steps 1
  expect 0 train "parts_$name" "$ranks" --set train.steps=12 "$@" --steps 5
  says "after step 1"
  expect 0 train "parts_$name" "$ranks" --set train.steps=12 "$@" --steps 5
  expect 0 train "parts_$name" "$ranks" --set train.steps=12 "$@" --steps 9
  expect 0 train "parts_$name" "$ranks" --set train.steps=12 "$@"
  says "after step 9"
  same_run "whole_$name" "parts_$name"
  same_weights "whole_$name" "parts_$name"
}
test_resume_one_rank() {
  corpus
  resumes_equal 1 fp32
  resumes_equal 1 bf16 --set compute.precision=bf16
}
test_resume_ranks() {
  corpus
  resumes_equal 2 ep --set parallel.expert=2 --set train.micro_batch_size=1
  resumes_equal 4 tp_ep --set parallel.tensor=2 --set parallel.expert=2
  resumes_equal 2 bf16 --set compute.precision=bf16 --set train.micro_batch_size=1
}

# 10 steps in one layout, 10 in another: losses of the unbroken one-rank run; any number of ranks reads
# what any other wrote.
test_resume_other_layout() {
  corpus
  local common="--set train.steps=12 --set train.global_batch_size=24 --set train.micro_batch_size=1
    --set optimizer.learning_rate=1e-3 --set compute.threads=1"
  expect 0 train whole 1 $common
  local layouts=("1 parallel.expert=1" "4 parallel.expert=4" "3 parallel.expert=1"
    "4 parallel.tensor=2,parallel.expert=2" "2 parallel.tensor=2,parallel.sequence_parallel=false"
    "2 parallel.context=2")
  local i j from to
  for i in 0 1 2 3 4 5; do
    from=(${layouts[$i]})
    expect 0 train "from$i" "${from[0]}" $common $(sed 's/^/--set /; s/,/ --set /g' <<< "${from[1]}") --steps 6
  done
  for i in 0 1 2 3 4 5; do
    j=$(((i + 2) % 6))
    to=(${layouts[$j]})
    cp -r "from$i" "back$i"
    expect 0 train "from$i" "${to[0]}" $common $(sed 's/^/--set /; s/,/ --set /g' <<< "${to[1]}")
    same_run whole "from$i" 1e-4
    expect 0 train "back$i" 1 $common
    same_run whole "back$i" 1e-4
  done
}

# A set of 16 samples, batch 4: stops on and around epoch ends.
test_epoch_end() {
  yes 'abcdefgh' | head -c 513 > corpus.txt
  expect 0 "$moetrain" data build corpus.txt --output corpus
  local common="$small --set data.split=1,0,0 --set train.global_batch_size=4 --set train.steps=12"
  expect 0 train whole 1 $common
  says "epoch"
  local stop
  for stop in 3 4 5 8; do
    expect 0 train "part$stop" 1 $common --steps "$stop"
    expect 0 train "part$stop" 1 $common
    same_run whole "part$stop"
  done
}

# Killed without warning after a checkpoint, then resumed: every step once in log and curves.
test_killed_and_resumed() {
  corpus
  local common="$small --set train.steps=20 --set checkpoint.interval=5 --set log.tensorboard=true"
  expect 0 train whole 2 $common
  mkdir cut
  # stands at step 13, the newest checkpoint is 10: as after a kill
  expect 0 train cut 2 $common --steps 13
  rm -r cut/checkpoints/step_00000013 cut/checkpoints/latest
  printf '{"step": 14, "lo' >> cut/metrics.jsonl
  expect 0 train cut 2 $common
  says "after step 10"
  same_run whole cut
  same_weights whole cut
  check "each step once per tag in the event files" python3 "$here/events.py" cut/tensorboard 20
}

# The same command twice gives the same bytes; so do other thread counts.
test_same_bits() {
  corpus
  expect 0 train one 4 --set parallel.expert=2 --set parallel.tensor=2
  expect 0 train two 4 --set parallel.expert=2 --set parallel.tensor=2 --set compute.threads=3
  same_run one two
  same_weights one two
}

# A resume with another seed keeps going, and says which seed rules what (BR-30).
test_other_seed() {
  corpus
  expect 0 train run 1 --steps 2
  expect 0 train run 1 --set run.seed=77
  says "seed"
  says "1234"
  says "77"
  expect 0 train run 1 --set run.seed=77 --set train.steps=7
  check "warned once, while the seeds differ" test "$(grep -c 'seed' <<< "$output")" -eq 0
}

# Wrong paths, missing steps and damaged checkpoints are refused by name, never replaced by fresh weights.
test_wrong_checkpoints() {
  corpus
  expect 0 train fresh 1 --steps 2
  says "fresh weights, no checkpoint"
  expect 2 train other 1 --resume nowhere
  says "nowhere"
  check "nothing was trained" test ! -s other/metrics.jsonl
  expect 2 train other 1 --resume fresh/checkpoints/step_00000999
  says "step_00000999"
  expect 2 on_ranks 2 "$moetrain" train --config "$tiny" --set run.output_dir=other \
    --set parallel.expert=2 --resume nowhere
  says_once "nowhere"
  expect 2 train fresh 1 --set model.intermediate_size=96
  says "mlp.gate_proj.weight"
  expect 2 train fresh 1 --set model.num_nextn_predict_layers=0
  says "model.layers.2"
  expect 2 train fresh 1 --set train.global_batch_size=4
  says "train.global_batch_size"
  local shard=fresh/checkpoints/step_00000002/rank_00000.safetensors
  cp -r fresh broken
  rm broken/checkpoints/step_00000002/rank_00000.safetensors
  expect 2 train broken 1
  says "rank_00000.safetensors"
  cp "$shard" broken/checkpoints/step_00000002/
  printf 'x' | dd of="broken/checkpoints/step_00000002/rank_00000.safetensors" bs=1 \
    seek=$(($(stat -c %s "$shard") - 9)) conv=notrunc status=none
  expect 2 train broken 1
  says "rank_00000.safetensors"
  # a damaged pointer is looked past, with a word about it
  cp -r fresh pointer
  echo garbage > pointer/checkpoints/latest
  expect 0 train pointer 1
  says "latest"
  says "after step 2"
  expect 0 train unbroken 1
  same_run unbroken pointer
}

# Damage that only shows while reading: the run goes on from the checkpoint before, on all ranks, and ends the same.
test_damaged_newest() {
  corpus
  expect 0 train run 2 $small --set checkpoint.interval=2 --steps 4
  local shard=run/checkpoints/step_00000004/rank_00001.safetensors
  printf 'xyz' | dd of="$shard" bs=1 seek=$(($(stat -c %s "$shard") - 9)) conv=notrunc status=none
  expect 2 train run 2 $small --resume run/checkpoints/step_00000004
  says "damaged"
  expect 0 train run 2 $small
  says_once "step_00000004 cannot be used"
  says "after step 2"
  expect 0 train unbroken 2 $small
  same_run unbroken run
  same_weights unbroken run
}

# The same over pipeline stages, and from stages to one rank and back.
test_resume_pipeline() {
  corpus
  local common="--set train.steps=12 --set train.micro_batch_size=1"
  expect 0 train whole 2 $common --set parallel.pipeline=2
  expect 0 train parts 2 $common --set parallel.pipeline=2 --steps 5
  cp -r parts moved
  expect 0 train parts 2 $common --set parallel.pipeline=2
  same_run whole parts
  same_weights whole parts
  expect 0 train moved 1 $common --steps 8
  expect 0 train moved 4 $common --set parallel.pipeline=2 --set parallel.tensor=2
  same_run whole moved 1e-4
}
