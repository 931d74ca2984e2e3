#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks that the folders of include/weft are layers: each includes only the folders that it declares, and neither
folders nor files form a cycle.

A folder's README declares what the folder may include, in a line "May include: base, shape". The code for the CPU,
device/cpu, must be named separately.
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".") / "include" / "weft"
files = {str(p.relative_to(root)): p.read_text() for p in sorted(root.rglob("*.[hi]pp"))}
includes = {f: re.findall(r"#include <weft/([^>]+)>", text) for f, text in files.items()}
errors = []

def header_of(f):
    """The header whose functions the file NAME.ipp or NAME_part.ipp defines; the two include each other."""
    name = f.replace("/impl/", "/")[:-len(".ipp")] if f.endswith(".ipp") else ""
    while name and name + ".hpp" not in files:
        name = name.rpartition("_")[0]
    return name + ".hpp" if name else None

for f, targets in includes.items():
    errors += [f"{f}: includes {t}, which does not exist" for t in targets if t not in files]

may = {}
for folder in sorted(p for p in root.iterdir() if p.is_dir()):
    readme = folder / "README.md"
    line = re.search(r"^May include: (.*)$", readme.read_text(), re.M) if readme.exists() else None
    if not line:
        errors.append(f"{folder.name}: its README must have a line 'May include: ...'")
        continue
    may[folder.name] = {r.strip() for r in line.group(1).rstrip(".").split(",")} - {"nothing"}

def reach(folder, seen):
    for r in may.get(folder, ()):
        if r not in seen:
            seen.add(r)
            reach(r, seen)
    return seen

for folder in may:
    if folder in reach(folder, set()):
        errors.append(f"{folder}: is in a cycle of folders")
for f, targets in includes.items():
    folder = f.split("/")[0]
    for t in targets:
        other = t.split("/")[0]
        if "/" in f and "/" in t and other != folder and other not in may.get(folder, ()):
            errors.append(f"{f}: includes {t}, but {folder} may not include {other}")
        if t.startswith("device/cpu/") and folder != "device" and "device/cpu" not in may.get(folder, ()):
            errors.append(f"{f}: includes {t}, but {folder} knows a device by device/backend.hpp alone")

state = {}
def visit(f, path):
    state[f] = 1
    for t in includes.get(f, []):
        if header_of(f) == t or header_of(t) == f:
            continue
        if state.get(t) == 1:
            errors.append("include cycle: " + " -> ".join(path[path.index(t):] + [t] if t in path else [f, t]))
        elif t in files and t not in state:
            visit(t, path + [t])
    state[f] = 2
for f in files:
    if f not in state:
        visit(f, [f])

# A header above 500 lines needs a written reason (docs/why).
for f, text in files.items():
    lines = text.count("\n")
    if lines > 500:
        errors.append(f"{f}: {lines} lines; above 500 needs a reason in docs/why")
    elif lines > 300:
        print(f"note: {f} has {lines} lines")
    if not text.startswith("// SPDX-License-Identifier: MIT\n"):
        errors.append(f"{f}: must open with its licence")

# Every op of the library is in the list of all ops.
listed = set(re.findall(r"\w+", files["op/all.hpp"]))
for f, text in files.items():
    if f.startswith("op/"):
        for name in re.findall(r'^\s+static constexpr auto name = "(\w+)"', text, re.M):
            if name not in listed:
                errors.append(f"{f}: op {name} is not in op/all.hpp")

for e in errors:
    print("error:", e)
print(f"{len(files)} headers, {sum(t.count(chr(10)) for t in files.values())} lines, {len(errors)} errors")
sys.exit(bool(errors))
