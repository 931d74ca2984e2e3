#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes random programs, well-typed weft expressions over all ops, which tests/random/check.hpp checks.

A program consists of leaves and statements; a statement is an op, its operands and its parameters. Independently of
the library, every op here knows which operands it takes and the type, extents and range of its result, so that a
program can be inferred again after a change. run.py uses this to shrink programs that fail.

    generate.py --seed 7 --programs 300 --per-file 10 --out build/random      # the same seed, the same programs
"""
import argparse
import dataclasses
import math
import pathlib
import random
from dataclasses import dataclass, field

FLOATS = ("f64", "f32", "bf16", "f16")
INTEGERS = ("i64", "i32", "u8")
TYPES = FLOATS + INTEGERS + ("bool",)
CPP = {"f64": "double", "f32": "float", "bf16": "bfloat16", "f16": "float16", "i64": "std::int64_t",
       "i32": "std::int32_t", "u8": "std::uint8_t", "bool": "bool"}
EXACT_BELOW = {"f64": 2.0**40, "f32": 2.0**20, "bf16": 2.0**8, "f16": 2.0**11, "i64": 2.0**40, "i32": 2.0**31, "u8": 256.0,
               "bool": 2.0}
LARGEST = {"f64": 1e6, "f32": 1e5, "bf16": 1e4, "f16": 1e3}
EXTENTS = (1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 5, 6, 7, 8, 11, 13, 16, 17, 23, 31, 37, 60)
MAX_ORDER, MAX_ELEMENTS, MAX_NODES = 6, 480, 60

# Features of programs that --without leaves out.
FEATURES = ("two_open_extents", "numbers_beside_narrow", "index_errors", "narrow_sums")


class Misfit(Exception):
    """Raised if an op does not take these operands."""


def need(condition):
    if not condition:
        raise Misfit


@dataclass(frozen=True)
class Dim:
    size: int
    static: bool

    def text(self):
        return str(self.size) if self.static else "dyn"


ONE = Dim(1, True)


@dataclass(frozen=True)
class Value:
    type: str
    dims: tuple
    low: float = -1.0  # bounds of finite elements
    high: float = 1.0
    exact: bool = False  # integers, computed without rounding: comparisons and jumps are well defined
    special: bool = False  # may hold NaN and infinities

    def sizes(self):
        return tuple(d.size for d in self.dims)

    def elements(self):
        return math.prod(self.sizes())

    def order(self):
        return len(self.dims)

    def floating(self):
        return self.type in FLOATS

    def extents(self):
        return "extents<" + ", ".join(d.text() for d in self.dims) + ">"

    def largest(self):
        return max(abs(self.low), abs(self.high))

    def like(self, **changes):
        return dataclasses.replace(self, **changes)


@dataclass
class Leaf:
    value: Value
    fill: str  # real, integer, special, label
    tracked: bool = False


@dataclass
class Statement:
    op: str
    operands: list  # names
    params: dict
    shared: bool = False  # bound by a let
    cut: bool = False  # may be evaluated separately


@dataclass
class Program:
    name: str
    mode: str  # value, gradient, second, update, refused
    seed: int
    leaves: dict = field(default_factory=dict)
    statements: dict = field(default_factory=dict)  # in order; the last is the result

    def inferred(self):
        """The values by name. Raises Misfit if the program is not well typed."""
        values = {name: leaf.value for name, leaf in self.leaves.items()}
        for name, s in self.statements.items():
            values[name] = OPS[s.op].infer(s.params, *(values[o] for o in s.operands))
            check_limits(values[name])
        return values

    def result(self):
        return next(reversed(self.statements)) if self.statements else next(iter(self.leaves))


def check_limits(v):
    need(v.order() <= MAX_ORDER and v.elements() <= MAX_ELEMENTS)
    if v.floating():
        need(v.largest() <= LARGEST[v.type])


def settled(v):
    """Whether a result is exact in its type; integers wrap."""
    if v.type in INTEGERS:
        limit = EXACT_BELOW[v.type]
        lowest = 0 if v.type == "u8" else -limit
        if v.low < lowest or v.high >= limit:
            v = v.like(low=lowest, high=limit - 1)
        return v.like(exact=True)
    if v.type == "bool":
        return v.like(low=0, high=1, exact=True)
    return v.like(exact=v.exact and v.largest() < EXACT_BELOW[v.type])
# ---------------------------------------------------------------------------------------------------- laws

def dim_text(dim, order, right):
    """A random dim of `order`, counted from the left or from the right."""
    return str(dim - order if right else dim)


def unify(a, b):
    need(a.size == b.size)
    return a if a.static else b


def broadcast_dims(a, b):
    out = []
    for i in range(max(len(a), len(b))):
        x = a[len(a) - 1 - i] if i < len(a) else ONE
        y = b[len(b) - 1 - i] if i < len(b) else ONE
        out.append(y if x == ONE else x if y == ONE else unify(x, y))
    return tuple(reversed(out))


def broadcast(*values):
    dims = values[0].dims
    for v in values[1:]:
        dims = broadcast_dims(dims, v.dims)
    return dims


def promoted(a, b):
    if a == b:
        return a
    if a in FLOATS and b in FLOATS:
        return "f64" if "f64" in (a, b) else "f32"
    if a in FLOATS:
        return a
    if b in FLOATS:
        return b
    return min(a, b, key=TYPES.index)


def floating(t):
    return t if t in FLOATS else "f32"


def reshaped(dims, target):
    """`target` holds sizes; at most one is None, for the inferred extent."""
    left = right = 0
    known = lambda d, t: t is not None and d.static and d.size == t
    while left < len(dims) and left < len(target) and known(dims[left], target[left]):
        left += 1
    while (right < len(dims) - left and right < len(target) - left and
           known(dims[-1 - right], target[-1 - right])):
        right += 1
    inner = dims[left:len(dims) - right]
    total, static = math.prod(d.size for d in inner), all(d.static for d in inner)
    out = []
    rest = math.prod(t for t in target[left:len(target) - right] if t is not None)
    for t in target:
        if t is not None:
            out.append(Dim(t, True))
        elif rest == 0:  # any extent would do
            raise Misfit
        else:
            need(total % rest == 0)
            out.append(Dim(total // rest, static))
    need(math.prod(d.size for d in out) == math.prod(d.size for d in dims))
    return tuple(out)


# ---------------------------------------------------------------------------------------------------- ops

OPS = {}


class Op:
    """An op: `propose` finds operands and parameters, `infer` returns the result's type and shape, `text` the source."""
    name = ""
    smooth = True  # a gradient may flow through it

    def propose(self, g):
        raise NotImplementedError

    def infer(self, p, *v):
        raise NotImplementedError

    def text(self, p, *names):
        raise NotImplementedError


def register(cls):
    made = cls()
    OPS[made.name] = made
    return cls


class Unary(Op):
    def __init__(self, name, low, high, out, exact=False, smooth=True, integers="float", special=True):
        self.name, self.low, self.high, self.out = name, low, high, out
        self.keeps_exact, self.smooth, self.integers, self.takes_special = exact, smooth, integers, special

    def propose(self, g):
        return [g.pick(lambda v: self.low <= v.low and v.high <= self.high)], {}

    def infer(self, p, x):
        need(self.low <= x.low and x.high <= self.high)
        need(not x.special or self.takes_special)
        need(self.smooth or x.exact or x.special)
        type_ = x.type
        if not x.floating():
            need(self.integers != "none" and (x.type != "bool" or self.integers == "float"))
            type_ = "f32" if self.integers == "float" else x.type
        low, high = self.out(x.low, x.high)
        return settled(Value(type_, x.dims, low, high, x.exact and self.keeps_exact, x.special))

    def text(self, p, x):
        return ("-%s" if self.name == "negate" else self.name + "(%s)") % x


def register_unary(*args, **named):
    op = Unary(*args, **named)
    OPS[op.name] = op


def spread(f):
    return lambda a, b: (min(f(a), f(b)), max(f(a), f(b)))


def abs_range(a, b):
    return (0.0 if a <= 0 <= b else min(abs(a), abs(b)), max(abs(a), abs(b)))


BIG = 1e9
register_unary("negate", -BIG, BIG, lambda a, b: (-b, -a), exact=True, integers="same")
register_unary("abs", -BIG, BIG, abs_range, exact=True, integers="same")
register_unary("exp", -20, 5, spread(math.exp))
register_unary("expm1", -20, 5, spread(math.expm1))
register_unary("log", 0.05, BIG, spread(math.log))
register_unary("log1p", -0.6, BIG, spread(math.log1p))
register_unary("sqrt", 0.02, BIG, spread(math.sqrt))
register_unary("rsqrt", 0.02, BIG, spread(lambda x: x**-0.5))
register_unary("sin", -50, 50, lambda a, b: (-1.0, 1.0), special=False)
register_unary("cos", -50, 50, lambda a, b: (-1.0, 1.0), special=False)
register_unary("tanh", -BIG, BIG, spread(math.tanh))
register_unary("atan", -BIG, BIG, spread(math.atan))
register_unary("asin", -0.99, 0.99, spread(math.asin), integers="none")
register_unary("acos", -0.99, 0.99, spread(math.acos), integers="none")
register_unary("erf", -BIG, BIG, spread(math.erf))
register_unary("sign", -BIG, BIG, lambda a, b: (-1.0, 1.0), exact=True, smooth=False, integers="none", special=False)
register_unary("floor", -1e5, 1e5, lambda a, b: (math.floor(a), math.floor(b)), exact=True, smooth=False, integers="none")
register_unary("round", -1e5, 1e5, lambda a, b: (round(a), round(b)), exact=True, smooth=False, integers="none")
register_unary("relu", -BIG, BIG, lambda a, b: (max(a, 0.0), max(b, 0.0)), exact=True, integers="none")
register_unary("sigmoid", -30, 30, lambda a, b: (0.0, 1.0), integers="none")
register_unary("silu", -30, 1e3, lambda a, b: (-0.3, max(b, 0.0)), integers="none", special=False)
# For negative x, 1 + erf(x) cancels and the result is small: accurate to the formula, not to the type
register_unary("gelu", -1, 1e3, lambda a, b: (-0.2, max(b, 0.0)), integers="none", special=False)
register_unary("gelu_tanh", -10, 10, lambda a, b: (-0.2, max(b, 0.0)), integers="none", special=False)
register_unary("softplus", -30, 1e3, lambda a, b: (0.0, max(b, 0.0) + 0.7), integers="none")
register_unary("leaky_relu", -BIG, BIG, lambda a, b: (min(a, a * 0.01), max(b, b * 0.01)), integers="none")
register_unary("elu", -30, BIG, lambda a, b: (max(a, -1.0) if a < 0 else a, max(b, 0.0)), integers="none")
register_unary("square", -300, 300, lambda a, b: tuple(x * x for x in abs_range(a, b)), exact=True, integers="none")


def products(a, b, c, d):
    all_ = (a * c, a * d, b * c, b * d)
    return min(all_), max(all_)


