#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains random models, sharded over ranks in several ways, and compares with one rank and, with --pytorch, with PyTorch.

    models.py --models 20 --seed 7
    models.py --models 20 --seed 7 --pytorch            # needs torch and safetensors
    models.py --seed 7 --first 12 --models 1 --keep     # one of them again

A model is composed of the layers of training.hpp; their PyTorch counterparts are written here independently. A setting that promises bitwise
identical results (parallel_options::keeps_bits) must match one rank bitwise; other losses may differ by the order of sums.
"""
import argparse
import concurrent.futures
import pathlib
import random
import re
import shlex
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


class Model:
    """A random model and its training, determined by seed and number."""

    def __init__(self, seed, number):
        self.rng = r = random.Random(f"{seed}/{number}")
        self.name = f"m{number}"
        self.kind = r.choice(("data", "stages", "stages", "layers", "layers", "sequence", "positions", "experts"))
        self.divides = self.kind in ("layers", "sequence")  # no dims of the static extent 1
        self.heads = r.choice((1, 2, 3, 4))
        self.c = self.heads * r.choice((2, 3, 5, 8) if self.divides else (1, 2, 3, 5, 8))
        self.batch, self.positions = r.choice((1, 2, 3, 5)), r.choice((2, 4, 5, 7) if self.kind == "sequence" else (1, 2, 4, 5, 7))
        self.words = r.choice((3, 7, 11, 60))
        self.out = r.choice((1, 2, 3, 7))
        self.tokens = r.random() < 0.6 or self.kind in ("sequence", "positions")
        self.tied = self.tokens and r.random() < 0.5
        self.dynamic = r.random() < 0.4
        self.layers = [self.layer(3) for _ in range(r.randint(1, 4))]
        if self.kind == "experts":
            self.layers.insert(r.randint(0, len(self.layers)), self.mixture())
        if self.kind == "stages":  # only a block's output may cross stages
            self.blocks = r.randint(2, 5)
            self.layers.insert(r.randint(0, len(self.layers)), ("repeated", self.layer(2), self.blocks))
        self.back = [self.layer(2) for _ in range(r.randint(0, 2))]
        losses = ("mse", "huber", "probabilities", "l1")
        if self.tokens:
            losses = ("labels", "labels", "ignored", "smooth") if self.kind != "positions" else ("labels", "smooth")
        self.loss = r.choice(losses)
        self.statements = r.choice((0, 0, 1, 2))
        self.total = r.choice((1, 2, 3, 4, 4, 6, 8))
        self.clip = r.choice((0, 0, 0.05, 0.5))
        self.precision = r.choice(("f32", "f32", "f32", "bf16"))
        self.optimizer = r.choice(list(OPTIMIZERS))
        self.steps = 4
        self.settings = [self.setting() for _ in range(5)]
        self.plan, self.meshes = None, []
        if self.kind == "stages":
            self.plan = r.choice(("pp<>", "pp<>, dp", "pp<>, fsdp<1>", "pp<>, fsdp<3>"))
        elif self.kind != "data":
            axis = {"layers": ("tp<>",), "sequence": ("tp<activations::by_positions>",), "positions": ("cp<>", "cp<ulysses>"), "experts": ("ep",)}
            self.plan = r.choice(("", "dp, ", "fsdp<2>, ")) + r.choice(axis[self.kind])
        if self.kind == "stages" or (self.kind == "positions" and self.statements == 2):
            self.statements = 0
        if self.plan:
            self.meshes = [self.stage_mesh() if self.kind == "stages" else self.mesh() for _ in range(2)]

    def layer(self, depth):
        """(name, parameters...) of a layer that keeps the shape."""
        r = self.rng
        hidden = r.choice((5, 8, 13) if self.divides else (1, 2, 5, 8, 13))
        leaves = [("mlp", hidden, r.choice(list(ACTIVATIONS)))] * 3 + [
            ("mlp_of_run_time_sizes", hidden, r.choice(list(ACTIVATIONS))), ("gated", hidden), ("scaled",), ("mixing",),
            ("self_gated",)]
        if self.kind != "positions":  # random numbers of a position depend on its rank
            leaves += [("dropped",)]
        if not self.divides:
            leaves += [self.mixture()]
        if self.c > 1:
            leaves += [("halves_swapped",), ("layer_normalization",), ("rms_normalization",)]
        if self.tokens:
            leaves += [("attending", r.random() < 0.7)] * 2
        if self.tokens and self.kind not in ("sequence", "positions"):
            leaves += [("over_time", r.choice(("gru", "lstm"))), ("convolved",), ("summed_up",)]
        kind = r.random()
        if depth == 0 or kind < 0.3:
            return r.choice(leaves)
        inner = self.layer(depth - 1)
        if kind < 0.5:
            return ("residual", inner)
        if kind < 0.65 and self.c > 1:
            return ("normed", r.choice(("layer_normalization", "rms_normalization")), inner)
        if kind < 0.75:
            return ("chain", inner, self.layer(depth - 1))
        if kind < 0.79:
            return ("twice", inner)
        if kind < 0.82:
            return ("shared_by_two", inner)
        if kind < 0.86:
            return ("frozen", inner)
        is_nested = self.kind == "stages" or contains(inner, "repeated")
        return ("residual", inner) if is_nested else ("repeated", inner, r.randint(1, 3))

    def mixture(self):
        r = self.rng
        experts = r.randint(1, 4)
        return ("mixture", ("mlp", r.choice((2, 5, 8)), r.choice(list(ACTIVATIONS))), experts, r.randint(1, experts))

    def mesh(self):
        r = self.rng
        axis = {"layers": "tp", "sequence": "tp", "positions": "cp", "experts": "ep"}[self.kind]
        fits = {"tp": lambda n: self.heads % n == 0 and n <= self.words, "cp": lambda n: n <= self.positions, "ep": lambda n: self.total % n == 0}[axis]
        n = r.choice([n for n in (2, 3, 4) if fits(n)] or [1])
        left = self.total // n if axis == "ep" else self.total
        data = next((a for a in ("fsdp", "dp") if a in self.plan), None)
        sizes = {axis: n}
        if data:
            sizes = {data: r.choice([m for m in (1, 2) if left % m == 0]), **sizes}
        recompute = r.choice((0, 0, 100))
        text = ", ".join(f".{a} = {n}" for a, n in sizes.items())
        return f'{{"{text}, recompute {recompute}", {{{text}}}, "", false, {recompute}}}'

    def stage_mesh(self):
        r = self.rng
        axis = "fsdp" if "fsdp" in self.plan else "dp"
        n = r.choice([n for n in (1, 2) if self.total % n == 0]) if "," in self.plan else 1
        pp, m = r.choice([p for p in (2, 3) if p <= self.blocks]), self.total // n
        schedules = ["1f1b", "gpipe"]
        if self.blocks >= 2 * pp and m % pp == 0:
            schedules += ["interleaved:2", "breadth-first:2"]
        schedule, same, recompute = r.choice(schedules), r.random() < 0.7, r.choice((0, 0, 100))
        same = same and (m & (m - 1) == 0 if "fsdp<3>" not in self.plan else m == 1 or n & (n - 1) == 0)
        sizes = f".pp = {pp}, .{axis} = {n}"
        return (f'{{"{sizes}, {schedule}, {"deterministic" if same else ""}, recompute {recompute}", {{{sizes}}}, "{schedule}", '
                f'{str(same).lower()}, {recompute}}}')

    def setting(self):
        r = self.rng
        ranks = r.choice([n for n in (1, 2, 3, 4) if self.total % n == 0])
        divide = r.choice(("none", "optimizer", "gradients", "parameters", "parameters"))
        o = {"divide": f"sharding::{divide}", "deterministic": "true" if r.random() < 0.7 else "false"}
        if divide != "none" and ranks == 4 and r.random() < 0.4:
            o["shard_ranks"] = "2"
        if divide == "parameters" and r.random() < 0.3:
            o["reshard_after_forward"] = "false"
        if divide == "parameters" and r.random() < 0.3:
            o["prefetch"] = r.choice(("0", "2"))
        if divide in ("none", "optimizer") and r.random() < 0.4:
            o["bucket_bytes"], o["first_bucket_bytes"] = r.choice((("64", "16"), ("1000", "100")))
        if divide == "parameters" and r.random() < 0.15:
            o["param_dtype"] = "dtype::bf16"
        if r.random() < 0.1:
            o["reduce_dtype"] = r.choice(("dtype::bf16", "dtype::f16"))
        if divide == "parameters" and ranks > 1 and r.random() < 0.15:
            o["offload_parameters"] = "another_device()"
        if r.random() < 0.15:
            o["offload_optimizer"] = "another_device()"
        if r.random() < 0.15:
            o["unit"] = "first_name"
        recompute = r.choice((0, 0, 1, 100))
        made_later = r.random() < 0.3
        text = ", ".join(f".{k} = {o[k]}" for k in OPTIONS if k in o)
        name = f"{ranks} ranks, {text.replace('sharding::', '')}, recompute {recompute}{', deferred' if made_later else ''}"
        return f'{{"{name}", {ranks}, {{{text}}}, {recompute}, {str(made_later).lower()}}}'

    def draws(self):
        return any(contains(l, "dropped") for l in self.layers + self.back)

    # As C++

    def type(self, layer):
        name, *of = layer
        c = self.c
        if name in ("mlp", "mlp_of_run_time_sizes"):
            return f"{name}<{c}, {of[0]}, {of[1]}_fn>"
        if name == "gated":
            return f"gated<{c}, {of[0]}>"
        if name in ("scaled", "mixing", "convolved", "halves_swapped", "layer_normalization", "rms_normalization"):
            return f"{name}<{c}>"
        if name == "attending":
            return f"attending<{c}, {self.heads}, {str(of[0]).lower()}>"
        if name == "over_time":
            return f"over_time<{c}, {of[0]}<{c}, {c}>>"
        if name == "mixture":
            return f"mixture<{c}, {self.type(of[0])}, {of[1]}, {of[2]}>"
        if name == "normed":
            return f"normed<{of[0]}<{c}>, {self.type(of[1])}>"
        if name == "repeated":
            return f"repeated<{self.type(of[0])}, {of[1]}>"
        if of:
            return f"{name}<{', '.join(self.type(l) for l in of)}>"
        return name

    def members(self):
        first = f"embedding_table<{self.words}, {self.c}{', divided::vocabulary' if self.divides else ''}>" if self.tokens else f"linear<3, {self.c}>"
        all_ = [(first, "first")] + [(self.type(l), f"layer_{i}") for i, l in enumerate(self.layers + self.back)]
        if not self.tied:
            all_.append((f"linear<{self.c}, {self.classes()}>", "head"))
        return all_

    def is_adaptive(self):
        """Whether the optimizer divides gradients by their own size, which amplifies those that are only rounding errors."""
        return self.optimizer in ("adam", "adamw", "amsgrad", "rmsprop")

    def tolerance(self):
        return (2e-2 if self.precision == "bf16" else 2e-5) * (15 if self.is_adaptive() else 1)

    def classes(self):
        return self.words if self.tokens else self.out

    def text(self):
        front = "first(x)"
        for i in range(len(self.layers)):
            front = f"layer_{i}({front})"
        back = "h"
        for i in range(len(self.layers), len(self.layers) + len(self.back)):
            back = f"layer_{i}({back})"
        back = f"matmul({back}, transpose(first.weight))" if self.tied else f"head({back})"
        shape = (self.batch, self.positions) if self.tokens else (self.batch,)
        e = lambda dims: (f"extents<{', '.join(['dyn'] * len(shape) + [str(d) for d in dims])}>{{{', '.join(map(str, shape))}}}" if self.dynamic
                          else f"extents<{', '.join(map(str, shape + tuple(dims)))}>{{}}")
        if self.tokens:
            x = f"words_of({e(())}, number, {self.words})"
            target = f"labels_of({e(())}, number, {self.words})"
            loss = {"labels": "cross_entropy(y, t)", "ignored": "cross_entropy<reduction_kind::mean, 0>(y, t)",
                    "smooth": "cross_entropy<reduction_kind::mean, ignored_label, per_million<100'000>>(y, t)"}[self.loss]
        else:
            x = f"real_numbers({e((3,))}, number, 1)"
            target = f"real_numbers({e((self.out,))}, number, 2)"
            loss = {"mse": "mse_loss(y, t)", "huber": "huber_loss(y, t, 0.7)", "l1": "l1_loss(y, t)",
                    "probabilities": "cross_entropy(y, softmax(t))"}[self.loss]
        members = "\n".join(f"    {t} {n};" for t, n in self.members())
        return f"""
