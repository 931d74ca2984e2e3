#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The tasks of layers_weft.cpp in PyTorch: layers_pytorch.py THREADS."""
import sys

import torch
import torch.nn.functional as F

from serve import serve

torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(1)
tasks = {}


def both_ways(f, shape, *others):
    x, g = torch.randn(shape, requires_grad=True), torch.randn(shape)

    def run():
        torch.autograd.grad(f(x), [x, *others], g)

    return run


for name, rows in ("in cache", 128), ("out of cache", 16384):
    n = 1024
    weight, bias = torch.ones(n, requires_grad=True), torch.zeros(n, requires_grad=True)
    tasks[f"softmax, {name}"] = both_ways(lambda x: torch.softmax(x, -1), (rows, n))
    tasks[f"layer_norm, {name}"] = both_ways(lambda x, w=weight, b=bias: F.layer_norm(x, (n,), w, b), (rows, n), weight, bias)
    tasks[f"rms_norm, {name}"] = both_ways(lambda x, w=weight: F.rms_norm(x, (n,), w), (rows, n), weight)
    tasks[f"gelu, {name}"] = both_ways(lambda x: F.gelu(x, approximate="tanh"), (rows, n))
logits, labels = torch.randn(1024, 50304, requires_grad=True), torch.arange(1024) * 37 % 50304
tasks["cross_entropy, 1024 x 50304"] = lambda: torch.autograd.grad(F.cross_entropy(logits, labels), logits)
for d in 64, 128:
    for t in 256, 1024, 4096:
        q, k, v = (torch.randn(4096 // t, t, 768 // d, d).transpose(1, 2).requires_grad_() for _ in range(3))
        g = torch.randn(4096 // t, t, 768 // d, d).transpose(1, 2)
        tasks[f"attention, T {t} D {d}"] = lambda q=q, k=k, v=v, g=g: torch.autograd.grad(
            F.scaled_dot_product_attention(q, k, v, is_causal=True), [q, k, v], g)
for i, o, size, side, options in ((64, 64, 3, 56, dict(padding=1)), (128, 128, 3, 28, dict(padding=1)), (256, 256, 3, 14, dict(padding=1)),
                                  (512, 512, 3, 7, dict(padding=1)), (256, 64, 1, 56, {}), (64, 128, 3, 56, dict(stride=2, padding=1)),
                                  (3, 64, 7, 224, dict(stride=2, padding=3)), (64, 64, 3, 56, dict(padding=1, groups=64))):
    x = torch.randn(8, i, side, side, requires_grad=True)
    w = torch.randn(o, i // options.get("groups", 1), size, size, requires_grad=True)
    g = F.conv2d(x, w, **options).detach()
    form = f"{i} in groups of 1" if "groups" in options else f"{i} to {o}"
    by = " by 2" if "stride" in options else ""
    tasks[f"conv2d {form}, {size} x {size}{by}, of {side} x {side}"] = lambda x=x, w=w, g=g, options=options: torch.autograd.grad(
        F.conv2d(x, w, **options), [x, w], g)
p = torch.nn.Parameter(torch.randn(1 << 15, 1 << 10))
optimizer = torch.optim.AdamW([p], weight_decay=0.1, fused=True)
gradient = torch.randn_like(p)


def step():
    p.grad = gradient
    torch.nn.utils.clip_grad_norm_([p], 1.0)
    optimizer.step()


tasks["clipping and AdamW, 32 million"] = step
serve(tasks)
