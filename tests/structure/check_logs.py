#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Two logs of train_gpt must hold the same losses, bit for bit; the loss must fall; the predicted memory must be the real one."""
import json
import sys

def losses(path):
    steps = [json.loads(line) for line in open(path)]
    return {s["step"]: s["loss_hex"] for s in steps if "step" in s}

a, b = losses(sys.argv[1]), losses(sys.argv[2])
if a != b or not a:
    sys.exit(f"losses differ at steps {[s for s in a if a[s] != b.get(s)]}")
first, last = float.fromhex(a[min(a)]), float.fromhex(a[max(a)])
if not last < 0.8 * first:
    sys.exit(f"the loss fell only from {first} to {last}")
log = [json.loads(line) for line in open(sys.argv[1])]
if log[0]["predicted_peak_bytes"] != log[-1]["peak_bytes"]:
    sys.exit(f"predicted {log[0]['predicted_peak_bytes']} bytes, the peak was {log[-1]['peak_bytes']}")
print(f"{len(a)} steps, the same bits; loss {first:.3f} to {last:.3f}")
