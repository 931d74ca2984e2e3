#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Interleaves weft with its peers and prints tables of medians and ratios; benchmarks/run.sh builds what it runs.

    benchmarks/run.py BUILD_FOLDER THREADS
"""
import collections
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

build, threads = pathlib.Path(sys.argv[1]), sys.argv[2]
here = pathlib.Path(__file__).parent
peers = build / "peers"
corpus = "/usr/share/common-licenses"
environment = dict(os.environ, OMP_NUM_THREADS=threads)
blas = "/usr/lib/x86_64-linux-gnu/openblas-openmp"  # LibTorch takes whichever BLAS the linker finds first
if pathlib.Path(blas).exists():
    environment["LD_LIBRARY_PATH"] = blas


def lines(*command):
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True,
                          env=environment).stdout.split("\n")[:-1]


def weft_step(c):
    with tempfile.NamedTemporaryFile("r") as log:
        flags = dict(zip(("layers", "heads", "width", "context", "batch", "vocab", "steps"), map(str, c)))
        lines(build / "examples/train_gpt", "--data", corpus, "--threads", threads, "--log", log.name,
              *[part for k, v in flags.items() for part in ("--" + k, v)])
        return [json.loads(line)["ms"] for line in log if '"step":' in line]


def static_step(c):
    return map(float, lines(build / "examples/static_gpt", "--steps", c[-1], "--threads", threads))


def has_pytorch():
    return subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode == 0


#          layers heads width context batch vocabulary steps
configs = [(4, 4, 128, 64, 12, 256, 60), (6, 6, 384, 256, 8, 256, 8), (12, 12, 768, 256, 4, 50304, 3)]
programs = {"weft": weft_step}
if has_pytorch():
    for form in "eager", "compiled":
        programs[f"PyTorch {form}"] = lambda c, form=form: map(float, lines(sys.executable, here / "peers/gpt_pytorch.py", *c, threads, form))
if (peers / "gpt_libtorch").exists():
    programs["LibTorch"] = lambda c: map(float, lines(peers / "gpt_libtorch", *c, threads))
others = [p for p in programs if p != "weft"]
print(f"GPT-2 training step, {threads} threads, tokens/s; ratio = weft / peer\n")
print("| step | weft | weft static |" + "".join(f" {p} | ratio |" for p in others))
print("|---|---|---|" + "---|---|" * len(others))
for number, c in enumerate(configs):
    times = collections.defaultdict(list)
    for _ in range(3):  # interleaved; the first step of each run warms up
        for name, program in programs.items():
            times[name] += list(program(c))[1:]
        if number == 0:
            times["static"] += list(static_step(c))[1:]
    rate = {name: 1e3 * c[3] * c[4] / statistics.median(t) for name, t in times.items()}
    static = f"{rate['static']:.0f}" if "static" in rate else ""
    print(f"| L{c[0]} H{c[1]} C{c[2]} T{c[3]} B{c[4]} V{c[5]} | {rate['weft']:.0f} | {static} |" +
          "".join(f" {rate[p]:.0f} | {rate['weft'] / rate[p]:.2f} |" for p in others), flush=True)

for family, what in ("ops", "Single ops"), ("tiny", "Twenty small steps"):
    times = collections.defaultdict(lambda: collections.defaultdict(list))
    names = [p.name[len(family) + 1:] for p in sorted(peers.glob(f"{family}_*")) if p.name != f"{family}_weft"]
    for _ in range(3):
        for name in ["weft", *names]:
            for line in lines(peers / f"{family}_{name}", threads, 7):
                task, seconds = line.split("\t")
                times[task][name].append(float(seconds))
    print(f"\n{what}, {threads} threads, milliseconds; in brackets how many times as long as weft\n")
    print("| | weft |" + "".join(f" {n} |" for n in names))
    print("|---|---|" + "---|" * len(names))
    for task, by_name in times.items():
        ms = {n: 1e3 * statistics.median(t) for n, t in by_name.items()}
        cells = [f"{ms[n]:.2f} ({ms[n] / ms['weft']:.2f})" if n in ms else "" for n in names]
        print(f"| {task} | {ms['weft']:.2f} | " + " | ".join(cells) + " |", flush=True)
