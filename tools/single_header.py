#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes weft as one header, for Compiler Explorer, bug reports and projects without a build system.

    tools/single_header.py > weft.hpp                            # the contents of <weft/weft.hpp>
    tools/single_header.py weft/parallel/bind.hpp weft/comm/threads.hpp > weft.hpp     # and of these headers

Use it like <weft/weft.hpp>. As with plain headers, the macros of CMake's targets (WEFT_WITH_TBB=1, ...) are not set. It cannot be
mixed with the headers, or with weft::compiled, in one file.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent / "include"
INCLUDE = re.compile(r"#include <(weft/[^>]+)>")


def written_out(name, met, out):
    """Appends the text of a header and of the headers that it includes, each once. `met`: the headers already appended."""
    if name in met:
        return
    met.add(name)
    guard = re.sub(r"\W", "_", name).upper() + "_"
    out += [f"#ifndef {guard}", f"#define {guard}"]
    scopes = []  # for each open condition, the headers met before it; None for a condition known to hold
    for line in (ROOT / name).read_text().splitlines():
        word = line.strip()
        include = INCLUDE.match(word)
        if include:
            written_out(include[1], met, out)
        elif word == "#ifndef WEFT_COMPILED":
            scopes.append(None)
        elif word.startswith("#if"):
            scopes.append(set(met))
            out.append(line)
        elif word.startswith(("#else", "#elif", "#endif")):
            holds = scopes[-1] is None
            if not holds:  # a header included under a condition is written again where it is included without it
                met.clear()
                met.update(scopes[-1])
                out.append(line)
            if word.startswith("#endif"):
                scopes.pop()
            elif holds:
                sys.exit(f"{name}: {word} after #ifndef WEFT_COMPILED")
        elif word != "#pragma once" and not word.startswith("// SPDX"):
            out.append(line)
    out.append("#endif")


def main():
    names = ["weft/weft.hpp", *sys.argv[1:]]
    missing = [n for n in names if not (ROOT / n).is_file()]
    if missing:
        sys.exit(f"single_header.py: no header {missing[0]} in {ROOT}")
    out = ["// SPDX-License-Identifier: MIT", "// weft in one header: " + ", ".join(names) + ". Written by tools/single_header.py.", "#pragma once",
           "#ifdef WEFT_COMPILED", "#error weft: the single header is not used with weft::compiled", "#endif"]
    met = set()
    for name in names:
        written_out(name, met, out)
    print("\n".join(out))


main()
