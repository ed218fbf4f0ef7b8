#!/bin/bash
# Compares training speed with a PyTorch trainer: same model, sequence, batch and dtype, in turns, one run.
#   scripts/bench_peer.sh [--rounds N] [--steps N] [--seq N] [--batch N] [--dtype fp32|bf16|both]
#                         [--no-install] [PEER.py [MODEL.json]]
# PEER.py (or MOETRAIN_PEER; MODEL.json or MOETRAIN_PEER_MODEL, else mid.json beside PEER.py) takes
# --config JSON --seq --batch --steps --dtype --threads --json OUT and writes tokens_per_s_median to OUT.
# MODEL.json has the fields of a Hugging Face config.json. moetrain runs as one rank with two threads and as two
# ranks with one thread each. Prints medians over rounds, ratios of medians, the share of the two
# cores' peak (the highest probed between the runs; by the model's floating-point operations), and peak memory.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
moetrain=${MOETRAIN:-$root/build/moetrain}
python=${PEER_PYTHON:-/usr/bin/python3}

rounds=3 steps=6 seq=512 batch=4 dtypes=both install=1 names=()
while [ $# -gt 0 ]; do
  case "$1" in
    --rounds) rounds=$2; shift ;;
    --steps) steps=$2; shift ;;
    --seq) seq=$2; shift ;;
    --batch) batch=$2; shift ;;
    --dtype) dtypes=$2; shift ;;
    --no-install) install=0 ;;
    --*) echo "bench_peer: unknown option $1; see the first lines of $0" >&2; exit 2 ;;
    *) names+=("$1") ;;
  esac
  shift
done
peer=${names[0]:-${MOETRAIN_PEER:-}}
[ -n "$peer" ] || { echo "bench_peer: name the peer's script, or set MOETRAIN_PEER" >&2; exit 2; }
model=${names[1]:-${MOETRAIN_PEER_MODEL:-$(dirname "$peer")/mid.json}}
for file in "$peer" "$model" "$moetrain"; do
  [ -f "$file" ] || { echo "bench_peer: $file is not there" >&2; exit 2; }
done
peer=$(realpath "$peer") model=$(realpath "$model")
[ "$dtypes" = both ] && dtypes="fp32 bf16"

if [ "$install" -eq 1 ]; then
  for p in python3-torch python3-numpy libopenblas0-pthread; do  # without OpenBLAS torch is 30 times slower
    dpkg-query -W -f '${db:Status-Status}' "$p" 2> /dev/null | grep -qx installed && continue
    echo "bench_peer: installing $p"
    as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo)
    "${as_root[@]}" apt-get update -q > /dev/null
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$p" > /dev/null
  done
fi

# what makes the peer fastest: threads that sleep when idle, an AVX-512 product kernel, memory never given back
peer_environment=(OMP_WAIT_POLICY=passive OPENBLAS_CORETYPE=Cooperlake MALLOC_MMAP_MAX_=0
  MALLOC_TRIM_THRESHOLD_=100000000000 MALLOC_TOP_PAD_=1000000000)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

# random ids as both sides draw them: a dataset of one document per sequence
python3 - "$model" "$seq" $((batch * (steps + 1))) << 'DATA'
import json, random, struct, sys
vocab, length, count = json.load(open(sys.argv[1]))["vocab_size"], int(sys.argv[2]) + 1, int(sys.argv[3]) + 2
random.seed(1)
wide = vocab > 65535
with open("tokens.bin", "wb") as out:
    for _ in range(count):
        ids = [random.randrange(vocab) for _ in range(length)]
        out.write(struct.pack(f"<{length}{'i' if wide else 'H'}", *ids))
with open("tokens.idx", "wb") as out:
    size = length * (4 if wide else 2)
    out.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4 if wide else 8, count, count + 1))
    out.write(struct.pack(f"<{count}i", *[length] * count))
    out.write(struct.pack(f"<{count}q", *[i * size for i in range(count)]))
    out.write(struct.pack(f"<{count + 1}q", *range(count + 1)))
DATA

cat > run.yaml << CONFIG
run: {name: bench_peer, output_dir: run}
model: {hf_config: "$model"}
data: {train: [{prefix: tokens}], sequence_length: $seq, tokenizer: bytes}
optimizer: {learning_rate: 3e-4}
router: {bias_update_speed: 1e-3}
train: {steps: $((steps + 1)), global_batch_size: $batch, micro_batch_size: $batch}
log: {tensorboard: false, level: warning}
CONFIG

