#!/bin/bash
# Several hosts on one machine, for trying what crosses a network: memory is shared inside a host, TCP runs between.
#   scripts/sim_hosts.sh create [--hosts N] [--ranks-per-host N] [--rate RATE]   (2, 2, none)
#   scripts/sim_hosts.sh run [MPIRUN OPTIONS] PROGRAM [ARGUMENTS]   mpirun over the hosts, started on the first
#   scripts/sim_hosts.sh exec HOST COMMAND [ARGUMENTS]              on host0, host1, ...
#   scripts/sim_hosts.sh stats      per host: bytes and packets received and sent at its interface, since create
#   scripts/sim_hosts.sh rate RATE  another rate for every link: 200mbit, 1gbit, ... each way, or none (no limit)
#   scripts/sim_hosts.sh destroy    kills what runs on the hosts and removes them
#   scripts/sim_hosts.sh possible   may this be done here? Prints why not and ends with 77 if it may not
# SIM_HOSTS names a set of hosts (default "hosts"); sets do not see one another, nor any other network.
#
# A host is a sleeping process with network, host name, System V IPC and mount namespaces of its own: an interface
# `eth0`, an empty /dev/shm, an /etc/hosts that knows its neighbours. A further process holds the switch: a bridge
# with one veth pair per host. Rates are token buckets at both ends of a pair, so a host has that rate each way.
# Open MPI starts its daemons with this script in place of ssh; the environment is the caller's.
# Needs root, a kernel with these namespaces, veth, bridge and tbf; Debian packages iproute2 and util-linux.
set -euo pipefail

self=$(readlink -f "${BASH_SOURCE[0]}")
name=${SIM_HOSTS:-hosts}
state=${SIM_HOSTS_STATE:-/run/moetrain-hosts}/$name
network=198.18.77  # of the range for benchmarks between networks; seen by the hosts only
most_hosts=64

die() { echo "sim_hosts: $*" >&2; exit 2; }
cannot() { echo "sim_hosts: no simulated hosts here: $*" >&2; exit 77; }

possible() {
  local tool said
  [ "$(id -u)" -eq 0 ] || cannot "only root may make network namespaces"
  for tool in ip tc nsenter unshare; do
    command -v "$tool" > /dev/null || cannot "$tool is missing (apt-get install iproute2 util-linux)"
  done
  said=$(unshare --net --uts --ipc --mount -- sh -ec '
    ip link add a0 type veth peer name b0
    ip link add s0 type bridge
    ip link set a0 master s0
    tc qdisc replace dev b0 root tbf rate 1gbit burst 128kb limit 4mb
    mount -t tmpfs tmpfs /dev/shm
    echo host0 > /proc/sys/kernel/hostname' 2>&1) ||
    cannot "the kernel or this container refuses: $(tail -1 <<< "$said")"
}

# identity PID: what tells a process from a later one of the same number
identity() { sed 's/.*) //' "/proc/$1/stat" 2> /dev/null | cut -d ' ' -f 20; }
holder() {  # HOST or switch -> its process, if that still runs
  local pid started
  [ -f "$state/$1" ] || die "there is no $1 in '$name'; make hosts with: $self create"
  read -r pid started < "$state/$1"
  [ "$(identity "$pid")" = "$started" ] || die "$1 of '$name' is gone; make hosts again with: $self create"
  echo "$pid"
}
hosts() { local h; for h in "$state"/host[0-9]*; do [ -f "$h" ] && basename "$h"; done | sort -V; }

# hold FILE NAMESPACES... : a process that keeps namespaces; FILE gets its number
hold() {
  local file=$1 pid
  shift
  # shellcheck disable=SC2016
  setsid unshare "$@" -- sh -c 'echo ready > "$1"; exec sleep infinity' sh "$file.ready" \
    < /dev/null > /dev/null 2>&1 9>&- &
  pid=$!
  for _ in $(seq 200); do [ -f "$file.ready" ] && break; sleep 0.01; done
  [ -f "$file.ready" ] || die "could not start $(basename "$file")"
  rm "$file.ready"
  echo "$pid $(identity "$pid")" > "$file"
}

limit() {  # PID DEVICE RATE, on what leaves through the device
  if [ "$3" = none ]; then
    nsenter -t "$1" -n -- tc qdisc del dev "$2" root 2> /dev/null || true
  else
    # a whole segment of 64 KiB fits into the burst; 4 MB wait before anything is dropped
    nsenter -t "$1" -n -- tc qdisc replace dev "$2" root tbf rate "$3" burst 128kb limit 4mb
  fi
}
limit_all() {
  local h
  for h in $(hosts); do
    limit "$(holder "$h")" eth0 "$1"
    limit "$(holder switch)" "to${h#host}" "$1"
  done
}

destroy() {
  [ -d "$state" ] || return 0
  local file pid started space p
  for file in "$state"/host[0-9]* "$state/switch"; do
    [ -f "$file" ] || continue
    read -r pid started < "$file"
    [ "$(identity "$pid")" = "$started" ] || continue
    space=$(readlink "/proc/$pid/ns/net")
    for p in /proc/[0-9]*; do
      [ "$(readlink "$p/ns/net" 2> /dev/null)" = "$space" ] && kill -KILL "${p#/proc/}" 2> /dev/null || true
    done
  done
  rm -rf "$state"
}

create() {
  local count=2 per_host=2 rate=none i h pid switch
  while [ $# -gt 0 ]; do
    case "$1" in
      --hosts) count=$2 ;;
      --ranks-per-host) per_host=$2 ;;
      --rate) rate=$2 ;;
      *) die "create: unknown option $1; see the first lines of $self" ;;
    esac
    shift 2
  done
  [[ $count =~ ^[0-9]+$ ]] && [ "$count" -ge 1 ] && [ "$count" -le $most_hosts ] ||
    die "create: --hosts $count: 1 to $most_hosts"
  [[ $per_host =~ ^[1-9][0-9]*$ ]] || die "create: --ranks-per-host $per_host: 1 or more"
  possible
  mkdir -p "$(dirname "$state")"
  exec 9> "$(dirname "$state")/.lock"
  flock 9
  destroy
  mkdir "$state"
  trap '[ $? -eq 0 ] || destroy' EXIT
  hold "$state/switch" --net
  switch=$(holder switch)
  nsenter -t "$switch" -n -- sh -ec 'ip link add s0 type bridge; ip link set s0 up'
  { echo "127.0.0.1 localhost"
    for ((i = 0; i < count; i++)); do echo "$network.$((i + 1)) host$i"; done; } > "$state/names"
  for ((i = 0; i < count; i++)); do
    h=host$i
    echo "$h slots=$per_host" >> "$state/hostfile"
    hold "$state/$h" --net --uts --ipc --mount --propagation private
    pid=$(holder $h)
    nsenter -t "$switch" -n -- ip link add "to$i" type veth peer name eth0 netns "$pid"
    nsenter -t "$switch" -n -- sh -ec "ip link set to$i master s0; ip link set to$i up"
    # shellcheck disable=SC2016
    nsenter -t "$pid" -n -u -i -m -- sh -ec '
      echo "$1" > /proc/sys/kernel/hostname
      mount -t tmpfs -o mode=1777 tmpfs /dev/shm
      mount --bind "$3" /etc/hosts
      ip link set lo up
      ip addr add "$2/24" dev eth0
      ip link set eth0 up' sh "$h" "$network.$((i + 1))" "$state/names"
  done
  # what mpirun starts in place of ssh: options, host, command
  cat > "$state/agent" << AGENT
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
host=\$1
shift
SIM_HOSTS=$name SIM_HOSTS_STATE=$(dirname "$state") exec $self exec "\$host" sh -c "\$*"
AGENT
  chmod +x "$state/agent"
  limit_all "$rate"
}

