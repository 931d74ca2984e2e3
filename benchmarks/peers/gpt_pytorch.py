#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The training step of gpt_weft.cpp in PyTorch.

    gpt_pytorch.py LAYERS HEADS WIDTH CONTEXT BATCH VOCABULARY THREADS eager|compiled|bf16|cuda|cuda_compiled

Runs on the CPU; cuda and cuda_compiled: on a GPU, in bf16.
"""
import sys

import torch
import torch.nn.functional as F

from serve import serve

layers, heads, width, context, batch, vocabulary, threads = map(int, sys.argv[1:8])
torch.set_num_threads(threads)
torch.manual_seed(1)
form = sys.argv[8]
device = form.split("_")[0] if form.startswith("cuda") else "cpu"
torch.set_default_device(device)
normal = lambda *s: torch.nn.Parameter(torch.randn(s) * 0.02)
ones = lambda *s: torch.nn.Parameter(torch.ones(s))
zeros = lambda *s: torch.nn.Parameter(torch.zeros(s))
wte, wpe = normal(vocabulary, width), normal(context, width)
blocks = [[ones(width), zeros(width), normal(width, 3 * width), zeros(3 * width), normal(width, width), zeros(width),
           ones(width), zeros(width), normal(width, 4 * width), zeros(4 * width), normal(4 * width, width), zeros(width)]
          for _ in range(layers)]
last = [ones(width), zeros(width)]
parameters = [wte, wpe, *last, *(p for b in blocks for p in b)]
optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
                               {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}],
                              lr=3e-4, betas=(0.9, 0.95), fused=True)
tokens, targets = torch.randint(256, (2, batch, context))


def model(tokens):
    x = F.embedding(tokens, wte) + wpe
    for w1, b1, wa, ba, wp, bp, w2, b2, wf, bf, wo, bo in blocks:
        h = torch.addmm(ba, F.layer_norm(x, (width,), w1, b1).view(-1, width), wa).view(batch, context, 3, heads, -1)
        q, k, v = h.permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(-1, width)
        x = x + torch.addmm(bp, a, wp).view(batch, context, width)
        h = F.gelu(torch.addmm(bf, F.layer_norm(x, (width,), w2, b2).view(-1, width), wf), approximate="tanh")
        x = x + torch.addmm(bo, h, wo).view(batch, context, width)
    return F.layer_norm(x, (width,), *last) @ wte.T


def loss_of(tokens, targets):
    with torch.autocast(device, torch.bfloat16, enabled=form == "bf16" or device == "cuda"):
        logits = model(tokens).view(-1, vocabulary)
    return F.cross_entropy(logits.float(), targets.view(-1))


if form.endswith("compiled"):
    loss_of = torch.compile(loss_of)


def step():
    loss = loss_of(tokens, targets)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    loss.item()


serve({"step": step})
