#!/bin/bash
# What the transports, overlap and layouts of moetrain are worth where hosts are joined by slow links: training steps of
# configs/headline.yaml on eight ranks of simulated hosts (scripts/sim_hosts.sh), out of the box against everything on.
#   scripts/bench_headline.sh [--quick] [--rate RATE] [--share PERCENT] [--rounds N] [--config FILE] [--only PART]...
# Out of the box is an honest plain trainer with the same kernels: AlltoAllV behind a count exchange, experts split over
# tensor ranks, no overlap, values padded to the width of keys, no fusion. The rate between hosts is searched so that
# it spends PERCENT (default 58) of its step in communication: the part of the step that is gone when the same eight
# ranks share one host's memory. --rate sets it instead (100mbit, 1gbit, ...).
# Steps of all variants of a table are run in turns by one job (`moetrain bench step`); medians over N rounds (3).
# Parts, all of them unless named: headline (with a table of switches, one at a time and all but one), two (2 hosts x 4 ranks), free (no limit
# between hosts), plain (a topology where AlltoAllV wins). --quick: one round, headline without the table.
# Needs root and network namespaces; ends with 77 where hosts cannot be simulated.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
moetrain=${MOETRAIN:-$root/build/moetrain}
config=$root/configs/headline.yaml
rate='' share=58 rounds=3 quick=0 parts=()
while [ $# -gt 0 ]; do
  case "$1" in --rate | --share | --rounds | --config | --only)
    [ $# -gt 1 ] || { echo "bench_headline: $1 needs a value; see the first lines of $0" >&2; exit 2; } ;;
  esac
  case "$1" in
    --quick) quick=1 rounds=1 ;;
    --rate) rate=$2; shift ;;
    --share) share=$2; shift ;;
    --rounds) rounds=$2; shift ;;
    --config) config=$2; shift ;;
    --only) parts+=("$2"); shift ;;
    *) echo "bench_headline: unknown option $1; see the first lines of $0" >&2; exit 2 ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || parts=(headline two free plain)
for part in "${parts[@]}"; do
  [[ " headline two free plain " == *" $part "* ]] ||
    { echo "bench_headline: --only $part: parts are headline, two, free, plain" >&2; exit 2; }
done
[[ $share =~ ^[1-9][0-9]?$ && $rounds =~ ^[1-9][0-9]*$ ]] ||
  { echo "bench_headline: --share takes 1 to 99 (percent), --rounds a number" >&2; exit 2; }
[ -x "$moetrain" ] || { echo "bench_headline: $moetrain is not there; scripts/setup.sh builds it" >&2; exit 2; }
hosts=$root/scripts/sim_hosts.sh
export SIM_HOSTS=headline-$$
"$hosts" possible
scratch=$(mktemp -d)
trap '"$hosts" destroy; rm -rf "$scratch"' EXIT

# switch        out of the box                  on
switches=(
  "transport    parallel.dispatch=alltoall      parallel.dispatch=auto"
  "experts      parallel.tp_extend_ep=false     parallel.tp_extend_ep=true"
  "overlap      parallel.overlap=false          parallel.overlap=true"
  "pairs        parallel.schedule=1f1b          parallel.schedule=fused_1f1b"
  "values       compute.pad_value_heads=true    compute.pad_value_heads=false"
  "fusion       compute.fusion=false            compute.fusion=true"
)
declare -A title=(
  [transport]="transport chosen by the machine file" [experts]="whole experts over tensor ranks too"
  [overlap]="transfers beside computation" [pairs]="pairs of micro-batches beside each other (with overlap)"
  [values]="values as wide as they are" [fusion]="fused kernels"
)
# settings KIND NAME...: the settings, joined by ';', in which the named switches are on ("but": all others)
settings() {
  local kind=$1 row name off on joined=''
  shift
  for row in "${switches[@]}"; do
    read -r name off on <<< "$row"
    local listed=0
    [[ " $* " == *" $name "* ]] && listed=1
    [ "$kind" = but ] && listed=$((1 - listed))
    [ $listed -eq 1 ] && joined+=";$on" || joined+=";$off"
  done
  echo "${joined#;}"
}
plain=$(settings only)
all=$(settings but)

