#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Breaks the placement rules in a copy of the headers, one at a time, and shows that the placement tests detect each broken rule.

    placement_mutations.py --build /tmp/mutations      # all of them
    placement_mutations.py --only sums,groups
"""
import argparse
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PLACER, PLACE, DIMS, RESHAPE, PARTIAL = (
    "weft/placement/" + n for n in ("placer.hpp", "divider.hpp", "shared_dims.hpp", "reshape.hpp", "partial.hpp"))
# In this order until one fails. The law has static extents, the models dynamic ones.
TESTS = [HERE / "placement_test.cpp", ROOT / "tests/unit/placement/models_test.cpp"]

# name: (what is broken, file, text that must be there once, what replaces it)
MUTATIONS = {
    "sums": ("a fold over a divided dim is whole", PLACER, "return {tops ? placed::maximum : placed::sum};", "return {};"),
    "maxima": ("a maximum is a sum", PLACER, "return {tops ? placed::maximum : placed::sum};", "return {placed::sum};"),
    "minima": ("a minimum over a divided dim is a sum", PLACER, "if (d.result[0] < 0 && least)", "if (false && least)"),
    "row_groups": ("rows of a table are divided in groups", PLACER, "if (d.result[0] < 0 && rows_in_groups)", "if (false && rows_in_groups)"),
    "cut": ("whole operands beside divided ones are not cut", PLACER,
            "      p[k] = divided_like(to, d.operand[k], to.unit);\n", ""),
    "computed": ("a value computed whole is cut in forward", PLACER, "if (i < seed_ && !of_stream && !is_given_[n.operand[k]])", "if (false)"),
    "contracted": ("a product cuts a whole weight", PLACER,
                   "if (i < seed_ && n.op->kind == op::op_kind::contraction && d.result[0] < 0)", "if (false)"),
    "differently": ("operands divided along different dims are taken", PLACER,
                    "if (fits && (from < 0 || go_together(i, p, k, from))) {", "if (true) {"),
    "groups": ("concat forgets groups", PLACER, "divided_along(dim, dims.add(p[0].groups, p[1].groups), p[0].unit, p[0].pieces)",
               "divided_along(dim, p[0].groups, p[0].unit, p[0].pieces)"),
    "parts": ("concat takes unequal parts", PLACER, "agree_but_groups(p[0], p[1]) && same(part(0), part(1));", "true;"),
    "slices": ("a slice keeps the groups of its operand", PLACER,
               "n.op == &info_of<op::slice> ? last - first : last", "n.op == &info_of<op::slice> ? 1 : last"),
    "middle": ("a slice of part of a group stays divided", PLACER, "if (n.at[3] != 1 || first < 0 || last < 0)", "if (n.at[3] != 1)"),
    "flip": ("a flip of the divided dim stays divided", PLACER,
             "if (n.op == &info_of<op::flip>) return gathered(i, p, mistake::lost_in_view);",
             "if (n.op == &info_of<op::flip>) return p[0];"),
    "settle": ("a function of summands is a summand", PLACER, "      settle(n.operand[k]);\n      return {};", "      return p[k];"),
    "origin": ("sums are settled where they are read", PLACER, "if (settle_first_ < 0) settle_first_ = origin(i);",
               "if (settle_first_ < 0) settle_first_ = i;"),
    "outputs": ("outputs stay partial", PLACER, "where[i].is_partial() && g_.outputs.contains(i)", "false"),
    "added": ("a sum and a whole value add to a sum", PARTIAL,
              "n.op == &info_of<op::concat>)\n    return same_kind;", "n.op == &info_of<op::concat>)\n    return true;"),
    "scaled": ("sums times numbers are settled", PARTIAL,
               "  if (n.op == &info_of<op::multiply>) return partial == 1 && numbers;\n", ""),
    "divided_by": ("sums divided by numbers are settled", PARTIAL,
                   "  if (n.op == &info_of<op::divide>) return p[0].is_partial() && partial == 1 && numbers;\n", ""),
    "tensors": ("a sum times a whole tensor is a sum", PARTIAL, "return partial == 1 && numbers;\n  if (n.op == &info_of<op::divide>)",
                "return partial == 1;\n  if (n.op == &info_of<op::divide>)"),
    "negated": ("negated sums are settled", PARTIAL, "if (n.op == &info_of<op::negate> || ", "if ("),
    "folded": ("sums of sums are settled", PARTIAL, "n.op == &info_of<op::reduce_sum> || ", ""),
    "padded": ("padded sums are settled", PARTIAL, " || n.op == &info_of<op::pad>)\n    return true;", ")\n    return true;"),
    "cast": ("converted sums are settled", PARTIAL, "  if (n.op == &info_of<op::cast>) return is_floating(n.result.type);\n", ""),
    "viewed": ("views of sums are settled", PARTIAL,
               "if (n.op->kind == op::op_kind::view || n.op == &info_of<op::contiguous>) return true;", ""),
    "reshape": ("reshapes lose divided dims", PLACER, "divided() && n.op == &info_of<op::reshape>) return reshape(i, p);",
                "divided() && n.op == &info_of<op::reshape>) return gathered(i, p, mistake::lost_in_view);"),
    "split": ("a dim is not followed into the dims that it becomes", RESHAPE,
              "if (same(product(dims_, to_.extents, j_, u), outer)) return set(u, 1, unit, q);", ";"),
    "merged": ("a dim is not followed into a merged one", RESHAPE, "if (b_ == j_ + 1) return set(j_, outer, unit, q);", ""),
    "counted": ("groups are not followed into dims", RESHAPE,
                "if (counted && e > outer / before && e % (outer / before) == 0)", "if (false && counted && e)"),
    "unit": ("what a reshape does not divide is divided", RESHAPE, "groups, units == 0 ? 1 : units,", "groups, 1,"),
    "permute": ("dims stay in their order in a permute", DIMS, "found[d].operand[0] = normalized_dim(n.at[d], n.at.count);",
                "found[d].operand[0] = d;"),
    "broadcast": ("extents of 1 are divided", DIMS, "if (own >= 0 && s[own] != 1)", "if (own >= 0)"),
    "fold_dims": ("folded dims stay", DIMS, "found[static_cast<int>(d)].result[0] = -1;", "{}"),
    "rows": ("rows of other ranks are looked up here", PLACE, "if (by_rows) return looked_up(i);", ""),
    "zeros": ("rows of other ranks are not zeros", PLACE,
              "return weft::where(beside(own.here, x.extents()), x, to_.constant(0, x.type())).id;", "return x.id;"),
    "added_rows": ("rows of other ranks are added here", PLACE,
                   "const value kept = weft::where(beside(own.here, x.extents()), x, to_.constant(0, x.type()));",
                   "const value kept = x;"),
    "random": ("each rank draws its own random numbers", PLACE,
               "if (n.op == &info_of<op::uniform_like>) return random_numbers(i);", ""),
    "coordinates": ("coordinates begin at 0 on each rank", PLACE, "return (own + to_.extent(", "return (own + 0 * to_.extent("),
    "bounds": ("bounds of slices are those of the whole", PLACE,
               "if (!bounds || !p.is_divided() || p.dim != n.at[0]) return at;", "return at;"),
    "part": ("the part of every rank is the first", PLACE,
             "const auto cut = [&](value x, int dim) { return slice_of(x, dim, first, part); };",
             "const auto cut = [&](value x, int dim) { return slice_of(x, dim, 0 * first, part); };"),
    "transposed": ("values are gathered along dim 0", PLACE, "    if (dim > 0) v = permute_dims(v, order);\n", ""),
    "attention": ("attention states no dims", "weft/op/attention.hpp",
                  '  static constexpr auto divides = "b.h. b.h. b.h. -> b.h. bh.";\n', ""),
    "attention_backward": ("the derivative of attention states no dims", "weft/op/attention.hpp",
                           '  static constexpr auto divides = "b.h. b.h. b.h. b.h. bh. b.h. -> b.h. b.h. b.h.";\n', ""),
    "grouped": ("parts of heads and of key heads need not belong to each other", PLACE, "if (n.op->kind == op::op_kind::native) match_parts(n, p);", ""),
    "shared_sums": ("what several ranks have is added several times", PLACER,
                    "if (d.result[0] < 0 && to.is_shared() && !is_cotangent_[i])", "if (false)"),
    "shared_units": ("queries are divided apart from the heads of keys that they read", PLACER,
                     "op_kind::native && (x == y || x < 0 || y < 0)", "op_kind::native"),
    "shared_beside": ("what several ranks have meets what one has", PLACER,
                      "return g_[i].op->kind == op::op_kind::native && (x == y", "return (x == y"),
    "shared_keys": ("gradients of keys are divided as queries are", PLACER,
                    "        return operands[of][o];\n", "        return made[of];\n"),
    "pieces": ("pieces are lost in a division of another dim", "weft/shape/placement.hpp",
               "return divided_along(dim, p.groups, unit, p.pieces);", "return divided_along(dim, p.groups, unit);"),
    "log_sums": ("heads of the second result are dim 2", PLACER, "return divided_like(like, d.result[k], like.unit);", "return divided_like(like, d.result[0], like.unit);"),
    "products": ("products state no dims", "weft/op/contraction.hpp", '"Bmk Bkn -> Bmn"', '""'),
    "select": ("look-ups state no dims", "weft/op/index.hpp", '"vR I -> IR"', '""'),
    "add_rows": ("sums of rows state no dims", "weft/op/index.hpp", '"I IR -> vR"', '""'),
    "arg": ("argmax states no dims", "weft/op/index.hpp", '"A! -> A-"', '""'),
    "orders": ("argsort states no dims", "weft/op/sort.hpp", 'name = "argsort";\n  static constexpr auto divides = "A! -> A!";',
               'name = "argsort";'),
    "running": ("cumsum states no dims", "weft/op/sort.hpp", 'name = "cumsum";\n  static constexpr auto divides = "A! -> A!";',
                'name = "cumsum";'),
    "products_along": ("cumprod states no dims", "weft/op/sort.hpp", 'name = "cumprod";\n  static constexpr auto divides = "A! -> A!";',
                       'name = "cumprod";'),
    "recurrence": ("recurrences state no dims", "weft/op/sort.hpp",
                   'name = "linear_recurrence";\n  static constexpr auto divides = "A! A! -> A!";', 'name = "linear_recurrence";'),
    "along": ("dims along which indices count may be divided", DIMS, "const bool marked = group && (mark == '!' || mark == '-') && at_[0] == k;",
              "const bool marked = group && mark == '-' && node_.at[0] == k;"),
    "tap": ("tap states no dims", "weft/op/tap.hpp", '"A -> A"', '""'),
    "sum_over_positions": ("sum_over_positions states no dims", "weft/op/positions.hpp", '"A -> A"', '""'),
}


def mutated(name, to):
    """A copy of the headers with the rule broken. The text must occur exactly once; otherwise the mutation is out of date."""
    what, file, old, new = MUTATIONS[name]
    if to.exists():
        shutil.rmtree(to)
    shutil.copytree(ROOT / "include", to)
    text = (to / file).read_text()
    if text.count(old) != 1:
        raise SystemExit(f"mutation {name}: {file} holds {text.count(old)} times, expected once:\n{old}")
    (to / file).write_text(text.replace(old, new))


def outcome(compiler, test, build):
    """How a test fails with the headers of `build`; "" if it passes."""
    program = build / "test"
    command = [compiler, "-std=c++20", "-O0", "-g0", "-w", "-DDOCTEST_CONFIG_IMPLEMENT_WITH_MAIN", f"-I{build / 'include'}",
               f"-I{ROOT / 'tests'}", test, "-ldl", "-o", program]
    if subprocess.run([str(c) for c in command], capture_output=True).returncode:
        return f"{test.stem} does not compile"
    try:
        return f"{test.stem} fails" if subprocess.run([str(program)], capture_output=True, timeout=600).returncode else ""
    except subprocess.TimeoutExpired:
        return f"{test.stem} does not end"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="names, separated by commas: " + ", ".join(MUTATIONS))
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--texts-only", action="store_true", help="only see that the headers hold what is taken out")
    o = parser.parse_args()
    missed = []
    if not o.texts_only:  # a test that always fails would detect every mutation
        unchanged = o.build / "unchanged"
        shutil.rmtree(unchanged, ignore_errors=True)
        shutil.copytree(ROOT / "include", unchanged / "include")
        for test in TESTS:
            if found := outcome(o.compiler, test, unchanged):
                raise SystemExit(f"without a mutation {found}")
        shutil.rmtree(unchanged)
    for name in filter(None, o.only.split(",")) if o.only else MUTATIONS:
        begin, build = time.time(), o.build / name
        mutated(name, build / "include")
        if o.texts_only:
            continue
        found = next(filter(None, (outcome(o.compiler, test, build) for test in TESTS)), "")
        if not found:
            missed.append(name)
        print(f"{name}: {found or 'NOT FOUND'} ({MUTATIONS[name][0]}), {time.time() - begin:.0f} s", flush=True)
        shutil.rmtree(build)
    if o.texts_only:
        print("all texts are there")
    else:
        print("all found" if not missed else "missed: " + ", ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
