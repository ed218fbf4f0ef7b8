#!/bin/bash
# Tokens/s against sequence length, number of experts (same top-k) and ranks, beside what `moetrain plan` predicts.
#   scripts/bench_scaling.sh [--config FILE] [--sequences "256 512 ..."] [--experts "8 16 ..."]
#                            [--ranks "1 2"] [--steps N] [--set KEY=VALUE]... [--precision fp32|bf16]
# The plan knows a step's products, memory traffic and transfers and this machine's peaks (`moetrain bench machine`),
# which kernels do not reach: its prediction is scaled by the first line of each table, so that the table shows how
# cost grows. What is lost against it is attention's and small products' efficiency.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
moetrain=${MOETRAIN:-$root/build/moetrain}
config=$root/configs/quickstart.yaml
sequences="128 256 512 1024 2048" experts="8 16 32 64 128 256" ranks="1 2" steps=5 precision=bf16 sets=()
while [ $# -gt 0 ]; do
  case "$1" in
    --config) config=$2 ;;
    --sequences) sequences=$2 ;;
    --experts) experts=$2 ;;
    --ranks) ranks=$2 ;;
    --steps) steps=$2 ;;
    --precision) precision=$2 ;;
    --set) sets+=(--set "$2") ;;
    *) echo "bench_scaling: unknown option $1; see the first lines of $0" >&2; exit 2 ;;
  esac
  shift 2
done
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
cores=$(nproc)
tokens_per_step=4096  # at least; so that a step is no shorter for short sequences

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

settings=()
launch=()
# arrange RANKS SEQUENCE SETTINGS...: sets $settings, $launch and $threads
arrange() {
  local n=$1 seq=$2 batch
  shift 2
  batch=$(( (tokens_per_step + seq - 1) / seq ))
  batch=$(( (batch + n - 1) / n * n ))
  threads=$(( cores / n > 0 ? cores / n : 1 ))
  launch=()
  [ "$n" -gt 1 ] && launch=(mpirun --bind-to none --oversubscribe -n "$n")
  settings=(--set parallel.data=auto --set "parallel.expert=$n" --set parallel.tensor=1
    --set parallel.pipeline=1 --set parallel.context=1
    --set "compute.precision=$precision" --set "compute.threads=$threads"
    --set "data.sequence_length=$seq" --set "model.max_position_embeddings=$seq"
    --set "train.global_batch_size=$batch"
    --set "train.micro_batch_size=$((batch / n))" --set train.batch_ramp=[] "${sets[@]}" "$@")
}
# measure RANKS SEQUENCE SETTINGS...: sets $rate, $mfu, $mib and $planned (tokens/s)
measure() {
  local n=$1 machine="$scratch/machine.$1.yaml" report plan
  arrange "$@"
  [ -f "$machine" ] || "${launch[@]}" "$moetrain" bench machine --repeats 1 --threads "$threads" \
    --write-machine "$machine" > "$scratch/machine.txt" 2>&1 || { cat "$scratch/machine.txt" >&2; exit 1; }
  report=$("${launch[@]}" "$moetrain" bench step --json --config "$config" --steps "$steps" "${settings[@]}") ||
    exit 1
  plan=$("$moetrain" plan --json --config "$config" --world-size "$n" --machine "$machine" "${settings[@]}") ||
    exit 1
  read -r rate mfu mib planned <<< "$(python3 -c '
import json, sys
v = json.loads(sys.argv[1])["variants"][0]
print(v["tokens_per_second"], v["mfu"], v["device_bytes"] / 2**20, json.loads(sys.argv[2])["tokens_per_second"])' \
    "$report" "$plan")"
}
head() { printf '\n%-18s %10s %10s %9s %8s %10s\n' "$1" tokens/s predicted measured/ 'MFU %' 'MiB/rank'; }
# row NAME: what was measured last
row() {
  [ -n "$first_rate" ] || { first_rate=$rate first_planned=$planned; }
  awk -v n="$1" -v p="$first_rate" -v a="$planned" -v b="$first_planned" -v r="$rate" -v u="$mfu" -v m="$mib" \
    'BEGIN { p *= a / b; printf "%-18s %10.1f %10.1f %9.2f %8.1f %10.1f\n", n, r, p, r / p, 100 * u, m }'
}

head "sequence length"
first_rate=''
for s in $sequences; do
  measure 1 "$s"
  row "$s"
done

read -ra lengths <<< "$sequences"
middle=${lengths[$((${#lengths[@]} / 2))]}
head "experts"
first_rate=''
for e in $experts; do
  measure 1 "$middle" --set "model.n_routed_experts=$e"
  row "$e"
done

head "ranks x threads"
first_rate=''
for n in $ranks; do
  measure "$n" "$middle"
  row "$n x $threads"
done
