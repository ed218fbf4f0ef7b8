#!/bin/bash
# Tokens/s against sequence length, number of experts (same top-k) and ranks, beside a simple prediction.
#   scripts/bench_scaling.sh [--config FILE] [--sequences "256 512 ..."] [--experts "8 16 ..."]
#                            [--ranks "1 2"] [--steps N] [--set KEY=VALUE]... [--precision fp32|bf16]
# The prediction takes the first line of each table as measured and scales it: by FLOPs per token with the sequence
# length; not at all with the experts (top-k stays); by ranks up to the cores. What is lost against it is attention's
# and small products' efficiency, weights that more experts must update, and communication.
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

step() {  # RANKS SEQUENCE SETTINGS... -> "tokens/s flops/token MiB"
  local n=$1 seq=$2 threads batch launch=() report
  shift 2
  batch=$(( (tokens_per_step + seq - 1) / seq ))
  batch=$(( (batch + n - 1) / n * n ))
  threads=$(( cores / n > 0 ? cores / n : 1 ))
  [ "$n" -gt 1 ] && launch=(mpirun --bind-to none --oversubscribe -n "$n")
  report=$("${launch[@]}" "$moetrain" bench step --json --config "$config" --steps "$steps" \
    --set parallel.data=auto --set "parallel.expert=$n" --set parallel.tensor=1 \
    --set parallel.pipeline=1 --set parallel.context=1 \
    --set "compute.precision=$precision" --set "compute.threads=$threads" \
    --set "data.sequence_length=$seq" --set "train.global_batch_size=$batch" \
    --set "train.micro_batch_size=$((batch / n))" --set train.batch_ramp=[] "${sets[@]}" "$@") || exit 1
  python3 -c '
import json, sys
report = json.load(sys.stdin)
v = report["variants"][0]
n = int(sys.argv[1])
flops = v["mfu"] * report["peak_flops"] * n / v["tokens_per_second"]
print(v["tokens_per_second"], flops, v["mfu"], v["device_bytes"] / 2**20)' "$n" <<< "$report"
}
head() { printf '\n%-18s %10s %10s %9s %8s %10s\n' "$1" tokens/s predicted measured/ 'MFU %' 'MiB/rank'; }
row() {  # NAME PREDICTED RATE FLOPS MFU MIB
  awk -v n="$1" -v p="$2" -v r="$3" -v u="$5" -v m="$6" \
    'BEGIN { printf "%-18s %10.1f %10.1f %9.2f %8.1f %10.1f\n", n, r, p, r / p, 100 * u, m }'
}
divide() { awk -v a="$1" -v b="$2" -v c="$3" 'BEGIN { print a * b / c }'; }
read_first() { [ -n "$first_rate" ] || { first_rate=$1 first_flops=$2; }; }

head "sequence length"
first_rate='' first_flops=''
for s in $sequences; do
  measured=$(step 1 "$s" --set "model.max_position_embeddings=$s")
  read -r rate flops mfu mib <<< "$measured"
  read_first "$rate" "$flops"
  row "$s" "$(divide "$first_rate" "$first_flops" "$flops")" "$rate" "$flops" "$mfu" "$mib"
done

middle=$(set -- $sequences; shift $(($# / 2)); echo "$1")
head "experts"
first_rate='' first_flops=''
for e in $experts; do
  measured=$(step 1 "$middle" --set "model.n_routed_experts=$e" --set "model.max_position_embeddings=$middle")
  read -r rate flops mfu mib <<< "$measured"
  read_first "$rate" "$flops"
  row "$e" "$(divide "$first_rate" "$first_flops" "$flops")" "$rate" "$flops" "$mfu" "$mib"
done

head "ranks x threads"
first_rate='' first_cores=''
for n in $ranks; do
  threads=$(( cores / n > 0 ? cores / n : 1 ))
  busy=$(( n * threads < cores ? n * threads : cores ))
  measured=$(step "$n" "$middle" --set "model.max_position_embeddings=$middle")
  read -r rate flops mfu mib <<< "$measured"
  [ -n "$first_rate" ] || { first_rate=$rate first_cores=$busy; }
  row "$n x $threads" "$(divide "$first_rate" "$busy" "$first_cores")" "$rate" "$flops" "$mfu" "$mib"
done
