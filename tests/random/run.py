#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Generates random programs, compiles them in batches, runs them, and shrinks those that fail.

    run.py --programs 300 --seed 7                  # a few minutes on two cores
    run.py --programs 1 --first 1234 --keep         # one program again
"""
import argparse
import concurrent.futures
import copy
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

import generate

HERE = pathlib.Path(__file__).resolve().parent
CRASHED = "crashed"


class Runner:
    def __init__(self, o):
        self.o, self.at = o, pathlib.Path(o.build)
        self.at.mkdir(parents=True, exist_ok=True)
        self.flags = ["-std=c++20", "-Wno-psabi", "-DWEFT_VERIFY=1", f"-I{o.include}", f"-I{HERE}", *shlex.split(o.flags)]
        if "clang" in o.compiler:  # some second derivatives need more steps than its default: docs/errors.md
            self.flags.append("-fconstexpr-steps=100000000")
        self.libraries = shlex.split(o.libraries)
        self.slot = shlex.split(o.slot)
        self.oracle = self.at / "oracle.o"

    def prepare(self):
        """Compiles the definitions of ops, and precompiles the headers, once for all batches."""
        self.call([self.o.compiler, "-std=c++20", "-O2", "-Wno-psabi", f"-I{self.o.include}", "-c", HERE.parent / "oracle.cpp", "-o", self.oracle],
                  check=True)
        if "g++" in self.o.compiler and "clang" not in self.o.compiler:  # precedes check.hpp in the search path
            (self.at / "precompiled").mkdir(exist_ok=True)
            self.call([self.o.compiler, *self.flags, "-x", "c++-header", HERE / "check.hpp", "-o", self.at / "precompiled/check.hpp.gch"], check=True)
            self.flags.insert(0, f"-I{self.at / 'precompiled'}")

    def call(self, command, check=False, **named):
        command = [*self.slot, *map(str, command)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=self.o.timeout, **named)
        except subprocess.TimeoutExpired as e:
            text = e.stdout or ""
            return subprocess.CompletedProcess(command, -999, text if isinstance(text, str) else text.decode(errors="replace"), "timed out")
        if check and done.returncode:
            sys.exit(f"{' '.join(command)}\n{done.stderr}")
        return done

    def compile(self, programs, name):
        """Returns the path of the program, or the compiler's messages."""
        source, binary = self.at / f"{name}.cpp", self.at / name
        source.write_text(generate.file_text(programs))
        done = self.call([self.o.compiler, *self.flags, source, self.oracle, "-o", binary, *self.libraries])
        if done.returncode == 0:
            return binary, ""
        return None, done.stderr

    def judge(self, programs, name):
        """The errors, by program."""
        binary, messages = self.compile(programs, name)
        if not binary:
            if len(programs) == 1:
                lines = [l for l in messages.splitlines() if "error" in l] or messages.splitlines()[-3:]
                return {programs[0].name: ["does not compile: " + l for l in lines[:3]]}
            guilty = mentioned(messages, programs)
            rest = [p for p in programs if p not in guilty] if guilty and len(guilty) < len(programs) else []
            parts = [[p] for p in (guilty if rest else programs)] + ([rest] if rest else [])
            wrong = {}
            for i, part in enumerate(parts):
                wrong.update(self.judge(part, f"{name}_{i}"))
            return wrong
        wrong, left = {}, [p.name for p in programs]
        while left:
            done = self.call([binary, *left])
            seen = verdicts(done.stdout)
            for program, complaints in seen.items():
                if complaints:
                    wrong[program] = complaints
            finished = [p for p in left if p in seen]
            left = [p for p in left if p not in seen]
            if done.returncode in (0, 1) and not any(c == [CRASHED] for c in seen.values()):
                break
            if not finished:  # nothing ran
                wrong[left.pop(0)] = [CRASHED + ": " + done.stderr.strip()[-300:]]
        else:
            return self.finished(wrong, binary, name)
        for p in left:
            wrong[p] = [CRASHED]
        return self.finished(wrong, binary, name)

    def finished(self, wrong, binary, name):
        if not self.o.keep:
            binary.unlink(missing_ok=True)
            if not wrong:
                (self.at / f"{name}.cpp").unlink(missing_ok=True)
        return wrong

    def shrunk(self, program, complaints):
        """The smallest variant of `program` that fails in the same way."""
        kind = kind_of(complaints)
        deadline = time.time() + self.o.shrink_seconds
        smaller = True
        while smaller and time.time() < deadline:
            smaller = False
            candidates = list(reductions(program))
            for first in range(0, len(candidates), 8):  # a batch costs little more than one
                batch = []
                for i, candidate in enumerate(candidates[first:first + 8]):
                    candidate.name = f"{program.name.split('_')[0]}_{i}"
                    batch.append(candidate)
                wrong = self.judge(batch, f"shrink_{program.name.split('_')[0]}")
                good = [p for p in batch if p.name in wrong and kind_of(wrong[p.name]) == kind]
                if good:
                    program = min(good, key=size_of)
                    complaints = wrong[program.name]
                    smaller = True
                    break
                if time.time() > deadline:
                    break
        return program, complaints


