#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compile time and memory, in units of Eigen's umbrella header, compiled in the same run.

    benchmarks/compile.py [compiler...] [--check]

A budget is a multiple of the reference (Eigen 3.4, `#include <Eigen/Dense>`), so that a slower machine does not fail it. With
--check the exit code tells whether all budgets hold.
"""
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parent.parent
flags = ["-std=c++20", "-O2", "-march=native", "-Wno-psabi", "-w", f"-I{root}/include"]
tbb = ["-DWEFT_WITH_TBB=1"] if pathlib.Path("/usr/include/tbb").exists() else []
#           name, source, flags, time in units of the reference, GB; those of the second list with weft::precompiled
programs = [("include, no TBB", "benchmarks/compile/include.cpp", [], 1.2, None),
            ("include, TBB", "benchmarks/compile/include.cpp", tbb, 1.8, None),
            ("hello: one fused expression", "examples/hello.cpp", tbb, 2.3, 0.3),
            ("MLP training", "examples/train_mlp.cpp", tbb, 6.2, 0.5),
            ("GPT training, 1 layer", "benchmarks/compile/gpt.cpp", tbb + ["-DLAYERS=1"], 12.3, 1.0),
            ("GPT training, 48 layers", "benchmarks/compile/gpt.cpp", tbb + ["-DLAYERS=48"], 12.3, 1.0)]
precompiled = [("include, precompiled", "benchmarks/compile/include.cpp", tbb, 1.0, None),
               ("hello, precompiled", "examples/hello.cpp", tbb, 1.5, 0.4),
               ("GPT training, precompiled", "benchmarks/compile/gpt.cpp", tbb + ["-DLAYERS=48"], 12.3, 1.1)]
compiled = ["-DWEFT_COMPILED=1"]
linking = [("include, weft::compiled", "benchmarks/compile/include.cpp", tbb + compiled, 1.0, None),
           ("hello, weft::compiled", "examples/hello.cpp", tbb + compiled, 1.5, 0.3),
           ("MLP training, weft::compiled", "examples/train_mlp.cpp", tbb + compiled, 6.2, 0.5),
           ("GPT training, weft::compiled", "benchmarks/compile/gpt.cpp", tbb + compiled + ["-DLAYERS=48"], 8.0, 1.0)]
both = [(f"{name} and precompiled", source, extra, budget, 1.1) for name, source, extra, budget, _ in linking[1:]]

# The same on ranks, in units of the first: name, flags, budget.
on_ranks = [("data parallel", ["-DAXES=dp"], 1.0),
            ("a pipeline", ["-DWEFT_STAGES=1", "-DAXES=pp<>, dp"], 1.1),
            ("a pipeline with divided backward steps", ["-DWEFT_STAGES=1", "-DAXES=pp<pipeline::zb_h1>, dp"], 1.3),
            ("tensor parallel", ["-DWEFT_LAYERS=1", "-DAXES=dp, tp<>"], 1.1)]


def precompile(compiler, flags, at):
    """The flags with which <weft/weft.hpp> is precompiled."""
    wrapper = pathlib.Path(at) / "weft/weft.hpp"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(f'#include "{root}/include/weft/weft.hpp"\n')
    to = wrapper.with_suffix(".hpp.pch" if "clang" in compiler else ".hpp.gch")
    seconds, _ = measure([compiler, *flags, "-x", "c++-header", str(wrapper), "-o", str(to)])
    return seconds, ["-include-pch", str(to)] if "clang" in compiler else [f"-I{at}", "-include", "weft/weft.hpp"]


def measure(command):
    """Seconds of processor time and peak memory in GB."""
    pid = os.spawnvp(os.P_NOWAIT, command[0], command)
    _, status, usage = os.wait4(pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20


check = "--check" in sys.argv
compilers = [a for a in sys.argv[1:] if not a.startswith("--")] or ["g++", "clang++-19"]
over = False
with tempfile.TemporaryDirectory() as at:
    reference = pathlib.Path(at) / "eigen.cpp"
    reference.write_text("#include <Eigen/Dense>\n")
    for compiler in compilers:
        base = [compiler, *flags, "-c", "-o", f"{at}/out.o"]
        once, found_first = precompile(compiler, flags + tbb, f"{at}/all")
        _, found_compiled = precompile(compiler, flags + tbb + compiled, f"{at}/linking")
        every = (programs + [(n, s, found_first + e, b, gb) for n, s, e, b, gb in precompiled] + linking +
                 [(n, s, found_compiled + e, b, gb) for n, s, e, b, gb in both])
        seconds = {p[0]: [] for p in every}
        memory, references = {}, []
        for _ in range(3):  # interleaved
            references.append(measure(base + ["-I/usr/include/eigen3", str(reference)])[0])
            for name, source, extra, _, _ in every:
                t, gb = measure([compiler, *extra, *base[1:], str(root / source)])
                seconds[name].append(t)
                memory[name] = gb
            for name, extra, _ in on_ranks:
                for way, more in (("", []), (", weft::compiled", compiled)):
                    t, _ = measure([*base, *tbb, *more, *extra, str(root / "benchmarks/compile/gpt_ranks.cpp")])
                    seconds.setdefault(name + way, []).append(t)
        unit = statistics.median(references)
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout.split("\n")[0]
        print(f"\n{version}; Eigen/Dense {unit:.2f} s\n\n| program | seconds | of Eigen | budget | GB | budget |\n|---|---|---|---|---|---|")
        for name, _, _, budget, gb in every:
            t = statistics.median(seconds[name])
            over |= t / unit > budget or (gb is not None and memory[name] > gb)
            print(f"| {name} | {t:.2f} | {t / unit:.1f} | {budget} | {memory[name]:.2f} | {gb or ''} |")
        one, many = (statistics.median(seconds[p[0]]) for p in programs[-2:])
        print(f"\nprecompiling takes {once:.2f} s, once for each target")
        print(f"depth: 48 layers take {many / one:.2f} of the time of 1\n")
        print("| GPT training on ranks | seconds | of data parallel | budget |\n|---|---|---|---|")
        for way in ("", ", weft::compiled"):
            for name, _, budget in on_ranks:
                t = statistics.median(seconds[name + way])
                ratio = t / statistics.median(seconds[on_ranks[0][0] + way])
                over |= ratio > budget
                print(f"| {name}{way} | {t:.1f} | {ratio:.2f} | {budget} |")
sys.exit(check and over)
