"""Compares the metrics of two runs: compare.py A B [relative tolerance; 0 or absent: equal numbers]."""
import json
import sys

a, b = ([json.loads(line) for line in open(d + "/metrics.jsonl")] for d in sys.argv[1:3])
tolerance = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
for rows in (a, b):
    assert [r["step"] for r in rows] == list(range(1, len(rows) + 1)), [r["step"] for r in rows]
assert len(a) == len(b) > 0, (len(a), len(b))
for x, y in zip(a, b):
    for key in ("samples", "tokens", "learning_rate", "skipped_steps"):
        assert x[key] == y[key], (x["step"], key, x[key], y[key])
    for key in ("loss", "main_loss", "mtp_loss", "balance_loss", "grad_norm", "validation_loss"):
        u, v = x.get(key), y.get(key)
        if u == v:
            continue
        assert u is not None and v is not None, (x["step"], key, u, v)
        assert abs(u - v) <= tolerance * abs(u), (x["step"], key, u, v)