class Binary(Op):
    def __init__(self, name, sign=""):
        self.name, self.sign = name, sign

    def propose(self, g):
        x = g.pick(lambda v: v.type != "bool" or self.name not in ("subtract", "divide", "pow"))
        return g.pair(x), {}

    def infer(self, p, x, y):
        type_ = promoted(x.type, y.type)
        need(not (type_ == "bool" and self.name in ("subtract", "divide", "pow")))
        special, exact = x.special or y.special, x.exact and y.exact
        if self.name == "add":
            low, high = x.low + y.low, x.high + y.high
        elif self.name == "subtract":
            low, high = x.low - y.high, x.high - y.low
        elif self.name == "multiply":
            low, high = products(x.low, x.high, y.low, y.high)
        elif self.name == "divide":
            need(y.low >= 0.2 or y.high <= -0.2)
            low, high = products(x.low, x.high, 1 / y.low, 1 / y.high)
            type_, exact = floating(type_), False
        elif self.name == "pow":
            need(x.low >= 0.1 and x.high <= 8 and y.largest() <= 3 and not special)
            low, high = 0.0, max(x.high, 1 / x.low, 1)**y.largest()
            type_, exact = floating(type_), False
        elif self.name in ("floor_divide", "%"):
            need(type_ != "bool" and not special and exact and (type_ in ("i64", "i32") or y.low > 0))
            need(type_ in ("i64", "i32", "u8"))
            largest = max(x.largest(), 0) if self.name == "floor_divide" else max(x.largest(), y.largest())
            low, high = (-largest - 1 if type_ != "u8" else 0), largest
        elif self.name == "atan2":
            need(y.low >= 0.2 and type_ != "bool" and not special)
            low, high, type_, exact = -1.6, 1.6, floating(type_), False
        elif self.name == "maximum":
            low, high = max(x.low, y.low), max(x.high, y.high)
        else:
            low, high = min(x.low, y.low), min(x.high, y.high)
        return settled(Value(type_, broadcast(x, y), low, high, exact, special))

    def text(self, p, x, y):
        return f"({x} {self.sign} {y})" if self.sign else f"{self.name}({x}, {y})"


for name_, sign_ in (("add", "+"), ("subtract", "-"), ("multiply", "*"), ("divide", "/"), ("maximum", ""), ("minimum", ""),
                     ("pow", ""), ("atan2", ""), ("floor_divide", ""), ("%", "%")):
    OPS[name_] = Binary(name_, sign_)


@register
class WithNumber(Op):
    """An op of a number and a tensor."""
    name = "number"
    signs = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}

    def propose(self, g):
        x = g.pick(lambda v: v.type in ("f64", "f32", "i64") or (v.type != "bool" and g.allows("numbers_beside_narrow")))
        p = {"op": g.rng.choice(("add", "subtract", "multiply", "divide", "maximum", "minimum")), "left": g.rng.random() < 0.4}
        p["number"] = (g.rng.choice((1, 2, 3, -1, -2)) if not g.value(x).floating() or g.value(x).exact or g.rng.random() < 0.3
                       else g.rng.choice((0.5, 1.5, -0.25, 0.7, -1.3, 2.0)))
        if g.value(x).type == "u8":
            p["number"] = abs(p["number"])
        if not g.value(x).floating() and p["op"] == "divide":
            p["op"] = "add"
        return [x], p

    def infer(self, p, x):
        n = p["number"]
        number = Value(x.type, (), n, n, isinstance(n, int))
        operands = (number, x) if p["left"] else (x, number)
        if p["op"] == "divide" and p["left"]:
            need(x.low >= 0.2 or x.high <= -0.2)
        return OPS[p["op"]].infer({}, *operands)

    def text(self, p, x):
        number = str(p["number"]) if isinstance(p["number"], int) else f"{p['number']}f"
        names = (number, x) if p["left"] else (x, number)
        return OPS[p["op"]].text({}, *names)


@register
class Clamp(Op):
    name = "clamp"

    def propose(self, g):
        bounds = g.rng.choice((("low", "high"), ("low", "high"), ("low",), ("high",)))
        return [g.pick(lambda v: v.type in ("f64", "f32"))], {k: g.rng.choice((-1.1, -0.4) if k == "low" else (0.3, 1.2)) for k in bounds}

    def infer(self, p, x):
        need(x.type in ("f64", "f32") and not x.special)
        low, high = p.get("low", x.low), p.get("high", x.high)
        return settled(x.like(low=min(max(x.low, low), high), high=max(min(x.high, high), low), exact=False))

    def text(self, p, x):
        name = {("low",): "clamp_min", ("high",): "clamp_max"}.get(tuple(p), "clamp")
        return f"{name}({', '.join((x, *map(str, p.values())))})"


@register
class Compare(Op):
    name = "compare"
    smooth = False

    def propose(self, g):
        x = g.pick(lambda v: v.exact or v.special)
        return g.pair(x), {"op": g.rng.choice(("equal", "less", "less_equal", ">", ">="))}

    def infer(self, p, x, y):
        need((x.exact or x.special) and (y.exact or y.special))
        return Value("bool", broadcast(x, y), 0, 1, True)

    def text(self, p, x, y):
        return f"({x} {p['op']} {y})" if p["op"] in (">", ">=") else f"{p['op']}({x}, {y})"


@register
class Kind(Op):
    name = "kind"
    smooth = False

    def propose(self, g):
        return [g.pick(lambda v: v.type != "bool" and (v.exact or v.special))], {"op": g.rng.choice(("isnan", "isfinite"))}

    def infer(self, p, x):
        need(x.type != "bool" and (x.exact or x.special))
        return Value("bool", x.dims, 0, 1, True)

    def text(self, p, x):
        return f"{p['op']}({x})"


@register
class Logic(Op):
    name = "logic"
    smooth = False

    def propose(self, g):
        x = g.pick(lambda v: v.type == "bool")
        op = g.rng.choice(("logical_and", "logical_or", "logical_not"))
        return ([x] if op == "logical_not" else g.pair(x, same_type=True)), {"op": op}

    def infer(self, p, *v):
        need(all(x.type == "bool" for x in v))
        return Value("bool", broadcast(*v), 0, 1, True)

    def text(self, p, *names):
        return f"{p['op']}({', '.join(names)})"


@register
class Where(Op):
    name = "where"

    def propose(self, g):
        x, y = g.pair(g.pick())
        c = g.leaf_like(g.dims_beside(broadcast(g.value(x), g.value(y))), "bool")
        known = g.find(lambda v: v.type == "bool" and fits(v, g.value(x), g.value(y)))
        return [known or c, x, y], {}

    def infer(self, p, c, x, y):
        need(c.type == "bool")
        return settled(Value(promoted(x.type, y.type), broadcast(c, x, y), min(x.low, y.low), max(x.high, y.high),
                             x.exact and y.exact, x.special or y.special))

    def text(self, p, c, x, y):
        return f"where({c}, {x}, {y})"


@register
class Cast(Op):
    name = "cast"

    def propose(self, g):
        return [g.pick()], {"to": g.rng.choice(g.types)}

    def infer(self, p, x):
        to = p["to"]
        need(to != x.type)
        if x.floating() and to not in FLOATS:
            need(x.exact and not x.special)
            need(to == "bool" or (x.largest() < 2**20 and not (to == "u8" and (x.low < 0 or x.high > 255))))
        if to == "bool":
            return Value("bool", x.dims, 0, 1, True)
        return settled(x.like(type=to))

    def text(self, p, x):
        return f"cast<{CPP[p['to']]}>({x})"


@register
class Reduce(Op):
    name = "reduce"

    def propose(self, g):
        x = g.pick(lambda v: v.order() > 0)
        order = g.value(x).order()
        dims = sorted(g.rng.sample(range(order), g.rng.randint(1, min(order, 2)))) if g.rng.random() < 0.85 else []
        op = g.rng.choice(("sum", "sum", "mean", "amax", "amin", "logsumexp", "vector_norm", "variance"))
        return [x], {"op": op, "dims": dims, "keep": g.rng.random() < 0.45, "order": order, "right": g.rng.random() < 0.2,
                     "correction": g.rng.choice((0, 1))}

    def infer(self, p, x):
        dims = p["dims"] or range(x.order())
        need(all(d < x.order() for d in dims) and (not p["right"] or p["order"] == x.order()))
        count = math.prod(x.dims[d].size for d in dims)
        kept = tuple(ONE if i in dims else d for i, d in enumerate(x.dims)) if p["keep"] else tuple(
            d for i, d in enumerate(x.dims) if i not in dims)
        v = x.like(dims=kept)
        if p["op"] == "sum":
            v = v.like(low=min(0, x.low * count), high=max(0, x.high * count), type=x.type if x.floating() else "i64")
        elif p["op"] == "mean":
            v = v.like(type=floating(x.type), exact=False, special=x.special or count == 0)
            need(x.largest() * max(count, 1) < 1e6)
        elif p["op"] == "logsumexp":
            need(count > 0 and x.floating() and x.largest() < 30 and not x.special)
            v = v.like(low=x.low, high=x.high + math.log(count), exact=False)
        elif p["op"] == "variance":
            need(not x.special and x.largest() < 1e3 and count > p["correction"])
            v = v.like(type=floating(x.type), low=0.0, high=(x.high - x.low) ** 2, exact=False)
        elif p["op"] == "vector_norm":
            need(x.floating() and x.largest() < 1e6 and (x.low > 0.1 or x.high < -0.1))  # not near 0, where it has no derivative
            v = v.like(low=0.0, high=x.largest() * math.sqrt(count), exact=False)
        else:
            need(count > 0)
        return settled(v)

    def text(self, p, x):
        dims = p["dims"]
        keep = ", keepdim" if p["keep"] else ""
        op = "variance<0>" if p["op"] == "variance" and not p["correction"] else p["op"]
        if not dims:
            return f"{op}({x}{', dims<>' + keep if keep else ''})"
        dims = ", ".join(dim_text(d, p["order"], p["right"]) for d in dims)
        return f"{op}({x}, dims<{dims}>{keep})"


# ---------------------------------------------------------------------------------------------------- movement

@register
class Reshape(Op):
    name = "reshape"

    def propose(self, g):
        x = g.pick()
        n = g.value(x).elements()
        if n == 0:
            target = [0] + [g.rng.choice((1, 2, 3)) for _ in range(g.rng.randint(0, 2))]
            g.rng.shuffle(target)
            return [x], {"to": target, "given": False}
        if ONE.size in g.value(x).sizes() and g.rng.random() < 0.5:  # a squeeze
            kept = [d.size for d in g.value(x).dims if d.size != 1 or g.rng.random() < 0.2]
            return [x], {"to": kept, "given": False}
        target, rest = [], n
        for _ in range(g.rng.randint(0, 3)):
            divisors = [d for d in range(1, rest + 1) if rest % d == 0]
            d = g.rng.choice(divisors)
            target.append(d)
            rest //= d
        if rest != 1 or not target:
            target.append(rest)
        if g.rng.random() < 0.3:
            target.insert(g.rng.randint(0, len(target)), 1)
        open_ = g.rng.randrange(len(target)) if g.rng.random() < 0.4 and 0 not in target else None
        given = open_ is not None and g.rng.random() < 0.5
        p = {"to": [None if i == open_ else t for i, t in enumerate(target)], "given": given}
        if given:
            p["size"] = target[open_]
        return [x], p

    def infer(self, p, x):
        dims = reshaped(x.dims, p["to"])
        if p["given"]:
            need(dims[p["to"].index(None)].size == p["size"])
        return x.like(dims=dims)

    def text(self, p, x):
        if p["given"]:
            return f"reshape({x}, extents<{', '.join('dyn' if t is None else str(t) for t in p['to'])}>({p['size']}))"
        return f"reshape<{', '.join('dyn' if t is None else str(t) for t in p['to'])}>({x})"


