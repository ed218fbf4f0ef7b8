#!/bin/bash
# Installs what is missing (Debian packages) and builds build/moetrain; safe to run again and again.
#   scripts/setup.sh [--packages-only] [--package NAME]... [--build-dir DIR] [--target NAME]... [-- CMake options]
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(build-essential cmake ninja-build pkg-config ccache git python3
  libopenmpi-dev openmpi-bin libyaml-cpp-dev nlohmann-json3-dev libspdlog-dev libcli11-dev
  libhwy-dev libpcre2-dev libutf8proc-dev libprotobuf-dev protobuf-compiler
  libgtest-dev googletest clang-format bible-kjv iproute2 procps libdnnl-dev)

build_dir=build packages_only=0 targets=() options=()
while [ $# -gt 0 ]; do
  case "$1" in
    --packages-only) packages_only=1 ;;
    --package) command -v "$2" > /dev/null || packages+=("$2"); shift ;;
    --build-dir) build_dir=$2; shift ;;
    --target) targets+=("$2"); shift ;;
    --) shift; options=("$@"); break ;;
    *) echo "usage: $0 [--packages-only] [--package NAME]... [--build-dir DIR] [--target NAME]... [-- CMAKE OPTIONS]" >&2
       exit 2 ;;
  esac
  shift
done

missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null | grep -qx installed || missing+=("$p")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "setup: installing ${missing[*]}"
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo > /dev/null || { echo "setup: need root or sudo to install packages" >&2; exit 2; }
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -q
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
    "${missing[@]}"
else
  echo "setup: all packages are there"
fi
[ "$packages_only" -eq 1 ] && exit 0

jobs=$(nproc)
# a compiler needs up to about 1.5 GB
memory_jobs=$(( $(awk '/MemAvailable/ {print $2}' /proc/meminfo) / 1500000 ))
[ "$memory_jobs" -lt 1 ] && memory_jobs=1
[ "$memory_jobs" -lt "$jobs" ] && jobs=$memory_jobs

echo "setup: building $build_dir with $jobs jobs"
generator=()
[ -f "$build_dir/CMakeCache.txt" ] || generator=(-G Ninja)
cmake -S . -B "$build_dir" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release "${options[@]}" > "$build_dir.log" 2>&1 ||
  { cat "$build_dir.log" >&2; exit 1; }
target_options=()
[ ${#targets[@]} -gt 0 ] && target_options=(--target "${targets[@]}")
cmake --build "$build_dir" -j "$jobs" "${target_options[@]}"
echo "setup: done"
