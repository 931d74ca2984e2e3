#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures, fits and draws how the time and memory of a GPT step grow with layers, width, positions and batch. Needs numpy.

    benchmarks/growth.py TRAIN_GPT PICTURE.svg [THREADS]

Theory: time and memory are linear in layers and in batch, and at most quadratic in width (weights); in positions, time is quadratic
(attention) and memory linear. Growth faster than the fit shows as a deviation at the large end.

Above 1 GB it also compares the process's peak resident set with the memory that the step was predicted to reserve.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile

import numpy

program, picture, threads = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "1"
base = {"layers": 4, "heads": 4, "width": 128, "context": 128, "batch": 8}
#         values, degree in time, degree in memory
sweeps = {"layers": ([1, 2, 4, 8, 16, 32], 1, 1), "width": ([64, 128, 192, 256, 384, 512], 2, 2),
          "context": ([64, 128, 256, 512, 1024, 2048], 2, 1), "batch": ([1, 2, 4, 8, 16, 32], 1, 1)}
large = [{"width": 256, "batch": 48, "context": 256}, {"layers": 8, "heads": 16, "width": 1024, "batch": 4},
         {"layers": 6, "heads": 12, "width": 768, "vocab": 50304, "batch": 4}, {"width": 256, "context": 4096}]


def step(sizes):
    """Median milliseconds and peak bytes of a step, the bytes it was predicted to reserve, and the process's peak resident set."""
    with tempfile.NamedTemporaryFile("r") as log:
        flags = [part for k, v in sizes.items() for part in (f"--{k}", str(v))]
        run = subprocess.Popen([program, "--data", "/usr/share/common-licenses", "--steps", "8", "--threads", threads, "--log", log.name, *flags],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(run.pid, 0)
        if status != 0:
            sys.exit(f"{program} {' '.join(flags)}: status {status}")
        lines = [json.loads(line) for line in log]
    return statistics.median(s["ms"] for s in lines[3:]), lines[-1]["peak_bytes"], lines[0]["predicted_reserved_bytes"], usage.ru_maxrss * 1024


def fitted(x, y, degree):
    """The polynomial of least squared relative error, and the points' relative deviations from it."""
    x, y = numpy.array(x, float), numpy.array(y, float)
    powers = numpy.vander(x, degree + 1)
    coefficients = numpy.linalg.lstsq(powers / y[:, None], numpy.ones(len(y)), rcond=None)[0]
    return coefficients, powers @ coefficients / y - 1


def panel(left, top, title, x, y, coefficients, unit):
    """Points and their fit on logarithmic axes."""
    wide, high = 240, 170
    place = lambda v, of, size: (numpy.log(v) - numpy.log(min(of))) / (numpy.log(max(of)) - numpy.log(min(of))) * size
    spread = [min(y), max(y)]
    at = lambda a, b: (left + place(a, x, wide), top + high - place(b, spread, high))
    curve = numpy.geomspace(min(x), max(x), 60)
    line = " ".join(f"{at(c, v)[0]:.1f},{at(c, v)[1]:.1f}" for c in curve if (v := numpy.polyval(coefficients, c)) > 0)
    text = [f"<text x='{left}' y='{top - 8}'>{title}</text>",
            f"<rect x='{left}' y='{top}' width='{wide}' height='{high}' fill='none' stroke='#999'/>",
            f"<polyline points='{line}' fill='none' stroke='#888'/>"]
    for a, b in zip(x, y):
        px, py = at(a, b)
        text += [f"<circle cx='{px:.1f}' cy='{py:.1f}' r='3' fill='#c33'/>",
                 f"<text x='{px:.1f}' y='{top + high + 14}' text-anchor='middle' font-size='10'>{a}</text>"]
    for value in spread:
        text.append(f"<text x='{left - 4}' y='{at(x[0], value)[1] + 4:.1f}' text-anchor='end' font-size='10'>{value:.4g} {unit}</text>")
    return text


drawing = ["<svg xmlns='http://www.w3.org/2000/svg' width='1290' height='480' font-family='sans-serif' font-size='12'>",
           "<rect width='100%' height='100%' fill='white'/>"]
print(f"From {', '.join(f'{k} {v}' for k, v in base.items())}, {threads} thread{'s' * (threads != '1')}; fits by least relative error\n")
print("| varied | milliseconds | fit | farthest | at the large end | MB | fit | farthest |\n|---|---|---|---|---|---|---|---|")
for column, (name, (values, time_degree, memory_degree)) in enumerate(sweeps.items()):
    measured = [step(dict(base, **{name: v})) for v in values]
    ms, mb = [m for m, *_ in measured], [b / 1e6 for _, b, *_ in measured]
    (time_fit, time_off), (memory_fit, memory_off) = fitted(values, ms, time_degree), fitted(values, mb, memory_degree)
    polynomial = lambda c: " + ".join(f"{v:.3g}" + ("", " x", " x²")[len(c) - 1 - i] for i, v in enumerate(c))
    print(f"| {name} {', '.join(map(str, values))} | {', '.join(f'{m:.1f}' for m in ms)} | {polynomial(time_fit)} | {max(abs(time_off)):.0%} | "
          f"{-time_off[-1]:+.0%} | {', '.join(f'{m:.1f}' for m in mb)} | {polynomial(memory_fit)} | {max(abs(memory_off)):.1%} |", flush=True)
    drawing += panel(75 + 310 * column, 40, f"{name}: time of a step", values, ms, time_fit, "ms")
    drawing += panel(75 + 310 * column, 270, f"{name}: memory", values, mb, memory_fit, "MB")
with open(picture, "w") as out:
    out.write("\n".join(drawing + ["</svg>\n"]))

_, _, base_reserved, base_resident = step(base)
print("\n| step | peak, MB | reserved, MB | resident beyond the base step's, of reserved beyond it |\n|---|---|---|---|")
for sizes in large:
    _, peak, reserved, resident = step(dict(base, **sizes))
    print(f"| {', '.join(f'{k} {v}' for k, v in sizes.items())} | {peak / 1e6:.0f} | {reserved / 1e6:.0f} | "
          f"{(resident - base_resident) / (reserved - base_reserved):.3f} |", flush=True)
