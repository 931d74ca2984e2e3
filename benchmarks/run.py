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


def weft_step(c, precision="f32"):
    with tempfile.NamedTemporaryFile("r") as log:
        flags = dict(zip(("layers", "heads", "width", "context", "batch", "vocab", "steps"), map(str, c)))
        lines(build / "examples/train_gpt", "--data", corpus, "--threads", threads, "--log", log.name, "--precision", precision,
              *[part for k, v in flags.items() for part in ("--" + k, v)])
        return [json.loads(line)["ms"] for line in log if '"step":' in line]


def static_step(c):
    return map(float, lines(build / "examples/static_gpt", "--steps", c[-1], "--threads", threads))


def has_pytorch():
    return subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode == 0


def beside_another_process(program, c):
    """The steps while another process wants the last core for itself."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    os.sched_setaffinity(other.pid, {max(os.sched_getaffinity(0))})
    try:
        return list(program(c))
    finally:
        other.kill()
        other.wait()


#          layers heads width context batch vocabulary steps
configs = [(4, 4, 128, 64, 12, 256, 60), (6, 6, 384, 256, 8, 256, 8), (12, 12, 768, 256, 4, 50304, 3)]
programs = {"weft": weft_step, "weft bf16": lambda c: weft_step(c, "bf16")}
if has_pytorch():
    for form in "eager", "compiled", "bf16":
        programs[f"PyTorch {form}"] = lambda c, form=form: map(float, lines(sys.executable, here / "peers/gpt_pytorch.py", *c, threads, form))
if (peers / "gpt_libtorch").exists():
    programs["LibTorch"] = lambda c: map(float, lines(peers / "gpt_libtorch", *c, threads))
others = [p for p in programs if not p.startswith("weft")]
peer_of = lambda name: "weft bf16" if name.endswith("bf16") else "weft"
print(f"GPT-2 training step, {threads} threads, tokens/s; ratio = weft / peer\n")
print("| step | weft | weft static | weft bf16 | of f32 |" + "".join(f" {p} | ratio |" for p in others))
print("|---|---|---|---|---|" + "---|---|" * len(others))
beside = collections.defaultdict(list)
for number, c in enumerate(configs):
    times = collections.defaultdict(list)
    for _ in range(3):  # interleaved; the first step of each run warms up
        for name, program in programs.items():
            times[name] += list(program(c))[1:]
            if number == 1:
                beside[name] += beside_another_process(program, c)[1:]
        if number == 0:
            times["static"] += list(static_step(c))[1:]
    if number == 1:
        alone = times
    rate = {name: 1e3 * c[3] * c[4] / statistics.median(t) for name, t in times.items()}
    static = f"{rate['static']:.0f}" if "static" in rate else ""
    print(f"| L{c[0]} H{c[1]} C{c[2]} T{c[3]} B{c[4]} V{c[5]} | {rate['weft']:.0f} | {static} | {rate['weft bf16']:.0f} | "
          f"{rate['weft bf16'] / rate['weft']:.2f} |" + "".join(f" {rate[p]:.0f} | {rate[peer_of(p)] / rate[p]:.2f} |" for p in others), flush=True)


print("\nThe second step alone, and beside a process that keeps one core busy, milliseconds\n")
print("| | alone | beside | times as long |\n|---|---|---|---|")
for name in programs:
    ms, ms_beside = statistics.median(alone[name]), statistics.median(beside[name])
    print(f"| {name} | {ms:.0f} | {ms_beside:.0f} | {ms_beside / ms:.2f} |", flush=True)


def interleaved(family, rounds):
    """Seconds by task and program: those that were built, and a script for PyTorch."""
    commands = {p.name[len(family) + 1:]: [p] for p in sorted(peers.glob(f"{family}_*"))}
    script = here / f"peers/{family}_pytorch.py"
    if script.exists() and has_pytorch():
        commands["PyTorch"] = [sys.executable, script]
    times = collections.defaultdict(lambda: collections.defaultdict(list))
    for _ in range(3):
        for name, command in commands.items():
            for line in lines(*command, threads, rounds):
                task, seconds = line.split("\t")
                times[task][name].append(float(seconds))
    return [n for n in commands if n != "weft"], {t: {n: statistics.median(v) for n, v in by.items()} for t, by in times.items()}


for family, what in ("ops", "Single ops"), ("layers", "Layers forward and backward"), ("tiny", "Twenty small steps"):
    names, times = interleaved(family, 7)
    print(f"\n{what}, {threads} threads, milliseconds; in brackets how many times as long as weft\n")
    print("| | weft |" + "".join(f" {n} |" for n in names))
    print("|---|---|" + "---|" * len(names))
    for task, by in times.items():
        cells = [f"{1e3 * by[n]:.2f} ({by[n] / by['weft']:.2f})" if n in by else "" for n in names]
        print(f"| {task} | {1e3 * by['weft']:.2f} | " + " | ".join(cells) + " |", flush=True)

names, times = interleaved("products", 3)
print(f"\nMatrix products, {threads} threads: GFLOP/s of weft; in brackets how many times as fast as {', '.join(names)}\n")
print("| type and m, n, k | A B | A B^T | A^T B |\n|---|---|---|---|")
ratios = collections.defaultdict(list)
rows = collections.defaultdict(list)
for task, by in times.items():
    kind, sizes, form = task.split()
    m, n, k = map(int, sizes.split(","))
    of = [by[name] / by["weft"] if name in by else None for name in names]
    for name, ratio in zip(names, of):
        if ratio:
            ratios[kind, name].append(ratio)
    rows[f"{kind} {sizes}"].append(f"{2e-9 * m * n * k / by['weft']:.0f} ({', '.join(f'{r:.2f}' for r in of if r)})")
for row, cells in rows.items():
    print(f"| {row} | " + " | ".join(cells) + " |")
print()
for (kind, name), r in ratios.items():
    print(f"{kind} against {name}: geometric mean {statistics.geometric_mean(r):.2f}, least {min(r):.2f}, greatest {max(r):.2f}")
