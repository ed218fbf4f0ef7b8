# Odd sizes, missing data, disks that are full or closed (BR-15, 20, 23, 27, 33).

# Layouts and sizes at the edge train to the loss of one rank.
test_odd_sizes() {
  corpus
  local common="$small --set train.steps=3 --set router.balance_alpha=0.001"
  expect 0 train one 1 $common --set data.sequence_length=1 --set train.global_batch_size=8
  expect 0 train tp 2 $common --set data.sequence_length=1 --set parallel.tensor=2
  same_run one tp 1e-4
  expect 0 train one3 1 $common --set data.sequence_length=3 --set model.vocab_size=271
  expect 0 train dp3 4 $common --set data.sequence_length=3 --set model.vocab_size=271 --set parallel.expert=4
  same_run one3 dp3 1e-4
  expect 2 train tp3 2 $common --set model.vocab_size=271 --set parallel.tensor=2
  says_once "model.vocab_size must be divisible by tensor"
  expect 2 train big 1 --set train.micro_batch_size=16
  says "global_batch_size"
  expect 0 train batch1 1 $common --set train.global_batch_size=1
  expect 0 train batch1tp 2 $common --set train.global_batch_size=1 --set parallel.tensor=2
  same_run batch1 batch1tp 1e-4
  expect 0 train perrank 8 $common --set parallel.expert=8
  expect 0 train onerank 1 $common
  same_run onerank perrank 1e-4
}

# Less data than a batch repeats epochs; none at all is refused; an empty validation part is named.
test_little_data() {
  head -c 64 /dev/zero | tr '\0' x > corpus.txt
  expect 0 "$moetrain" data build corpus.txt --output corpus
  local common="$small --set train.steps=4"
  expect 0 train one 1 $common --set data.split=1,0,0
  says "epochs"
  expect 0 train four 4 $common --set data.split=1,0,0
  same_run one four 1e-4
  expect 0 train none 2 --set train.micro_batch_size=1
  says_once "no validation data"
  check "no validation loss" test "$(grep -c validation_loss none/metrics.jsonl)" -eq 0
  expect 2 train empty 2 --set train.micro_batch_size=1 --set data.split=0,1,0
  : > nothing.txt
  "$moetrain" data build nothing.txt --output nothing > /dev/null 2>&1
  expect 2 train empty 2 $common --set 'data.train=[{prefix: nothing}]'
  expect 2 train empty 1 --set 'data.train=[{prefix: absent}]'
  says "absent"
  head -c 40 corpus.idx > short.idx
  cp corpus.bin short.bin
  expect 2 train empty 4 $common --set 'data.train=[{prefix: short}]'
  says_once "short.idx"
  expect 2 train empty 1 --set data.tokenizer=gone.json
  says "gone.json"
  echo '{"not": "a tokenizer"}' > odd.json
  expect 2 train empty 1 --set data.tokenizer=odd.json
  says "odd.json"
  check "nothing was trained" test ! -e empty/metrics.jsonl
}

# Ids beyond the vocabulary name file, document and place.
test_id_beyond_the_vocabulary() {
  corpus
  python3 - << 'P'
import struct
with open("corpus.bin", "r+b") as f:
    f.seek(2 * 5)
    f.write(struct.pack("<H", 264))
P
  expect 2 train run 2 --set train.micro_batch_size=1 --set train.steps=30
  says "corpus"
  says "264"
  says "document"
}

# The loss of `eval` is the loss that training logged.
test_validation_equals_eval() {
  corpus
  expect 0 train run 4 --set parallel.expert=2 --set parallel.tensor=2
  expect 0 "$moetrain" eval --checkpoint run --json --set parallel.tensor=1 --set parallel.expert=1
  check "the same loss" python3 -c 'import json, sys
last = json.loads(open("run/metrics.jsonl").readlines()[-1])
assert abs(json.loads(sys.argv[1])["validation_loss"] - last["validation_loss"]) < 1e-5' "$result"
}

# A folder that cannot be written is refused before step 1.
test_closed_folder() {
  corpus
  echo file > taken
  expect 2 train taken 1
  says "taken"
  expect 2 train taken/below 2 --set train.micro_batch_size=1
  says_once "taken"
  expect 2 train dumps 2 --set train.micro_batch_size=1 --set 'debug.dump={steps: [1], dir: ../taken/dump}'
  says_once "taken/dump"
  mkdir -p half
  echo file > half/checkpoints
  expect 2 train half 2 --set train.micro_batch_size=1
  says "checkpoints"
}

# A full disk: named with numbers at the start, or at the save, and the checkpoint before stays.
test_full_disk() {
  corpus
  mkdir disk
  if ! mount -t tmpfs -o size=3m none disk 2> /dev/null; then
    echo "skipped: cannot mount a small file system"
    return
  fi
  trap 'umount "$scratch/disk"; rm -rf "$scratch"' EXIT
  local common="$small --set train.steps=12 --set checkpoint.interval=4 --set checkpoint.keep=1"
  dd if=/dev/zero of=disk/fill bs=64k status=none 2> /dev/null
  expect 2 train disk/run 2 $common
  rm -f disk/fill
  expect 0 train disk/run 2 $common --steps 4
  dd if=/dev/zero of=disk/fill bs=64k count=$((($(stat -f -c '%a * %S' disk) - 300000) / 65536)) status=none
  local code
  train disk/run 2 $common > full.log 2>&1
  code=$?
  output=$(cat full.log)
  check "a full disk is no success: $code" test $code -ne 0 -a $code -ne 75
  check "the space is named" grep -qiE "space|ENOSPC|MiB|KiB" full.log
  expect 0 "$moetrain" checkpoint verify disk/run
  check "still step 4" test "$(newest disk/run)" = step_00000004
  rm disk/fill
  expect 0 train disk/run 2 $common
  says "after step 4"
  expect 0 train whole 2 $common
  same_run whole disk/run
}

# What the plan says a rank needs is what it takes, within a tenth: with few and many micro-batches, over ranks.
test_planned_memory() {
  corpus
  local large="model.hidden_size=384 model.intermediate_size=1024 model.moe_intermediate_size=128
    model.n_routed_experts=24 model.vocab_size=2048 model.num_hidden_layers=4 model.q_lora_rank=128
    model.kv_lora_rank=128 compute.threads=1 data.sequence_length=64 train.validation_interval=0"
  check "one rank" python3 "$here/memory.py" 1 "$tiny" $large train.global_batch_size=4 train.micro_batch_size=4
  check "copies of weights" python3 "$here/memory.py" 1 "$tiny" $large train.global_batch_size=12 \
    train.micro_batch_size=2 compute.precision=bf16
  check "two ranks" python3 "$here/memory.py" 2 "$tiny" $large train.global_batch_size=4 train.micro_batch_size=2 \
    parallel.tensor=2
}

# bf16 follows the curve of fp32 (curve.py states the bound).
test_bf16_curve() {
  corpus
  local long="--set train.steps=200 --set train.validation_interval=0 --set checkpoint.interval=0" seed runs=""
  for seed in 42 1 2; do
    expect 0 train exact.$seed 1 $long --set run.seed=$seed --set compute.precision=fp32
    expect 0 train rounded.$seed 1 $long --set run.seed=$seed --set compute.precision=bf16
    expect 0 train other.$seed 1 $long --set run.seed=$((seed + 99)) --set data.seed=1234 --set compute.precision=fp32
    runs+=" exact.$seed rounded.$seed other.$seed"
  done
  check "bf16 follows fp32: $(python3 "$here/curve.py" $runs)" python3 "$here/curve.py" $runs
}
