#!/bin/bash
# `moetrain bench` and scripts/bench_*.sh as a user meets them, at tiny sizes: run.sh NAME runs test_NAME.
. "$(dirname "$0")/../cli/harness.sh"
launch=(mpirun --bind-to none --oversubscribe)

test_machine() {
  expect 0 "$moetrain" bench machine --repeats 2 --write-machine one.yaml
  says "GFLOP/s bf16"
  says "one rank has none"
  expect 0 "${launch[@]}" -n 2 "$moetrain" bench machine --repeats 2 -o two.yaml
  says_once "intra-node link, ranks 0 and 1"
  expect 0 "${launch[@]}" -n 2 "$moetrain" bench machine --repeats 2 --ranks-per-node 1 -o apart.yaml
  says_once "inter-node link, ranks 0 and 1"
  for file in one two apart; do
    expect 0 "$moetrain" plan --config "$tiny" --machine $file.yaml
    says "machine   measured: cpu"
    sed -n 's/.*\(\[[0-9a-f]*\]\).*/\1/p' <<< "$result" | head -1 > $file.hash
    check "plan names the machine's hash" grep -Eq '^\[[0-9a-f]{12}\]$' $file.hash
  done
  check "other links, other hash" test "$(cat two.hash)" != "$(cat apart.hash)"
  corpus
  expect 0 "$moetrain" train --config "$tiny" --set compute.machine=one.yaml
  check "resolved.yaml names the machine" grep -qF "$(cat one.hash)" run/resolved.yaml
  check "plan.txt names the machine" grep -qF "$(cat one.hash)" run/plan.txt
  check "mfu in metrics" grep -q '"mfu": *[0-9]' run/metrics.jsonl
  expect 0 "$moetrain" config check run/resolved.yaml
  expect 0 "$moetrain" train --config "$tiny" --set run.output_dir=plain
  check "no mfu without a known peak" bash -c '! grep -q "\"mfu\": *[0-9]" plain/metrics.jsonl'
}

test_collectives() {
  expect 0 "${launch[@]}" -n 3 "$moetrain" bench collectives --repeats 1 --ranks-per-node 2
  says_once "intra-node link, ranks 0 and 1"
  says_once "inter-node link, ranks 0 and 2"
  for verb in all_gather reduce_scatter all_reduce all_to_all all_to_all_v; do says "$verb "; done
}

test_dispatch() {
  expect 0 "${launch[@]}" -n 4 "$moetrain" bench dispatch --ranks-per-node 2 --repeats 1 --tokens 32 \
    --hidden 16 --experts 8 --top-k 2 --precision fp32
  for transport in "alltoall " alltoall_once allgather dedup; do says "$transport"; done
  for routing in even uniform skewed first; do says " $routing "; done
  expect 0 "${launch[@]}" -n 4 "$moetrain" bench dispatch --ranks-per-node 2 --repeats 1 --tokens 32 \
    --hidden 16 --experts 8 --top-k 2 --transport dedup --routing uniform
  check "one line when one is named" test "$(grep -c 'even\|uniform\|skewed\|first' <<< "$result")" -eq 1
  expect 2 "${launch[@]}" -n 2 "$moetrain" bench dispatch --experts 7
  says "7 experts"
}

test_kernels() {
  expect 0 "$moetrain" bench kernels --filter rms_norm --seconds 0.001
  says "rms_norm"
  check "other kernels left out" bash -c "! grep -q attention <<< '$result'"
  check "fused kernels against apart" test "$(grep -c '^sum + rms_norm .* us .* us ' <<< "$result")" -eq 2
  expect 0 "$moetrain" bench kernels --filter grouped_matmul_dx --seconds 0.001 --threads 2
  says "peer: "
  products=$(grep grouped_matmul_dx <<< "$result")
  check "three sizes in two dtypes" test "$(wc -l <<< "$products")" -eq 6
  check "packed weights are timed" test "$(awk '{n = gsub(/%/, "")} n > 2' <<< "$products" | wc -l)" -eq 6
  if [ -f "$(dirname "$moetrain")/moetrain_peer.so" ]; then
    says "peer: oneDNN"
    check "the peer ran all of them" test "$(grep -c '%$' <<< "$products")" -eq 6
  fi
}

test_step() {
  expect 0 "$moetrain" bench step --config "$tiny" --steps 2 --against reference \
    --against "compute.fusion=false;compute.precision=bf16"
  for word in "as configured" "reference" "compute.fusion=false;compute.precision=bf16" vocab_loss \
    "between instructions" "probed now"; do says "$word"; done
  expect 0 "${launch[@]}" -n 2 "$moetrain" bench step --config "$tiny" --steps 1 \
    --set parallel.expert=2 --json
  check "one JSON object" python3 -c 'import json,sys; json.loads(sys.argv[1])["variants"][0]["mfu"]' \
    "$result"
}

test_usage() {
  expect 2 "$moetrain" bench nothing
  expect 2 "$moetrain" bench step
  says "--config FILE"
  expect 2 "$moetrain" bench step --config "$tiny" --against compute.fusin=false
  says "did you mean"
  expect 2 "$moetrain" bench kernels --write-machine x.yaml
  says "bench machine"
  # more threads than any machine has cores
  corpus
  expect 0 "${launch[@]}" -n 2 "$moetrain" train --config "$tiny" --steps 1 --set compute.threads=1000
  says_once "oversubscribed: node 0"
}

test_peer() {
  # a peer that only answers like one: what is tested is the script, not PyTorch
  cat > peer.py <<'PEER'
import argparse, json
p = argparse.ArgumentParser()
for name in ("config", "seq", "batch", "steps", "dtype", "threads", "json"): p.add_argument("--" + name)
a = p.parse_args()
assert json.load(open(a.config))["hidden_size"] == 32
json.dump({"tokens_per_s_median": 100.0}, open(a.json, "w"))
PEER
  cat > model.json <<'MODEL'
{"model_type": "deepseek_v3", "vocab_size": 264, "hidden_size": 32, "intermediate_size": 64,
 "moe_intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
 "n_shared_experts": 1, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
 "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "q_lora_rank": 16, "kv_lora_rank": 16,
 "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "norm_topk_prob": true,
 "scoring_func": "sigmoid", "topk_method": "noaux_tc", "hidden_act": "silu", "max_position_embeddings": 64,
 "initializer_range": 0.02, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "rope_scaling": null,
 "attention_bias": false, "tie_word_embeddings": false, "num_nextn_predict_layers": 0}
MODEL
  expect 0 env PEER_PYTHON=python3 "$root/scripts/bench_peer.sh" --rounds 2 --steps 2 --seq 32 --batch 4 \
    --dtype fp32 --no-install peer.py model.json
  says "1 rank x 2 threads"
  says "2 ranks x 1 thread"
  says "100.0"
  expect 2 "$root/scripts/bench_peer.sh"
  says "MOETRAIN_PEER"
}

test_scaling() {
  expect 0 "$root/scripts/bench_scaling.sh" --steps 1 --sequences "16 32" --experts "8 16" --ranks "1 2" \
    --config "$tiny"
  for word in "sequence length" "experts" "ranks" "predicted"; do says "$word"; done
}

"test_${1:?name of a test}"
exit $((failures > 0))
