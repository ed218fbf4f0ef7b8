# What command line tests share: a scratch folder, a small corpus, and checks that say what they saw.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
moetrain=${MOETRAIN:?the program under test}
golden_check=$(dirname "$moetrain")/tests/golden_check
tiny=$root/tests/data/cli/tiny.yaml
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
failures=0

# expect CODE COMMAND...: runs it; standard output is left in $result, that and all messages in $output
expect() {
  local code=$1
  shift
  result=$("$@" 2> messages.txt < /dev/null)
  local got=$?
  output=$(cat messages.txt; echo "$result")
  if [ $got -ne "$code" ]; then
    echo "FAILED: '$*' ended with $got, expected $code; it said:"
    echo "$output" | head -40
    failures=$((failures + 1))
  fi
}
# says TEXT: the last output holds it
says() {
  grep -qF -- "$1" <<< "$output" && return
  echo "FAILED: expected '$1' in:"
  echo "$output" | head -40
  failures=$((failures + 1))
}
# says_once TEXT: on exactly one line
says_once() {
  local n
  n=$(grep -cF -- "$1" <<< "$output")
  [ "$n" -eq 1 ] && return
  echo "FAILED: expected '$1' on one line, found it on $n:"
  echo "$output" | head -40
  failures=$((failures + 1))
}
check() {  # check DESCRIPTION COMMAND...
  local what=$1
  shift
  "$@" > /dev/null 2>&1 && return
  echo "FAILED: $what"
  failures=$((failures + 1))
}
on_ranks() {
  local n=$1
  shift
  mpirun --oversubscribe -n "$n" "$@"
}
corpus() {
  local i
  for i in $(seq 1 80); do
    printf 'chapter %d: the quick brown fox jumps over the lazy dog %d times and sleeps\n\n' "$i" $((i * 7))
  done > corpus.txt
  expect 0 "$moetrain" data build corpus.txt --documents blank-lines --output corpus
}