struct {self.name} {{
  struct model {{
{members}
    auto front(expression auto x) const {{ return {front}; }}
    auto back(expression auto h) const {{ return {back}; }}
  }};
  using precision = weft::precision::{self.precision};
  static constexpr auto name = "{self.name}";
  static constexpr int statements = {self.statements}, steps = {self.steps};
  static constexpr index_t total = {self.total}, positions = {self.positions};
  static constexpr bool draws = {str(self.draws()).lower()};
  static constexpr double clip = {self.clip}, tolerance = {self.tolerance()};
  static auto optimizer() {{ return {OPTIMIZERS[self.optimizer][0]}; }}
  static auto input(index_t number) {{ return {x}; }}
  static auto target(index_t number) {{ return {target}; }}
  static auto loss(expression auto y, expression auto t) {{ return {loss}; }}
}};
"""

    def calls(self):
        plan = f", policy<{self.name}::precision, strategy::mesh<{self.plan}>>" if self.plan else ""
        return f'  check<{self.name}{plan}>({{{", ".join(self.settings)}}}, {{{", ".join(self.meshes)}}}, folder);\n'


def contains(layer, name):
    return layer[0] == name or any(contains(l, name) for l in layer[1:] if isinstance(l, tuple))


OPTIONS = ("divide", "shard_ranks", "deterministic", "reshard_after_forward", "prefetch", "bucket_bytes", "first_bucket_bytes",
           "param_dtype", "reduce_dtype", "offload_parameters", "offload_optimizer", "unit")
ACTIVATIONS = ("relu", "gelu", "tanh", "silu")
OPTIMIZERS = {
    "sgd": ("sgd{.lr = 0.05}", "SGD(p, lr=0.05)"),
    "momentum": ("sgd{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01}", "SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01)"),
    "nesterov": ("sgd{.lr = 0.05, .momentum = 0.8, .nesterov = true}", "SGD(p, lr=0.05, momentum=0.8, nesterov=True)"),
    "adam": ("adam(0.01)", "Adam(p, lr=0.01)"),
    "adamw": ("adamw{.lr = 0.01}", "AdamW(p, lr=0.01)"),
    "amsgrad": ("amsgrad{adamw{.lr = 0.01}}", "AdamW(p, lr=0.01, amsgrad=True)"),
    "rmsprop": ("rmsprop{.lr = 0.01}", "RMSprop(p, lr=0.01)"),
}


def compiler_call(o, at):
    """The command that compiles models, with the headers precompiled if the compiler finds the precompiled header itself."""
    call = [o.compiler, "-std=c++20", "-Wno-psabi", "-DWEFT_WITH_TBB=1", "-DWEFT_VERIFY=1", f"-I{o.include}", f"-I{HERE}", *shlex.split(o.flags)]
    if "clang" in o.compiler:
        return [*call, "-fconstexpr-steps=100000000"]
    precompiled = at / "precompiled"
    precompiled.mkdir(exist_ok=True)
    done = subprocess.run([*call, "-x", "c++-header", str(HERE / "training.hpp"), "-o", str(precompiled / "training.hpp.gch")],
                          capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return [call[0], f"-I{precompiled}", *call[1:]]


def trained(m, call, at, o):
    """The errors of a model, and the losses of its training, which are None if it did not run."""
    source = at / f"{m.name}.cpp"
    source.write_text(f'#include "training.hpp"\n\nnamespace models {{\n{m.text()}}}  // namespace models\n\nint main(int, char** argv) {{\n'
                      f"  using namespace models;\n  const std::string folder = argv[1];\n{m.calls()}}}\n")
    binary = source.with_suffix("")
    done = subprocess.run([*call, str(source), "-o", str(binary), *shlex.split(o.libraries)], capture_output=True, text=True, check=False)
    if done.returncode:
        return [f"{m.name} wrong: does not compile: {l[:400]}" for l in done.stderr.splitlines() if "error" in l][:3], []
    try:
        run = subprocess.run([str(binary), str(at)], capture_output=True, text=True, timeout=o.timeout, check=False)
    except subprocess.TimeoutExpired:
        return [f"{m.name} wrong: timed out"], []
    wrong = [l for l in run.stdout.splitlines() if " wrong: " in l]
    if f"{m.name} done" not in run.stdout:
        wrong.append(f"{m.name} wrong: ended with {run.returncode}: {run.stderr[-300:]}")
    losses = [float(x) for l in run.stdout.splitlines() if re.match(r"m\d+ losses", l) for x in l.split()[2:]]
    if not o.keep and not wrong:
        binary.unlink()
        source.unlink()
    return wrong, losses


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", type=int, default=10)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--first", type=int, default=0)
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--compiler", default="g++")
    p.add_argument("--flags", default="-O0")
    p.add_argument("--libraries", default="-ltbb -lpthread -ldl")
    p.add_argument("--include", default=str(HERE.parent.parent / "include"))
    p.add_argument("--build", default="")
    p.add_argument("--timeout", type=int, default=300)
    p.add_argument("--keep", action="store_true", help="sources and programs of models that are right, too")
    p.add_argument("--pytorch", action="store_true", help="compares with the same training in PyTorch")
    o = p.parse_args()
    at = pathlib.Path(o.build or tempfile.mkdtemp(prefix="weft_models_"))
    at.mkdir(parents=True, exist_ok=True)
    models = [Model(o.seed, i) for i in range(o.first, o.first + o.models)]
    failures, call = 0, compiler_call(o, at)
    with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
        for m, (wrong, losses) in zip(models, pool.map(lambda m: trained(m, call, at, o), models)):
            if o.pytorch and losses and not m.draws() and m.precision == "f32":
                import models_pytorch
                wrong += models_pytorch.differences(m, losses, at)
            failures += bool(wrong)
            for line in wrong:
                print(line, flush=True)
    print(f"{o.models} models of seed {o.seed}, {failures} of them wrong; {at}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
