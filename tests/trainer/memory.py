"""Compares the memory that `moetrain plan` predicts with what the largest process of a run really took.

memory.py RANKS CONFIG [key=value]...: fails where they are more than a tenth apart. What a run of a small model takes
(program, libraries, MPI) is measured first and left out."""
import json
import os
import subprocess
import sys

moetrain = os.environ["MOETRAIN"]
ranks, config, sets = int(sys.argv[1]), sys.argv[2], sys.argv[3:]


def options(more):
    return [word for setting in more for word in ("--set", setting)]


def peak(name, more):
    """Most resident memory of any process of the run; the launcher's own is far less."""
    launch = ["mpirun", "--oversubscribe", "-n", str(ranks)] if ranks > 1 else []
    command = launch + [moetrain, "train", "--config", config, "--set", f"run.output_dir={name}", "--steps", "2",
                        "--set", "checkpoint.interval=0", "--resume", "none"] + options(more)
    with open(name + ".log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{name} failed: {open(name + '.log').read()[-2000:]}")
    return usage.ru_maxrss * 1024


def planned(more):
    command = [moetrain, "plan", "--config", config, "--world-size", str(ranks), "--json"] + options(more)
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["memory"]


small = [s for s in sets if not s.startswith("model.")]
grown = peak("large", sets) - peak("small", small)
plan = planned(sets)
expected = plan["total"] - planned(small)["total"]
mib = {key: round(value / 2**20, 1) for key, value in plan.items()}
print(f"process {grown / 2**20:.1f} MiB, plan {expected / 2**20:.1f} MiB, ratio {grown / expected:.3f}: {mib}")
sys.exit(not 0.9 <= grown / expected <= 1.1)
