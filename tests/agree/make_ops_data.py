#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes PyTorch's results for every op, at odd shapes and special values, with which tests/agree/*_test.cpp compare.

A file holds cases "name/number/tensor": the operands by name, the value y, and where it is differentiated weights and
grad.<operand>, the gradients of sum(y * weights). Needs torch and safetensors; the tests need neither. Run it only to
change the data:
    python3 tests/agree/make_ops_data.py
"""
import itertools
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

here = pathlib.Path(__file__).parent / "data"
torch.manual_seed(2)
torch.set_num_threads(1)

# Extents of 0 and 1, primes, a width that is no multiple of a vector, more than one vector.
shapes = [(3, 5, 7), (1, 1, 1), (2, 1, 13), (1, 2, 61), (0, 3, 2), (2, 11, 1)]
inf, nan = float("inf"), float("nan")
special = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 1e-40, -1e-40, 3e38, -3e38, 88.0, -104.0, 1e-20, 7.5, -2.5])


class family:
    """The cases of one file."""

    def __init__(self):
        self.tensors, self.counts = {}, {}

    def case(self, name, f, differentiated=True, **operands):
        number = self.counts[name] = self.counts.get(name, -1) + 1
        leaves = {k: v.detach().clone() for k, v in operands.items()}
        for v in leaves.values():
            v.requires_grad_(differentiated and v.is_floating_point())
        y = f(*leaves.values())
        out = {"y": y.detach()} | {k: v.detach() for k, v in leaves.items()}
        if differentiated:
            weights = torch.cos(torch.arange(y.numel(), dtype=torch.float32)).reshape(y.shape).to(y.dtype)
            out["weights"] = weights
            given = [k for k, v in leaves.items() if v.requires_grad]
            gradients = torch.autograd.grad(y, [leaves[k] for k in given], weights, allow_unused=True)
            for k, g in zip(given, gradients):
                if g is not None:
                    out["grad." + k] = g
        for k, v in out.items():
            self.tensors[f"{name}/{number}/{k}"] = v.contiguous().clone()

    def steps(self, name, make, start, gradients):
        """Steps of the optimizer make([parameter]) from `start`, with one gradient after the other."""
        p = torch.nn.Parameter(start.clone())
        optimizer, ends = make([p]), []
        for g in gradients:
            p.grad = g.clone()
            optimizer.step()
            ends.append(p.detach().clone())
        number = self.counts[name] = self.counts.get(name, -1) + 1
        for k, v in {"start": start, "gradients": gradients, "y": torch.stack(ends)}.items():
            self.tensors[f"{name}/{number}/{k}"] = v.contiguous().clone()

    def save(self, name):
        save_file(self.tensors, here / f"{name}.safetensors")


# Element-wise functions: odd shapes, then special values.
unary = {
    "exp": torch.exp, "log": torch.log, "log1p": torch.log1p, "expm1": torch.expm1, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "sin": torch.sin, "cos": torch.cos, "tanh": torch.tanh, "erf": torch.erf, "abs": torch.abs, "sign": torch.sign,
    "floor": torch.floor, "round": torch.round, "negate": torch.neg, "relu": F.relu, "sigmoid": torch.sigmoid, "silu": F.silu,
    "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "softplus": F.softplus, "square": torch.square,
    "clamp": lambda x: torch.clamp(x, -0.5, 1.0)}
binary = {
    "add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "divide": torch.div, "maximum": torch.maximum,
    "minimum": torch.minimum, "pow": torch.pow}
positive = {"log", "sqrt", "rsqrt"}
ops = family()


def elementwise_cases(unary, binary):
    for name, f in unary.items():
        for shape in shapes:
            x = torch.randn(shape) * 2
            x = x.abs() + 0.1 if name in positive else x / (1 + x.abs()) if name in ("asin", "acos") else x
            ops.case(name, f, x=x)
        values = special[special.abs() < 1e30] if name == "gelu" else special  # beyond this, PyTorch's vector code yields inf or NaN
        ops.case(name, f, x=values.reshape(1, 1, -1))
    for name, f in binary.items():
        for shape in shapes:
            a, b = torch.randn(shape), torch.randn(shape)
            ops.case(name, f, a=a.abs() + 0.1 if name == "pow" else a, b=b.sign() * (b.abs() + 0.1) if name == "divide" else b)
        a, b = (torch.tensor(v).reshape(1, 1, -1) for v in zip(*itertools.product(special.tolist(), special.tolist())))
        ops.case(name, f, a=a, b=b)
        ops.case(name, f, a=torch.rand(4, 1, 3) + 0.5, b=torch.rand(4, 5, 1) + 0.5)  # broadcast


elementwise_cases(unary, binary)
for name, f in {"equal": torch.eq, "less": torch.lt, "less_equal": torch.le}.items():
    a, b = (torch.tensor(v).reshape(1, 1, -1) for v in zip(*itertools.product(special.tolist(), special.tolist())))
    ops.case(name, f, differentiated=False, a=a, b=b)
for shape in shapes:
    ops.case("where", lambda c, a, b: torch.where(c, a, b), c=torch.rand(shape) < 0.5, a=torch.randn(shape), b=torch.randn(shape))
with torch.random.fork_rng():  # ops added later, so that all other random numbers stay
    elementwise_cases({"atan": torch.atan, "asin": torch.asin, "acos": torch.acos}, {"atan2": torch.atan2})
    elementwise_cases({"clamp_min_at": lambda x: torch.clamp(x, min=-0.5), "clamp_max_at": lambda x: torch.clamp(x, max=1.0)},
                      {"clamp_min": torch.clamp_min, "clamp_max": torch.clamp_max})
ops.save("elementwise")

# Reductions and movement, over views and along every dim.
ops = family()
dims = {"0": 0, "1": 1, "2": 2, "02": (0, 2), "12": (1, 2), "all": (0, 1, 2)}
for key, dim in dims.items():
    for shape in shapes:
        x = torch.randn(shape)
        ops.case("sum_" + key, lambda x: torch.sum(x, dim), x=x)
        ops.case("mean_" + key, lambda x: torch.mean(x, dim, keepdim=True), x=x)
        ops.case("logsumexp_" + key, lambda x: torch.logsumexp(x, dim), x=x)
        if 0 not in shape:
            ties = torch.randint(-2, 3, shape).float()
            ops.case("amax_" + key, lambda x: torch.amax(x, dim), x=ties)
            ops.case("amin_" + key, lambda x: torch.amin(x, dim), x=ties)
for shape in shapes:
    x = torch.randn(shape)
    for dim in range(3):
        ops.case(f"softmax_{dim}", lambda x: F.softmax(x, dim), x=x)
        ops.case(f"log_softmax_{dim}", lambda x: F.log_softmax(x, dim), x=x)
        ties = torch.randint(-2, 3, shape).float()
        if shape[dim] > 0:
            ops.case(f"argmax_{dim}", lambda x: torch.argmax(x, dim), differentiated=False, x=ties)
            ops.case(f"argmin_{dim}", lambda x: torch.argmin(x, dim), differentiated=False, x=ties)
    ops.case("transpose", lambda x: x.transpose(0, 2), x=x)
    ops.case("permute", lambda x: x.permute(1, 2, 0), x=x)
    ops.case("flip", lambda x: x.flip(1), x=x)
    ops.case("flatten", lambda x: x.flatten(0, 1), x=x)
    ops.case("unsqueeze", lambda x: x.unsqueeze(2), x=x)
    ops.case("expand", lambda x: x.expand(2, *shape), x=x)
    y = torch.randn(shape)
    ops.case("concat", lambda x, z: torch.cat([x, z, x], 1), x=x, z=y)
    ops.case("stack", lambda x, z: torch.stack([x, z], -1), x=x, z=y)
    if shape[1] > 0:
        ops.case("slice", lambda x: x[:, shape[1] // 3:shape[1]], x=x)
        ops.case("column_of_slice", lambda x: x[:, :, 0:1].sum(2) * 2, x=x)
        ops.case("sum_of_flipped", lambda x: x.flip(1).sum((0, 1)) + 1, x=x)
fixed = torch.randn(6, 10)
ops.case("slice_with_step", lambda x: x[:, 1:9:3], x=fixed)
ops.case("pad", lambda x: F.pad(x, (2, 3)), x=fixed)
ops.case("reshape", lambda x: x.t().reshape(4, 15), x=fixed)
ops.case("unflatten", lambda x: x.unflatten(1, (5, 2)), x=fixed)
ops.case("chunk", lambda x: x.chunk(5, 1)[3] * x.chunk(5, 1)[0], x=fixed)
ops.save("shapes")

# Layers, matrix products, look-ups, losses.
ops = family()
for m, k, n in [(1, 1, 1), (3, 5, 7), (7, 30, 11), (2, 0, 3), (0, 4, 5), (37, 3, 1)]:
    ops.case("matmul", torch.matmul, a=torch.randn(m, k), b=torch.randn(k, n))
    ops.case("matmul_transposed", lambda a, b: a @ b.t(), a=torch.randn(m, k), b=torch.randn(n, k))
    ops.case("matmul_batched", torch.matmul, a=torch.randn(3, m, k), b=torch.randn(3, k, n))
    ops.case("matmul_shared", torch.matmul, a=torch.randn(3, m, k), b=torch.randn(k, n))
    ops.case("linear", F.linear, x=torch.randn(3, m, k), w=torch.randn(n, k), b=torch.randn(n))
for rows, width in [(3, 1), (5, 7), (2, 60), (1, 37), (0, 4)]:
    x, w, b = torch.randn(rows, width), torch.randn(width), torch.randn(width)
    ops.case("layer_norm", lambda x, w, b: F.layer_norm(x, (width,), w, b), x=x, w=w, b=b)
    ops.case("rms_norm", lambda x, w: F.rms_norm(x, (width,), w, 1e-5), x=x, w=w)
    if rows > 0:
        labels = torch.randint(width, (rows,))
        labels[0] = -100 if rows > 1 else 0
        ops.case("cross_entropy", lambda x, t: F.cross_entropy(x, t), x=x, t=labels)
        ops.case("cross_entropy_each", lambda x, t: F.cross_entropy(x, t, reduction="none"), x=x, t=labels)
        ops.case("cross_entropy_smooth", lambda x, t: F.cross_entropy(x, t, reduction="sum", label_smoothing=0.1), x=x, t=labels)
    for reduction in ("mean", "sum", "none"):
        t = torch.rand(rows, width)
        if rows > 0 or reduction != "mean":
            ops.case("mse_" + reduction, lambda x, t: F.mse_loss(x, t, reduction=reduction), x=x, t=t)
            ops.case("bce_" + reduction, lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction=reduction), x=x, t=t)
    ops.case("embedding", lambda w, i: F.embedding(i, w), w=torch.randn(9, width), i=torch.randint(9, (rows, 3)))
    ops.case("index_select_1", lambda x, i: x.index_select(1, i), x=x, i=torch.randint(width, (4,)).int())
    index = torch.randint(width, (rows, 5))
    ops.case("gather_1", lambda x, i: x.gather(1, i), x=x, i=index)
    ops.case("one_hot", lambda i: F.one_hot(i, 11).float(), differentiated=False, i=torch.randint(11, (rows, 2)))
table = torch.randn(3, 6)
ops.case("scatter_add_1", lambda x, i, s: x.scatter_add(1, i, s), x=table, i=torch.randint(6, (3, 9)), s=torch.randn(3, 9))
for batch, positions, heads, features in [(2, 7, 3, 5), (1, 1, 1, 1), (1, 67, 1, 5), (1, 17, 2, 17)]:
    qkv = {n: torch.randn(batch, positions, heads, features) for n in "qkv"}
    for causal in (False, True):
        ops.case("attention_causal" if causal else "attention",
                 lambda q, k, v: F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal)
                 .transpose(1, 2), **qkv)
with torch.random.fork_rng():
    for rows, width in [(3, 1), (5, 7), (1, 37), (0, 4)]:
        index = torch.randint(9, (rows, 3))
        index[:, 1] = 8
        ops.case("embedding_padded", lambda w, i: F.embedding(i, w, padding_idx=8), w=torch.randn(9, width), i=index)
ops.save("layers")

# Attention with keys of another length than queries, with several query heads per key head, at later positions. With
# separate random numbers, so that the other files do not change.
state = torch.get_rng_state()
torch.manual_seed(3)
ops = family()
for batch, queries, keys, heads, key_heads, features, first in [
        (2, 3, 7, 4, 2, 5, 4), (1, 1, 9, 2, 2, 3, 8), (1, 70, 67, 3, 1, 8, 0), (1, 5, 140, 2, 1, 4, 71), (2, 6, 2, 6, 2, 3, 0)]:
    q, k, v = torch.randn(batch, queries, heads, features), *torch.randn(2, batch, keys, key_heads, features).unbind(0)
    seen = torch.arange(keys)[None, :] <= torch.arange(queries)[:, None] + first
    for name, mask in ("attention_causal", seen), ("attention", None):
        ops.case(name, lambda q, k, v: F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                                                      attn_mask=mask, enable_gqa=True).transpose(1, 2), q=q, k=k, v=v)
    ops.tensors[f"attention_causal/{ops.counts['attention']}/first"] = torch.tensor([first])
# With broadcast masks: for padding, per query, added to the scores of each head; a query without keys.
for batch, queries, keys, heads, key_heads, features, shape in [
        (2, 3, 7, 4, 2, 5, (2, 1, 1, 7)), (1, 9, 9, 2, 2, 3, (9, 9)), (3, 5, 6, 6, 2, 4, (3, 6, 5, 6)), (1, 1, 1, 1, 1, 1, (1, 1))]:
    q, k, v = torch.randn(batch, queries, heads, features), *torch.randn(2, batch, keys, key_heads, features).unbind(0)
    seen = torch.rand(shape) < 0.7
    if shape == (9, 9):
        seen[4] = False
    added = torch.randn(shape)
    for name, mask in ("attention_seen", seen), ("attention_added", added):
        ops.case(name, lambda q, k, v, mask: F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                                                            attn_mask=mask, enable_gqa=True).transpose(1, 2),
                 q=q, k=k, v=v, mask=mask)
        later = ~torch.tril(torch.ones(queries, keys, dtype=torch.bool))
        hidden = False if mask.dtype == torch.bool else float("-inf")
        ops.case(name + "_causal", lambda q, k, v, mask: F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask.masked_fill(later, hidden), enable_gqa=True).transpose(1, 2),
                 q=q, k=k, v=v, mask=mask)
ops.save("attention_lengths")
torch.set_rng_state(state)

# Element types: results in bf16, f16, f64 and integers.
ops = family()
types = {"f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
for t, dtype in types.items():
    for shape in [(3, 5, 7), (2, 1, 13), (1, 3, 60)]:
        a, b = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
        for name in ("add", "multiply", "divide"):
            ops.case(f"{name}_{t}", binary[name], a=a, b=b)
        ops.case(f"chain_{t}", lambda a, b: (a + b) * b - a, a=a, b=b)
        for name in ("gelu", "silu", "tanh", "sigmoid"):
            ops.case(f"{name}_{t}", unary[name], x=a)
        ops.case(f"sum_{t}", lambda x: torch.sum(x, 2), x=a)
        ops.case(f"mean_{t}", lambda x: torch.mean(x, (0, 1)), x=a)
        ops.case(f"softmax_{t}", lambda x: F.softmax(x, 2), x=a)
        ops.case(f"layer_norm_{t}", lambda x, w, b: F.layer_norm(x, shape[2:], w, b), x=a, w=torch.randn(shape[2]).to(dtype), b=torch.randn(shape[2]).to(dtype))
    large = torch.full((700, 3), 100.0).to(dtype)
    ops.case(f"mean_of_many_{t}", lambda x: torch.mean(x, 0), x=large)
for t, dtype in {"i64": torch.int64, "i32": torch.int32, "u8": torch.uint8}.items():
    a, b = torch.randint(0, 250, (3, 7)).to(dtype), torch.randint(1, 250, (3, 7)).to(dtype)
    for name in ("add", "subtract", "multiply", "maximum", "minimum", "divide"):
        ops.case(f"{name}_{t}", binary[name], differentiated=False, a=a, b=b)
    ops.case(f"widened_sum_{t}", lambda a, b: (a + b).float(), differentiated=False, a=a, b=b)
    ops.case(f"sum_{t}", lambda x: torch.sum(x, 1), differentiated=False, x=a)
    ops.case(f"amax_{t}", lambda x: torch.amax(x, 1), differentiated=False, x=a)
a, b = (torch.tensor(v) for v in zip(*itertools.product([False, True], [False, True])))
for name, f in {"add": torch.add, "multiply": torch.mul, "maximum": torch.maximum, "minimum": torch.minimum, "less": torch.lt,
                "less_equal": torch.le, "equal": torch.eq, "logical_and": torch.logical_and, "logical_or": torch.logical_or}.items():
    ops.case(name + "_bool", f, differentiated=False, a=a, b=b)
flags = torch.tensor([[False, False], [False, True], [True, False], [True, True]])
ops.case("amax_bool", lambda x: torch.amax(x, 1), differentiated=False, x=flags)
ops.case("amin_bool", lambda x: torch.amin(x, 1), differentiated=False, x=flags)
ops.save("types")

# Optimizers: five steps of each on tensors of odd size, with given gradients.
ops = family()
optimizers = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1), "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "sgd_nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01), "adam_decay": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01)}
for name, make in optimizers.items():
    for size in (1, 13, 60, 129):
        start, gradients = torch.randn(size), torch.randn(5, size)
        ops.steps(name, make, start, gradients)
with torch.random.fork_rng():
    for name, make in {"adam_amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
                       "adamw_amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.5), amsgrad=True)}.items():
        for size in (1, 13, 60, 129):
            ops.steps(name, make, torch.randn(size), torch.randn(9, size) * torch.tensor([3, 1, 0.1, 0, 5, 1, 0.01, 1, 1])[:, None])
for limit in (0.0, 0.5, 100.0):
    g = torch.randn(7, 3)
    p = torch.nn.Parameter(torch.zeros(7, 3))
    p.grad = g.clone()
    norm = torch.nn.utils.clip_grad_norm_([p], limit)
    number = ops.counts["clip_grad_norm"] = ops.counts.get("clip_grad_norm", -1) + 1
    for k, v in {"limit": torch.tensor(limit), "gradient": g, "norm": norm, "y": p.grad}.items():
        ops.tensors[f"clip_grad_norm/{number}/{k}"] = v.contiguous().clone()
schedules = {"schedule_step": lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=3, gamma=0.5),
             "schedule_cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=19),
             "schedule_warmup": lambda o: torch.optim.lr_scheduler.SequentialLR(o, [
                 torch.optim.lr_scheduler.LinearLR(o, start_factor=1 / 5, total_iters=4),
                 torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=15)], milestones=[5])}
for name, make in schedules.items():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    scheduler, rates = make(optimizer), []
    for _ in range(20):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    ops.tensors[f"{name}/0/y"] = torch.tensor(rates, dtype=torch.float64)
ops.save("optimizers")

# Sorting: equal elements and NaN; topk, which does not define which of equal elements it takes, has no equal elements.
ops = family()
for shape in shapes:
    ties = torch.randint(-2, 3, shape).float()
    if ties.numel() > 8:
        ties.view(-1)[3::5] = nan
        ties.view(-1)[4::5] = -0.0
    apart = torch.randperm(ties.numel()).float().reshape(shape)
    if apart.numel() > 8:
        apart.view(-1)[apart.numel() // 2] = nan
    for dim in range(3):
        for name, down in (("ascending", False), ("descending", True)):
            ops.case(f"sort_{name}_{dim}", lambda x: torch.sort(x, stable=True, dim=dim, descending=down)[0], x=ties)
            ops.case(f"argsort_{name}_{dim}", lambda x: torch.sort(x, stable=True, dim=dim, descending=down)[1], differentiated=False, x=ties)
            k = (shape[dim] + 1) // 2
            ops.case(f"topk_{name}_{dim}", lambda x: torch.topk(x, k, dim, down)[0], x=apart)
            ops.case(f"argtopk_{name}_{dim}", lambda x: torch.topk(x, k, dim, down)[1], differentiated=False, x=apart)
        ops.case(f"cumsum_{dim}", lambda x: torch.cumsum(x, dim), x=torch.randn(shape))
ops.save("orders")

# Convolutions and pooling: [x], [weight], and bias; an empty batch, one image, channels in groups; windows that leave a remainder.
torch.manual_seed(3)
ops = family()
for name, x, w, options in (
        ("plain", (2, 3, 7, 6), (4, 3, 3, 2), {}),
        ("stepped", (2, 3, 7, 6), (4, 3, 3, 2), dict(stride=(2, 1), padding=(1, 2), dilation=(1, 2))),
        ("groups", (3, 4, 5, 5), (6, 2, 3, 3), dict(padding=1, groups=2)),
        ("depthwise", (2, 5, 6, 7), (10, 1, 3, 3), dict(stride=2, groups=5)),
        ("one", (1, 1, 4, 3), (3, 1, 1, 1), {}),
        ("wide", (2, 2, 3, 5), (1, 2, 1, 5), {})):
    ops.case("conv2d_" + name, lambda x, weight, bias: F.conv2d(x, weight, bias, **options), x=torch.randn(x), weight=torch.randn(w),
             bias=torch.randn(w[0]))
for name, options in (("plain", {}), ("stepped", dict(stride=2, padding=1, dilation=2))):
    ops.case("conv1d_" + name, lambda x, weight, bias: F.conv1d(x, weight, bias, **options), x=torch.randn(2, 3, 11),
             weight=torch.randn(4, 3, 3), bias=torch.randn(4))
for name, size, options in (("plain", 2, {}), ("stepped", 3, dict(stride=2, padding=1)), ("wide", (3, 2), dict(stride=(1, 2))),
                            ("padded", 4, dict(stride=3, padding=(2, 1)))):
    for x in (torch.randn(2, 3, 7, 6), torch.randint(-2, 3, (1, 2, 9, 8)).float(), torch.randn(0, 2, 5, 5)):
        if x.numel() == 144:
            x.view(-1)[100] = nan
        ops.case("max_pool2d_" + name, lambda x: F.max_pool2d(x, size, **options), x=x)
        ops.case("avg_pool2d_" + name, lambda x: F.avg_pool2d(x, size, **options), x=x)
for x in (torch.randn(2, 3, 11), torch.randn(1, 1, 3)):
    ops.case("max_pool1d", lambda x: F.max_pool1d(x, 3, stride=2, padding=1), x=x)
    ops.case("avg_pool1d", lambda x: F.avg_pool1d(x, 3, stride=2, padding=1), x=x)
# Depthwise convolutions: rows of less than a vector, of several vectors, with a remainder.
for name, x, w, options in (
        ("each", (3, 4, 6, 19), (4, 1, 3, 3), dict(padding=1)),
        ("each_stepped", (2, 3, 9, 37), (3, 1, 3, 2), dict(stride=(2, 3), padding=(2, 1), dilation=(1, 2))),
        ("each_wide", (1, 2, 5, 70), (2, 1, 1, 5), dict(padding=(0, 2))),
        ("each_of_none", (0, 2, 4, 4), (2, 1, 1, 5), dict(padding=(0, 2)))):
    ops.case("conv2d_" + name, lambda x, weight, bias: F.conv2d(x, weight, bias, groups=w[0], **options), x=torch.randn(x),
             weight=torch.randn(w), bias=torch.randn(w[0]))
# Transposed convolutions: with output padding, in groups, depthwise.
for name, x, w, options in (
        ("plain", (2, 3, 4, 5), (3, 4, 3, 2), {}),
        ("stepped", (2, 3, 4, 5), (3, 4, 3, 2), dict(stride=(2, 3), padding=(1, 2), output_padding=(1, 2), dilation=(1, 2))),
        ("groups", (3, 4, 5, 1), (4, 3, 3, 3), dict(stride=2, padding=1, groups=2)),
        ("each", (2, 3, 4, 5), (3, 1, 3, 2), dict(stride=(2, 3), padding=(1, 0), output_padding=(1, 0), groups=3)),
        ("one", (1, 1, 4, 3), (1, 3, 1, 1), {}),
        ("of_none", (0, 3, 4, 3), (3, 2, 2, 2), dict(stride=2)),
        ("dilated", (2, 3, 4, 5), (3, 2, 2, 3), dict(stride=(1, 2), output_padding=(1, 3), dilation=(2, 4))),
        ("dilated_each", (2, 3, 4, 5), (3, 1, 2, 3), dict(stride=(1, 2), output_padding=(1, 3), dilation=(2, 4), groups=3))):
    ops.case("conv_transpose2d_" + name, lambda x, weight, bias: F.conv_transpose2d(x, weight, bias, **options), x=torch.randn(x),
             weight=torch.randn(w), bias=torch.randn(w[1] * options.get("groups", 1)))
ops.case("conv_transpose1d", lambda x, weight, bias: F.conv_transpose1d(x, weight, bias, stride=2, padding=1, output_padding=1, dilation=2),
         x=torch.randn(2, 3, 7), weight=torch.randn(3, 4, 3), bias=torch.randn(4))
for x in (torch.randn(2, 3, 4, 5), torch.randn(1, 1, 1, 7), torch.randn(0, 2, 3, 3)):
    for name, by in (("both", (2, 2)), ("wide", (1, 3)), ("high", (4, 1))):
        ops.case("upsample_nearest_" + name, lambda x: F.interpolate(x, scale_factor=by), x=x)
        ops.case("upsample_bilinear_" + name, lambda x: F.interpolate(x, scale_factor=by, mode="bilinear"), x=x)
# Windows that end after the padding; means that do not count it; convolutions that keep extents.
with torch.random.fork_rng():
    for name, size, options in (("ceil", 3, dict(stride=2)), ("ceil_far", 2, dict(stride=4)), ("ceil_padded", (3, 4), dict(stride=(2, 5), padding=(1, 2))),
                                ("ceil_each", (2, 3), {})):
        for x in (torch.randn(2, 3, 7, 6), torch.randint(-2, 3, (1, 2, 8, 9)).float(), torch.randn(0, 2, 5, 5), torch.randn(1, 1, 2, 11)):
            ops.case("max_pool2d_" + name, lambda x: F.max_pool2d(x, size, ceil_mode=True, **options), x=x)
            ops.case("avg_pool2d_" + name, lambda x: F.avg_pool2d(x, size, ceil_mode=True, **options), x=x)
            ops.case("avg_pool2d_excluding_" + name, lambda x: F.avg_pool2d(x, size, ceil_mode=True, count_include_pad=False, **options), x=x)
            if x.shape[2] > 2:
                ops.case("avg_pool2d_excluding_floor_" + name, lambda x: F.avg_pool2d(x, size, count_include_pad=False, **options), x=x)
    for x in (torch.randn(2, 3, 10), torch.randn(1, 1, 3)):
        ops.case("max_pool1d_ceil", lambda x: F.max_pool1d(x, 3, stride=2, padding=1, ceil_mode=True), x=x)
        ops.case("avg_pool1d_ceil", lambda x: F.avg_pool1d(x, 3, stride=2, padding=1, ceil_mode=True, count_include_pad=False), x=x)
    for name, x, w, options in (("same", (2, 3, 7, 6), (4, 3, 3, 5), {}), ("same_dilated", (2, 4, 5, 4), (4, 2, 3, 2), dict(dilation=(3, 2), groups=2))):
        ops.case("conv2d_" + name, lambda x, weight, bias: F.conv2d(x, weight, bias, padding="same", **options), x=torch.randn(x), weight=torch.randn(w),
                 bias=torch.randn(w[0]))
    ops.case("conv1d_same", lambda x, weight, bias: F.conv1d(x, weight, bias, padding="same", dilation=2), x=torch.randn(2, 3, 11),
             weight=torch.randn(4, 3, 3), bias=torch.randn(4))
ops.save("convolutions")

# More optimizers and schedules.
torch.manual_seed(4)
ops = family()
for name, make in {
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.02),
        "rmsprop_momentum": lambda p: torch.optim.RMSprop(p, lr=0.02, alpha=0.9, momentum=0.8, weight_decay=0.1),
        "rmsprop_centered": lambda p: torch.optim.RMSprop(p, lr=0.02, alpha=0.9, centered=True),
        "rmsprop_both": lambda p: torch.optim.RMSprop(p, lr=0.02, alpha=0.9, centered=True, momentum=0.8),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
        "adagrad_decay": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.3, weight_decay=0.1, initial_accumulator_value=0.2)}.items():
    for size in (1, 13, 60, 129):
        start, gradients = torch.randn(size), torch.randn(5, size)
        ops.steps(name, make, start, gradients)
for name, make in {"schedule_linear": lambda o: torch.optim.lr_scheduler.LinearLR(o, start_factor=1, end_factor=0.1, total_iters=15),
                   "schedule_final": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=19, eta_min=0.03)}.items():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    scheduler, rates = make(optimizer), []
    for _ in range(20):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    ops.tensors[f"{name}/0/y"] = torch.tensor(rates, dtype=torch.float64)
ops.save("more_optimizers")

# Running products: with one and several zeros in a line, and of integers.
torch.manual_seed(4)
ops = family()
for shape in shapes:
    for dim in range(3):
        x = torch.randn(shape)
        for name, step in ("apart", 0), ("zeros", 4):
            if step:
                x.view(-1)[1::step] = 0.0
                x.view(-1)[3::2 * step] = -0.0
            ops.case(f"cumprod_{name}_{dim}", lambda x: torch.cumprod(x, dim), x=x)
for t, dtype in {**types, "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8, "bool": torch.bool}.items():
    whole = torch.randint(-3, 4, (3, 5, 7))
    ops.case(f"cumprod_{t}", lambda x: torch.cumprod(x, 1), differentiated=dtype.is_floating_point,
             x=whole.abs().to(dtype) if t == "u8" else whole.to(dtype))

# einsum equations: different extents of letters, among them 0 and 1.
two = ["ij,jk->ik", "ij,jk", "ij,kj->ki", "bij,bjk->bik", "ibj,bjk->kbi", "bthd,bshd->bhts", "bthd,hde->bte", "ijk,kjl->li", "ij,j->i", "j,ij->i",
       "ij,k->ki", "bi,ib->b", "ij,ij->", "ij,ji->ij", "ijk,jl->ki", "ac,cB", ", i -> i", "abcd,ce->abed"]
one = ["ijk->kij", "ijk->ki", "ijk->", "kji", "ijk->ijk"]
for extents in [(2, 3, 5, 7), (1, 4, 1, 6), (3, 0, 2, 5), (5, 1, 13, 2)]:
    for number, equation in enumerate(one + two):
        size = {}
        for letter in filter(str.isalpha, equation):
            size.setdefault(letter, extents[len(size) % len(extents)])
        terms = equation.replace(" ", "").split("->")[0].split(",")
        operands = {name: torch.randn([size[letter] for letter in term]) for name, term in zip("ab", terms)}
        ops.case(f"einsum_{number}", lambda *x: torch.einsum(equation, *x), **operands)
for t, dtype in types.items():
    ops.case(f"einsum_{t}", lambda a, b: torch.einsum("bij,jk->bik", a, b), a=torch.randn(2, 3, 17).to(dtype), b=torch.randn(17, 5).to(dtype))
ops.save("products")

# Recurrent layers: parameters have the names in the state_dict of torch.nn's modules. From here on random numbers are
# separate, so that the other files do not change.
torch.manual_seed(4)
ops = family()


def of_module(name, make, f, **operands):
    """A case of f(call, *operands), where call(...) is the module that `make` creates, and its parameters are operands."""
    module = make()
    given = list(operands)
    parameters = {k: v.detach() for k, v in module.state_dict().items()}

    def with_parameters(*leaves):
        values = dict(zip([*given, *parameters], leaves))
        return f(lambda *a: torch.func.functional_call(module, {k: values[k] for k in parameters}, a), *(values[k] for k in given))

    ops.case(name, with_parameters, **operands, **parameters)


def outputs_and_last_cell(out, state):
    return torch.cat([out, state[1]])


for length, batch, width, hidden in [(5, 3, 7, 5), (1, 1, 1, 1), (9, 2, 3, 4), (19, 1, 2, 3)]:
    x, row = torch.randn(length, batch, width), torch.randn(batch, width)
    h, c = torch.randn(2, batch, hidden).unbind(0)
    of_module("lstm_cell", lambda: torch.nn.LSTMCell(width, hidden), lambda call, x, h, c: torch.stack(call(x, (h, c))), x=row, h=h, c=c)
    of_module("gru_cell", lambda: torch.nn.GRUCell(width, hidden), lambda call, x, h: call(x, h), x=row, h=h)
    of_module("lstm", lambda: torch.nn.LSTM(width, hidden), lambda call, x: call(x)[0], x=x)
    of_module("lstm_from", lambda: torch.nn.LSTM(width, hidden),
              lambda call, x, h, c: outputs_and_last_cell(*call(x, (h[None], c[None]))), x=x, h=h, c=c)
    of_module("gru", lambda: torch.nn.GRU(width, hidden), lambda call, x: call(x)[0], x=x)
    of_module("gru_from", lambda: torch.nn.GRU(width, hidden), lambda call, x, h: call(x, h[None])[0], x=x, h=h)
ops.save("recurrent")

# Group norm, and rotary positions as in GPT-NeoX and LLaMA: the first half of the features is paired with the second.
torch.manual_seed(5)
ops = family()
for shape, groups in [((3, 6, 5), 2), ((2, 6, 3, 7), 3), ((1, 4, 1, 1), 1), ((5, 6), 6), ((2, 12, 5, 1, 3), 4), ((2, 6, 61), 2)]:
    x, w, b = torch.randn(shape), torch.randn(shape[1]), torch.randn(shape[1])
    ops.case(f"group_norm_{len(shape)}_{groups}", lambda x, w, b: F.group_norm(x, groups, w, b), x=x, w=w, b=b)


def rotary(x, first, base):
    """Rotary positions of [batch, position, head, feature], as in Hugging Face's apply_rotary_pos_emb."""
    width = x.shape[-1]
    frequency = 1.0 / (base ** (torch.arange(0, width, 2, dtype=torch.int64).float() / width))
    angle = (torch.arange(x.shape[1]) + first)[:, None].float() * frequency
    angle = torch.cat([angle, angle], -1)[:, None]
    turned = torch.cat([-x[..., width // 2:], x[..., : width // 2]], -1)
    return x * angle.cos() + turned * angle.sin()


for batch, positions, heads, width, first, base in [
        (2, 5, 3, 8, 0, 1e4), (1, 7, 1, 2, 3, 1e4), (2, 1, 2, 10, 100, 1e4), (1, 67, 2, 6, 0, 5e5), (3, 4, 1, 34, 1000, 1e4)]:
    number = ops.counts.get("rotary", -1) + 1
    ops.case("rotary", lambda x: rotary(x, first, base), x=torch.randn(batch, positions, heads, width))
    ops.tensors[f"rotary/{number}/first"] = torch.tensor([first])
    ops.tensors[f"rotary/{number}/base"] = torch.tensor([base], dtype=torch.float64)
ops.save("groups")

# Batch norm: a training batch, which updates the running statistics, and an inference batch, which reads them.
torch.manual_seed(6)
ops = family()
for shape, momentum in [((4, 3), 0.1), ((5, 4, 7), 0.25), ((2, 3, 5, 4), 0.1), ((1, 5, 1, 3), 1.0), ((3, 1, 2, 3, 2), 0.0), ((67, 19), 0.1)]:
    x, w, b = torch.randn(shape) * 3 + 1, torch.randn(shape[1]), torch.randn(shape[1])
    before = {"running_mean": torch.randn(shape[1]), "running_var": torch.rand(shape[1]) + 0.5}
    for training in [True, False]:
        name = f"{'training' if training else 'inference'}_{len(shape)}"
        number = ops.counts.get(name, -1) + 1
        running = {k: v.clone() for k, v in before.items()}
        ops.case(name, lambda x, weight, bias: F.batch_norm(x, *running.values(), weight, bias, training, momentum), x=x, weight=w, bias=b)
        for k in before:
            ops.tensors[f"{name}/{number}/{k}"] = before[k].clone()
            ops.tensors[f"{name}/{number}/after.{k}"] = running[k]
        ops.tensors[f"{name}/{number}/momentum"] = torch.tensor([momentum], dtype=torch.float64)
ops.save("batch_norm")

# Muon, with its matrix products in f32 instead of bf16; L-BFGS; schedules that change direction.
torch.manual_seed(6)
ops = family()
in_bfloat16 = torch.Tensor.bfloat16
torch.Tensor.bfloat16 = lambda t: t.clone()
for name, options in {"muon": {}, "muon_plain": dict(nesterov=False, ns_steps=3, momentum=0.8, weight_decay=0),
                      "muon_rms": dict(adjust_lr_fn="match_rms_adamw")}.items():
    for rows, columns in (1, 1), (5, 7), (13, 4), (19, 23), (1, 9):
        start, gradients = torch.randn(rows, columns), torch.randn(3, rows, columns)
        ops.steps(name, lambda p: torch.optim.Muon(p, lr=0.02, **options), start, gradients)
torch.Tensor.bfloat16 = in_bfloat16
for name, options in {"lbfgs": dict(lr=0.3, max_iter=6), "lbfgs_search": dict(max_iter=8, line_search_fn="strong_wolfe"),
                      "lbfgs_short": dict(max_iter=5, max_eval=9, history_size=2, line_search_fn="strong_wolfe")}.items():
    x, y, start = torch.randn(17, 5).double(), torch.rand(17, 3).double(), torch.randn(5, 3).double()
    w, b = torch.nn.Parameter(start.clone()), torch.nn.Parameter(torch.zeros(3).double())
    optimizer, ends, losses, calls = torch.optim.LBFGS([w, b], **options), [], [], 0

    def loss():
        global calls
        calls += 1
        optimizer.zero_grad()
        value = ((torch.tanh(x @ w + b) - y) ** 2).mean() + 0.01 * (w ** 2).sum()
        value.backward()
        return value
    for _ in range(5):
        losses.append(float(optimizer.step(loss).detach()))
        ends.append(w.detach().clone())
    for k, v in {"x": x, "target": y, "start": start, "y": torch.stack(ends), "bias": b.detach(),
                 "losses": torch.tensor(losses, dtype=torch.float64), "calls": torch.tensor([calls])}.items():
        ops.tensors[f"{name}/0/{k}"] = v.contiguous().clone()
for name, options in {"one_cycle": {}, "one_cycle_lines": dict(anneal_strategy="linear", pct_start=0.4, div_factor=10, final_div_factor=100),
                      "one_cycle_phases": dict(three_phase=True, base_momentum=0.8, max_momentum=0.9), "one_cycle_down": dict(pct_start=0.0)}.items():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.3, total_steps=20, **options)
    rates, momenta = [], []
    for s in range(20):
        rates.append(optimizer.param_groups[0]["lr"])
        momenta.append(optimizer.param_groups[0]["momentum"])
        if s < 19:
            optimizer.step()
            scheduler.step()
    ops.tensors[f"{name}/0/y"] = torch.tensor(rates, dtype=torch.float64)
    ops.tensors[f"{name}/0/momenta"] = torch.tensor(momenta, dtype=torch.float64)
figures = torch.cat([torch.linspace(3, 1, 6), torch.ones(9), torch.tensor([nan, 0.99995, 0.9, 0.9, 0.89]), torch.rand(20) + 0.8]).double()
for name, options in {"plateau": dict(patience=2), "plateau_absolute": dict(patience=1, threshold=0.05, threshold_mode="abs", cooldown=3),
                      "plateau_maximize": dict(mode="max", factor=0.5, patience=3, threshold=0.01, min_lr=0.02),
                      "plateau_stays": dict(patience=0, min_lr=0.299999999)}.items():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    scheduler, rates = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options), []
    for figure in figures.tolist():
        scheduler.step(figure)
        rates.append(optimizer.param_groups[0]["lr"])
    ops.tensors[f"{name}/0/figures"] = figures.clone()
    ops.tensors[f"{name}/0/y"] = torch.tensor(rates, dtype=torch.float64)
ops.save("optimizers_and_schedules")

# Norms, with rows of zeros; negative slopes.
ops = family()
for shape in shapes:
    x = torch.randn(shape)
    if 0 not in shape:
        x[0, 0] = 0
    for key, dim in dims.items():
        ops.case("vector_norm_" + key, lambda x: torch.linalg.vector_norm(x, dim=dim), x=x)
    for dim in range(3):
        ops.case(f"normalize_{dim}", lambda x: F.normalize(x, dim=dim), x=x)
for values in [torch.randn(s) for s in shapes] + [special.reshape(1, 1, -1)]:
    ops.case("leaky_relu", lambda x: F.leaky_relu(x, 0.25), x=values)
    ops.case("elu", lambda x: F.elu(x, 1.5), x=values)
with torch.random.fork_rng():
    for shape in shapes:
        x, y = torch.randn(2, *shape)
        if 0 not in shape:
            x[0, 0] = 0
        for dim in range(3):
            ops.case(f"cosine_similarity_{dim}", lambda x, y: F.cosine_similarity(x, y, dim), a=x, b=y)
    ops.case("cosine_similarity_each", lambda x, y: F.cosine_similarity(x, y, -1, 0.5), a=torch.randn(3, 1, 13), b=torch.randn(5, 13))
    alone = special[~(special.abs() > 1e18) | special.isinf()].reshape(1, 1, -1)  # squares of others overflow
    ops.case("cosine_similarity_0", lambda x, y: F.cosine_similarity(x, y, 0), differentiated=False, a=alone, b=alone.flip(2))
    ops.case("cosine_similarity_2", lambda x, y: F.cosine_similarity(x, y, 2), a=torch.randn(2, 3, 5) * 1e15, b=torch.randn(2, 3, 5) * 1e-6)
ops.save("norms_and_slopes")

# Losses of two tensors: at the border between both branches, at 0, for rows of probabilities with a class that does not occur.
ops = family()
for rows, width in [(3, 1), (5, 7), (2, 60), (1, 37), (0, 4)]:
    x, t, p = torch.randn(rows, width), torch.randn(rows, width), torch.rand(rows, width)
    if rows * width > 3:
        t.view(-1)[0], t.view(-1)[1] = x.view(-1)[0], x.view(-1)[1] + 0.5
        p.view(-1)[2] = 0.0
    p = p / p.sum(1, keepdim=True)
    for reduction in ("mean", "sum", "none"):
        if rows == 0 and reduction == "mean":
            continue
        ops.case("l1_" + reduction, lambda x, t: F.l1_loss(x, t, reduction=reduction), x=x, t=t)
        ops.case("huber_" + reduction, lambda x, t: F.huber_loss(x, t, reduction=reduction, delta=0.5), x=x, t=t)
        ops.case("smooth_l1_" + reduction, lambda x, t: F.smooth_l1_loss(x, t, reduction=reduction, beta=0.5), x=x, t=t)
        ops.case("kl_div_" + reduction, lambda x, t: F.kl_div(F.log_softmax(x, 1), t, reduction=reduction), x=x, t=p + 0.01)
        ops.case("soft_" + reduction, lambda x, t: F.cross_entropy(x, t, reduction=reduction), x=x, t=p)
        ops.case("soft_smooth_" + reduction, lambda x, t: F.cross_entropy(x, t, reduction=reduction, label_smoothing=0.1), x=x, t=p)
    ops.case("kl_div_of_zeros", lambda x, t: F.kl_div(x, t, reduction="none"), differentiated=False, x=x, t=p)
for rows, width in [(3, 1), (5, 7), (1, 37)]:
    x, labels = F.log_softmax(torch.randn(rows, width), 1), torch.randint(width, (rows,))
    labels[0] = -100 if rows > 1 else 0
    a, p, n = torch.randn(3, rows, width)
    for reduction in ("mean", "sum", "none"):
        ops.case("nll_" + reduction, lambda x, t: F.nll_loss(x, t, reduction=reduction), x=x, t=labels)
        ops.case("triplet_" + reduction, lambda a, p, n: F.triplet_margin_loss(a, p, n, 0.7, reduction=reduction), a=a, p=p, n=n)
with torch.random.fork_rng():
    for rows, width in [(5, 1), (6, 7), (2, 61), (0, 4)]:
        x, y, target = *torch.randn(2, rows, width), torch.randint(0, 2, (rows,)) * 2 - 1
        if rows == 6:
            x[0], y[1], target[2] = 0, x[1], 0
        for reduction in ("mean", "sum", "none"):
            if rows > 0 or reduction != "mean":
                for name, margin in (("", 0.0), ("_margin", 0.25)):
                    ops.case(f"cosine{name}_{reduction}", lambda x, y, t: F.cosine_embedding_loss(x, y, t, margin, reduction=reduction), a=x, b=y, t=target)
with torch.random.fork_rng():
    for rows, width in [(5, 1), (6, 7), (2, 61)]:
        x, y, p = torch.randn(rows, width), torch.rand(rows, width), torch.rand(rows, width)
        a, weights, signs = torch.randn(rows, width), torch.rand(width) + 0.5, torch.randint(0, 2, (rows, width)) * 2.0 - 1
        labels = torch.randint(0, width, (rows,))
        for reduction in ("mean", "sum", "none"):
            ops.case("bce_weighted_" + reduction, lambda x, t, w: F.binary_cross_entropy_with_logits(x, t, pos_weight=w.detach(), reduction=reduction), x=x, t=y, w=weights)
            ops.case("bce_of_probabilities_" + reduction, lambda x, t: F.binary_cross_entropy(x, t, reduction=reduction), x=p, t=y)
            ops.case("ranking_" + reduction, lambda a, b, t: F.margin_ranking_loss(a, b, t, 0.25, reduction=reduction), a=x, b=a, t=signs)
            ops.case("hinge_" + reduction, lambda x, t: F.hinge_embedding_loss(x, t, 0.75, reduction=reduction), x=x, t=signs)
            ops.case("kl_of_logarithms_" + reduction, lambda x, t: F.kl_div(x, t, reduction=reduction, log_target=True), x=x, t=y.log())
            ops.case("nll_weighted_" + reduction, lambda x, t, w: F.nll_loss(x, t, weight=w.detach(), reduction=reduction), x=x, t=labels, w=weights)
ops.save("losses")

# Variances, also of equal numbers and of numbers far from 0, and with fewer elements than the correction.
ops = family()
for shape in shapes:
    x = torch.randn(shape)
    if 0 not in shape:
        x[0] = 0.1
    for key, dim in dims.items():
        for correction in (0, 1):
            ops.case(f"var{correction}_{key}", lambda x: torch.var(x, dim=dim, correction=correction), x=x)
            ops.case(f"std{correction}_{key}", lambda x: torch.std(x, dim=dim, correction=correction), x=x)
    ops.case("far", lambda x: torch.var(x, dim=2, keepdim=True), differentiated=False, x=x * 0.01 + 4096)
ops.save("variances")

# Cross-entropy with class weights, with ignored labels and with classes of weight 0.
ops = family()
for rows, width in [(3, 2), (5, 7), (1, 61)]:
    x, labels, weights = torch.randn(rows, width), torch.randint(width, (rows,)), torch.rand(width)
    weights[labels[0]] = 0.0 if rows > 1 else 1.0
    labels[1 if rows > 1 else 0] = -100 if rows > 3 else labels[1 if rows > 1 else 0]
    for reduction in ("mean", "sum", "none"):
        ops.case("weighted_" + reduction, lambda x, t, w: F.cross_entropy(x, t, w.detach(), reduction=reduction), x=x, t=labels, w=weights)
ops.save("class_weights")
