#!/bin/bash
# A run saved by pipeline stages goes on under other layouts with the same losses, and the other way round.
. "$(dirname "$0")/../cli/harness.sh"
corpus
deeper=(--config "$tiny" --set model.num_hidden_layers=4 --set train.micro_batch_size=1)
stages=(--set parallel.pipeline=2 --set parallel.virtual_stages=2)

# close A B: every loss, norm and validation loss of two runs agree to 2e-5
close() {
  python3 - "$1/metrics.jsonl" "$2/metrics.jsonl" << 'PY'
import json, sys
a, b = ([json.loads(l) for l in open(p)] for p in sys.argv[1:])
assert [x["step"] for x in a] == [x["step"] for x in b] == list(range(1, 7)), "steps"
for x, y in zip(a, b):
    for key in ("loss", "main_loss", "mtp_loss", "grad_norm", "validation_loss"):
        assert (key in x) == (key in y), (x["step"], key)
        if key in x and x[key] is not None:
            assert abs(x[key] - y[key]) <= 2e-5 * abs(y[key]), (x["step"], key, x[key], y[key])
PY
  check "the runs in $1 and $2 agree" test $? -eq 0
}

expect 0 "$moetrain" train "${deeper[@]}" --set run.output_dir=whole
expect 0 on_ranks 2 "$moetrain" train "${deeper[@]}" "${stages[@]}" --set run.output_dir=piped
close piped whole
expect 0 on_ranks 2 "$moetrain" train "${deeper[@]}" "${stages[@]}" --set run.output_dir=down --steps 3
expect 0 "$moetrain" train "${deeper[@]}" --set run.output_dir=down
close down whole
expect 0 "$moetrain" train "${deeper[@]}" --set run.output_dir=up --steps 3
expect 0 on_ranks 4 "$moetrain" train "${deeper[@]}" --set parallel.pipeline=2 \
  --set parallel.schedule=dualpipev --set parallel.tensor=2 --set run.output_dir=up
close up whole

# dumps hold the outputs of all stages
for n in 1 2; do
  layout=()
  [ $n -eq 2 ] && layout=(--set parallel.pipeline=2)
  expect 0 on_ranks $n "$moetrain" train "${deeper[@]}" "${layout[@]}" --steps 1 \
    --set run.output_dir=dump$n --set 'debug.dump={steps: [1], dir: dumped}'
done
python3 - << 'PY'
import json, struct
def load(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    head.pop("__metadata__", None)
    def values(t):
        b, e = t["data_offsets"]
        kind = {"F32": "f", "I32": "i"}[t["dtype"]]
        return struct.unpack("<%d%s" % ((e - b) // 4, kind), data[8 + n + b:8 + n + e])
    return {k: values(t) for k, t in head.items()}
a, b = (load("dump%d/dumped/step_00000001.safetensors" % n) for n in (1, 2))
assert a.keys() == b.keys() and len(a) > 50, (len(a), len(b))
for k in a:
    scale = max(abs(x) for x in a[k]) + 1e-12
    assert max(abs(x - y) for x, y in zip(a[k], b[k])) <= 1e-4 * scale, k
PY
check "the dumps agree" test $? -eq 0
exit $((failures > 0))