def kind_of(complaints):
    text = complaints[0]
    for kind in ("does not compile", CRASHED, "threw", "no error", "added up twice", "gradient", "second", "type", "extents"):
        if kind in text:
            return kind
    return "value"


def mentioned(messages, programs):
    """The programs whose lines the compiler's errors name."""
    lines = generate.file_text(programs).splitlines()
    begins = {p.name: lines.index(f"void {p.name}(verdict& v) {{") + 1 for p in programs}
    order = sorted(programs, key=lambda p: begins[p.name])
    found = []
    for number in sorted({int(n) for n in re.findall(r"^[^\n:]*\.cpp:(\d+):\d+:\s+(?:error|required from here)", messages, re.M)} |
                         {int(n) for n in re.findall(r"^[^\n:]*\.cpp:(\d+):\d+:", messages, re.M)}):
        owner = [p for p in order if begins[p.name] <= number]
        if owner and owner[-1] not in found:
            found.append(owner[-1])
    return found


def verdicts(text):
    seen, current = {}, None
    for line in text.splitlines():
        words = re.fullmatch(r"(p\w+) (right|WRONG)?", line)
        if words:
            current = words[1]
            seen[current] = [] if words[2] else [CRASHED]
        elif current and line.startswith("  "):
            seen[current].append(line.strip())
    return seen


def size_of(program):
    leaves = program.leaves.values()
    return (len(program.statements), len(program.leaves), sum(l.value.order() for l in leaves), sum(l.value.elements() for l in leaves))