@register
class Permute(Op):
    name = "permute"

    def propose(self, g):
        x = g.pick(lambda v: v.order() > 0)
        order = list(range(g.value(x).order()))
        g.rng.shuffle(order)
        return [x], {"order": order, "right": g.rng.random() < 0.2}

    def infer(self, p, x):
        need(len(p["order"]) == x.order())
        return x.like(dims=tuple(x.dims[i] for i in p["order"]))

    def text(self, p, x):
        n = len(p["order"]) if p["right"] else 0
        return f"permute<{', '.join(str(i - n) for i in p['order'])}>({x})"


@register
class Transpose(Op):
    name = "transpose"

    def propose(self, g):
        x = g.pick(lambda v: v.order() > 1)
        return [x], {"dims": g.rng.sample(range(g.value(x).order()), 2) if g.rng.random() < 0.5 else None}

    def infer(self, p, x):
        a, b = p["dims"] or (x.order() - 2, x.order() - 1)
        need(0 <= min(a, b) and max(a, b) < x.order())
        dims = list(x.dims)
        dims[a], dims[b] = dims[b], dims[a]
        return x.like(dims=tuple(dims))

    def text(self, p, x):
        return f"transpose<{p['dims'][0]}, {p['dims'][1]}>({x})" if p["dims"] else f"transpose({x})"


@register
class Expand(Op):
    name = "expand"

    def propose(self, g):
        x = g.pick(lambda v: any(d == ONE for d in v.dims) or v.order() < 4)
        to = [g.rng.choice((1, 2, 3, 5)) if d == ONE and g.rng.random() < 0.7 else d.size for d in g.value(x).dims]
        if len(to) < 4 and g.rng.random() < 0.4:
            to.insert(0, g.rng.choice((1, 2, 3)))
        need(to)
        return [x], {"to": to}

    def infer(self, p, x):
        to = p["to"]
        need(len(to) >= x.order())
        for i, d in enumerate(reversed(x.dims)):
            need(d == ONE or d.size == to[-1 - i])
        return x.like(dims=tuple(Dim(t, True) for t in to))

    def text(self, p, x):
        return f"expand<{', '.join(map(str, p['to']))}>({x})"


