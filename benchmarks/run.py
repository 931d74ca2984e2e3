#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares weft with its peers; benchmarks/run.sh builds what it runs.

    benchmarks/run.py BUILD_FOLDER THREADS [FAMILY[:TASKS]...]     # families: gpt busy ops layers tiny llama products; default: all

TASKS is a regular expression that selects tasks of the family by name.

All programs of a comparison are started together and stopped (SIGSTOP) while another computes. In each round of a task each program
does it once, so that programs alternate step by step. The first round warms up; after it, the threads of each program that computed
most are bound to one core each. A ratio is the median over rounds of peer / weft, with its quartiles.
"""
import atexit
import collections
import os
import pathlib
import platform
import re
import signal
import statistics
import subprocess
import sys

build, threads = pathlib.Path(sys.argv[1]), int(sys.argv[2])
wanted = dict((a + ":").split(":")[:2] for a in sys.argv[3:] or ["gpt", "busy", "ops", "layers", "tiny", "llama", "products"])
here = pathlib.Path(__file__).parent
peers = build / "peers"
cores = sorted(os.sched_getaffinity(0))[:threads]
environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
blas = "/usr/lib/x86_64-linux-gnu/openblas-openmp"  # Debian's LibTorch takes whichever BLAS the linker finds first
if pathlib.Path(blas).exists():
    environment["LD_LIBRARY_PATH"] = blas


class program:
    """A program that does tasks on request, by the protocol of peers/ops.hpp."""

    def __init__(self, command, cores):
        self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=environment, preexec_fn=lambda: os.sched_setaffinity(0, cores))
        atexit.register(self.process.kill)  # a stopped program would outlive this one
        self.tasks = list(iter(lambda: self.line().rstrip("\n"), ""))
        self.process.send_signal(signal.SIGSTOP)

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.process.args}: ended with code {self.process.wait()}")
        return line

    def seconds(self, task):
        """The seconds that the task took; None if the program cannot do it."""
        self.process.send_signal(signal.SIGCONT)
        print(task, file=self.process.stdin, flush=True)
        answer = self.line()
        self.process.send_signal(signal.SIGSTOP)
        return None if answer == "none\n" else float(answer)

    def bind_threads(self):
        """Binds the threads that computed most to one core each."""
        def busy(thread):
            return sum(map(int, (thread / "stat").read_text().rsplit(")", 1)[1].split()[11:13]))

        all_threads = sorted(pathlib.Path(f"/proc/{self.process.pid}/task").iterdir(), key=busy, reverse=True)
        for thread, core in zip(all_threads, cores):
            os.sched_setaffinity(int(thread.name), {core})

    def end(self):
        self.process.kill()
        self.process.communicate()


def measured(commands, rounds, tasks="", bind=True):
    """Seconds by task and program, one per round, of the tasks whose names match, in the programs that can do them."""
    running = {name: program(command, cores) for name, command in commands.items()}
    seconds = {}
    for task in (t for t in next(iter(running.values())).tasks if re.search(tasks, t)):
        able = {name: p for name, p in running.items() if task in p.tasks}
        able = {name: p for name, p in able.items() if p.seconds(task) is not None}
        if bind:
            for p in able.values():
                p.bind_threads()
        seconds[task] = collections.defaultdict(list)
        for _ in range(rounds):
            for name, p in able.items():
                seconds[task][name].append(p.seconds(task))
    for p in running.values():
        p.end()
    return seconds


def quartiles(values):
    return statistics.quantiles(values, n=4, method="inclusive")


def ratio_cell(peer, weft):
    """Median and quartiles of peer / weft; neither is faster if the quartiles are farther apart than the median is from 1."""
    low, middle, high = quartiles([p / w for p, w in zip(peer, weft)])
    verdict = ", no verdict" if high - low > abs(middle - 1) else ""
    return f"{middle:.2f} ({low:.2f}-{high:.2f}{verdict})"


def spread(values):
    """The distance between the quartiles, as a fraction of the median."""
    low, middle, high = quartiles(values)
    return f"{100 * (high - low) / middle:.0f}%"


def of_pytorch(expression):
    """The value of a PyTorch expression as text; empty without PyTorch."""
    return subprocess.run([sys.executable, "-c", f"import torch; print({expression})"], capture_output=True, text=True).stdout.strip()


def commands_of(family):
    """The commands of a family's programs: weft's first, then the peers that were built, and a script for PyTorch."""
    commands = {p.name[len(family) + 1:]: [p, threads] for p in sorted(peers.glob(f"{family}_*"))}
    script = here / f"peers/{family}_pytorch.py"
    if script.exists() and of_pytorch("__import__('transformers').__version__" if family == "llama" else "torch.__version__"):
        commands["PyTorch"] = [sys.executable, script, threads]
    return {"weft": commands.pop("weft"), **commands}


def rows(head, columns):
    print(f"| {head} | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1))


#          layers heads width context batch vocabulary: rounds
configs = {(4, 4, 128, 64, 12, 256): 40, (6, 6, 384, 256, 8, 256): 11, (12, 12, 768, 256, 4, 50304): 5}


def gpt_commands(c, static=False):
    forms = {"weft": "f32", "weft bf16": "bf16", **({"weft static": "static"} if static else {})}
    commands = {name: [peers / "gpt_weft", *c, threads, form] for name, form in forms.items()}
    if of_pytorch("torch.__version__"):
        # Without bf16 instructions, PyTorch's bf16 products are plain loops.
        for form in ["eager", "compiled"] + ["bf16"] * (of_pytorch("torch.ops.mkldnn._is_mkldnn_bf16_supported()") == "True"):
            commands[f"PyTorch {form}"] = [sys.executable, here / "peers/gpt_pytorch.py", *c, threads, form]
    if (peers / "gpt_libtorch").exists():
        commands["LibTorch"] = [peers / "gpt_libtorch", *c, threads]
    return commands


def gpt_steps():
    for c, rounds in configs.items():
        times = measured(gpt_commands(c, static=rounds == max(configs.values())), rounds)["step"]
        print(f"\nL{c[0]} H{c[1]} C{c[2]} T{c[3]} B{c[4]} V{c[5]}, {rounds} rounds\n")
        rows("step", ["tokens/s", "ms", "spread", "times as long as weft", "as weft bf16"])
        for name, t in times.items():
            ms = 1e3 * statistics.median(t)
            against = [ratio_cell(t, times[base]) if name != base else "" for base in ("weft", "weft bf16")]
            print(f"| {name} | {1e3 * c[3] * c[4] / ms:.0f} | {ms:.1f} | {spread(t)} | " + " | ".join(against) + " |", flush=True)


def busy_core():
    """The second step while another process keeps the last core busy; threads are not bound."""
    c = list(configs)[1]
    alone = measured(gpt_commands(c), 7, bind=False)["step"]
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    os.sched_setaffinity(other.pid, {cores[-1]})
    try:
        beside = measured(gpt_commands(c), 7, bind=False)["step"]
    finally:
        other.kill()
        other.wait()
    print("\nThe second step alone, and beside a process that keeps one core busy, milliseconds, 7 rounds\n")
    rows("", ["alone", "spread", "beside", "spread", "times as long"])
    for name in alone:
        ms, ms_beside = (1e3 * statistics.median(t[name]) for t in (alone, beside))
        print(f"| {name} | {ms:.0f} | {spread(alone[name])} | {ms_beside:.0f} | {spread(beside[name])} | {ms_beside / ms:.2f} |", flush=True)


def family(name, what, rounds):
    commands = commands_of(name)
    times = measured(commands, rounds, wanted[name])
    others = [n for n in commands if n != "weft"]
    print(f"\n{what}, milliseconds (spread); and how many times as long as weft; {rounds} rounds\n")
    rows("", ["weft"] + [c for n in others for c in (n, "of weft")])
    for task, by in times.items():
        ms = {n: f"{1e3 * statistics.median(t):.3g} ({spread(t)})" for n, t in by.items()}
        cells = [c for n in others for c in ((ms[n], ratio_cell(by[n], by["weft"])) if n in by else ("", ""))]
        print(f"| {task} | {ms['weft']} | " + " | ".join(cells) + " |", flush=True)


def products(rounds):
    commands = commands_of("products")
    others = [n for n in commands if n != "weft"]
    times = measured(commands, rounds, wanted["products"])
    print(f"\nMatrix products: GFLOP/s of weft, and how many times as fast as each of the others; {rounds} rounds\n")
    rows("type and m, n, k, form", ["weft", "spread", *others])
    ratios = collections.defaultdict(list)
    for task, by in times.items():
        kind, sizes, _ = task.split()
        m, n, k = map(int, sizes.split(","))
        for name in by:
            if name != "weft":
                ratios[kind, name].append(statistics.median(p / w for p, w in zip(by[name], by["weft"])))
        cells = [ratio_cell(by[n], by["weft"]) if n in by else "" for n in others]
        print(f"| {task} | {2e-9 * m * n * k / statistics.median(by['weft']):.0f} | {spread(by['weft'])} | " + " | ".join(cells) + " |",
              flush=True)
    print()
    for (kind, name), r in ratios.items():
        print(f"{kind} against {name}: geometric mean {statistics.geometric_mean(r):.2f}, least {min(r):.2f}, greatest {max(r):.2f}")


def described():
    """The line above the tables: machine, commit, date, peers."""
    git = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=7"], capture_output=True, text=True, cwd=here).stdout.strip()
    date = subprocess.run(["date", "-I"], capture_output=True, text=True).stdout.strip()
    info = subprocess.run(["lscpu"], capture_output=True, text=True).stdout
    fields = dict((k.strip(), v.strip()) for k, _, v in (line.partition(":") for line in info.splitlines()))
    sets = [s for s in ("amx_tile", "avx512_bf16", "avx512f", "avx2") if s in fields.get("Flags", "").split()]
    return ", ".join(filter(None, [
        f"{fields.get('Model name', platform.machine())} (family {fields.get('CPU family')}, {' '.join(sets[:3])})",
        f"second cache {fields.get('L2 cache')}", f"{threads} threads on cores {','.join(map(str, cores))}", f"commit {git}", date,
        of_pytorch("'PyTorch ' + torch.__version__"), f"load {os.getloadavg()[0]:.1f}"]))


print(described())
if "gpt" in wanted:
    gpt_steps()
if "busy" in wanted:
    busy_core()
for name, what in (("ops", "Single ops"), ("layers", "Layers forward and backward"), ("tiny", "Twenty small steps"),
                   ("llama", "Llama of 134 million parameters, generating")):
    if name in wanted:
        family(name, what, 9)
if "products" in wanted:
    products(5)