def reductions(program):
    """Smaller well-typed programs, the smallest first."""
    found = []

    def consider(change):
        p = copy.deepcopy(program)
        try:
            change(p)
            generate.need(p.statements)
            generate.clean(p)
            generate.need(p.statements)
            for s in p.statements.values():
                s.shared = s.shared and generate.readers(p)[next(n for n, t in p.statements.items() if t is s)] > 0
            values = p.inferred()
            if program.mode == "update":
                target, result = next(iter(p.leaves.values())).value, values[p.result()]
                generate.need(target.type == result.type and target.sizes() == result.sizes())
            if program.mode in ("gradient", "second"):
                generate.need(any(l.tracked and generate.flows(p, n) for n, l in p.leaves.items()))
                if program.mode == "second":
                    generate.need(next(iter(p.leaves.values())).tracked)
                generate.need(values[p.result()].floating() and values[p.result()].elements() > 0)
        except (generate.Misfit, IndexError, ValueError, KeyError, StopIteration, ZeroDivisionError, OverflowError):
            return
        if size_of(p) < size_of(program) or flags_of(p) < flags_of(program):
            found.append(p)

    values = program.inferred()
    for name, s in program.statements.items():
        if program.mode != "refused":
            consider(lambda p: cut_after(p, name))
        consider(lambda p: to_leaf(p, name, values[name]))
        for o in s.operands:
            consider(lambda p: replace(p, name, o))
        if s.shared:
            consider(lambda p: setattr(p.statements[name], "shared", False))
        if s.cut:
            consider(lambda p: setattr(p.statements[name], "cut", False))
    names = list(program.leaves)
    for name in names:
        v = program.leaves[name].value
        for size in sorted({d.size for d in v.dims}, reverse=True):
            for less in (1, 2, 3, size // 2, size - 1):
                if 0 < less < size:
                    consider(lambda p: resize(p, size, less))
                    consider(lambda p: resize_leaf(p, name, size, less))
        for i in range(v.order()):
            consider(lambda p: drop_dim(p, name, i))
        for other in names:
            if other != name and v.type == program.leaves[other].value.type:
                consider(lambda p: rename(p, name, other))
    return sorted(found, key=size_of)


def flags_of(program):
    return sum(s.shared + s.cut for s in program.statements.values())


def cut_after(p, name):
    names = list(p.statements)
    for n in names[names.index(name) + 1:]:
        del p.statements[n]


def rename(p, old, new):
    for s in p.statements.values():
        s.operands = [new if o == old else o for o in s.operands]
    p.leaves.pop(old, None)


def replace(p, name, operand):
    generate.need(name != p.result() or operand in p.statements)
    if name == p.result():
        return cut_after(p, operand)
    del p.statements[name]
    rename(p, name, operand)


def to_leaf(p, name, value):
    generate.need(name != p.result())
    leaf = f"x{max([int(n[1:]) for n in p.leaves] + [0]) + 1}"
    fill = "integer" if value.exact and not value.special else "special" if value.special else "real"
    del p.statements[name]
    tracked = p.mode in ("gradient",) and value.floating() and not value.exact
    p.leaves[leaf] = generate.Leaf(value, fill, tracked)
    rename(p, name, leaf)


def resize(p, size, less):
    """Replaces the extent everywhere, in parameters too."""
    change = lambda v: v.like(dims=tuple(generate.Dim(less, d.static) if d.size == size else d for d in v.dims))
    for l in p.leaves.values():
        l.value = change(l.value)
    for s in p.statements.values():
        for key, x in s.params.items():
            if key in ("to", "size", "stop"):
                s.params[key] = [less if y == size else y for y in x] if isinstance(x, list) else less if x == size else x


def resize_leaf(p, name, size, less):
    v = p.leaves[name].value
    p.leaves[name].value = v.like(dims=tuple(generate.Dim(less, d.static) if d.size == size else d for d in v.dims))


def drop_dim(p, name, i):
    v = p.leaves[name].value
    p.leaves[name].value = v.like(dims=v.dims[:i] + v.dims[i + 1:])


def uses(program, op):
    return not op or any(op in (s.op, s.params.get("op")) for s in program.statements.values())


def print_failure(runner, program, complaints, out):
    print(f"\n== {program.name}, mode {program.mode}", file=out)
    for c in complaints[:6]:
        print("  " + c, file=out)
    if runner.o.shrink and runner.shrinks_left > 0:
        runner.shrinks_left -= 1
        program, complaints = runner.shrunk(program, complaints)
        print(f"-- shrunk: {complaints[0]}", file=out)
    print(generate.program_text(program), file=out)
    out.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument("--per-file", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--flags", default="-O0 -march=native")
    parser.add_argument("--libraries", default="")
    parser.add_argument("--include", default=str(HERE.parent.parent / "include"))
    parser.add_argument("--build", default=None, help="folder for what is built; a temporary one by default")
    parser.add_argument("--modes", default="", help="only programs of these modes, separated by commas")
    parser.add_argument("--only-op", default="", help="only programs that use this op, as generate.py names it, or its parameter op")
    parser.add_argument("--stop", action="store_true", help="stop at the first batch with a failure")
    parser.add_argument("--without", default="", help="features of the generator to leave out, separated by commas")
    parser.add_argument("--shrink", type=int, default=3, help="how many failures are shrunk")
    parser.add_argument("--shrink-seconds", type=int, default=120)
    parser.add_argument("--timeout", type=int, default=600, help="seconds for one compilation or run")
    parser.add_argument("--slot", default=os.environ.get("WEFT_SLOT", ""), help="a command that every compilation and run goes through")
    parser.add_argument("--keep", action="store_true", help="keep sources and binaries")
    o = parser.parse_args()
    for name in filter(None, o.without.split(",")):
        generate.Generator.features[name] = False
    begin = time.time()
    with tempfile.TemporaryDirectory() as temporary:
        o.build = o.build or temporary
        runner = Runner(o)
        runner.shrinks_left = o.shrink
        runner.prepare()
        modes = set(filter(None, o.modes.split(",")))
        programs = generate.programs_of(o.seed, o.programs, o.first, lambda p: (not modes or p.mode in modes) and uses(p, o.only_op))
        batches = [programs[i:i + o.per_file] for i in range(0, len(programs), o.per_file)]
        by_name = {p.name: p for p in programs}
        wrong = {}
        with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
            judge = lambda b: {} if o.stop and wrong else runner.judge(b, f"batch_{b[0].name}")
            for found in pool.map(judge, batches):
                wrong.update(found)
        for name, complaints in wrong.items():
            print_failure(runner, by_name[name], complaints, sys.stdout)
    modes = {}
    for p in programs:
        modes[p.mode] = modes.get(p.mode, 0) + 1
    print(f"{len(programs)} programs ({', '.join(f'{n} {m}' for m, n in sorted(modes.items()))}), seed {o.seed}: "
          f"{len(wrong)} wrong, {time.time() - begin:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
