"""Compares loss curves: curve.py A B OTHER. B follows A where every mean over 40 steps is within 0.02 nats, less than a
third of what other initial weights (OTHER) make of it, and no single step is 0.15 nats away."""
import json
import sys

a, b, other = ([json.loads(line)["loss"] for line in open(d + "/metrics.jsonl")] for d in sys.argv[1:4])
assert len(a) == len(b) == len(other) and len(a) % 40 == 0, (len(a), len(b), len(other))


def distance(x, y):
    means = [[sum(z[i:i + 40]) / 40 for i in range(0, len(z), 40)] for z in (x, y)]
    return max(abs(u - v) for u, v in zip(*means))


step = max(abs(x - y) for x, y in zip(a, b))
print(f"40-step means: {distance(a, b):.5f} nats apart, other weights {distance(a, other):.5f}; largest step {step:.4f}; "
      f"loss {a[0]:.3f} to {a[-1]:.3f}")
sys.exit(not (a[-1] < 0.8 * a[0] and distance(a, b) < min(0.02, distance(a, other) / 3) and step < 0.15))