# run_measured FILE COMMAND...: runs it; FILE gets the peak memory (MiB) of its largest process
cat > measured.py << 'PY'
import resource, subprocess, sys
with open("log.txt", "w") as log:
    code = subprocess.run(sys.argv[2:], stdout=log, stderr=subprocess.STDOUT).returncode
open(sys.argv[1], "w").write(f"{resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f}")
if code:
    sys.stderr.write(open("log.txt").read()[-4000:])
sys.exit(code)
PY

run_peer() {  # DTYPE -> "tokens/s MiB"
  env -u OPENBLAS_L2_SIZE "${peer_environment[@]}" "$python" measured.py memory "$python" "$peer" \
    --config "$model" --seq "$seq" --batch "$batch" --steps "$steps" --dtype "$1" --threads 2 --json peer.json
  python3 -c 'import json; print(json.load(open("peer.json"))["tokens_per_s_median"], open("memory").read())'
}

probe_peak() {  # DTYPE -> GFLOP/s of both cores
  local unit=f32
  [ "$1" = bf16 ] && unit=bf16
  "$moetrain" bench kernels --filter nothing --threads 2 | sed -n "1s/.*[ ,]\([0-9.]*\) GFLOP\/s $unit.*/\1/p"
}

run_ours() {  # DTYPE RANKS THREADS -> "tokens/s MiB-of-the-largest-process"; writes FLOPs per token to flops
  rm -rf run
  local launch=() micro=$((batch / $2))
  [ "$2" -gt 1 ] && launch=(mpirun --bind-to none --oversubscribe -n "$2")
  python3 measured.py memory "${launch[@]}" "$moetrain" train --config run.yaml --resume none \
    --set "compute.precision=$1" --set "compute.threads=$3" --set "train.micro_batch_size=$micro"
  python3 -c '
import json, statistics
steps = [json.loads(line) for line in open("run/metrics.jsonl")][1:]
rate = statistics.median(s["tokens_per_second"] for s in steps)
open("flops", "w").write(str(steps[0]["tflops_per_rank"] * 1e12 * '"$2"' / steps[0]["tokens_per_second"]))
print(rate, open("memory").read())'
}

for dtype in $dtypes; do
  : > results
  for round in $(seq "$rounds"); do
    echo "peer $(run_peer "$dtype")" >> results
    echo "one $(run_ours "$dtype" 1 2)" >> results
    echo "two $(run_ours "$dtype" 2 1)" >> results
    echo "peak $(probe_peak "$dtype") 0" >> results
    echo "bench_peer: $dtype, round $round of $rounds done" >&2
  done
  python3 - "$dtype" "$model" "$seq" "$batch" "$steps" "$rounds" << 'TABLE'
import collections, os, statistics, sys
dtype, model, seq, batch, steps, rounds = sys.argv[1:]
rows = collections.defaultdict(list)
for line in open("results"):
    who, rate, memory = line.split()
    rows[who].append((float(rate), float(memory)))
names = {"peer": "PyTorch, 2 threads", "one": "moetrain, 1 rank x 2 threads", "two": "moetrain, 2 ranks x 1 thread"}
middle = {who: statistics.median(r for r, _ in runs) for who, runs in rows.items()}
print(f"{dtype}: {os.path.basename(model)}, {batch} sequences of {seq} tokens, {steps} steps, median of {rounds} rounds; "
      f"load {os.getloadavg()[0]:.1f}")
flops, peak = float(open("flops").read()), max(r for r, _ in rows["peak"]) * 1e9
print(f"{'':32}{'tokens/s':>10}{'lowest':>10}{'highest':>10}{'ratio':>8}{'% of peak':>11}{'MiB/process':>13}{'MiB':>7}")
for who, name in names.items():
    rates = [r for r, _ in rows[who]]
    memory = max(m for _, m in rows[who])
    print(f"{name:32}{middle[who]:10.1f}{min(rates):10.1f}{max(rates):10.1f}{middle[who] / middle['peer']:8.2f}"
          f"{100 * middle[who] * flops / peak:11.1f}"
          f"{memory:13.0f}{memory * (2 if who == 'two' else 1):7.0f}")
print(f"peak {peak / 1e9:.0f} GFLOP/s, {flops / 1e6:.1f} MFLOP a token")
TABLE
done
