#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws the tables of sharded activations in docs/benchmarks.md, so that the picture always agrees with them.

    benchmarks/memory_picture.py docs/benchmarks.md docs/pictures/memory.svg

Draws each table whose first column is "t" or "c" and whose second column ends in ", MB" as a panel: the activations kept for the backward
pass over the number of ranks, as fractions of those of one rank, on logarithmic axes; theory is dotted.
"""
import math
import sys

lines = open(sys.argv[1]).read().splitlines()
AXES = {"t": "ranks that divide layers, t", "c": "ranks that divide positions, c"}
LEFT, TOP, WIDTH, HEIGHT, STEP = 46, 66, 230, 200, 400


def cells(line):
    return [c.strip() for c in line.strip("|").split("|")]


def panels():
    """For each table its axis, the line above it, and its curves: name and points (ranks, fraction of one rank, theory)."""
    for start, line in enumerate(lines):
        header = cells(line)
        if header[0] not in AXES or not header[1].endswith(", MB"):
            continue
        rows = []
        for row in lines[start + 2:]:
            if not row.startswith("|"):
                break
            rows.append([float(c) for c in cells(row)])
        columns = [i for i, name in enumerate(header) if name == "theory"]
        curves = [(header[i - 2].split(",")[0], [(r[0], r[i - 1], r[i]) for r in rows]) for i in columns]
        yield header[0], lines[start - 2].rstrip(":"), curves


def drawn(left, axis, title, curves):
    most = max(n for _, points in curves for n, _, _ in points)
    x = lambda n: left + WIDTH * math.log(n) / math.log(most)
    y = lambda part: TOP - HEIGHT * math.log(part) / math.log(most)
    path = lambda points: "M" + "L".join(f"{x(n):.1f} {y(part):.1f}" for n, part in points)
    out = [f'<text x="{left}" y="{TOP - 16}" font-size="12">{title}</text>']
    for n in [2 ** k for k in range(int(math.log2(most)) + 1)]:
        label = "1" if n == 1 else f"1/{n}"
        out.append(f'<path class="g" d="M{left} {y(1 / n):.1f}h{WIDTH}M{x(n):.1f} {TOP}v{HEIGHT}"/>'
                   f'<text class="m" x="{left - 8}" y="{y(1 / n) + 4:.0f}" text-anchor="end">{label}</text>'
                   f'<text class="m" x="{x(n):.0f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{n}</text>')
    out.append(f'<text class="m" x="{left + WIDTH / 2:.0f}" y="{TOP + HEIGHT + 36}" text-anchor="middle">{AXES[axis]}</text>')
    below = 0.0  # the bottom of the last label, so that labels do not overlap
    for k, (name, points) in enumerate(sorted(curves, key=lambda c: -c[1][-1][1])):
        out.append(f'<path class="t" d="{path([(n, theory) for n, _, theory in points])}"/>'
                   f'<path class="c{k}" d="{path([(n, part) for n, part, _ in points])}"/>')
        out += [f'<circle class="d{k}" cx="{x(n):.1f}" cy="{y(part):.1f}" r="3"/>' for n, part, _ in points]
        n, part, _ = points[-1]
        below = max(y(part) + 4, below + 16)
        out.append(f'<text class="d{k}" x="{x(n) + 10:.0f}" y="{below:.0f}">{name} {part:.3f}</text>')
    return out


tables = list(panels())
out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {STEP * len(tables)} {TOP + HEIGHT + 44}" font-family="sans-serif" '
       'font-size="12">',
       "<style>text{fill:#222}.m{fill:#777}path{fill:none;stroke-width:2}.g{stroke:#ddd;stroke-width:1}.t{stroke:#777;stroke-dasharray:2 4}"
       ".c0{stroke:#d97706}.d0{fill:#d97706}.c1{stroke:#2563eb}.d1{fill:#2563eb}"
       "@media(prefers-color-scheme:dark){text{fill:#e6e6e6}.m{fill:#9a9a9a}.g{stroke:#333}.t{stroke:#9a9a9a}"
       ".c0{stroke:#fbbf24}.d0{fill:#fbbf24}.c1{stroke:#60a5fa}.d1{fill:#60a5fa}}</style>",
       '<text x="0" y="18" font-weight="bold">Activations kept for backward by a rank, as part of those of one rank (dotted: theory)</text>']
for i, table in enumerate(tables):
    out += drawn(LEFT + i * STEP, *table)
open(sys.argv[2], "w").write("\n".join(out) + "\n</svg>\n")
