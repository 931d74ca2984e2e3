#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Lists the lines of C++ files that are longer than 110 columns; with --fix, clang-format breaks them and changes no other lines.

    columns.py [--fix] [ROOT]
"""
import pathlib
import subprocess
import sys

MOST = 110

arguments = [a for a in sys.argv[1:] if a != "--fix"]
fix = "--fix" in sys.argv
root = pathlib.Path(arguments[0] if arguments else ".")
files = [p for folder in ("include", "tests", "examples", "benchmarks") for p in sorted((root / folder).rglob("*")) if p.suffix in (".hpp", ".ipp", ".cpp")]


def too_long(path):
    """The numbers of too long lines; a message that the compiler must print is on one line, of any length."""
    lines = path.read_text().splitlines()
    return [i for i, line in enumerate(lines, 1) if len(line) > MOST and not line.lstrip().startswith(("// within ", "//|"))]


count = 0
for path in files:
    lines = too_long(path)
    if fix and lines:
        subprocess.run(["clang-format", "-i", *(f"--lines={i}:{i}" for i in lines), str(path.resolve())], check=True, cwd=root)
        lines = too_long(path)
    count += len(lines)
    for i in lines:
        print(f"{path}:{i}")
print(f"{len(files)} files, {count} lines longer than {MOST} columns")
sys.exit(count > 0)
