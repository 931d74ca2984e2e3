#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check_logs.py [--within RELATIVE] REFERENCE LOG...: the steps in logs of train_gpt must have the reference's losses and gradient
norms, bitwise or within RELATIVE; the loss must fall; the memory of one rank and the traffic of every rank must equal the prediction,
approximately if they depend on which experts tokens choose."""
import json
import sys

def read(path):
    return [json.loads(line) for line in open(path)]

def figures(log):
    return {line["step"]: (float.fromhex(line["loss_hex"]), line["grad_norm"]) for line in log if "step" in line}

def equal(a, b):
    return a == b if within == 0 else b is not None and all(abs(x - y) <= within * abs(y) for x, y in zip(a, b))

within = float(sys.argv[2]) if sys.argv[1] == "--within" else 0
if within:
    del sys.argv[1:3]
reference = read(sys.argv[1])
expected = figures(reference)
for path in sys.argv[2:]:
    found = figures(read(path))
    wrong = [s for s in found if not equal(found[s], expected.get(s))]
    if wrong or not found:
        sys.exit(f"{path}: losses or norms differ at steps {wrong} of {list(found)}")
first, last = expected[min(expected)][0], expected[max(expected)][0]
if not last < 0.8 * first:
    sys.exit(f"the loss fell only from {first} to {last}")
for path in sys.argv[1:]:
    log = read(path)
    at = max(i for i, line in enumerate(log) if "step" in line)
    heads = [line for line in log[:at] if "config" in line]  # one per start or resumption of the run
    head, end = heads[-1], log[at]
    def as_predicted(figure, found, depends):
        return abs(head[f"predicted_{figure}"] - found) <= (0.25 * found if "experts" in head and depends else 0)
    for figure in ("peak_bytes",) if "experts" in head else ("peak_bytes", "reserved_bytes"):
        if len(heads) == 1 and end["world"] == 1 and not as_predicted(figure, end[figure], True):
            sys.exit(f"{path}: {figure}: {head[f'predicted_{figure}']} were predicted, {end[figure]} found")
        if 0 < head["config"]["memory_limit"] < end[figure]:
            sys.exit(f"{path}: {figure}: {end[figure]}, the limit is {head['config']['memory_limit']}")
    by_axis, payload = end["comm_bytes_by_axis"], end["comm_bytes"]["total"] - end["comm_bytes"]["control"]
    sums = {"dp"} if {"cp", "ep"} & set(head["mesh"]) else set()  # ranks along these axes have the same parameters
    if not set(head["mesh"]) <= set(by_axis) <= set(head["mesh"]) | sums or sum(by_axis.values()) != payload:
        sys.exit(f"{path}: {by_axis} bytes by axis of {head['mesh']}, {payload} in all")
    if stages := head["mesh"].get("pp"):
        if not 0 < end["bubble_fraction"] < 1 or len(head["predicted_peak_bytes_by_stage"]) != stages:
            sys.exit(f"{path}: bubble {end['bubble_fraction']}, {head['predicted_peak_bytes_by_stage']} bytes predicted")
        most = head["predicted_peak_bytes"] * (1.25 if "experts" in head else 1)
        if end["peak_bytes"] > most or sum(head["blocks_by_chunk"]) != head["config"]["layers"]:
            sys.exit(f"{path}: more than {head['predicted_peak_bytes']} bytes, or other blocks: {head['blocks_by_chunk']}")
    sent = end["comm_bytes"]["total"]
    if not as_predicted("comm_bytes", sent, "ep" in head["mesh"]):
        sys.exit(f"{path}: predicted {head['predicted_comm_bytes']} bytes to be sent, {sent} were")
print(f"{len(sys.argv) - 1} logs of {len(expected)} steps, {f'within {within}' if within else 'the same bits'}; loss {first:.3f} to {last:.3f}")
