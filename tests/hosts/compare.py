"""Checks on what runs over simulated hosts left behind: compare.py same|wire|volume ARGUMENTS."""
import json
import math
import sys


def rows(folder):
    return [json.loads(line) for line in open(folder + "/metrics.jsonl")]


def same(reference, folder, per_host="several"):
    """The same steps: losses within 1e-5, gradient norms within 2e-5 of the reference."""
    a, b = rows(reference), rows(folder)
    assert len(a) == len(b) > 0, f"{len(a)} and {len(b)} steps"
    for x, y in zip(a, b):
        for key, bound in (("loss", 1e-5), ("main_loss", 1e-5), ("mtp_loss", 1e-5), ("grad_norm", 2e-5)):
            assert abs(x[key] - y[key]) <= bound * abs(x[key]), f"step {x['step']}: {key} {x[key]} and {y[key]}"
    assert all(y["bytes_inter_node"] > 0 for y in b), "nothing crossed between hosts"
    assert all((y["bytes_intra_node"] > 0) == (per_host != "1") for y in b), "ranks do not know their hosts"


def wire(first, second, folder, steps):
    """Bytes at the interfaces of a run of `steps` steps and of one of twice as many, against its ledger."""
    counted = [sum(r["bytes_inter_node"] for r in rows(folder)[int(steps):])]
    measured = int(second) - int(first)
    ratio = measured / counted[0]
    print(f"{measured} bytes at the interfaces, {counted[0]} in metrics.jsonl: {ratio:.4f}")
    assert 1.00 <= ratio <= 1.10, ratio


def volume(transport, first, second, runs, nodes, ranks, tokens, top_k, experts, row_bytes):
    """Bytes of one dispatch and combine against rows per token of uniform routing, in closed form."""
    n, k, e, ep = int(nodes), int(top_k), int(experts), int(ranks)

    def hit(some):  # a token has at least one of `some` experts
        return 1 - math.comb(e - some, k) / math.comb(e, k)

    per_token = {
        "alltoall": k * (n - 1) / n,
        "alltoall_once": ep * hit(e // ep) * (n - 1) / n,
        "allgather": n - 1,
        "dedup": n * hit(e // n) * (n - 1) / n,
    }[transport]
    expected = 2 * per_token * int(tokens) * ep * int(row_bytes)
    measured = (int(second) - int(first)) / int(runs)
    print(f"{transport}: {per_token:.3f} rows per token, {measured / expected:.4f} of that at the interfaces")
    # routing, counts and headers come on top; a finite number of tokens is not exactly uniform
    assert 0.99 <= measured / expected <= 1.06, (measured, expected)


{"same": same, "wire": wire, "volume": volume}[sys.argv[1]](*sys.argv[2:])
