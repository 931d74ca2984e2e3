#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The products of products.hpp with PyTorch's libraries, MKL for f32 and oneDNN for bf16: products_pytorch.py THREADS."""
import pathlib
import re
import sys

import torch

from serve import serve

torch.set_num_threads(int(sys.argv[1]))
torch.set_grad_enabled(False)
header = (pathlib.Path(__file__).parent / "products.hpp").read_text()
shapes = [tuple(map(int, s)) for s in re.findall(r"\{(\d+), (\d+), (\d+)\}", header[header.index("shapes[]"):])]
made = {}


def product(name, m, n, k, form, dtype):
    def run():
        if name not in made:  # one product is in memory at a time
            made.clear()
            a = torch.randn(k, m, dtype=dtype).T if form == "AtB" else torch.randn(m, k, dtype=dtype)
            b = torch.randn(n, k, dtype=dtype).T if form == "ABt" else torch.randn(k, n, dtype=dtype)
            made[name] = a, b, torch.empty(m, n, dtype=dtype)
        a, b, c = made[name]
        torch.mm(a, b, out=c)

    return run


tasks = {}
types = {"f32": torch.float32}
if torch.ops.mkldnn._is_mkldnn_bf16_supported():  # otherwise its products are plain loops
    types["bf16"] = torch.bfloat16
for kind, dtype in types.items():
    for m, n, k in shapes:
        for form in "AB", "ABt", "AtB":
            name = f"{kind} {m},{n},{k} {form}"
            tasks[name] = product(name, m, n, k, form, dtype)
serve(tasks)