# bench STEPS FILE VARIANT...: steps in turns; FILE gets the report. Needs eight ranks of the hosts made.
bench() {
  local steps=$1 file=$2 first=$3 arguments=() part
  shift 3
  IFS=';' read -ra part <<< "$first"
  for setting in "${part[@]}"; do arguments+=(--set "$setting"); done
  for variant in "$@"; do arguments+=(--against "$variant"); done
  [ -f "$scratch/machine.yaml" ] && arguments+=(--set "compute.machine=$scratch/machine.yaml")
  "$hosts" run -n 8 "$moetrain" bench step --json --config "$config" --steps "$steps" --set log.level=error \
    "${arguments[@]}" > "$file" 2> "$scratch/messages" || { cat "$scratch/messages" >&2; exit 1; }
}
field() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["variants"][int(sys.argv[2])][sys.argv[3]])' "$@"; }
calculate() { python3 -c "print($1)"; }
# measure_machine: what this job computes and moves, for the planner
measure_machine() {
  rm -f "$scratch/machine.yaml"
  "$hosts" run -n 8 "$moetrain" bench machine --repeats 1 --threads 1 --write-machine "$scratch/machine.yaml" \
    > "$scratch/machine.txt" 2>&1 || { cat "$scratch/machine.txt" >&2; exit 1; }
}
make_hosts() { "$hosts" create --hosts "$1" --ranks-per-host "$2"; }

# together: seconds of an out-of-the-box step on one host
together() {
  make_hosts 1 8
  rm -f "$scratch/machine.yaml"
  bench 3 "$scratch/together" "$plain"
  field "$scratch/together" 0 seconds
}
# find_rate HOSTS: sets $mbit (a number) so that communication is $share % of the plain step on the hosts made
find_rate() {
  local wanted seconds bytes try
  wanted=$(calculate "$alone / (1 - $share / 100)")
  mbit=800
  for try in 1 2 3 4; do
    "$hosts" rate "${mbit}mbit"
    bench 1 "$scratch/search" "$plain"
    seconds=$(field "$scratch/search" 0 seconds)
    bytes=$(field "$scratch/search" 0 bytes_inter_node)
    echo "  $mbit Mbit/s: $(calculate "f'{$seconds:.2f} s a step, {100 * (1 - $alone / $seconds):.0f} % of it communication'")" >&2
    [ "$(calculate "abs(1 - $seconds / $wanted) < 0.05")" = True ] && return
    if [ "$try" -eq 1 ]; then  # by bytes: what one host sends in the time there is
      mbit=$(calculate "max(5, round(8e-6 * $bytes / $1 / ($wanted - $alone)))")
    else
      mbit=$(calculate "max(5, round($mbit * min(4, max(0.25, ($seconds - $alone) / ($wanted - $alone)))))")
    fi
  done
  "$hosts" rate "${mbit}mbit"
}

# report FILE TITLE NAME...: one line per variant, against the first
report() {
  python3 - "$@" << 'TABLE'
import json, sys
file, title, *names = sys.argv[1:]
variants = json.load(open(file))["variants"]
base = variants[0]
print(f"\n{title}\n{'':48}{'s/step':>8}{'best':>8}{'tokens/s':>10}{'ratio':>7}{'cpu s':>8}{'comm s':>8}{'exposed':>9}{'MB between hosts':>18}")
for name, v in zip(names, variants):
    print(f"{name:48}{v['seconds']:8.2f}{v['best_seconds']:8.2f}{v['tokens_per_second']:10.0f}"
          f"{v['tokens_per_second'] / base['tokens_per_second']:7.2f}{v['cpu_s']:8.2f}{v['comm_s']:8.2f}{v['exposed_comm_s']:9.2f}"
          f"{v['bytes_inter_node'] / 1e6:18.1f}")
TABLE
}
line() {  # SECONDS-OF-PLAIN: what part of it is communication
  calculate "f'communication is {100 * (1 - $alone / $1):.0f} % of the plain step: on one host it takes $alone s'"
}

