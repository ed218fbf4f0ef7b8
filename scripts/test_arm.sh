#!/bin/bash
# Builds for 64-bit ARM (NEON); runs the tests of kernels, config, data, checkpoints and the golden cases emulated.
#   scripts/test_arm.sh [--build-dir DIR]
# Installs a cross compiler and qemu-user, and unpacks the ARM versions of the Debian packages into DIR/sysroot: this
# system's own packages stay as they are. About five minutes on two cores, a fraction of that when run again.
set -euo pipefail
cd "$(dirname "$0")/.."

build_dir=build-arm
if [ "${1:-}" = --build-dir ]; then build_dir=$2; shift 2; fi
[ $# -eq 0 ] || { echo "usage: $0 [--build-dir DIR]" >&2; exit 2; }
scripts/setup.sh --packages-only --package g++-aarch64-linux-gnu --package qemu-user

mkdir -p "$build_dir"
build_dir=$(realpath "$build_dir")
sysroot=$build_dir/sysroot
rooms=(kernels config checkpoint data_room)
libraries=(libc6-dev libstdc++-12-dev libhwy-dev libopenmpi-dev libgtest-dev libspdlog-dev libyaml-cpp-dev
  nlohmann-json3-dev libprotobuf-dev libpcre2-dev libutf8proc-dev libcli11-dev)

# ARM packages with everything they need, through an apt of its own that believes nothing is installed.
unpack_sysroot() {
  local apt=$build_dir/apt
  rm -rf "$sysroot" "$apt"
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$build_dir/unpacking"
  : > "$apt/status"
  cat > "$apt/apt.conf" << END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Install-Recommends "false";
APT::Sandbox::User "$(id -un)";
Debug::NoLocking "1";
Dir::State "$apt";
Dir::State::lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
END
  APT_CONFIG=$apt/apt.conf apt-get -q=2 update
  APT_CONFIG=$apt/apt.conf apt-get -q=2 -y --download-only install "${libraries[@]}" > "$apt/log" ||
    { tail -5 "$apt/log" >&2; exit 1; }
  local package
  for package in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$package" "$build_dir/unpacking"; done
  # links to absolute places must stay inside
  local link target
  find "$build_dir/unpacking" -type l -lname '/*' | while read -r link; do
    target=$(readlink "$link")
    ln -sfn "$(realpath -m --relative-to="$(dirname "$link")" "$build_dir/unpacking$target")" "$link"
  done
  rm -rf "$apt"
  mv "$build_dir/unpacking" "$sysroot"
}
if [ ! -d "$sysroot" ]; then
  echo "test_arm: unpacking ARM packages"
  unpack_sysroot
fi

scripts/setup.sh --build-dir "$build_dir/tree" --target golden_check \
  $(printf -- '--target test_%s ' "${rooms[@]}") -- \
  -DCMAKE_TOOLCHAIN_FILE="$PWD/scripts/arm_toolchain.cmake" -DMOETRAIN_ARM_SYSROOT="$sysroot"

# The ranks of a job would need an ARM mpirun: one rank here.
emulated() { qemu-aarch64 -L "$sysroot" "$@"; }
for room in "${rooms[@]}"; do
  echo "test_arm: $room"
  emulated "$build_dir/tree/tests/test_$room" > "$build_dir/$room.log" 2>&1 ||
    { grep -vE 'OK|RUN|SKIPPED|has no' "$build_dir/$room.log"; exit 1; }
  grep -o 'PASSED.*' "$build_dir/$room.log" | sed 's/PASSED  \]/ /'
done
for variant in neon baseline; do
  for precision in fp32 bf16; do
    echo "test_arm: golden cases, $variant, $precision"
    MOETRAIN_CPU_TARGET=$variant emulated "$build_dir/tree/tests/golden_check" --set compute.threads=1 \
      --precision "$precision" tests/data/golden/*/ tests/data/golden_more/*/ > "$build_dir/golden.log" ||
      { cat "$build_dir/golden.log"; exit 1; }
    if grep -E '^(FAIL|N/A)' "$build_dir/golden.log"; then exit 1; fi
    echo "  $(grep -c '^PASS' "$build_dir/golden.log") cases"
  done
done
echo "test_arm: good"
