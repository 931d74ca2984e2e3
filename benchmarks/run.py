#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Interleaves train_gpt with the same step in PyTorch and prints a table of medians and ratios.

    benchmarks/run.py [path of train_gpt] [threads]
"""
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

job = sys.argv[1] if len(sys.argv) > 1 else "build/examples/train_gpt"
threads = sys.argv[2] if len(sys.argv) > 2 else "2"
here = pathlib.Path(__file__).parent
corpus = "/usr/share/common-licenses"
#          layers heads width context batch vocabulary steps
configs = [(4, 4, 128, 64, 12, 256, 60), (6, 6, 384, 256, 8, 256, 8), (12, 12, 768, 256, 4, 50304, 3)]


def weft(c):
    with tempfile.NamedTemporaryFile("r") as log:
        flags = dict(zip(("layers", "heads", "width", "context", "batch", "vocab", "steps"), map(str, c)))
        subprocess.run([job, "--data", corpus, "--threads", threads, "--log", log.name] +
                       [part for k, v in flags.items() for part in ("--" + k, v)], check=True, stderr=subprocess.DEVNULL)
        return [json.loads(line)["ms"] for line in log if '"step":' in line]


def pytorch(c):
    run = subprocess.run([sys.executable, here / "gpt_pytorch.py", *map(str, c), threads], check=True,
                         capture_output=True, text=True)
    return [float(line) for line in run.stdout.split()]


print("| GPT-2 step | weft tokens/s | PyTorch tokens/s | ratio |\n|---|---|---|---|")
for c in configs:
    ours, theirs = [], []
    for _ in range(3):  # interleaved; the first step of each run warms up
        ours += weft(c)[1:]
        theirs += pytorch(c)[1:]
    tokens = 1e3 * c[3] * c[4]
    a, b = (tokens / statistics.median(x) for x in (ours, theirs))
    name = f"L{c[0]} H{c[1]} C{c[2]} T{c[3]} B{c[4]} V{c[5]}"
    print(f"| {name} | {a:.0f} | {b:.0f} | {a / b:.2f} |", flush=True)
