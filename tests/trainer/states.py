"""Compares the newest checkpoints of two runs state by state: equal bytes of every box, whatever the files."""
import json
import os
import struct
import sys


def states(run):
    root = run + "/checkpoints"
    folder = root + "/" + sorted(d for d in os.listdir(root) if d.startswith("step_"))[-1]
    found = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"):
            continue
        with open(folder + "/" + name, "rb") as file:
            data = file.read()
        size = struct.unpack("<Q", data[:8])[0]
        for key, t in json.loads(data[8:8 + size]).items():
            if key != "__metadata__":
                begin, end = t["data_offsets"]
                found[name, key] = (t["dtype"], t["shape"], data[8 + size + begin:8 + size + end])
    return os.path.basename(folder), found


first, second = states(sys.argv[1]), states(sys.argv[2])
assert first[0] == second[0], (first[0], second[0])
assert first[1].keys() == second[1].keys() and first[1]
for key in first[1]:
    assert first[1][key] == second[1][key], key
