#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures how training scales with the number of ranks, and prints two Markdown tables.

    tools/scaling.py --ranks 1,2,4 -- build/examples/train_gpt --data FILE --threads 1
    tools/scaling.py --ranks 1,2,4,8 --start 'mpirun -n {ranks}' -- train_gpt --comm mpi --data FILE --mesh dp=2,tp=auto
    tools/scaling.py --ranks 4,8 --start 'launch -n {ranks}' -- train_gpt --comm gloo --data FILE --strategy zero3

Strong scaling: every number of ranks does the same work per step, --batches batches (default: the smallest number that every number
of ranks can divide evenly). Weak scaling: each rank has --batches-per-rank (default: 1). Without --start, ranks are threads of one
process. Runs with different numbers of ranks alternate, --rounds times; a figure is the median, with quartiles, over the steps of all
rounds except the first --warmup steps of each run. In strong scaling the losses must agree; otherwise the exit code is 1.

Speed-up and efficiency are relative to the smallest number of ranks. Give each rank the same number of --threads at every number of
ranks, in all at most as many as there are cores.
"""
import argparse
import json
import math
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import tempfile
from statistics import median, quantiles


def arguments():
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                usage="%(prog)s [OPTIONS] -- TRAIN_GPT ARGUMENTS")
    p.add_argument("--ranks", default="1,2", help="numbers of ranks, separated by commas")
    p.add_argument("--start", default="", help="what starts processes, with {ranks} for their number")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--warmup", type=int, default=3)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--batches", type=int, default=0)
    p.add_argument("--batches-per-rank", type=int, default=1)
    a = p.parse_args(sys.argv[1:split])
    a.command = sys.argv[split + 1:]
    try:
        a.ranks = sorted({int(n) for n in a.ranks.split(",")})
    except ValueError:
        p.error(f"--ranks {a.ranks}: expected numbers separated by commas")
    if not a.command:
        p.error("expected -- and the command that trains")
    if a.ranks[0] < 1 or a.steps <= a.warmup or a.warmup < 0 or a.rounds < 1 or a.batches_per_rank < 1:
        p.error("ranks, batches and rounds are at least 1, and there are more steps than those that warm up")
    a.batches = a.batches or math.lcm(*(data_ranks(a.command, n) for n in a.ranks))
    for n in a.ranks:
        if a.batches % data_ranks(a.command, n):
            p.error(f"--batches {a.batches}: do not divide among {data_ranks(a.command, n)} ranks that process different data")
    return a


def data_ranks(command, ranks):
    """The number of ranks with different data: all ranks divided by those that shard layers or positions or are stages, by --mesh."""
    mesh = command[command.index("--mesh") + 1] if "--mesh" in command[:-1] else ""
    sizes = dict(axis.split("=") for axis in mesh.split(",") if "=" in axis)
    known = [int(n) for n in sizes.values() if n.isdigit()]
    product = 1
    for n in known:
        product *= n
    model = 1
    for axis in ("pp", "tp", "cp"):
        size = sizes.get(axis, "1")
        model *= int(size) if size.isdigit() else max(ranks // product, 1)
    return max(ranks // model, 1)


def steps_of(a, ranks, batches):
    """The log's lines about the steps after warm-up, from one run; each data rank has `batches` batches per step."""
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log.jsonl"
        start = shlex.split(a.start.replace("{ranks}", str(ranks)))
        own = [] if start else ["--ranks", str(ranks)]
        command = start + a.command + own + ["--steps", str(a.steps), "--accumulate", str(batches), "--log", str(log)]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        except OSError as e:
            sys.exit(f"{command[0]}: {e.strerror}")
        if done.returncode:
            sys.exit(f"code {done.returncode} of {shlex.join(command)}\n{done.stdout[-2000:]}")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line for line in lines if "step" in line and "ms" in line][a.warmup:]


def spread(values):
    if len(values) < 4:
        return ""
    low, _, high = quantiles(values, n=4)
    return f" ({low:.3g} to {high:.3g})"


def table(a, title, batches_of):
    """Measures, prints the table, and returns the last loss by number of ranks."""
    runs = {n: [] for n in a.ranks}
    for _ in range(a.rounds):
        for n in a.ranks:
            runs[n] += steps_of(a, n, batches_of(n))
    print(f"## {title}\n")
    print("| ranks | ms a step (quartiles) | tokens/s | speed-up | efficiency | sent by rank 0 | waiting for messages |")
    print("|---|---|---|---|---|---|---|")
    first, base = a.ranks[0], None
    for n in a.ranks:
        ms = [line["ms"] for line in runs[n]]
        rate = median([line["tokens_per_s"] for line in runs[n]])
        sent = median([line["comm_bytes"]["total"] for line in runs[n]])
        waiting = median([line["comm_exposed_ms"] / line["ms"] for line in runs[n]])
        base = base or rate
        print(f"| {n} | {median(ms):.3g}{spread(ms)} | {rate:,.0f} | {rate / base:.2f} | {rate / base * first / n:.0%} | "
              f"{sent / 1e6:.3g} MB | {waiting:.0%} |", flush=True)
    print()
    return {n: runs[n][-1]["loss"] for n in a.ranks}


def machine():
    names = [line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")] if pathlib.Path("/proc/cpuinfo").exists() else [platform.processor()]
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def main():
    a = arguments()
    print(f"`{shlex.join(a.command)}`{', started by `' + a.start + '`' if a.start else ''}; {machine()}; "
          f"medians of {a.rounds} x {a.steps - a.warmup} steps.\n")
    losses = table(a, f"Strong scaling: {a.batches} batches a step in all", lambda n: a.batches // data_ranks(a.command, n))
    table(a, f"Weak scaling: {a.batches_per_rank} batches a step for each rank with other data", lambda n: a.batches_per_rank)
    reference = losses[a.ranks[0]]
    for n, loss in losses.items():
        if not abs(loss - reference) <= 1e-3 * abs(reference):
            sys.exit(f"the loss on {n} ranks is {loss}, on {a.ranks[0]} {reference}: these are not the same steps")


if __name__ == "__main__":
    main()
