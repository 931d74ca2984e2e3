#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Reintroduces known defects in a copy of the headers, one at a time, and shows that random programs find each.

    mutations.py --build /tmp/mutations             # all of them
    mutations.py --only views,rounding --programs 100

A program counts if it is wrong with the defect and right without it.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass

HERE = pathlib.Path(__file__).resolve().parent
INCLUDE = HERE.parent.parent / "include"


@dataclass
class Mutation:
    name: str
    what: str
    edits: list  # (file, text that must be there once, what replaces it)
    modes: str = "value"
    programs: int = 300
    options: tuple = ()


MUTATIONS = [
    Mutation("views", "a view of one column is taken for contiguous when it is reshaped",
             [("weft/shape/layout.hpp", "  if (is_empty(l.extents)) return true;\n  stride_term s{1, 1};",
               "  if (is_empty(l.extents) || l.extents.last() == 1) return true;\n  stride_term s{1, 1};")],
             modes="value,gradient"),
    Mutation("sums", "formulas of narrow operands are computed op by op: the sum of a mean is stored as f16",
             [("weft/graph/build.hpp", "  for (int i = first_number(op); op.widens && i < count; ++i) {",
               "  for (int i = first_number(op); op.widens && op.kind != op::op_kind::composed && i < count; ++i) {")],
             options=("--only-op", "mean"), programs=400),
    Mutation("in_place", "an update in place reads elements that it has written",
             [("weft/run/impl/specialization.ipp", "    if (!same) return false;", "    if (!same) continue;")],
             modes="update"),
    Mutation("bool", "bools are compared as registers, where true is -1",
             [("weft/base/dtype.hpp", "  return t == dtype::u8 || t == dtype::boolean ? dtype::i32 : t;",
               "  return t == dtype::u8 ? dtype::i32 : t;")]),
    Mutation("rounding", "a cast to a narrow type does not round while the value stays in a register",
             [("weft/lower/vector_code.hpp",
               "return simd::rounded_to<element_of<To>>(simd::convert<float>(v));",
               "return simd::convert<float>(v);")],
             options=("--only-op", "cast"), programs=200),
    Mutation("bounds", "bounds of slices are not compared with extents",
             [("weft/run/impl/symbols.ipp", "if (start < 0 || start > from[dim] || stop > from[dim] ||", "if (start < 0 ||"),
              ("weft/run/impl/specialization.ipp", "if (reached.first < 0 || reached.last > layout_of(base_of(i)).extents.size())", "if (false)")],
             modes="refused", options=("--only-op", "slice_outside"), programs=40),
    Mutation("scatter", "scatter_add does not compare its operands",
             [("weft/op/index.hpp", "      result.holds = dims.unify(index[i], source[i], same);\n      if (i != at[0])",
               "      same = source[i];\n      if (i != at[0])"),
              ("weft/op/index.hpp", "      result.holds = dims.unify(source[i], index[i], result.value.extents[i]);",
               "      result.value.extents[i] = source[i];")],
             modes="refused", options=("--only-op", "scatter_misfit"), programs=20),
]


def mutated(mutation, to):
    """A copy of the headers with the defect. The text must occur exactly once; otherwise the mutation is out of date."""
    if to.exists():
        shutil.rmtree(to)
    shutil.copytree(INCLUDE, to)
    for name, old, new in mutation.edits:
        file = to / name
        text = file.read_text()
        if text.count(old) != 1:
            raise SystemExit(f"mutation {mutation.name}: {name} holds {text.count(old)} times, expected once:\n{old}")
        file.write_text(text.replace(old, new))


def run(o, include, build, *arguments):
    command = [sys.executable, HERE / "run.py", "--seed", str(o.seed), "--include", include, "--build", build, "--jobs", str(o.jobs),
               "--compiler", o.compiler, "--flags", o.flags, "--shrink", "0", *arguments]
    return subprocess.run([str(c) for c in command], capture_output=True, text=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="names, separated by commas: " + ", ".join(m.name for m in MUTATIONS))
    parser.add_argument("--programs", type=int, default=0, help="how many to try for each; by default as many as each says")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--flags", default="-O0 -march=native")
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--texts-only", action="store_true", help="only see that the headers hold what the defects replace")
    o = parser.parse_args()
    names = set(filter(None, o.only.split(",")))
    missed = []
    for m in MUTATIONS:
        if names and m.name not in names:
            continue
        begin = time.time()
        include = o.build / m.name / "include"
        mutated(m, include)
        if o.texts_only:
            continue
        count = o.programs or m.programs
        done = run(o, include, o.build / m.name / "build", "--programs", count, "--modes", m.modes, "--stop", *m.options)
        found = re.search(r"^== p(\d+), mode (\w+)\n(.*)", done.stdout, re.M)
        if not found:
            missed.append(m.name)
            print(f"{m.name}: NOT FOUND by {count} programs ({m.what})\n{done.stdout[-300:]}{done.stderr[-300:]}", flush=True)
            continue
        plain = run(o, INCLUDE, o.build / m.name / "plain", "--programs", 1, "--first", found[1], "--modes", m.modes, *m.options)
        if plain.returncode:
            missed.append(m.name)
            print(f"{m.name}: program p{found[1]} is wrong without the defect too\n{plain.stdout}", flush=True)
            continue
        print(f"{m.name}: found by program p{found[1]} ({found[2]}), {time.time() - begin:.0f} s:{found[3]}", flush=True)
    if o.texts_only:
        return print("all texts are there") or 0
    print("all found" if not missed else "missed: " + ", ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