has() { [[ " ${parts[*]} " == *" $1 "* ]]; }
# set_rate HOSTS: the rate between the hosts made, as asked for or searched
set_rate() {
  if [ -n "$rate" ]; then
    "$hosts" rate "$rate"
    mbit=$rate
  else
    echo "searching the rate between $1 hosts at which communication is $share % of the plain step" >&2
    find_rate "$1"
    mbit="$mbit Mbit/s"
  fi
}
# contest FILE TITLE FIRST NAME [VARIANT NAME]...: times and reports; the first variant is the base
contest() {
  local file=$scratch/$1 heading=$2 first=$3 variants=() names=("$4")
  shift 4
  while [ $# -gt 0 ]; do variants+=("$1") names+=("$2"); shift 2; done
  bench "$rounds" "$file" "$first" "${variants[@]}"
  report "$file" "$heading" "${names[@]}"
}
# add_switches KIND WORD: contestants with one switch on ("only"), or with all but one ("but"); pairs need overlap
declare -A company=(["only pairs"]=overlap ["but overlap"]=pairs)
add_switches() {
  local row name
  for row in "${switches[@]}"; do
    read -r name _ <<< "$row"
    contestants+=("$(settings "$1" "$name" "${company[$1 $name]:-}")" "$2 ${title[$name]}")
  done
}

echo "eight ranks with one thread each on $(nproc) cores; $(basename "$config"); medians of $rounds rounds"
if has headline || has free || has two; then alone=$(together); fi

if has headline || has free; then make_hosts 4 2; fi
if has headline; then
  set_rate 4
  measure_machine
  contestants=("$all" "everything on")
  [ $quick -eq 1 ] || add_switches only only
  contest only "4 hosts x 2 ranks, $mbit between them" "$plain" "out of the box" "${contestants[@]}"
  line "$(field "$scratch/only" 0 seconds)"
  if [ $quick -eq 0 ]; then
    contestants=("$plain" "out of the box")
    add_switches but without
    contest but "the same, all but one" "$all" "everything on" "${contestants[@]}"
  fi
fi

if has free; then
  "$hosts" rate none
  measure_machine
  contest free "4 hosts x 2 ranks, no limit between them" "$plain" "out of the box" "$all" "everything on"
  line "$(field "$scratch/free" 0 seconds)"
fi

if has two; then
  make_hosts 2 4
  set_rate 2
  measure_machine
  contest two "2 hosts x 4 ranks, $mbit between them" "$plain" "out of the box" "$all" "everything on"
  line "$(field "$scratch/two" 0 seconds)"
fi

if has plain; then
  # one expert a token, one rank a host: no row could be shared on the way
  make_hosts 8 1
  "$hosts" rate "${rate:-1gbit}"
  measure_machine
  one="model.num_experts_per_tok=1;model.topk_group=1;parallel.tensor=1;parallel.expert=8;parallel.overlap=false"
  contestants=()
  for transport in alltoall alltoall_once allgather dedup; do
    contestants+=("$one;parallel.dispatch=$transport" "$transport")
  done
  contest plain "8 hosts x 1 rank, top-1, ${rate:-1gbit}: nothing to save on the way" \
    "$one;parallel.dispatch=auto" auto "${contestants[@]}"
  arguments=()
  IFS=';' read -ra part <<< "$one"
  for setting in "${part[@]}"; do arguments+=(--set "$setting"); done
  echo "what auto takes, and the prices it compares:"
  "$moetrain" plan --config "$config" --world-size 8 --machine "$scratch/machine.yaml" --explain \
    --set parallel.ranks_per_node=1 "${arguments[@]}" | grep -A 1 "^token transports" | tail -1
fi
