#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws the table of GPT-2 training steps in docs/benchmarks.md, so that the picture always agrees with it.

    benchmarks/speed_picture.py docs/benchmarks.md docs/pictures/speed.svg

Draws every table whose first columns are "step" and "weft", under the machine and date of the line above it: tokens/s of weft,
PyTorch eager, PyTorch compiled and LibTorch, as multiples of LibTorch's.
"""
import sys

lines = open(sys.argv[1]).read().splitlines()
names = ["weft", "PyTorch eager", "PyTorch compiled", "LibTorch"]
bars = []
for start in [i for i, line in enumerate(lines) if line.startswith("| step | weft |")]:
    header = [c.strip() for c in lines[start].strip("|").split("|")]
    where = ", ".join(lines[start - 2].split(",")[:2])
    for line in lines[start + 2:]:
        if not line.startswith("|"):
            break
        row = [c.strip() for c in line.strip("|").split("|")]
        tokens = [row[header.index(n)] for n in names]
        bars.append((f"{where}: {row[0]}", [float(t) / float(tokens[-1]) for t in tokens], tokens))

LEFT, WIDTH, BAR, GAP, TOP = 130, 620, 14, 20, 46
scale = (WIDTH - LEFT - 130) / max(max(v) for _, v, _ in bars)
height = TOP + len(bars) * (len(names) * BAR + GAP)
out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
       "<style>text{fill:#222}.m{fill:#777}.b0{fill:#2563eb}.b1,.b2,.b3{fill:#a8b3c4}"
       "@media(prefers-color-scheme:dark){text{fill:#e6e6e6}.m{fill:#9a9a9a}.b0{fill:#60a5fa}.b1,.b2,.b3{fill:#56606e}}</style>",
       '<text x="0" y="18" font-weight="bold">GPT-2 training step: tokens per second, as multiples of LibTorch</text>']
y = TOP
for step, ratios, tokens in bars:
    for k, (name, ratio, count) in enumerate(zip(names, ratios, tokens)):
        middle = y + BAR * 0.7
        out.append(f'<text x="{LEFT - 8}" y="{middle:.0f}" text-anchor="end">{name}</text>'
                   f'<rect class="b{k}" x="{LEFT}" y="{y + 2}" width="{ratio * scale:.1f}" height="{BAR - 4}" rx="2"/>'
                   f'<text class="m" x="{LEFT + ratio * scale + 6:.0f}" y="{middle:.0f}">{ratio:.2f} ({count}/s)</text>')
        y += BAR
    out.insert(len(out) - len(names), f'<text class="m" x="0" y="{y - len(names) * BAR - 4:.0f}" font-size="11">{step}</text>')
    y += GAP
open(sys.argv[2], "w").write("\n".join(out) + "\n</svg>\n")