@register
class Slice(Op):
    name = "slice"

    def propose(self, g):
        x = g.pick(lambda v: v.order() > 0)
        dim = g.rng.choice((g.rng.randrange(g.value(x).order()), g.value(x).order() - 1))
        size = g.value(x).dims[dim].size
        start = g.rng.randint(0, size)
        stop = g.rng.randint(start, size) if g.rng.random() < 0.5 else size
        if size > 0 and g.rng.random() < 0.35:
            start = g.rng.randrange(size)
            stop = start + 1
        return [x], {"dim": dim, "start": start, "stop": stop, "step": g.rng.choice((1, 1, 1, 2, 3)),
                     "given": g.rng.random() < 0.4}

    def infer(self, p, x):
        need(p["dim"] < x.order() and p["stop"] <= x.dims[p["dim"]].size)
        dims = list(x.dims)
        dims[p["dim"]] = Dim(-(-(p["stop"] - p["start"]) // p["step"]), not p["given"])
        return x.like(dims=tuple(dims))

    def text(self, p, x):
        step = f", {p['step']}" if p["step"] != 1 else ""
        if p["given"]:
            return f"slice<{p['dim']}{step}>({x}, {p['start']}, {p['stop']})"
        return f"slice<{p['dim']}, {p['start']}, {p['stop']}{step}>({x})"


@register
class Flip(Op):
    name = "flip"

    def propose(self, g):
        x = g.pick(lambda v: v.order() > 0)
        return [x], {"dim": g.rng.randrange(g.value(x).order()), "order": g.value(x).order(), "right": g.rng.random() < 0.2}

    def infer(self, p, x):
        need(p["dim"] < x.order() and (not p["right"] or p["order"] == x.order()))
        return x

    def text(self, p, x):
        return f"flip<{dim_text(p['dim'], p['order'], p['right'])}>({x})"


@register
class Pad(Op):
    name = "pad"

    def propose(self, g):
        x = g.pick(lambda v: v.order() > 0)
        dim = g.rng.randrange(g.value(x).order())
        return [x], {"dim": dim, "before": g.rng.randint(0, 3), "after": g.rng.randint(0, 3)}

    def infer(self, p, x):
        need(p["dim"] < x.order())
        dims = list(x.dims)
        dims[p["dim"]] = Dim(dims[p["dim"]].size + p["before"] + p["after"], dims[p["dim"]].static)
        return x.like(dims=tuple(dims), low=min(x.low, 0), high=max(x.high, 0))

    def text(self, p, x):
        return f"pad<{p['dim']}, {p['before']}, {p['after']}>({x})"


@register
class Concat(Op):
    name = "concat"

    def propose(self, g):
        x = g.pick(lambda v: v.order() > 0)
        dim = g.rng.randrange(g.value(x).order())
        names = [x]
        for _ in range(g.rng.choice((1, 1, 1, 2, 3))):
            same = g.find(lambda v: v.order() == g.value(x).order() and all(
                i == dim or a.size == b.size for i, (a, b) in enumerate(zip(v.dims, g.value(x).dims))))
            dims = list(g.value(x).dims)
            dims[dim] = Dim(g.rng.choice((0, 1, 2, 3, 5)), g.rng.random() < 0.7)
            names.append(same if same and g.rng.random() < 0.7 else g.leaf_like(tuple(dims), g.value(x).type))
        g.rng.shuffle(names)
        return names, {"dim": dim, "order": g.value(x).order(), "right": g.rng.random() < 0.2}

    def infer(self, p, *v):
        need(all(x.order() == v[0].order() > p["dim"] for x in v) and (not p["right"] or p["order"] == v[0].order()))
        out = v[0]
        for x in v[1:]:
            dims = [Dim(a.size + b.size, a.static and b.static) if i == p["dim"] else unify(a, b)
                    for i, (a, b) in enumerate(zip(out.dims, x.dims))]
            out = settled(Value(promoted(out.type, x.type), tuple(dims), min(out.low, x.low), max(out.high, x.high),
                                out.exact and x.exact, out.special or x.special))
        return out

    def text(self, p, *names):
        return f"concat<{dim_text(p['dim'], p['order'], p['right'])}>({', '.join(names)})"


def with_dim(x, dim, extent):
    return x.like(dims=x.dims[:dim] + (extent,) + x.dims[dim:])


@register
class Unsqueeze(Op):
    name = "unsqueeze"

    def propose(self, g):
        x = g.pick(lambda v: v.order() < 5)
        return [x], {"dim": g.rng.randint(0, g.value(x).order())}

    def infer(self, p, x):
        need(p["dim"] <= x.order())
        open_extents = sum(not d.static for d in x.dims)
        need(open_extents == 0 or (x.elements() > 0 and (open_extents == 1 or Generator.features["two_open_extents"])))
        return with_dim(x, p["dim"], ONE)

    def text(self, p, x):
        return f"unsqueeze<{p['dim']}>({x})"


@register
class Squeeze(Op):
    name = "squeeze"

    def propose(self, g):
        x = g.pick(lambda v: any(d.static and d.size == 1 for d in v.dims))
        v = g.value(x)
        return [x], {"dim": g.rng.choice([i for i, d in enumerate(v.dims) if d.static and d.size == 1]), "order": v.order(), "right": g.rng.random() < 0.3}

    def infer(self, p, x):
        need(x.order() == p["order"] and x.dims[p["dim"]].static and x.dims[p["dim"]].size == 1)
        return x.like(dims=x.dims[:p["dim"]] + x.dims[p["dim"] + 1:])

    def text(self, p, x):
        return f"squeeze<{dim_text(p['dim'], p['order'], p['right'])}>({x})"


@register
class Stack(Op):
    name = "stack"

    def propose(self, g):
        x = g.pick(lambda v: v.order() < 4)
        names = [x]
        for _ in range(g.rng.choice((1, 2))):
            same = g.find(lambda v: v.sizes() == g.value(x).sizes())
            names.append(same if same and g.rng.random() < 0.6 else g.leaf_like(g.value(x).dims, g.value(x).type))
        order = g.value(x).order() + 1
        return names, {"dim": g.rng.randrange(order), "order": order, "right": g.rng.random() < 0.3}

    def infer(self, p, *v):
        return OPS["concat"].infer(p, *(OPS["unsqueeze"].infer(p, x) for x in v))

    def text(self, p, *names):
        return f"stack<{dim_text(p['dim'], p['order'], p['right'])}>({', '.join(names)})"


@register
class Unflatten(Op):
    name = "unflatten"

    def propose(self, g):
        x = g.pick(lambda v: 0 < v.order() < MAX_ORDER)
        dim = g.rng.randrange(g.value(x).order())
        size = g.value(x).dims[dim].size
        parts = g.rng.choice([d for d in range(1, max(size, 1) + 1) if size % d == 0])
        return [x], {"dim": dim, "parts": parts, "given": g.rng.random() < 0.3}

    def infer(self, p, x):
        need(p["dim"] < x.order() < MAX_ORDER)
        d = x.dims[p["dim"]]
        need(d.size % p["parts"] == 0)
        two = (Dim(p["parts"], not p["given"]), Dim(d.size // p["parts"], d.static and not p["given"]))
        return x.like(dims=x.dims[:p["dim"]] + two + x.dims[p["dim"] + 1:])

    def text(self, p, x):
        return f"unflatten<{p['dim']}>({x}, {p['parts']})" if p["given"] else f"unflatten<{p['dim']}, {p['parts']}>({x})"


@register
class Flatten(Op):
    name = "flatten"

    def propose(self, g):
        x = g.pick(lambda v: v.order() > 0)
        first = g.rng.randrange(g.value(x).order())
        return [x], {"first": first, "last": g.rng.randrange(first, g.value(x).order())}

    def infer(self, p, x):
        need(p["last"] < x.order())
        inner = x.dims[p["first"]:p["last"] + 1]
        one = Dim(math.prod(d.size for d in inner), all(d.static for d in inner))
        return x.like(dims=x.dims[:p["first"]] + (one,) + x.dims[p["last"] + 1:])

    def text(self, p, x):
        return f"flatten<{p['first']}, {p['last']}>({x})"


@register
class Chunk(Op):
    name = "chunk"

    def propose(self, g):
        x = g.pick(lambda v: v.order() > 0)
        dim = g.rng.randrange(g.value(x).order())
        size = g.value(x).dims[dim].size
        parts = g.rng.choice([d for d in range(1, max(size, 1) + 1) if size % d == 0])
        return [x], {"dim": dim, "parts": parts, "part": g.rng.randrange(parts)}

    def infer(self, p, x):
        need(p["dim"] < x.order() and x.dims[p["dim"]].size % p["parts"] == 0)
        d = x.dims[p["dim"]]
        dims = list(x.dims)
        dims[p["dim"]] = Dim(d.size // p["parts"], d.static)
        return x.like(dims=tuple(dims))

    def text(self, p, x):
        return f"chunk<{p['dim']}, {p['parts']}, {p['part']}>({x})"


@register
class Detach(Op):
    name = "detach"
    smooth = False  # difference quotients ignore it

    def propose(self, g):
        return [g.pick()], {}

    def infer(self, p, x):
        return x

    def text(self, p, x):
        return f"detach({x})"


# ---------------------------------------------------------------------------------------------------- products, rows

@register
class Matmul(Op):
    name = "matmul"

    def propose(self, g):
        x = g.pick(lambda v: v.order() >= 2 and v.floating() and v.largest() < 50)
        v = g.value(x)
        other = g.find(lambda w: w.order() >= 2 and w.type == v.type and w.dims[-2].size == v.dims[-1].size and w.largest() < 50)
        if not other or g.rng.random() < 0.5:
            batch = g.dims_beside(v.dims[:-2]) if g.rng.random() < 0.6 else ()
            other = g.leaf_like(batch + (v.dims[-1], g.dim()), v.type)
        return [x, other], {}

    def infer(self, p, x, y):
        need(x.type == y.type and x.floating() and x.order() >= 2 and y.order() >= 2)
        unify(x.dims[-1], y.dims[-2])
        batch = broadcast_dims(x.dims[:-2], y.dims[:-2])
        low, high = products(x.low, x.high, y.low, y.high)
        k = x.dims[-1].size
        return settled(Value(x.type, batch + (x.dims[-2], y.dims[-1]), min(0, low * k), max(0, high * k), x.exact and y.exact,
                             x.special or y.special))

    def text(self, p, x, y):
        return f"matmul({x}, {y})"


@register
class Einsum(Op):
    """One or two operands; each dim has a letter, lower or upper case, and the result has some of them in any order."""
    name = "einsum"

    def propose(self, g):
        x = g.pick(lambda v: v.floating() and v.largest() < 50 and v.order() <= 4)
        v = g.value(x)
        names = g.rng.sample("abcdefgXYZ", 10)
        first, rest = names[:v.order()], names[v.order():]
        terms, operands = ["".join(first)], [x]
        if g.rng.random() < 0.8:
            shared = [d for d in range(v.order()) if g.rng.random() < 0.6]
            g.rng.shuffle(shared)
            dims = [(first[d], v.dims[d] if g.rng.random() < 0.6 else Dim(v.dims[d].size, not v.dims[d].static)) for d in shared]
            for letter in rest[:g.rng.choice((0, 1, 1, 2))]:
                dims.insert(g.rng.randint(0, len(dims)), (letter, g.dim(7)))
            terms.append("".join(letter for letter, _ in dims))
            operands.append(g.leaf_like(tuple(d for _, d in dims), v.type))
        letters = sorted(set("".join(terms)))
        both = [c for c in letters if all(c in t for t in terms)] if len(terms) == 2 else []
        alone = 0.15 if v.type in ("f64", "f32") or len(terms) == 1 else 0.0  # narrow sums of one operand are rounded
        kept = [c for c in letters if g.rng.random() >= (0.7 if c in both else alone)]
        g.rng.shuffle(kept)
        result = None if sorted(kept) == [c for c in letters if c not in both] and g.rng.random() < 0.5 else "".join(kept)
        return operands, {"terms": terms, "result": result}

    def infer(self, p, *operands):
        size = {}
        for term, x in zip(p["terms"], operands):
            need(len(term) == x.order() and x.floating() and x.type == operands[0].type)
            for letter, d in zip(term, x.dims):
                size[letter] = unify(size[letter], d) if letter in size else d
        once = [c for c in sorted(size) if sum(c in t for t in p["terms"]) == 1]
        kept = once if p["result"] is None else p["result"]
        if len(operands) == 2 and operands[0].type in ("bf16", "f16"):
            need(set(once) <= set(kept))
        count = math.prod(d.size for letter, d in size.items() if letter not in kept)
        low, high = (operands[0].low, operands[0].high) if len(operands) == 1 else products(
            operands[0].low, operands[0].high, operands[1].low, operands[1].high)
        need(len(kept) <= MAX_ORDER)
        return settled(Value(operands[0].type, tuple(size[c] for c in kept), min(low, low * count), max(high, high * count),
                             all(x.exact for x in operands), any(x.special for x in operands)))

    def text(self, p, *names):
        arrow = "" if p["result"] is None else "->" + p["result"]
        return f'einsum<"{",".join(p["terms"])}{arrow}">({", ".join(names)})'


@register
class Softmax(Op):
    name = "softmax"

    def propose(self, g):
        x = g.pick(lambda v: v.order() > 0 and v.type != "bool")
        order = g.value(x).order()
        return [x], {"op": g.rng.choice(("softmax", "log_softmax", "normalize")), "dim": g.rng.randrange(order) if g.rng.random() < 0.6 else -1}

    def infer(self, p, x):
        need(x.type != "bool" and x.order() > max(p["dim"], 0) and not x.special and x.largest() < 200)
        x = x.like(type=floating(x.type))
        need(x.dims[p["dim"]].size > 0)
        if p["op"] == "normalize":
            need(x.low > 0.1 or x.high < -0.1)
            return x.like(low=-1.0, high=1.0, exact=False)
        span = x.high - x.low + math.log(x.dims[p["dim"]].size)
        return x.like(low=0.0 if p["op"] == "softmax" else -span, high=1.0 if p["op"] == "softmax" else 0.0, exact=False)

    def text(self, p, x):
        return f"{p['op']}({x})" if p["dim"] == -1 else f"{p['op']}<{p['dim']}>({x})"


@register
class Norm(Op):
    name = "norm"

    def propose(self, g):
        x = g.pick(lambda v: v.order() > 0 and v.type in ("f64", "f32") + INTEGERS)
        v = g.value(x)
        op = g.rng.choice(("layer_norm", "rms_norm"))
        row = (v.dims[-1],)
        return [x] + [g.leaf_like(row, floating(v.type)) for _ in range(2 if op == "layer_norm" else 1)], {"op": op}

    def infer(self, p, x, w, b=None):
        need(x.type != "bool" and x.order() > 0 and x.dims[-1].size > 1 and not x.special and x.high - x.low > 0.5)
        need(x.floating() or x.largest() <= 2**24)
        x = x.like(type=floating(x.type))
        need(w.type == x.type and w.dims == x.dims[-1:])
        limit = math.sqrt(x.dims[-1].size) * w.largest() + (b.largest() if b else 0)
        return x.like(low=-limit, high=limit, exact=False)

    def text(self, p, *names):
        return f"{p['op']}({', '.join(names)})"


@register
class GroupNorm(Op):
    name = "group_norm"

    def propose(self, g):
        x = g.pick(lambda v: 2 <= v.order() <= 5 and v.type in ("f64", "f32") + INTEGERS)
        v = g.value(x)
        groups = g.rng.choice([n for n in range(1, v.dims[1].size + 1) if v.dims[1].size % n == 0])
        return [x] + [g.leaf_like(v.dims[1:2], floating(v.type)) for _ in range(2)], {"groups": groups}

    def infer(self, p, x, w, b):
        need(x.type != "bool" and x.order() > 1 and x.dims[1].size % p["groups"] == 0 and not x.special and x.high - x.low > 0.5)
        need(x.floating() or x.largest() <= 2**24)
        x = x.like(type=floating(x.type))
        of_group = math.prod(d.size for d in x.dims[1:]) // p["groups"]
        need(of_group > 1 and w.type == b.type == x.type and w.dims == b.dims == x.dims[1:2])
        limit = math.sqrt(of_group) * w.largest() + b.largest()
        return x.like(low=-limit, high=limit, exact=False)

    def text(self, p, *names):
        return f"group_norm<{p['groups']}>({', '.join(names)})"


@register
class Rotary(Op):
    name = "rotary"

    def propose(self, g):
        x = g.find(lambda v: v.order() == 4 and v.floating() and v.dims[3].size % 2 == 0)
        if not x or g.rng.random() < 0.3:
            sizes = ((1, 2, 3), (1, 2, 3, 5, 9), (1, 2, 3), (0, 2, 4, 6, 10))
            x = g.leaf_like(tuple(Dim(g.rng.choice(s), g.rng.random() < 0.6) for s in sizes), g.rng.choice([t for t in g.types if t in FLOATS]))
        dims = g.value(x).dims
        p = {"base": g.rng.choice((10000, 100)), "scaled": g.rng.random() < 0.4, "first": g.rng.choice((None, None, 0, 5))}
        if p["first"] is not None or g.rng.random() < 0.4:
            return [x], p
        of = tuple(Dim(d.size, d.static if g.rng.random() < 0.7 else not d.static) for d in dims[g.rng.choice((0, 1)):2])
        return [x, g.new_leaf(Value(g.rng.choice(("i64", "i32", "u8")), of, 0, 9, True), "integer")], p

    def infer(self, p, x, positions=None):
        need(x.order() == 4 and x.floating() and not x.special and x.dims[3].size % 2 == 0)
        dims = x.dims
        if positions:
            need(positions.order() in (1, 2) and positions.type in INTEGERS and positions.largest() < 10)
            first = 2 - positions.order()
            dims = dims[:first] + tuple(unify(a, b) for a, b in zip(dims[first:2], positions.dims)) + dims[2:]
        return settled(x.like(dims=dims, low=-1.5 * x.largest(), high=1.5 * x.largest(), exact=False))

    def text(self, p, x, positions=None):
        scaling = ", rope_scaling{.factor = 4, .original_max_position_embeddings = 64}" if p["scaled"] else ""
        more = f", {positions}" if positions else "" if p["first"] is None else f", {p['first']}"
        return f"rotary<{p['base']}{scaling}>({x}{more})"


@register
class Attention(Op):
    name = "attention"

    def propose(self, g):
        known = g.find(lambda v: v.order() == 4 and v.type in ("f64", "f32") and v.elements() and v.elements() <= 120 and v.largest() < 10)
        t = g.value(known).type if known else g.rng.choice([t for t in g.types if t in ("f64", "f32")] or ["f32"])
        dims = g.value(known).dims if known else tuple(Dim(s, g.rng.random() < 0.6) for s in (
            g.rng.choice((1, 2)), g.rng.choice((1, 2, 3, 5, 9)), g.rng.choice((1, 2)), g.rng.choice((1, 3, 4, 8))))
        keys = dims
        if g.rng.random() < 0.4:  # separate keys, of another length or with fewer heads
            divisors = [n for n in range(1, dims[2].size + 1) if dims[2].size % n == 0]
            keys = (dims[0], Dim(g.rng.choice((1, 2, 3, 7)), False), Dim(g.rng.choice(divisors), dims[2].static), dims[3])
        names = [g.leaf_like(dims, t), g.leaf_like(keys, t), g.leaf_like(keys, t)]
        if known:
            names[g.rng.randrange(3) if keys == dims else 0] = known
        causal = g.rng.random() < 0.5
        return names, {"causal": causal, "first": g.rng.choice((None, 0, 1, 4)) if causal else None}

    def infer(self, p, q, k, v):
        need(q.type in ("f64", "f32") and q.order() == 4 and not (q.special or k.special or v.special))
        need(q.largest() < 20 and k.largest() < 20 and q.elements() > 0 and k.elements() > 0)
        need(k.type == v.type == q.type and k.order() == v.order() == 4)
        keys = tuple(unify(a, b) for a, b in zip(k.dims, v.dims))
        need(q.dims[2].size % keys[2].size == 0)
        return v.like(dims=(unify(q.dims[0], keys[0]), q.dims[1], q.dims[2], unify(q.dims[3], keys[3])), exact=False)

    def text(self, p, q, k, v):
        first = "" if p["first"] is None else f", {p['first']}"
        return f"attention<{'causal' if p['causal'] else 'false'}>({q}, {k}, {v}{first})"


@register
class MaskedAttention(Attention):
    name = "masked_attention"

    def propose(self, g):
        names, _ = super().propose(g)
        q, k = g.value(names[0]), g.value(names[1])
        scores = (q.dims[0], q.dims[2], q.dims[1], k.dims[1])
        dims = tuple(Dim(1, True) if g.rng.random() < 0.4 else d for d in scores)[g.rng.choice((0, 0, 1, 2)):]
        return names + [g.leaf_like(dims, g.rng.choice(("bool", q.type)))], {"causal": g.rng.random() < 0.4}

    def infer(self, p, q, k, v, mask):
        need(mask.type in ("bool", q.type) and not mask.special and mask.largest() < 20 and mask.order() <= 4)
        scores = (q.dims[0], q.dims[2], q.dims[1], k.dims[1])
        for d, s in zip(reversed(mask.dims), reversed(scores)):
            if not (d.static and d.size == 1):
                unify(d, s)
        result = super().infer(p, q, k, v)
        return result.like(low=min(0, result.low), high=max(0, result.high))

    def text(self, p, q, k, v, mask):
        return f"attention{'<causal>' if p['causal'] else ''}({q}, {k}, {v}, {mask})"


# ---------------------------------------------------------------------------------------------------- losses, look-ups

def reduced(p, v):
    if p["kind"] == "none":
        return v
    count = v.elements()
    need(p["kind"] == "sum" or count > 0)
    scale = count if p["kind"] == "sum" else 1
    return v.like(dims=(), low=min(0, v.low * scale), high=max(0, v.high * scale), exact=False)


@register
class CrossEntropy(Op):
    name = "cross_entropy"

    def propose(self, g):
        x = g.pick(lambda v: v.order() > 0 and v.floating() and v.dims[-1].size > 0)
        v = g.value(x)
        ignore = g.rng.choice((None, None, -100, 1))
        labels = g.new_leaf(Value(g.rng.choice(("i64", "i32")), v.dims[:-1], 0, v.dims[-1].size - 1, True), "label" if ignore == -100 else "integer")
        return [x, labels], {"kind": g.rng.choice(("mean", "sum", "none")), "ignore": ignore, "smoothing": g.rng.choice((0, 0, 100000))}

    def infer(self, p, x, labels):
        need(x.floating() and x.order() > 0 and labels.sizes() == x.sizes()[:-1] and not x.special and x.largest() < 50)
        need(labels.type in INTEGERS and 0 <= labels.low and labels.high < x.dims[-1].size and labels.elements() > 0)
        dims = tuple(unify(a, b) for a, b in zip(x.dims, labels.dims))
        high = 2 * x.largest() + math.log(x.dims[-1].size) + 1
        if p["kind"] == "mean":  # all labels may be ignored
            return Value(x.type, (), -high, high, special=p["ignore"] is not None)
        return reduced(p, Value(x.type, dims, -high, high))

    def text(self, p, x, labels):
        if p["ignore"] is None and not p["smoothing"]:
            return f"cross_entropy<reduction_kind::{p['kind']}>({x}, {labels})"
        ignore = -100 if p["ignore"] is None else p["ignore"]
        smoothing = f", per_million<{p['smoothing']}>" if p["smoothing"] else ""
        return f"cross_entropy<reduction_kind::{p['kind']}, {ignore}{smoothing}>({x}, {labels})"


@register
class PairLoss(Op):
    name = "pair_loss"

    def propose(self, g):
        x = g.pick(lambda v: v.type in ("f64", "f32", "f16", "bf16"))
        op = g.rng.choice(("mse_loss", "mse_loss", "bce_with_logits", "l1_loss", "huber_loss", "smooth_l1_loss", "kl_div", "binary_cross_entropy"))
        v = g.value(x)
        if op == "kl_div":
            return [x, g.new_leaf(Value(v.type, v.dims, 0.05, 1.0), "real")], {"op": op, "kind": g.rng.choice(("mean", "sum", "none"))}
        if op == "binary_cross_entropy":
            return [g.new_leaf(Value(v.type, v.dims, 0.05, 0.9), "real"), g.new_leaf(Value(v.type, v.dims, 0.0, 1.0), "real")], {"op": op, "kind": g.rng.choice(("mean", "sum", "none"))}
        if op != "bce_with_logits":
            return g.pair(x, same_type=True), {"op": op, "kind": g.rng.choice(("mean", "sum", "none"))}
        targets = g.new_leaf(Value(v.type, v.dims, 0.0, 1.0), "real")
        return [x, targets], {"op": op, "kind": g.rng.choice(("mean", "sum", "none"))}

    def infer(self, p, x, y):
        need(x.type == y.type and x.floating() and not x.special and not y.special and x.largest() < 100 and y.largest() < 100)
        if p["op"] == "bce_with_logits":
            need(0 <= y.low and y.high <= 1)
            high = 2 * x.largest() + 1
        elif p["op"] == "binary_cross_entropy":
            need(0.05 <= x.low and x.high <= 0.95 and 0 <= y.low and y.high <= 1)
            high = 3.0
        elif p["op"] == "kl_div":
            need(0.05 <= y.low and y.high <= 1)
            high = 3 + x.largest()
        elif p["op"] == "mse_loss":
            high = (x.largest() + y.largest())**2
        else:
            high = x.largest() + y.largest()
        need(x.order() == y.order() and all(a.size == b.size for a, b in zip(x.dims, y.dims)))
        return reduced(p, Value(x.type, broadcast(x, y), -high if p["op"] in ("bce_with_logits", "kl_div") else 0.0, high))

    def text(self, p, x, y):
        if p["op"] in ("huber_loss", "smooth_l1_loss"):
            return f"{p['op']}<reduction_kind::{p['kind']}>({x}, {y}, 0.7)"
        return f"{p['op']}<reduction_kind::{p['kind']}>({x}, {y})"


def index_leaf(g, dims, count):
    need(count > 0)
    return g.new_leaf(Value(g.rng.choice(INTEGERS), dims, 0, count - 1, True), "integer")


@register
class Embedding(Op):
    name = "embedding"

    def propose(self, g):
        x = g.pick(lambda v: 0 < v.order() < 4 and v.dims[0].size > 0)
        dims = tuple(g.dim(5) for _ in range(g.rng.randint(0, 2)))
        return [x, index_leaf(g, dims, g.value(x).dims[0].size)], {}

    def infer(self, p, x, index):
        need(x.order() > 0 and index.type in INTEGERS and 0 <= index.low and index.high < x.dims[0].size)
        return x.like(dims=index.dims + x.dims[1:])

    def text(self, p, x, index):
        return f"embedding({x}, {index})"


@register
class IndexSelect(Op):
    name = "index_select"

    def propose(self, g):
        x = g.pick(lambda v: v.order() > 0)
        dim = g.rng.randrange(g.value(x).order())
        return [x, index_leaf(g, (g.dim(5),), g.value(x).dims[dim].size)], {"dim": dim}

    def infer(self, p, x, index):
        need(p["dim"] < x.order() and index.order() == 1 and 0 <= index.low and index.high < x.dims[p["dim"]].size)
        dims = list(x.dims)
        dims[p["dim"]] = index.dims[0]
        return x.like(dims=tuple(dims))

    def text(self, p, x, index):
        return f"index_select<{p['dim']}>({x}, {index})"


@register
class Gather(Op):
    name = "gather"

    def propose(self, g):
        x = g.pick(lambda v: v.order() > 0)
        dim = g.rng.randrange(g.value(x).order())
        dims = list(g.value(x).dims)
        size = dims[dim].size
        dims[dim] = g.dim(5)
        return [x, index_leaf(g, tuple(dims), size)], {"dim": dim}

    def infer(self, p, x, index):
        need(p["dim"] < x.order() == index.order() and 0 <= index.low and index.high < x.dims[p["dim"]].size)
        dims = tuple(b if i == p["dim"] else unify(a, b) for i, (a, b) in enumerate(zip(x.dims, index.dims)))
        return x.like(dims=dims)

    def text(self, p, x, index):
        return f"gather<{p['dim']}>({x}, {index})"


@register
class ScatterAdd(Op):
    name = "scatter_add"

    def propose(self, g):
        x = g.pick(lambda v: v.type != "bool" and any(d.static and d.size for d in v.dims))
        v = g.value(x)
        dim = g.rng.choice([i for i, d in enumerate(v.dims) if d.static and d.size])
        dims = list(v.dims)
        dims[dim] = g.dim(5)
        return [x, index_leaf(g, tuple(dims), v.dims[dim].size), g.leaf_like(tuple(dims), v.type)], {"dim": dim}

    def infer(self, p, x, index, source):
        dim = p["dim"]
        need(dim < x.order() == index.order() == source.order() and x.dims[dim].static and source.type == x.type != "bool")
        need(0 <= index.low and index.high < x.dims[dim].size and index.sizes() == source.sizes())
        need(x.floating() or x.type != "u8")
        dims = tuple(a if i == dim else unify(a, b) for i, (a, b) in enumerate(zip(x.dims, source.dims)))
        times = source.dims[dim].size
        need(Generator.features["narrow_sums"] or x.type not in ("bf16", "f16") or x.exact)
        return settled(x.like(dims=dims, low=x.low + min(0, source.low * times), high=x.high + max(0, source.high * times),
                              exact=x.exact and source.exact, special=x.special or source.special))

    def text(self, p, x, index, source):
        return f"scatter_add<{p['dim']}>({x}, {index}, {source})"


@register
class OneHot(Op):
    name = "one_hot"
    smooth = False

    def propose(self, g):
        x = g.find(lambda v: v.type in INTEGERS and 0 <= v.low and v.high < 12 and v.order() < 5)
        if not x:
            x = index_leaf(g, tuple(g.dim(5) for _ in range(g.rng.randint(0, 2))), g.rng.choice((1, 2, 5)))
        return [x], {"classes": int(g.value(x).high) + g.rng.choice((1, 2))}

    def infer(self, p, x):
        need(x.type in INTEGERS and 0 <= x.low and x.high < p["classes"])
        return Value("f32", x.dims + (Dim(p["classes"], True),), 0, 1, True)

    def text(self, p, x):
        return f"one_hot<{p['classes']}>({x})"


@register
class Arg(Op):
    name = "arg"
    smooth = False

    def propose(self, g):
        x = g.pick(lambda v: v.order() > 0 and v.type != "bool" and (v.exact or v.special))
        dim = g.rng.randrange(g.value(x).order())
        return [x], {"op": g.rng.choice(("argmax", "argmin")), "dim": dim}

    def infer(self, p, x):
        need(p["dim"] < x.order() and x.type != "bool" and (x.exact or x.special) and x.dims[p["dim"]].size > 0)
        dims = x.dims[:p["dim"]] + x.dims[p["dim"] + 1:]
        return Value("i64", dims, 0, x.dims[p["dim"]].size - 1, True)

    def text(self, p, x):
        return f"{p['op']}<{p['dim']}>({x})"


@register
class Order(Op):
    name = "order"
    smooth = False

    def propose(self, g):
        x = g.pick(lambda v: v.order() > 0 and (v.exact or v.special))
        dim = g.rng.randrange(g.value(x).order())
        op = g.rng.choice(("sort", "argsort", "topk", "topk"))
        count = g.rng.randint(0, g.value(x).dims[dim].size) if op == "topk" else None
        return [x], {"op": op, "dim": dim, "count": count, "static": g.rng.random() < 0.5, "other": g.rng.random() < 0.5,
                     "part": g.rng.choice(("values", "indices"))}

    def infer(self, p, x):
        need(p["dim"] < x.order() and (x.exact or x.special))
        dims = list(x.dims)
        size = dims[p["dim"]].size
        if p["op"] == "topk":
            need(p["count"] <= size)
            dims[p["dim"]] = Dim(p["count"], p["static"])
        if p["op"] == "argsort" or (p["op"] == "topk" and p["part"] == "indices"):
            return Value("i64", tuple(dims), 0, max(size - 1, 0), True)
        return x.like(dims=tuple(dims))

    def text(self, p, x):
        if p["op"] != "topk":
            return f"{p['op']}<{p['dim']}{', descending' if p['other'] else ''}>({x})"
        other = ", smallest" if p["other"] else ""
        call = f"topk<{p['dim']}, {p['count']}{other}>({x})" if p["static"] else f"topk<{p['dim']}{other}>({x}, {p['count']})"
        return f"{call}.{p['part']}"


@register
class Cumsum(Op):
    name = "cumsum"

    def propose(self, g):
        x = g.pick(lambda v: v.order() > 0)
        return [x], {"dim": g.rng.randrange(g.value(x).order())}

    def infer(self, p, x):
        need(p["dim"] < x.order())
        count = x.dims[p["dim"]].size
        return settled(x.like(low=min(x.low, x.low * count), high=max(x.high, x.high * count),
                              type=x.type if x.floating() else "i64"))

    def text(self, p, x):
        return f"cumsum<{p['dim']}>({x})"


def pair(a, b):
    return str(a) if a == b else f"height_width{{{a}, {b}}}"


def images(g, types=None):
    """A value whose last two dims can be an image, or a new leaf."""
    name = g.find(lambda v: 2 <= v.order() <= 4 and v.elements() and v.largest() < 50 and (types is None or v.type in types))
    if name and g.rng.random() < 0.6:
        return name
    dims = tuple(Dim(g.rng.choice((1, 2, 3)), g.rng.random() < 0.6) for _ in range(g.rng.choice((0, 1, 2))))
    sides = tuple(Dim(g.rng.choice((1, 2, 3, 4, 5, 7)), g.rng.random() < 0.6) for _ in range(2))
    return g.leaf_like(dims + sides, g.rng.choice(types or g.types))


def windows_over(extents, size, step, padding=(0, 0), inner=(1, 1), ceil_mode=False):
    out = []
    for e, n, s, p, d in zip(extents, size, step, padding, inner):
        free = e.size + 2 * p - d * (n - 1) - 1
        if ceil_mode:  # as PyTorch says: the last window must not begin after the elements and the first padding
            count = -(-free // s) + 1
            count -= (count - 1) * s >= e.size + p
            need(count > 0)
        else:
            need(free >= 0)
            count = free // s + 1
        out.append(Dim(count, e.static))
    return tuple(out)


def pool_text(p, step, padding):
    """The options of a pooling."""
    more = ", .ceil_mode = true" * p["ceil_mode"] + ", .count_include_pad = false" * p["excludes"]
    return f"pool_options{{.stride = {step}, .padding = {padding}{more}}}"


def pool_kind(g, ops):
    op = g.rng.choice(ops)
    return {"op": op, "ceil_mode": g.rng.random() < 0.3, "excludes": op.startswith("avg") and g.rng.random() < 0.3}


@register
class Windows(Op):
    name = "windows"

    def propose(self, g):
        x = images(g)
        size, step, inner = ([g.rng.choice((1, 1, 2, 3)) for _ in range(2)] for _ in range(3))
        return [x], {"size": size, "step": step, "inner": inner}

    def infer(self, p, x):
        need(2 <= x.order() <= 4)
        sides = windows_over(x.dims[-2:], p["size"], p["step"], inner=p["inner"])
        return x.like(dims=x.dims[:-2] + sides + tuple(Dim(n, True) for n in p["size"]))

    def text(self, p, x):
        return f"windows<{pair(*p['size'])}, {pair(*p['step'])}, {pair(*p['inner'])}>({x})"


@register
class Pool(Op):
    name = "pool"

    def propose(self, g):
        size = [g.rng.choice((1, 2, 2, 3, 4)) for _ in range(2)]
        return [images(g)], {**pool_kind(g, ("max_pool2d", "avg_pool2d")), "size": size, "step": [g.rng.choice((1, 2, 3)) for _ in range(2)],
                             "padding": [g.rng.randint(0, n // 2) for n in size]}

    def infer(self, p, x):
        need(2 <= x.order() <= 4 and x.type != "bool")
        sides = windows_over(x.dims[-2:], p["size"], p["step"], p["padding"], ceil_mode=p["ceil_mode"])
        need(x.elements() > 0)
        mean = p["op"] == "avg_pool2d"
        if mean:  # of integers f32, as `mean`
            return settled(x.like(dims=x.dims[:-2] + sides, low=min(0, x.low), high=max(0, x.high), exact=False,
                                  type=x.type if x.floating() else "f32"))
        return x.like(dims=x.dims[:-2] + sides)

    def text(self, p, x):
        options = pool_text(p, "{%d, %d}" % tuple(p["step"]), "{%d, %d}" % tuple(p["padding"]))
        return f"{p['op']}<{pair(*p['size'])}, {options}>({x})"


@register
class PoolOfSequences(Op):
    name = "pool1d"

    def propose(self, g):
        size = g.rng.choice((1, 2, 2, 3, 4))
        x = g.pick(lambda v: 1 <= v.order() <= 3 and v.elements() > 0)
        return [x], {**pool_kind(g, ("max_pool", "avg_pool")), "size": size, "step": g.rng.choice((1, 2, 3)), "padding": g.rng.randint(0, size // 2)}

    def infer(self, p, x):
        need(1 <= x.order() <= 3 and x.elements() > 0)
        wide = {**p, "op": p["op"] + "2d", "size": [1, p["size"]], "step": [1, p["step"]], "padding": [0, p["padding"]]}
        made = OPS["pool"].infer(wide, x.like(dims=x.dims[:-1] + (ONE, x.dims[-1])))
        return made.like(dims=made.dims[:-2] + made.dims[-1:])

    def text(self, p, x):
        return f"{p['op']}1d<{p['size']}, {pool_text(p, p['step'], p['padding'])}>({x})"


def convolved(g):
    """For a convolution: element type, images, channels, groups, and outputs per group."""
    t = g.rng.choice([t for t in g.types if t in FLOATS] or ["f32"])
    groups, channels, made = g.rng.choice((1, 1, 2, 3)), g.rng.choice((1, 2)), g.rng.choice((1, 2))
    known = g.find(lambda v: v.order() == 4 and v.type == t and v.largest() < 20 and v.dims[1].size % groups == 0 and v.elements())
    if known and g.rng.random() < 0.5:
        x, in_channels = known, g.value(known).dims[1]
    else:
        in_channels = Dim(groups * channels, g.rng.random() < 0.6)
        x = g.leaf_like((Dim(g.rng.choice((0, 1, 2, 3)), g.rng.random() < 0.5), in_channels) + tuple(
            Dim(g.rng.choice((1, 2, 3, 4, 5)), g.rng.random() < 0.6) for _ in range(2)), t)
    return t, x, in_channels, groups, made


@register
class Convolution(Op):
    name = "conv2d"

    def propose(self, g):
        t, x, in_channels, groups, made = convolved(g)
        weight = g.leaf_like((Dim(groups * made, g.rng.random() < 0.6), Dim(in_channels.size // groups, g.rng.random() < 0.6),
                              Dim(g.rng.choice((1, 2, 3)), True), Dim(g.rng.choice((1, 2, 3)), True)), t)
        numbers = lambda choices: [g.rng.choice(choices) for _ in range(2)]
        return [x, weight], {"step": numbers((1, 1, 2)), "padding": numbers((0, 1, 2)), "inner": numbers((1, 1, 2)), "groups": groups}

    def infer(self, p, x, w):
        need(x.type == w.type and x.floating() and x.order() == w.order() == 4 and w.dims[2].static and w.dims[3].static)
        need(x.dims[1].size == w.dims[1].size * p["groups"] and w.dims[0].size % p["groups"] == 0)
        sides = windows_over(x.dims[2:], [d.size for d in w.dims[2:]], p["step"], p["padding"], p["inner"])
        low, high = products(min(0, x.low), max(0, x.high), w.low, w.high)
        terms = math.prod(d.size for d in w.dims[1:])
        return settled(Value(x.type, (x.dims[0], w.dims[0]) + sides, min(0, low * terms), max(0, high * terms), x.exact and w.exact,
                             x.special or w.special))

    def text(self, p, x, w):
        fields = ", ".join(f".{k} = {{{p[v][0]}, {p[v][1]}}}" for k, v in (("stride", "step"), ("padding", "padding"), ("dilation", "inner")))
        return f"conv2d<conv_options{{{fields}, .groups = {p['groups']}}}>({x}, {w})"


@register
class ConvolutionOfSequences(Op):
    name = "conv1d"

    def propose(self, g):
        t, groups, made = g.rng.choice([t for t in g.types if t in FLOATS] or ["f32"]), g.rng.choice((1, 1, 2)), g.rng.choice((1, 2))
        x = g.find(lambda v: v.order() == 3 and v.type == t and v.largest() < 20 and v.dims[1].size % groups == 0 and v.elements())
        if not x or g.rng.random() < 0.5:
            x = g.leaf_like(tuple(Dim(g.rng.choice(s), g.rng.random() < 0.6) for s in ((1, 2, 3), (groups, 2 * groups), (1, 2, 3, 5, 8, 13))), t)
        weight = g.leaf_like((Dim(groups * made, g.rng.random() < 0.6), Dim(g.value(x).dims[1].size // groups, g.rng.random() < 0.6),
                              Dim(g.rng.choice((1, 2, 3)), True)), t)
        return [x, weight], {"step": g.rng.choice((1, 1, 2)), "padding": g.rng.choice((0, 1, 2)), "inner": g.rng.choice((1, 1, 2)), "groups": groups}

    def infer(self, p, x, w):
        need(x.order() == w.order() == 3)
        wide = {**p, "step": [1, p["step"]], "padding": [0, p["padding"]], "inner": [1, p["inner"]]}
        made = OPS["conv2d"].infer(wide, *(v.like(dims=v.dims[:2] + (ONE, v.dims[2])) for v in (x, w)))
        return made.like(dims=made.dims[:2] + made.dims[3:])

    def text(self, p, x, w):
        return f"conv1d<conv_options{{.stride = {p['step']}, .padding = {p['padding']}, .dilation = {p['inner']}, .groups = {p['groups']}}}>({x}, {w})"


@register
class TransposedConvolution(Op):
    name = "conv_transpose2d"

    def propose(self, g):
        t, x, in_channels, groups, made = convolved(g)
        weight = g.leaf_like((in_channels, Dim(made, g.rng.random() < 0.6), Dim(g.rng.choice((1, 2, 3)), True),
                              Dim(g.rng.choice((1, 2, 3)), True)), t)
        numbers = lambda choices: [g.rng.choice(choices) for _ in range(2)]
        step, inner = numbers((1, 2, 2, 3)), numbers((1, 1, 2, 3))
        return [x, weight], {"step": step, "padding": numbers((0, 0, 1)), "inner": inner, "groups": groups,
                             "added": [g.rng.randrange(max(n, m)) for n, m in zip(step, inner)]}

    def infer(self, p, x, w):
        need(x.type == w.type and x.floating() and x.order() == w.order() == 4 and w.dims[2].static and w.dims[3].static)
        channels = unify(x.dims[1], w.dims[0])
        need(channels.size % p["groups"] == 0)
        sides = []
        for d, size, step, padding, inner, added in zip(x.dims[2:], w.dims[2:], p["step"], p["padding"], p["inner"], p["added"]):
            made = (d.size - 1) * step - 2 * padding + inner * (size.size - 1) + 1 + added
            need(d.size > 0 and made > 0)
            sides.append(Dim(made, d.static))
        low, high = products(min(0, x.low), max(0, x.high), w.low, w.high)
        terms = channels.size * w.dims[2].size * w.dims[3].size
        return settled(Value(x.type, (x.dims[0], Dim(w.dims[1].size * p["groups"], w.dims[1].static)) + tuple(sides), min(0, low * terms),
                             max(0, high * terms), x.exact and w.exact, x.special or w.special))

    def text(self, p, x, w):
        fields = ", ".join(f".{k} = {{{p[v][0]}, {p[v][1]}}}" for k, v in (("stride", "step"), ("padding", "padding"), ("output_padding", "added"),
                                                                            ("dilation", "inner")))
        return f"conv_transpose2d<conv_transpose_options{{{fields}, .groups = {p['groups']}}}>({x}, {w})"


@register
class Upsample(Op):
    name = "upsample"

    def propose(self, g):
        return [images(g)], {"op": g.rng.choice(("upsample_nearest", "upsample_bilinear")), "by": [g.rng.choice((1, 2, 3)) for _ in range(2)]}

    def infer(self, p, x):
        need(2 <= x.order() <= 4)
        dims = x.dims[:-2] + tuple(Dim(d.size * n, d.static) for d, n in zip(x.dims[-2:], p["by"]))
        if p["op"] == "upsample_nearest":
            return x.like(dims=dims)
        need(x.elements() > 0 and x.type != "bool" and not x.special)
        return settled(x.like(dims=dims, exact=False, type=x.type if x.floating() else "f32"))

    def text(self, p, x):
        return f"{p['op']}<{pair(*p['by'])}>({x})"


@register
class Cumprod(Op):
    name = "cumprod"

    def propose(self, g):
        x = g.pick(lambda v: v.order() > 0 and not v.special)
        return [x], {"dim": g.rng.randrange(g.value(x).order())}

    def infer(self, p, x):
        need(p["dim"] < x.order() and not x.special)
        limit = max(x.largest(), 1.0) ** max(x.dims[p["dim"]].size, 1)
        if not x.floating():
            limit = min(limit, 2.0**63)
        low = 0 if x.low >= 0 else -limit
        return settled(x.like(low=low, high=limit, type=x.type if x.floating() else "i64"))

    def text(self, p, x):
        return f"cumprod<{p['dim']}>({x})"


# ---------------------------------------------------------------------------------------------------- refusals

class Refusal(Op):
    """The last statement of a program that must throw."""
    smooth = False


def refusal(cls):
    made = cls()
    OPS[made.name] = REFUSALS[made.name] = made
    return cls


REFUSALS = {}


@refusal
class SliceOutside(Refusal):
    name = "slice_outside"

    def propose(self, g):
        x = g.pick(lambda v: v.order() > 0)
        v = g.value(x)
        dim = g.rng.randrange(v.order())
        size = v.dims[dim].size
        start, stop = g.rng.choice(((0, size + 1), (size + 1, size + 1), (size // 2, size + 7), (-5, size), (0, -2), (-1, -1), (0, -3)))
        given = v.dims[dim].static or start < 0 or stop < 0 or g.rng.random() < 0.5
        return [x], {"dim": dim, "start": start, "stop": stop, "given": given}

    def infer(self, p, x):
        need(p["dim"] < x.order() and (p["given"] or not x.dims[p["dim"]].static))
        need(p["start"] < 0 or p["stop"] < p["start"] or p["stop"] > x.dims[p["dim"]].size)
        return x

    def text(self, p, x):
        return OPS["slice"].text({**p, "step": 1}, x)


@refusal
class IndexOutside(Refusal):
    name = "index_outside"

    def propose(self, g):
        x = g.pick(lambda v: 0 < v.order() < 4)
        size = g.value(x).dims[0].size
        wrong = g.rng.choice((size, size + 100, -1) + ((1 << 32,) if g.allows("index_errors") else ()))
        return [x, g.new_leaf(Value("i64", (Dim(3, True),), wrong, wrong, True), "integer")], {
            "op": g.rng.choice(("embedding", "index_select", "gather"))}

    def infer(self, p, x, index):
        need(x.order() > 0 and (p["op"] != "gather" or x.order() == 1) and (index.low < 0 or index.low >= x.dims[0].size))
        need(math.prod(x.sizes()[1:]) > 0)
        return x

    def text(self, p, x, index):
        return f"{p['op']}({x}, {index})" if p["op"] == "embedding" else f"{p['op']}<0>({x}, {index})"


@refusal
class LabelOutside(Refusal):
    name = "label_outside"

    def propose(self, g):
        need(g.allows("index_errors"))
        x = g.pick(lambda v: v.order() > 0 and v.type in ("f64", "f32") and v.dims[-1].size > 0)
        v = g.value(x)
        wrong = g.rng.choice((v.dims[-1].size, -1, 1 << 32))
        return [x, g.new_leaf(Value("i64", v.dims[:-1], wrong, wrong, True), "integer")], {}

    def infer(self, p, x, labels):
        need(x.order() > 0 and labels.sizes() == x.sizes()[:-1] and labels.elements() > 0)
        return x

    def text(self, p, x, labels):
        return f"cross_entropy({x}, {labels})"


@refusal
class ScatterMisfit(Refusal):
    name = "scatter_misfit"

    def propose(self, g):
        x = g.pick(lambda v: v.order() == 2 and v.type in ("f64", "f32") and v.dims[0].static and v.dims[0].size)
        v = g.value(x)
        n, m = v.sizes()
        index, source = g.rng.choice((((n, m + 2), (n, m + 2)), ((n + 1, m), (n, m)), ((n, m), (n, m + 1)), ((n, m + 1), (n, m))))
        dims = lambda s: tuple(Dim(e, False) for e in s)
        return [x, g.new_leaf(Value("i64", dims(index), 0, n - 1, True), "integer"),
                g.new_leaf(Value(v.type, dims(source), -2, 2), "real")], {}

    def infer(self, p, x, index, source):
        need(x.order() == 2 and x.dims[0].static and index.high < x.dims[0].size)
        need(index.sizes() != source.sizes() or source.sizes()[1] != x.sizes()[1])
        need(x.elements() > 0 and index.elements() > 0)
        return x

    def text(self, p, x, index, source):
        return f"scatter_add<0>({x}, {index}, {source})"


@refusal
class BroadcastMisfit(Refusal):
    name = "broadcast_misfit"

    def propose(self, g):
        x = g.pick(lambda v: v.order() > 0 and v.type != "bool" and not all(d.static for d in v.dims))
        v = g.value(x)
        dims = list(v.dims)
        i = g.rng.choice([i for i, d in enumerate(dims) if not d.static])
        dims[i] = Dim(dims[i].size + g.rng.choice((1, 2)), False)
        return [x, g.leaf_like(tuple(dims), v.type)], {}

    def infer(self, p, x, y):
        need(x.order() == y.order() and x.sizes() != y.sizes())
        need(all(a.size == b.size or not (a.static and b.static) for a, b in zip(x.dims, y.dims)))
        need(all(a.size == b.size or a.size != 1 for a, b in zip(x.dims, y.dims)))  # other ops may have inferred that an extent is 1
        return x

    def text(self, p, x, y):
        return f"({x} + {y})"


# ---------------------------------------------------------------------------------------------------- generation

def fits(*values):
    try:
        broadcast(*values)
        return True
    except Misfit:
        return False


MODES = ("value",) * 9 + ("gradient",) * 6 + ("second",) * 2 + ("update",) * 2 + ("refused",) * 2
MOVES = ("reshape", "reshape", "permute", "transpose", "expand", "slice", "slice", "flip", "pad", "concat", "unsqueeze", "squeeze", "stack", "unflatten",
         "flatten", "chunk")
ARITHMETIC = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "number", "number", "where", "reduce", "reduce")

ROWS = ("matmul", "matmul", "matmul", "softmax", "softmax", "norm", "norm", "cross_entropy", "pair_loss", "embedding", "gather",
        "scatter_add", "index_select", "attention", "cast", "cumsum", "cumprod", "einsum", "einsum")
TYPED = ("cast", "cast", "cast", "compare", "compare", "logic", "one_hot", "arg", "arg", "floor", "round", "sign", "reduce", "scatter_add",
         "order", "order", "cumsum", "cumprod")


class Generator:
    features = dict.fromkeys(FEATURES, True)

    def __init__(self, seed, index):
        self.rng = random.Random(seed * 1000003 + index)
        self.program = Program(f"p{index}", self.rng.choice(MODES), self.rng.randrange(1 << 30))
        self.values = {}
        mode = self.program.mode
        family = self.rng.choice(("float", "float", "types", "special")) if mode == "value" else "float"
        self.family = family
        self.types = TYPES if family == "types" else ("f32", "f64", "f32")
        if mode == "second":
            self.types = ("f64",)
        if mode == "gradient" and self.rng.random() < 0.35:
            self.types = ("bf16", "f16", "f32")

    def allows(self, feature):
        return self.features[feature]

    def value(self, name):
        return self.values[name]

    # Operands

    def dim(self, largest=60):
        size = self.rng.choice([e for e in EXTENTS if e <= largest])
        if self.rng.random() < 0.03:
            size = 0
        return Dim(size, self.rng.random() < 0.6)

    def dims_beside(self, dims):
        """Dims that broadcast with `dims`."""
        out = [ONE if self.rng.random() < 0.3 else Dim(d.size, d.static if d == ONE or self.rng.random() < 0.7 else True)
               for d in dims]
        while out and self.rng.random() < 0.3:
            out.pop(0)
        return tuple(out)

    def new_leaf(self, value, fill):
        need(value.elements() <= MAX_ELEMENTS and value.order() <= MAX_ORDER)
        name = f"x{len(self.program.leaves)}"
        self.program.leaves[name] = Leaf(value, fill)
        self.values[name] = value
        return name

    def leaf_like(self, dims, type_):
        if type_ not in FLOATS:
            wide = self.rng.random() < 0.2 and type_ != "i64"
            low, high = {"bool": (0, 1), "u8": (0, 255 if wide else 9)}.get(type_, (-2**31, 2**31 - 1) if wide else (-9, 9))
            return self.new_leaf(Value(type_, dims, low, high, True), "integer")
        if self.family == "special" and self.rng.random() < 0.7:
            return self.new_leaf(Value(type_, dims, -3, 3, False, True), "special")
        exact = 0.5 if self.family == "types" else 0.2
        if self.rng.random() < exact and self.program.mode in ("value", "update"):
            return self.new_leaf(Value(type_, dims, -4, 4, True), "integer")
        low, high = self.rng.choice(((-2.0, 2.0), (-2.0, 2.0), (0.3, 2.5)))
        return self.new_leaf(Value(type_, dims, low, high), "real")

    def first_leaf(self):
        if self.family == "types" and self.rng.random() < 0.15:  # many large f16: their sum is not one
            dims = tuple(Dim(n, self.rng.random() < 0.6) for n in self.rng.choice(((7, 60), (3, 2, 60), (400,), (13, 31))))
            name = self.new_leaf(Value("f16", dims, 300.0, 900.0), "real")
            self.step(("reduce",))
            return name
        dims, order = [], self.rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))
        for _ in range(order):
            room = MAX_ELEMENTS // 2 // max(math.prod(d.size for d in dims), 1)
            dims.append(self.dim(max(room, 1)))
        return self.leaf_like(tuple(dims), self.rng.choice(self.types))

    def find(self, good=lambda v: True):
        """An existing value, preferably a recent one, or None."""
        names = [n for n in self.values if good(self.values[n])]
        if not names:
            return None
        return names[-1] if self.rng.random() < 0.8 else self.rng.choice(names)

    def pick(self, good=lambda v: True):
        name = self.find(good)
        need(name is not None)
        return name

    def pair(self, x, same_type=False):
        v = self.value(x)
        if self.rng.random() < 0.45:
            y = self.find(lambda w: fits(v, w) and (w.type == v.type or not same_type))
        else:
            type_ = v.type if same_type or self.rng.random() < 0.7 else self.rng.choice(self.types)
            y = self.leaf_like(self.dims_beside(v.dims), type_)
        return [x, y] if self.rng.random() < 0.6 else [y, x]

    # Programs

    def step(self, names):
        op = OPS[self.rng.choice(names)]
        leaves, values = dict(self.program.leaves), dict(self.values)
        try:
            operands, params = op.propose(self)
            result = op.infer(params, *(self.values[o] for o in operands))
            check_limits(result)
            need(op.smooth or self.program.mode in ("value", "update", "refused"))
        except (Misfit, IndexError, ValueError, OverflowError, ZeroDivisionError):
            self.program.leaves, self.values = leaves, values
            return False
        name = f"v{len(self.program.statements)}"
        self.program.statements[name] = Statement(op.name, operands, params)
        self.values[name] = result
        return True

    def steps(self, count):
        special = self.family == "special"
        rest = [n for n in OPS if n not in REFUSALS]
        for _ in range(20 * count):
            group = self.rng.random()
            names = (MOVES if group < 0.38 else ARITHMETIC if group < 0.6 or special else
                     TYPED if group < 0.85 and self.family == "types" else ROWS if group < 0.85 else rest)
            count -= self.step(names)
            if count <= 0:
                break

    def generate(self):
        for _ in range(self.rng.choice((1, 1, 2))):
            self.first_leaf()
        self.steps(self.rng.randint(3, 8))
        finish = getattr(self, "finish_" + self.program.mode)
        try:
            finish()
            need(self.program.statements)
            clean(self.program)
            self.program.inferred()
        except Misfit:
            return None
        share(self.program, self.rng)
        return self.program

    def finish_value(self):
        pass

    def finish_gradient(self):
        values = self.program.inferred()
        result = values[self.program.result()]
        need(result.floating() and result.elements() > 0 and not result.special)
        clean(self.program)
        floats = [n for n, leaf in self.program.leaves.items() if leaf.value.floating() and leaf.fill == "real" and
                  not leaf.value.special and flows(self.program, n)]
        need(floats)
        for n in self.rng.sample(floats, self.rng.randint(1, len(floats))):
            self.program.leaves[n].tracked = True

    def finish_second(self):
        self.finish_gradient()
        tracked = [n for n, leaf in self.program.leaves.items() if leaf.tracked]
        for n in tracked[1:]:
            self.program.leaves[n].tracked = False
        self.program.leaves = {tracked[0]: self.program.leaves[tracked[0]], **self.program.leaves}

    def finish_update(self):
        """Makes the program an update: its result is written to a leaf of its shape."""
        values = self.program.inferred()
        result = values[self.program.result()]
        clean(self.program)
        same = [n for n, leaf in self.program.leaves.items() if leaf.value.type == result.type and leaf.value.sizes() == result.sizes()]
        if not same:  # a view of a leaf together with the leaf
            x = self.rng.choice([n for n, l in self.program.leaves.items() if l.value.order() > 0 and l.value.type != "bool"] or [None])
            need(x is not None)
            self.program.statements.clear()
            self.values = {n: leaf.value for n, leaf in self.program.leaves.items()}
            v = self.values[x]
            name = x
            for i in range(self.rng.randint(1, 3)):  # views that keep the shape
                name, last = f"v{i}", name
                self.program.statements[name] = self.turned(last, v)
            result = self.program.statements
            result[f"v{len(result)}"] = Statement("add", self.rng.choice(([name, x], [x, name], [name, name])), {})
            same = [x]
        target = self.rng.choice(same)
        self.program.leaves = {target: self.program.leaves[target], **self.program.leaves}

    def turned(self, x, v):
        """A statement whose result has the shape of its operand x, with different elements at most positions."""
        square = [(i, j) for i in range(v.order()) for j in range(i) if v.dims[i].size == v.dims[j].size]
        choice = self.rng.random()
        if square and choice < 0.5:
            return Statement("transpose", [x], {"dims": list(self.rng.choice(square))})
        dim = self.rng.randrange(v.order())
        if choice < 0.6:
            return Statement("number", [x], {"op": "multiply", "left": False, "number": 2})
        return Statement("flip", [x], {"dim": dim, "order": v.order(), "right": False})

    def finish_refused(self):
        for _ in range(60):
            if self.step(tuple(REFUSALS)):
                return
        raise Misfit


def readers(program):
    count = dict.fromkeys([*program.leaves, *program.statements], 0)
    for s in program.statements.values():
        for o in s.operands:
            count[o] += 1
    return count


def clean(program):
    """Drops leaves and statements that the result does not read."""
    live = {program.result()}
    for name in reversed(list(program.statements)):
        if name in live:
            live.update(program.statements[name].operands)
    program.statements = {n: s for n, s in program.statements.items() if n in live}
    program.leaves = {n: l for n, l in program.leaves.items() if n in live}


def flows(program, leaf):
    """Whether the result depends on `leaf` only through smooth floating-point ops."""
    values = program.inferred()
    reached = {leaf}
    for name, s in program.statements.items():
        if values[name].floating() and any(o in reached and values[o].floating() for o in s.operands):
            reached.add(name)
    return program.result() in reached


def share(program, rng):
    """Chooses lets and cuts. A value that would be written out too often must be shared."""
    count = readers(program)
    nodes = dict.fromkeys(program.leaves, 1)
    names = list(program.statements)
    for name in names[:-1]:
        s = program.statements[name]
        nodes[name] = 1 + sum(nodes[o] for o in s.operands)
        s.shared = count[name] > 1 and (rng.random() < 0.5 or nodes[name] * count[name] > MAX_NODES)
        if s.shared:
            nodes[name] = 1
    first_let = next((i for i, n in enumerate(names) if program.statements[n].shared), len(names))
    if program.mode in ("value", "gradient") and first_let > 1 and rng.random() < 0.3:
        program.statements[rng.choice(names[:min(first_let, len(names) - 1)] or names[:1])].cut = len(names) > 1


# ---------------------------------------------------------------------------------------------------- text

def body_text(program, values, indent="  "):
    lines, depth = [], 0
    result = program.result()
    for name, s in program.statements.items():
        text = OPS[s.op].text(s.params, *s.operands)
        pad = indent + "  " * depth
        if name == result:
            lines.append(f"{pad}return {text};")
        elif s.shared:
            lines.append(f"{pad}return let({text}, [&](auto {name}) {{")
            depth += 1
        elif s.cut:
            lines.append(f"{pad}auto {name} = weft_cut({text});")
        else:
            lines.append(f"{pad}auto {name} = {text};")
    if not program.statements:
        lines.append(f"{indent}return {result};")
    for d in range(depth, 0, -1):
        lines.append(indent + "  " * (d - 1) + "});")
    return "\n".join(lines)


def leaf_text(leaf):
    v = leaf.value
    sizes = ", ".join(map(str, v.sizes()))
    tracked = ", true" if leaf.tracked else ""
    return (f"leaf<{CPP[v.type]}, {v.extents()}{tracked}>{{{{{v.order()}, {{{sizes}}}}}, fill::{leaf.fill}, "
            f"{number_text(v.low)}, {number_text(v.high)}}}")


def number_text(x):
    return f"{int(x)}." if x == int(x) else repr(x)


def program_text(program):
    values = program.inferred()
    parameters = ", ".join(f"auto {n}" for n in program.leaves)
    result = values[program.result()]
    form = f"form_is<{CPP[result.type]}, {result.extents()}>" if program.mode != "refused" else "any_form"
    cut = any(s.cut for s in program.statements.values())
    lines = [f"void {program.name}(verdict& v) {{"]
    lines.append(f"  const auto program = []([[maybe_unused]] auto&& weft_cut, {parameters}) {{")
    lines.append(body_text(program, values, "    "))
    lines.append("  };")
    leaves = ",\n      ".join(leaf_text(l) for l in program.leaves.values())
    mode = program.mode + ("_cut" if cut else "")
    lines.append(f"  check_{mode}<{form}>(v, {program.seed}u, program,\n      {leaves});")
    lines.append("}")
    return "\n".join(lines)


def file_text(programs):
    parts = ["// SPDX-License-Identifier: MIT", "// Written by tests/random/generate.py.", '#include "check.hpp"', "",
             "using namespace weft;", "using namespace weft::random_programs;", "", "namespace {", ""]
    parts += [program_text(p) + "\n" for p in programs]
    parts += ["}  // namespace", "", "int main(int argc, char** argv) {", "  return judge(argc, argv, {"]
    parts += [f'      {{"{p.name}", &{p.name}}},' for p in programs]
    parts += ["  });", "}", ""]
    return "\n".join(parts)


def programs_of(seed, count, first=0, wanted=lambda p: True):
    """`count` wanted programs; numbers without a valid program are skipped. None among 20,000 is an error."""
    found, index, last = [], first, first
    while len(found) < count:
        if index - last > 20_000:
            raise SystemExit(f"generate.py: no such program among 20,000 after p{last}")
        made = Generator(seed, index).generate()
        if made and wanted(made):
            found.append(made)
            last = index
        index += 1
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--per-file", type=int, default=10)
    parser.add_argument("--without", default="", help="features, separated by commas: " + ", ".join(FEATURES))
    parser.add_argument("--out", type=pathlib.Path, required=True)
    o = parser.parse_args()
    for name in filter(None, o.without.split(",")):
        Generator.features[name] = False
    o.out.mkdir(parents=True, exist_ok=True)
    programs = programs_of(o.seed, o.programs)
    for first in range(0, len(programs), o.per_file):
        (o.out / f"programs_{first // o.per_file}.cpp").write_text(file_text(programs[first:first + o.per_file]))


if __name__ == "__main__":
    main()
