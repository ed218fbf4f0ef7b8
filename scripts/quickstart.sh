#!/bin/bash
# From a clone to text: installs, builds, prepares a corpus, trains a small model for a few minutes, samples.
#   scripts/quickstart.sh [--ranks N] [--steps N] [--output DIR]
set -euo pipefail
cd "$(dirname "$0")/.."

ranks=2 steps='' output=runs/quickstart
while [ $# -gt 0 ]; do
  case "$1" in
    --ranks) ranks=$2; shift ;;
    --steps) steps=$2; shift ;;
    --output) output=$2; shift ;;
    *) echo "usage: $0 [--ranks N] [--steps N] [--output DIR]" >&2; exit 2 ;;
  esac
  shift
done

scripts/setup.sh --target moetrain

data=data/quickstart
if [ ! -f $data/corpus.idx ] || [ ! -f $data/tokenizer.json ]; then
  echo "quickstart: the King James Bible, one document per chapter"
  mkdir -p $data
  bible -f gen1:1-rev22:21 < /dev/null |
    awk -F: '$1 != chapter && NR > 1 { print "" } { chapter = $1; print }' > $data/kjv.txt
  build/moetrain data train-tokenizer $data/kjv.txt --documents blank-lines --vocab-size 2048 \
    --output $data/tokenizer.json
  build/moetrain data build $data/kjv.txt --documents blank-lines \
    --tokenizer $data/tokenizer.json --output $data/corpus
fi
build/moetrain data inspect $data/corpus --tokenizer $data/tokenizer.json

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
run=(--config configs/quickstart.yaml --set "run.output_dir=$output")
[ -n "$steps" ] && run+=(--set "train.steps=$steps")
echo "quickstart: training on $ranks ranks; stop with Ctrl-C, run again to go on"
mpirun --oversubscribe -n "$ranks" build/moetrain train "${run[@]}"

echo "quickstart: the loss over steps is drawn in $output/loss.svg; a sample:"
build/moetrain generate --checkpoint "$output" --prompt "In the beginning" --max-tokens 300 --seed 7