enter() {  # HOST COMMAND...: becomes the command, in the same folder
  local pid
  pid=$(holder "$1")
  shift
  # shellcheck disable=SC2016
  exec nsenter -t "$pid" -n -u -i -m -- sh -c 'cd "$1" && shift && exec "$@"' sh "$PWD" "$@"
}

run() {
  [ $# -gt 0 ] || die "run: say what to run"
  default() { [ -n "${!1+set}" ] || export "$1=$2"; }
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export OMPI_MCA_plm=rsh OMPI_MCA_plm_rsh_agent=$state/agent OMPI_MCA_plm_rsh_no_tree_spawn=1
  export OMPI_MCA_oob_tcp_if_include=eth0 OMPI_MCA_btl_tcp_if_include=eth0
  default OMPI_MCA_pml ob1
  default OMPI_MCA_btl self,vader,tcp
  default OMPI_MCA_mpi_yield_when_idle 1
  default OMPI_MCA_hwloc_base_binding_policy none
  default OMPI_MCA_rmaps_base_oversubscribe 1
  enter host0 mpirun --hostfile "$state/hostfile" "$@"
}

stats() {
  [ -d "$state" ] || die "there are no hosts '$name'; make them with: $self create"
  local h
  printf '%-8s %14s %10s %14s %10s\n' host received packets sent packets
  for h in $(hosts); do
    awk -v h="$h" '/eth0:/ { sub(/.*:/, ""); printf "%-8s %14.0f %10.0f %14.0f %10.0f\n", h, $1, $2, $9, $10 }' \
      "/proc/$(holder "$h")/net/dev"
  done
}

[[ $name =~ ^[A-Za-z0-9_.-]+$ ]] || die "SIM_HOSTS=$name: letters, digits, '_', '.', '-'"
command=${1:-}
[ $# -gt 0 ] && shift
case $command in
  create) create "$@" ;;
  run) run "$@" ;;
  exec) [ $# -ge 2 ] || die "exec HOST COMMAND"; enter "$@" ;;
  stats) stats ;;
  rate) limit_all "${1:?sim_hosts: rate RATE}" ;;
  destroy) destroy ;;
  possible) possible ;;
  *) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "$self" >&2; exit 2 ;;
esac
