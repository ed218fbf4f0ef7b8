"""Reads event files as TensorBoard does: later files win, a purge step drops what came after it."""
import os
import struct
import sys


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = data[at:at + 8], at + 8
        elif kind == 5:
            value, at = data[at:at + 4], at + 4
        else:
            n, at = varint(data, at)
            value, at = data[at:at + n], at + n
        yield key >> 3, value


seen = {}
for name in sorted(os.listdir(sys.argv[1])):
    data = open(sys.argv[1] + "/" + name, "rb").read()
    at = 0
    while at + 12 <= len(data):
        size = struct.unpack("<Q", data[at:at + 8])[0]
        event = data[at + 12:at + 12 + size]
        if len(event) < size:
            break
        at += 16 + size
        step, tags, starts = 0, [], False
        for field, value in fields(event):
            if field == 2:
                step = value
            elif field == 5:
                for f, item in fields(value):
                    tags += [v.decode() for n, v in fields(item) if f == 1 and n == 1]
            elif field == 7:
                starts = any(f == 1 and v == 1 for f, v in fields(value))
        if starts:
            for tag in seen:
                seen[tag] = [s for s in seen[tag] if s < step]
        for tag in tags:
            seen.setdefault(tag, []).append(step)
steps = list(range(1, int(sys.argv[2]) + 1))
for word in ("loss", "learning_rate", "grad_norm", "balance", "tokens_per_second"):
    assert any(word in tag for tag in seen), (word, list(seen))
for tag, list_of_steps in seen.items():
    if "validation" not in tag:
        assert list_of_steps == steps, (tag, list_of_steps)
