#!/bin/bash
# Tests of build/moetrain as a user meets it: run.sh NAME runs one of the functions test_NAME.
. "$(dirname "$0")/harness.sh"

test_help() {
  expect 0 "$moetrain" --help
  for command in train plan eval generate data checkpoint config bench; do says "  $command "; done
  says "75 stopped on a signal"
  expect 0 "$moetrain" train --help
  says "--resume"
  says "--steps"
  says "--set"
  expect 0 "$moetrain" plan --help
  for option in world-size machine explain diff rank tape search trace json; do says "--$option"; done
  says "[ranks]"
  expect 0 "$moetrain" generate --help
  for option in prompt max-tokens temperature top-p seed; do says "--$option"; done
  expect 0 "$moetrain" data --help
  for command in build inspect train-tokenizer; do says "$command"; done
  expect 0 "$moetrain" checkpoint --help
  for command in inspect verify export import; do says "$command"; done
}

test_usage() {
  expect 2 "$moetrain"
  says "say what to do"
  expect 2 "$moetrain" tarin
  says "did you mean train?"
  expect 2 "$moetrain" train --confg x
  says "did you mean --config?"
  expect 2 "$moetrain" train
  says "--config is required"
  expect 2 "$moetrain" train --config missing.yaml
  says "missing.yaml"
  local wrong
  for wrong in "train --steps 0" "train --steps -3" "train --steps few" "plan --world-size 0" "plan --rank -1" \
    "generate --max-tokens -1" "generate --temperature nan" "generate --top-p 2" "eval --steps -1"; do
    expect 2 "$moetrain" $wrong --config "$tiny"
    says "must be a number"
    says "not ${wrong##* }"
    check "short: $wrong" test ${#output} -lt 200
  done
  expect 2 "$moetrain" data bild
  says "did you mean build?"
  expect 2 "$moetrain" checkpoint export run --to torch out
  says "hf DIR"
  expect 2 on_ranks 2 "$moetrain" tarin
  says_once "did you mean train?"
  expect 2 on_ranks 2 "$moetrain" train --config missing.yaml
  says_once "missing.yaml"
}

test_config() {
  for file in "$root"/configs/*.yaml; do expect 0 "$moetrain" config check "$file"; done
  expect 0 "$moetrain" config show "$tiny"
  says "hidden_size: 32"
  says "tiny.yaml:"
  echo "$result" > shown.yaml
  expect 0 "$moetrain" config check shown.yaml
  expect 0 "$moetrain" config schema
  says '"$schema"'
  sed -e 's/hidden_size: 32/hiden_size: 32/' -e 's/kv_lora_rank: 16/kv_lora_rank: many/' "$tiny" > bad.yaml
  expect 2 "$moetrain" config check bad.yaml
  says "bad.yaml:7:3"
  says "hidden_size"
  says "bad.yaml:19:17"
  says "many"
  expect 2 "$moetrain" config check "$tiny" --set parallel.tensor=3
  says "parallel.tensor"
  expect 2 "$moetrain" config check "$tiny" --set parallel.tensr=2
  says "--set parallel.tensr=2"
  says "did you mean"
  expect 2 on_ranks 2 "$moetrain" train --config "$tiny" --set parallel.expert=3
  says_once "expert must divide"
}

test_data() {
  corpus
  says "80 documents"
  expect 0 "$moetrain" data inspect corpus --tokenizer bytes
  says "documents  80"
  says "chapter 1: the q"
  head -c 100 corpus.bin > short.bin
  cp corpus.idx short.idx
  expect 2 "$moetrain" data inspect short
  says "short.bin"
  expect 0 "$moetrain" data train-tokenizer corpus.txt --output tok/tokenizer.json --vocab-size 300
  expect 0 "$moetrain" data build corpus.txt --documents blank-lines --tokenizer tok/tokenizer.json -o bpe
  expect 0 "$moetrain" data inspect bpe --tokenizer tok/tokenizer.json
  says "the quick brown"
  expect 2 "$moetrain" data build nothing.txt --output x
  says "nothing.txt"
}

test_plan() {
  expect 0 "$moetrain" plan --config "$tiny" --world-size 4 --set parallel.expert=2 --json
  check "plan --json is JSON" python3 -c 'import json, sys
p = json.loads(sys.argv[1])
m = p["memory"]
assert m["total"] == sum(m[k] for k in ("weights", "masters", "moments", "gradients", "counters",
                                        "ports", "activations", "kernel_scratch", "packed_weights",
                                        "token_rows"))
assert p["world_size"] == 4 and p["micro_batches"] == 1 and p["collectives"]
sent = sum(c["bytes"] for c in p["collectives"])
assert sent == p["bytes_inter_node"] + p["bytes_intra_node"] and sent > 0
assert 0 < p["mfu"] < 1 and p["step_time_s"] > 0' "$result"
  local one=$result
  expect 0 "$moetrain" plan --config "$tiny" --world-size 4 --set parallel.expert=2 --json
  check "the plan is the same twice" python3 -c 'import json, sys
drop = ("passes", "compile_seconds", "process_bytes")
a, b = ({k: v for k, v in json.loads(t).items() if k not in drop} for t in sys.argv[1:])
assert a == b' "$one" "$result"
  expect 0 "$moetrain" plan --config "$tiny" --world-size 4 --set parallel.tensor=2 --rank 3 --tape
  says "segment step"
  expect 0 "$moetrain" plan --config "$tiny" --world-size 4 --set parallel.tensor=2 --explain
  says "anchor: strategy tp"
  says "ReduceScatter(1,tp)"
  says "redistributions of one pass over the graph"
  # a user's row: who decided, what it moves, and what moved elsewhere because of it
  local row='parallel.shard=[{op: layers.*.mlp.up, n: dp}]'
  expect 0 "$moetrain" plan --config "$tiny" --world-size 4 --set parallel.tensor=2 --set "$row" --explain
  says "layers.0.mlp.up  matmul {n: dp}  anchor: --set parallel.shard"
  says "note: RESHARD layers.0.mlp.norm -> layers.0.mlp.up 12.0 KiB"
  { cat "$tiny"; printf 'parallel:\n  tensor: 2\n  shard:\n    - {op: layers.*.mlp.up, n: dp}\n'; } > row.yaml
  expect 0 "$moetrain" plan --config "$tiny" --world-size 4 --set parallel.tensor=2 --diff row.yaml
  says "  layers.0.mlp.up"
  says "anchor: row.yaml:"
  says "intra-node bytes"
  sed 's/n: dp/n: [dp, dp]/' row.yaml > twice.yaml
  expect 2 "$moetrain" plan --config twice.yaml --world-size 4
  says "twice.yaml:"
  says "LAYOUT_AXIS_REUSED: matmul 'layers.0.mlp.up'"
  says "name every axis once"
  expect 0 "$moetrain" plan --config "$tiny" --world-size 4 --set parallel.tensor=2 \
    --set parallel.layouts=auto --explain
  says "anchor: layouts auto"
  expect 0 "$moetrain" plan --config "$tiny" --world-size 1 --trace trace.json
  check "the trace is JSON" python3 -c 'import json; assert json.load(open("trace.json"))["traceEvents"]'
  sed 's/sequence_length: 32/sequence_length: 64/' "$tiny" > other.yaml
  expect 0 "$moetrain" plan --config "$tiny" --world-size 1 --diff other.yaml
  says "memory activations"
  expect 0 "$moetrain" plan --config "$tiny" --world-size 1 --diff "$tiny"
  says "no difference"
  printf 'bf16_flops: 1e12\nmemory_bandwith: 1e9\n' > machine.yaml
  expect 2 "$moetrain" plan --config "$tiny" --machine machine.yaml
  says "machine.yaml:2:1"
  says "memory_bandwidth"
  expect 2 "$moetrain" plan --config "$tiny" --world-size 4 --rank 4
  says "ranks are 0 to 3"
  expect 0 "$moetrain" plan --config "$tiny" --world-size 4 --search
  says "tensor context expert zero"
}

test_plan_671b() {
  expect 0 "$moetrain" plan --config "$root/configs/deepseek_v3_671b.yaml" --world-size 512 \
    --set parallel.pipeline=1 --json
  check "681 of 682 billion parameters, 64 experts apart" python3 -c 'import json, sys
p = json.loads(sys.argv[1])
assert 680e9 < p["parameters"] < 685e9 and 37e9 < p["active_parameters"] < 40e9
assert p["compile_seconds"] < 60
assert any(c["op"] == "rows_all_to_all" for c in p["collectives"])' "$result"
  expect 0 "$moetrain" plan --config "$root/configs/deepseek_v3_671b.yaml" --world-size 2048 --json
  check "as shipped every stage fits, and the slowest sets the step" python3 -c 'import json, sys
p = json.loads(sys.argv[1])
stages = p["stages"]
assert [s["first"] for s in stages] == [0, 1, 15] and [s["last"] for s in stages] == [0, 14, 15]
assert all(0 < s["memory"] < 64 * 2 ** 30 for s in stages)
slowest = max(s["compute_s"] + s["exposed_comm_s"] for s in stages)
assert slowest < p["step_time_s"] < 1.5 * slowest, (slowest, p["step_time_s"])
mine = p["compute_s"] + p["exposed_comm_s"]
assert abs(1 - mine / p["step_time_s"] - p["bubble"]) < 0.01' "$result"
  expect 0 "$moetrain" plan --config "$root/configs/deepseek_v3_671b.yaml" --world-size 2048 --rank 300
  says "1-14    4 MoE"
  # stages that a node's end cuts differ, and every rank must predict the same step for all
  local rank
  for rank in 0 8 12 19; do
    expect 0 "$moetrain" plan --config "$tiny" --world-size 20 --rank $rank --json \
      --set model.num_hidden_layers=10 --set parallel.expert=4 --set parallel.pipeline=5 \
      --set parallel.ranks_per_node=10 --set parallel.overlap=false --set train.global_batch_size=8
    python3 -c 'import json, sys; print(json.loads(sys.argv[1])["step_time_s"])' "$result" >> steps.txt
  done
  check "one predicted step" test "$(sort -u steps.txt | wc -l)" -eq 1
}

test_train() {
  corpus
  expect 0 "$moetrain" train --config "$tiny"
  says "step 6/6"
  check "metrics" test "$(wc -l < run/metrics.jsonl)" -eq 6
  check "a checkpoint" test -d run/checkpoints/step_00000006
  check "resolved.yaml" test -s run/resolved.yaml
  expect 0 "$moetrain" checkpoint verify run
  expect 0 "$moetrain" checkpoint inspect run
  says "step 6"
  # stopped and resumed on another number of ranks: the same last loss
  expect 0 "$moetrain" train --config "$tiny" --set run.output_dir=split --steps 3
  expect 0 on_ranks 2 "$moetrain" train --config "$tiny" --set run.output_dir=split \
    --set parallel.expert=2
  check "one line per step after a restart" test "$(wc -l < split/metrics.jsonl)" -eq 6
  check "the same loss after a restart on 2 ranks" python3 -c 'import json
a, b = ([json.loads(l) for l in open(d + "/metrics.jsonl")] for d in ("run", "split"))
assert [x["step"] for x in b] == [1, 2, 3, 4, 5, 6]
for x, y in zip(a, b):
    assert abs(x["loss"] - y["loss"]) < 2e-4 * x["loss"], (x["loss"], y["loss"])
assert a[-1]["loss"] < a[0]["loss"]'
  expect 0 on_ranks 2 "$moetrain" train --config "$tiny" --set run.output_dir=two
  says_once "step 6/6"
  # a damaged checkpoint is refused
  size=$(stat -c %s run/checkpoints/step_00000006/rank_00000.safetensors)
  printf 'x' | dd of=run/checkpoints/step_00000006/rank_00000.safetensors bs=1 seek=$((size - 9)) \
    conv=notrunc status=none
  expect 2 "$moetrain" checkpoint verify run/checkpoints/step_00000006
}

test_weights() {
  corpus
  expect 0 "$moetrain" train --config "$tiny"
  expect 0 "$moetrain" eval --checkpoint run --json
  local mine=$result
  check "the same loss as in training" python3 -c 'import json, sys
last = json.loads(open("run/metrics.jsonl").readlines()[-1])
assert abs(json.loads(sys.argv[1])["validation_loss"] - last["validation_loss"]) < 1e-5' "$mine"
  expect 0 on_ranks 2 "$moetrain" eval --checkpoint run --json --set parallel.expert=2
  check "the same loss on two ranks" python3 -c 'import json, sys
a, b = (json.loads(t)["validation_loss"] for t in sys.argv[1:])
assert abs(a - b) < 1e-5' "$mine" "$result"
  expect 0 "$moetrain" checkpoint export run --to hf hf --dtype fp32
  check "config.json" python3 -c 'import json
c = json.load(open("hf/config.json"))
assert c["vocab_size"] == 264 and c["n_routed_experts"] == 8 and c["num_nextn_predict_layers"] == 1
assert json.load(open("hf/model.safetensors.index.json"))["weight_map"]'
  check "tensors of the export" python3 -c 'import glob, json, struct
names = {}
for f in glob.glob("hf/*.safetensors"):
    with open(f, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    names.update({k: v for k, v in header.items() if k != "__metadata__"})
bias = names["model.layers.1.mlp.gate.e_score_correction_bias"]
assert bias["dtype"] == "F32" and bias["shape"] == [8]
assert names["model.layers.2.eh_proj.weight"]["shape"] == [32, 64]
assert "model.layers.2.mlp.experts.7.down_proj.weight" in names
assert names["model.embed_tokens.weight"]["shape"] == [264, 32]'
  expect 0 "$moetrain" eval --checkpoint hf --config "$tiny" --json
  check "the same loss from the export" python3 -c 'import json, sys
a, b = (json.loads(t)["validation_loss"] for t in sys.argv[1:])
assert abs(a - b) < 1e-6' "$mine" "$result"
  expect 0 "$moetrain" checkpoint import back --from hf hf --config "$tiny"
  expect 0 "$moetrain" checkpoint export back --to hf again --dtype fp32
  check "bytes survive export, import, export" cmp hf/model-00001-of-00001.safetensors \
    again/model-00001-of-00001.safetensors
  expect 2 "$moetrain" checkpoint export run --to hf hf
  says "hf"
  expect 0 "$moetrain" generate --checkpoint run --prompt "chapter" --max-tokens 12 --seed 3
  says "chapter"
  local text=$result
  expect 0 "$moetrain" generate --checkpoint run --prompt "chapter" --max-tokens 12 --seed 3
  check "the same seed gives the same text" test "$text" = "$result"
  expect 2 "$moetrain" generate --checkpoint nowhere --prompt x
  says "nowhere"
  expect 2 on_ranks 2 "$moetrain" generate --checkpoint run --prompt x
  says_once "one process"
}

test_dump() {
  corpus
  expect 0 "$moetrain" train --config "$tiny" --steps 2 --set 'debug.dump={steps: [2], dir: dump}'
  check "dumped tensors" python3 -c 'import json, struct
with open("run/dump/step_00000002.safetensors", "rb") as file:
    header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
assert header["grad.model.layers.1.mlp.experts.0.gate_proj.weight"]["shape"] == [16, 32]
assert header["hidden.0"]["shape"][-1] == 32 and header["route.1.topk_idx"]["dtype"] == "I32"'
}

# An altered expected value must be noticed.
test_golden_altered() {
  cp -r "$root/tests/data/golden/plain" altered
  chmod -R u+w altered
  python3 - << 'P'
import json, struct
with open("altered/expected.safetensors", "r+b") as f:
    n = struct.unpack("<Q", f.read(8))[0]
    header = json.loads(f.read(n))
    begin = header["grad.model.layers.1.mlp.gate.weight"]["data_offsets"][0]
    f.seek(8 + n + begin)
    value = struct.unpack("<f", f.read(4))[0]
    f.seek(8 + n + begin)
    f.write(struct.pack("<f", value + 0.01))
P
  expect 1 "$golden_check" altered
  says "FAIL"
  says "grad.model.layers.1.mlp.gate.weight"
}

name=${1:?run.sh NAME}
"test_$name"
[ $failures -eq 0 ] && echo "$name: good"
exit $((failures > 0))
