# SPDX-License-Identifier: MIT
"""The training of a random model in PyTorch, with which models.py compares."""
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

import models

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "tanh": torch.tanh, "silu": F.silu}


class Layer(nn.Module):
    """A layer made of modules by name and a function f(self, x)."""

    def __init__(self, f, **parts):
        super().__init__()
        self.f = f
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.f(self, x)


def attention(m, x, heads, causal):
    of = lambda y: y.unflatten(-1, (heads, -1)).transpose(1, 2)
    y = F.scaled_dot_product_attention(of(m.q(x)), of(m.k(x)), of(m.v(x)), is_causal=causal)
    return m.o(y.transpose(1, 2).flatten(-2))


def mixture(m, x, each):
    chosen, which = F.softmax(m.router(x), -1).topk(each, -1)
    share = chosen / chosen.sum(-1, keepdim=True)
    return sum((share * (which == e)).sum(-1, keepdim=True) * expert(x) for e, expert in enumerate(m.experts))


def layer_of(layer, m):
    name, *of = layer
    c = m.c
    linear = lambda a, b, bias=True: nn.Linear(a, b, bias=bias)
    if name in ("mlp", "mlp_of_run_time_sizes"):
        return Layer(lambda s, x: s.out(ACTIVATIONS[of[1]](getattr(s, "in")(x))), **{"in": linear(c, of[0]), "out": linear(of[0], c)})
    if name == "gated":
        return Layer(lambda s, x: s.down(F.silu(s.gate(x)) * s.up(x)), gate=linear(c, of[0], False), up=linear(c, of[0], False),
                     down=linear(of[0], c, False))
    if name == "scaled":
        return Layer(lambda s, x: x * s.scale + s.shift, scale=nn.Parameter(torch.ones(c)), shift=nn.Parameter(torch.ones(c)))
    if name == "mixing":
        return Layer(lambda s, x: x @ s.weight, weight=nn.Parameter(torch.ones(c, c)))
    if name == "attending":
        return Layer(lambda s, x: attention(s, x, m.heads, of[0]), q=linear(c, c), k=linear(c, c), v=linear(c, c), o=linear(c, c))
    if name == "over_time":
        return Layer(lambda s, x: s.layer(x.transpose(0, 1))[0].transpose(0, 1), layer=(nn.GRU if of[0] == "gru" else nn.LSTM)(c, c))
    if name == "convolved":
        return Layer(lambda s, x: s.layer(x.transpose(1, 2)).transpose(1, 2), layer=nn.Conv1d(c, c, 3, padding=1))
    if name == "layer_normalization":
        return nn.LayerNorm(c)
    if name == "rms_normalization":
        return nn.RMSNorm(c)
    if name == "self_gated":
        return Layer(lambda s, x: x * F.softmax(x, -1))
    if name == "halves_swapped":
        return Layer(lambda s, x: torch.cat([x[..., c // 2:], x[..., :c // 2]], -1))
    if name == "summed_up":
        return Layer(lambda s, x: x.cumsum(1) * 0.3)
    if name == "residual":
        return Layer(lambda s, x: x + s.inner(x), inner=layer_of(of[0], m))
    if name == "normed":
        return Layer(lambda s, x: s.inner(s.norm(x)), norm=layer_of((of[0],), m), inner=layer_of(of[1], m))
    if name == "chain":
        return Layer(lambda s, x: s.second(s.first(x)), first=layer_of(of[0], m), second=layer_of(of[1], m))
    if name == "shared_by_two":
        return Layer(lambda s, x: (lambda h: h * torch.sigmoid(h))(s.inner(x)), inner=layer_of(of[0], m))
    if name == "mixture":
        inner = Layer(None, router=linear(c, of[1], False), experts=nn.ModuleList(layer_of(of[0], m) for _ in range(of[1])))
        return Layer(lambda s, x: mixture(s.layer, x, of[2]), layer=inner)
    if name == "twice":
        return Layer(lambda s, x: s.inner(torch.tanh(s.inner(x))), inner=layer_of(of[0], m))
    if name == "frozen":
        return Layer(lambda s, x: x + s.inner(x).detach(), inner=layer_of(of[0], m))
    if name == "repeated":
        return Layer(lambda s, x: nn.Sequential(*s.blocks)(x), blocks=nn.ModuleList(layer_of(of[0], m) for _ in range(of[1])))
    raise ValueError(name)


class Whole(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.first = nn.Embedding(m.words, m.c) if m.tokens else nn.Linear(3, m.c)
        self.number = len(m.layers + m.back)
        for i, layer in enumerate(m.layers + m.back):
            setattr(self, f"layer_{i}", layer_of(layer, m))
        if not m.tied:
            self.head = nn.Linear(m.c, m.classes())

    def forward(self, x):
        x = self.first(x)
        for i in range(self.number):
            x = getattr(self, f"layer_{i}")(x)
        return self.head(x) if hasattr(self, "head") else x @ self.first.weight.t()


def hashed(number, count, salt, below):
    u = [(number * 7919 + i * 104729 + salt * 1299709 + 12345) * 2654435761 % 2**64 for i in range(count)]
    return torch.tensor([(v >> 9) % below for v in u])


def loss_of(net, m, number):
    n = m.batch * m.positions if m.tokens else m.batch
    if m.tokens:
        y = net(hashed(number, n, 1, m.words).view(m.batch, m.positions)).flatten(0, 1)
        t = hashed(number, n, 2, m.words)
        t[0] = 1 + hashed(number, 1, 2, m.words - 1)[0]
        return F.cross_entropy(y, t, ignore_index=0 if m.loss == "ignored" else -100, label_smoothing=0.1 if m.loss == "smooth" else 0.0)
    real = lambda width, salt: ((hashed(number, n * width, salt, 2001) - 1000).float() / 500).view(n, width)
    y, t = net(real(3, 1)), real(m.out, 2)
    return {"mse": lambda: F.mse_loss(y, t), "huber": lambda: F.huber_loss(y, t, delta=0.7), "l1": lambda: F.l1_loss(y, t),
            "probabilities": lambda: F.cross_entropy(y, t.softmax(-1))}[m.loss]()


def differences(m, losses, at):
    """The errors in weft's losses; weft has written the parameters before and after training."""
    torch.set_num_threads(1)
    net = Whole(m)
    net.load_state_dict(safetensors.torch.load_file(at / f"{m.name}.before.safetensors"))
    p = list(net.parameters())
    optimizer = eval("torch.optim." + models.OPTIMIZERS[m.optimizer][1], {"torch": torch, "p": p})
    wrong, diverges = [], False
    for s in range(m.steps):
        mean = 0.0
        for g in range(m.total):
            loss = loss_of(net, m, s * m.total + g) / m.total
            loss.backward()
            mean += loss.item()
        if m.clip:
            nn.utils.clip_grad_norm_(p, m.clip)
        optimizer.step()
        optimizer.zero_grad()
        diverges = diverges or mean > 100
        if not diverges and not abs(mean - losses[s]) <= (1e-3 if m.is_adaptive() else 1e-4) * max(1, abs(mean)):
            wrong.append(f"{m.name} wrong: loss of step {s} is {losses[s]}, in PyTorch {mean}")
    if not m.is_adaptive() and not diverges:
        after = safetensors.torch.load_file(at / f"{m.name}.after.safetensors")
        for name, t in net.state_dict().items():
            if not torch.allclose(t, after[name], atol=2e-4, rtol=1e-3):
                wrong.append(f"{m.name} wrong: {name} is off by {(t - after[name]).abs().max().item()}")
    return wrong
