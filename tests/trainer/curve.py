"""Compares loss curves: curve.py A B OTHER [A B OTHER]..., a triple per seed. B follows A where, over all seeds, the mean of
the largest distances of 40-step means is within 0.02 nats and less than a third of what other initial weights (OTHER) make of
it, and no single step is 0.15 nats away. (One seed alone may have others that happen to lie close.)"""
import json
import sys


def distance(x, y):
    means = [[sum(z[i:i + 40]) / 40 for i in range(0, len(z), 40)] for z in (x, y)]
    return max(abs(u - v) for u, v in zip(*means))


curves = [[json.loads(line)["loss"] for line in open(d + "/metrics.jsonl")] for d in sys.argv[1:]]
triples = [curves[i:i + 3] for i in range(0, len(curves), 3)]
assert triples and all(len(t) == 3 and len({len(c) for c in t}) == 1 and len(t[0]) % 40 == 0 for t in triples)
apart = sum(distance(a, b) for a, b, _ in triples) / len(triples)
noise = sum(distance(a, other) for a, _, other in triples) / len(triples)
step = max(abs(x - y) for a, b, _ in triples for x, y in zip(a, b))
learned = all(a[-1] < 0.8 * a[0] for a, _, _ in triples)
print(f"40-step means: {apart:.5f} nats apart, other weights {noise:.5f}; largest step {step:.4f}; "
      f"loss {triples[0][0][0]:.3f} to {triples[0][0][-1]:.3f}")
sys.exit(not (learned and apart < min(0.02, noise / 3) and step < 0.15))
