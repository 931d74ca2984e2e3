#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The kernels of ../device.cpp in PyTorch, on the GPU: a Markdown table of medians."""
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from serve import seconds_of

torch.manual_seed(1)
torch.set_default_device("cuda")
tasks = {}


def add(what, amount, unit, run):
    tasks[what] = amount, unit, run


def add_both_ways(what, amount, backward, unit, f, x, g, *others):
    add(what, amount, unit, lambda: f(x.detach()))
    add(what + ", backward too", amount + backward, unit, lambda: torch.autograd.grad(f(x), [x, *others], g))


def element_wise():
    x, y = torch.randn(16384, 2048), torch.randn(16384, 2048)
    size = 4 * x.numel()
    add("copy: x + 0", 2 * size, "GB/s", lambda: x + 0.0)
    add("sum of columns", size, "GB/s", lambda: x.sum(0))


def rows():
    x, g = torch.randn(32768, 768, requires_grad=True), torch.randn(32768, 768)
    weight, bias = torch.ones(768, requires_grad=True), torch.zeros(768, requires_grad=True)
    size = 4 * x.numel()
    add_both_ways("softmax of rows of 768", 2 * size, 3 * size, "GB/s", lambda x: torch.softmax(x, -1), x, g)
    add_both_ways("layer_norm of rows of 768", 2 * size, 3 * size, "GB/s", lambda x: F.layer_norm(x, (768,), weight, bias), x, g,
                  weight, bias)
    logits, labels = torch.randn(8192, 50304, requires_grad=True), torch.arange(8192) * 37 % 50304
    size = 4 * logits.numel()
    add("cross_entropy of 8192 x 50304", size, "GB/s", lambda: F.cross_entropy(logits.detach(), labels))
    add("cross_entropy of 8192 x 50304, backward too", 3 * size, "GB/s",
        lambda: torch.autograd.grad(F.cross_entropy(logits, labels), logits))


def products():
    def product(a, b, tf32):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        return a @ b

    for name, kind, tf32 in ("f32", torch.float32, False), ("tf32", torch.float32, True), ("bf16", torch.bfloat16, False):
        for side in 4096, 8192:
            a, b = torch.randn(side, side, dtype=kind), torch.randn(side, side, dtype=kind)
            add(f"matmul {side} {name}", 2 * side**3, "TFLOP/s", lambda a=a, b=b, tf32=tf32: product(a, b, tf32))


def attention():
    def attend(backend, q, k, v):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    for d in 64, 128:
        for t in 1024, 4096:
            shape = 16384 // t, t, 1536 // d, d
            q, k, v, g = (torch.randn(shape, dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for _ in range(4))
            amount = 2 * 16384 * t * 1536
            for name, backend in ("", SDPBackend.FLASH_ATTENTION), (" (cuDNN)", SDPBackend.CUDNN_ATTENTION):
                what = f"causal attention bf16, T {t} D {d}"
                add(what + name, amount, "TFLOP/s", lambda b=backend, q=q, k=k, v=v: attend(b, q.detach(), k.detach(), v.detach()))
                add(what + ", backward too" + name, 3.5 * amount, "TFLOP/s",
                    lambda b=backend, q=q, k=k, v=v, g=g: torch.autograd.grad(attend(b, q, k, v), [q, k, v], g))


def optimizer():
    p = torch.nn.Parameter(torch.randn(1 << 17, 1 << 10))
    adamw, gradient = torch.optim.AdamW([p], weight_decay=0.1, fused=True), torch.randn_like(p)

    def step():
        p.grad = gradient
        torch.nn.utils.clip_grad_norm_([p], 1.0)
        adamw.step()

    add("clipping and AdamW", 32 * p.numel(), "GB/s", step)


for group in element_wise, rows, products, attention, optimizer:
    group()
print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}\n\n| kernel | median |\n|---|---|")
for what, (amount, unit, run) in tasks.items():
    try:
        seconds = [seconds_of(run, torch.cuda.synchronize) for _ in range(9)][2:]
    except RuntimeError:  # the library of this kernel is missing
        continue
    print(f"| {what} | {amount / statistics.median(seconds) * (1e-12 if unit[0] == 'T' else 1e-9):.{int(unit[0] == 'T')}f} {unit} |", flush=True)
