#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes PyTorch's results for small models, with which tests/agree/*_test.cpp compare.

Needs torch and safetensors; the tests need neither. Run it only to change the data:
    python3 tests/agree/make_data.py
"""
import math
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

here = pathlib.Path(__file__).parent / "data"
here.mkdir(exist_ok=True)
torch.manual_seed(1)


def with_gradients(name, inputs, f):
    """Saves inputs, value and gradients of sum(f * weights) for each floating input."""
    leaves = {k: v.detach().clone().requires_grad_(v.is_floating_point()) for k, v in inputs.items()}
    y = f(**leaves)
    weights = torch.cos(torch.arange(y.numel(), dtype=torch.float32)).reshape(y.shape)
    (y * weights).sum().backward()
    out = {"y": y.detach().clone(), "weights": weights}
    for k, v in leaves.items():
        out[k] = v.detach().clone()
        if v.grad is not None:
            out["grad." + k] = v.grad.clone()
    save_file({k: v.contiguous() for k, v in out.items()}, here / f"{name}.safetensors")


x = torch.randn(3, 5, 8)
labels = torch.tensor([[1, 0, 7, -100, 3]] * 3)
with_gradients("linear", {"x": x, "w": torch.randn(4, 8), "b": torch.randn(4)}, lambda x, w, b: F.linear(x, w, b))
with_gradients("layer_norm", {"x": x, "w": torch.randn(8), "b": torch.randn(8)},
               lambda x, w, b: F.layer_norm(x, (8,), w, b))
with_gradients("rms_norm", {"x": x, "w": torch.randn(8)}, lambda x, w: F.rms_norm(x, (8,), w, 1e-5))
with_gradients("softmax", {"x": x}, lambda x: F.softmax(x, -1))
with_gradients("log_softmax", {"x": x}, lambda x: F.log_softmax(x, -1))
with_gradients("gelu", {"x": x}, lambda x: F.gelu(x))
with_gradients("gelu_tanh", {"x": x}, lambda x: F.gelu(x, approximate="tanh"))
with_gradients("silu", {"x": x}, lambda x: F.silu(x))
with_gradients("softplus", {"x": x}, lambda x: F.softplus(x))
with_gradients("embedding", {"w": torch.randn(9, 4), "i": torch.tensor([[8, 0, 8], [2, 2, 1]])},
               lambda w, i: F.embedding(i, w))
with_gradients("cross_entropy", {"x": x, "t": labels}, lambda x, t: F.cross_entropy(x.reshape(-1, 8), t.reshape(-1)))
with_gradients("cross_entropy_smooth", {"x": x, "t": labels},
               lambda x, t: F.cross_entropy(x.reshape(-1, 8), t.reshape(-1), reduction="sum", label_smoothing=0.1))
with_gradients("mse", {"x": x, "t": torch.randn(3, 5, 8)}, lambda x, t: F.mse_loss(x, t))
with_gradients("bce", {"x": x, "t": torch.rand(3, 5, 8)}, lambda x, t: F.binary_cross_entropy_with_logits(x, t))
with_gradients("attention", {k: torch.randn(2, 70, 3, 8) for k in "qkv"},
               lambda q, k, v: F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
               .transpose(1, 2))


class GPT2(torch.nn.Module):
    """GPT-2 with Hugging Face's parameter names, written from the paper."""

    def __init__(self, layers, heads, width, context, vocabulary):
        super().__init__()
        self.layers, self.heads = layers, heads
        shapes = {"wte.weight": (vocabulary, width), "wpe.weight": (context, width)}
        for l in range(layers):
            p = f"h.{l}."
            shapes |= {p + "ln_1.weight": (width,), p + "ln_1.bias": (width,),
                       p + "attn.c_attn.weight": (width, 3 * width), p + "attn.c_attn.bias": (3 * width,),
                       p + "attn.c_proj.weight": (width, width), p + "attn.c_proj.bias": (width,),
                       p + "ln_2.weight": (width,), p + "ln_2.bias": (width,),
                       p + "mlp.c_fc.weight": (width, 4 * width), p + "mlp.c_fc.bias": (4 * width,),
                       p + "mlp.c_proj.weight": (4 * width, width), p + "mlp.c_proj.bias": (width,)}
        shapes |= {"ln_f.weight": (width,), "ln_f.bias": (width,)}
        self.p = {k: torch.nn.Parameter(torch.randn(s) * 0.1 + (1.0 if "ln" in k and "weight" in k else 0.0))
                  for k, s in shapes.items()}

    def forward(self, tokens):
        p = self.p
        x = p["wte.weight"][tokens] + p["wpe.weight"][: tokens.shape[1]]
        width = x.shape[-1]
        norm = lambda x, n: F.layer_norm(x, (width,), p[n + ".weight"], p[n + ".bias"])
        proj = lambda x, n: x @ p[n + ".weight"] + p[n + ".bias"]
        for l in range(self.layers):
            h = f"h.{l}."
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                       for t in proj(norm(x, h + "ln_1"), h + "attn.c_attn").chunk(3, -1))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            x = x + proj(a, h + "attn.c_proj")
            x = x + proj(F.gelu(proj(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh"), h + "mlp.c_proj")
        return norm(x, "ln_f") @ p["wte.weight"].T


model = GPT2(layers=2, heads=2, width=16, context=12, vocabulary=30)
tokens, targets = torch.randint(30, (2, 3, 12)).int()
out = {"tokens": tokens, "targets": targets}
out |= {"start." + k: v.detach().clone() for k, v in model.p.items()}
decayed = [v for v in model.p.values() if v.dim() >= 2]
others = [v for v in model.p.values() if v.dim() < 2]
optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                              lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
losses = []
for step in range(10):
    optimizer.zero_grad()
    logits = model(tokens.long())
    loss = F.cross_entropy(logits.reshape(-1, 30), targets.long().reshape(-1))
    loss.backward()
    if step == 0:
        out["logits"] = logits.detach().clone()
        out |= {"grad." + k: v.grad.clone() for k, v in model.p.items()}
    torch.nn.utils.clip_grad_norm_(model.p.values(), 1.0)
    optimizer.step()
    losses.append(loss.item())
out["losses"] = torch.tensor(losses, dtype=torch.float64)
out |= {"end." + k: v.detach().clone() for k, v in model.p.items()}
save_file({k: v.contiguous() for k, v in out.items()}, here / "gpt2.safetensors")
