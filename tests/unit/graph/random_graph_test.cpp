// SPDX-License-Identifier: MIT
// Random graphs, built at run time: every pass keeps its postconditions and preserves the values of the
// outputs, and the plan computes them.
//
// WEFT_TEST_SEED selects other graphs, WEFT_TEST_GRAPHS their number.
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include <weft/grad/partition.hpp>
#include <weft/graph/precision.hpp>
#include <weft/graph/print.hpp>
#include <weft/graph/products.hpp>
#include <weft/lower/native_code.hpp>
#include <weft/lower/plan.hpp>
#include <weft/lower/reference.hpp>
#include <weft/lower/verify.hpp>
#include <weft/run/specialization.hpp>

#include "interpret.hpp"

using namespace weft;
using graph::compute_graph;
using graph::value;
using test::array;
using test::given_values;

namespace {

int number_from(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::atoi(text) : otherwise;
}

/// Builds a graph with the functions that formulas use, and computes the expected value of each node.
class builder {
 public:
  struct known {
    value in_graph;
    array elements;
  };

  explicit builder(unsigned seed) : random_(seed), type_(chance(25) ? dtype::f32 : dtype::f64) {}
  builder(const builder&) = delete;
  builder& operator=(const builder&) = delete;

  void build() {
    leaf(random_extents());
    for (int left = below(10) + 3, tries = 200; left > 0 && tries > 0; --tries) left -= step();
    g.outputs.push_back(values.back().in_graph.id);
  }

  compute_graph g;
  given_values given;
  std::vector<known> values;

  dtype type() const { return type_; }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  bool chance(int percent) { return below(100) < percent; }
  double real() { return static_cast<double>(random_()) / 4294967296.0 * 4 - 2; }

  std::vector<index_t> random_extents() {
    static constexpr index_t sizes[] = {1, 1, 2, 2, 3, 4, 5, 6, 7};
    std::vector<index_t> e(static_cast<std::size_t>(below(4)));
    for (index_t& x : e) x = chance(3) ? 0 : sizes[below(9)];
    return e;
  }

  /// A leaf; extents are static or symbols, except for 1 where it must broadcast.
  known leaf(const std::vector<index_t>& extents, bool ones_stretch = false) {
    return leaf_of(filled(extents, [&] { return real(); }), type_, ones_stretch, chance(80));
  }
  template <class F>
  static array filled(const std::vector<index_t>& extents, F f) {
    return test::filled(extents, [&](const test::position&) { return f(); });
  }
  known leaf_of(array elements, dtype type, bool ones_stretch, bool tracked) {
    tensor_spec f{type, {}};
    for (index_t e : elements.extents) f.extents.append((ones_stretch && e == 1) || chance(50) ? e : dyn);
    given.leaves.push_back(elements);
    const value v = g.leaf(f, tracked ? leaf_role::variable : leaf_role::untracked);
    if (is_floating(type)) values.push_back({v, elements});
    return {v, std::move(elements)};
  }

  const known& pick() {
    return values[chance(65) ? values.size() - 1
                             : static_cast<std::size_t>(below(static_cast<int>(values.size())))];
  }

  /// Records a node and its expected value; returns 0 if the value is too large to use.
  int add(value v, array elements) {
    if (elements.at.size() > 300) return 0;
    for (double x : elements.at)
      if (!(std::abs(x) < 50)) return 0;
    values.push_back({v, std::move(elements)});
    return 1;
  }
  array truth(const char* op, const std::vector<index_t>& at, const std::vector<const array*>& in,
              const std::vector<index_t>& extents) {
    return test::computed(op, type_, at, in, extents);
  }

  int step() {
    switch (below(12)) {
      case 0: return unary();
      case 1:
      case 2: return binary();
      case 3: return fold();
      case 4: return product();
      case 5: return look_up();
      case 6: return joined();
      case 7: return reshape();
      default: return view();
    }
  }

  int unary() {
    const known x = pick();
    const auto made = [&](value v, const char* op) {
      return add(v, truth(op, {}, {&x.elements}, x.elements.extents));
    };
    switch (below(12)) {
      case 0: return made(sin(x.in_graph), "sin");
      case 1: return made(tanh(x.in_graph), "tanh");
      case 2: return made(-x.in_graph, "negate");
      case 3: return made(abs(x.in_graph), "abs");
      case 4: return made(relu(x.in_graph), "relu");
      case 5: return made(sigmoid(x.in_graph), "sigmoid");
      case 6: return made(silu(x.in_graph), "silu");
      case 7: return made(softplus(x.in_graph), "softplus");
      case 8: return made(graph::constant_in_derivative(x.in_graph), "detach");
      case 9:
      case 10: {
        if (x.elements.order() == 0 || x.elements.at.empty()) return 0;
        const bool logarithm = chance(50);
        const index_t dim = below(x.elements.order());
        const attributes at{{dim}, 1};
        const value v =
            logarithm ? g.apply<op::log_softmax>(at, x.in_graph) : g.apply<op::softmax>(at, x.in_graph);
        return add(v, truth(logarithm ? "log_softmax" : "softmax", {dim}, {&x.elements}, x.elements.extents));
      }
      default: return made(exp(tanh(x.in_graph)) - 0.0, "tanh") && exponential();
    }
  }
  int exponential() {
    for (double& e : values.back().elements.at) e = std::exp(e);
    return 1;
  }

  /// Another operand of x: a known value of broadcasting extents, or a new leaf.
  known beside(const known& x) {
    for (int tries = 0; tries < 3; ++tries) {
      const known y = pick();
      if (y.elements.extents == x.elements.extents && chance(70)) return y;
    }
    std::vector<index_t> e = x.elements.extents;
    for (index_t& each : e)
      if (chance(30)) each = 1;
    while (!e.empty() && chance(25)) e.erase(e.begin());
    return leaf(e, true);
  }

  int binary() {
    const known x = pick();
    if (chance(25)) {
      const double number = chance(30) ? 1 : chance(50) ? 0.5 : -1.25;
      const bool given_number = chance(30);
      value n = given_number ? g.argument(type_) : g.constant(number, type_);
      if (given_number) given.numbers.push_back(number);
      array a;
      a.at = {number};
      a.extents = {};
      return arithmetic(x, {n, a});
    }
    const known y = beside(x);
    return chance(50) ? arithmetic(x, y) : arithmetic(y, x);
  }
  int arithmetic(const known& x, const known& y) {
    const auto& larger = x.elements.order() >= y.elements.order() ? x.elements : y.elements;
    std::vector<index_t> extents = larger.extents;
    for (const array* a : {&x.elements, &y.elements})
      for (std::size_t d = 0; d < a->order(); ++d)
        if (a->extents[d] != 1) extents[d + extents.size() - a->order()] = a->extents[d];
    const auto made = [&](value v, const char* op) {
      return add(v, truth(op, {}, {&x.elements, &y.elements}, extents));
    };
    switch (below(7)) {
      case 0:
      case 1: return made(x.in_graph + y.in_graph, "add");
      case 2: return made(x.in_graph - y.in_graph, "subtract");
      case 3:
      case 4: return made(x.in_graph * y.in_graph, "multiply");
      case 5: return made(maximum(x.in_graph, y.in_graph), "maximum");
      default: return made(minimum(x.in_graph, y.in_graph), "minimum");
    }
  }

  int fold() {
    const known x = pick();
    const int order = static_cast<int>(x.elements.order());
    if (order == 0) return 0;
    const int first = below(order), last = first + 1 + below(order - first), kind = below(3);
    index_t folded = 1;
    for (int d = first; d < last; ++d) folded *= x.elements.extents[static_cast<std::size_t>(d)];
    if (kind > 0 && folded == 0) return 0;
    const char* name = kind == 0 ? "reduce_sum" : kind == 1 ? "reduce_max" : "reduce_min";
    const array kept = truth(name, {first, last}, {&x.elements}, {});
    if (chance(50)) {
      const value v = kind == 0   ? sum_dims(x.in_graph, first, last)
                      : kind == 1 ? max_dims(x.in_graph, first, last)
                                  : min_dims(x.in_graph, first, last);
      return add(v, kept);
    }
    const bool keep = chance(30);
    attributes at{{((index_t{1} << last) - 1) & ~((index_t{1} << first) - 1), keep}, 2};
    const value v = kind == 0   ? g.apply<op::sum>(at, x.in_graph)
                    : kind == 1 ? g.apply<op::amax>(at, x.in_graph)
                                : g.apply<op::amin>(at, x.in_graph);
    array dropped = kept;
    if (!keep) dropped.extents.erase(dropped.extents.begin() + first, dropped.extents.begin() + last);
    return add(v, dropped);
  }

  int product() {
    const known x = pick();
    if (x.elements.order() < 2 || x.elements.order() > 4) return 0;
    std::vector<index_t> e = x.elements.extents;
    e[e.size() - 2] = x.elements.extents.back();
    e.back() = 1 + below(5);
    std::vector<index_t> batch(e.begin(), e.end() - 2);
    for (index_t& b : batch)
      if (chance(30)) b = 1;
    while (!batch.empty() && chance(40)) batch.erase(batch.begin());
    std::vector<index_t> right = batch;
    right.insert(right.end(), e.end() - 2, e.end());
    const bool flipped = chance(40);
    if (flipped) std::swap(right[right.size() - 2], right.back());
    const known w = leaf(right, true);
    value b = w.in_graph;
    array factor = w.elements;
    if (flipped) {
      b = transposed(b);
      std::vector<index_t> order(right.size());
      for (std::size_t d = 0; d < order.size(); ++d) order[d] = static_cast<index_t>(d);
      std::swap(order[order.size() - 2], order.back());
      std::swap(right[right.size() - 2], right.back());
      factor = truth("permute", order, {&w.elements}, right);
    }
    std::vector<index_t> extents = x.elements.extents;
    extents.back() = right.back();
    return add(g.apply<op::matmul>({}, x.in_graph, b), truth("matmul", {}, {&x.elements, &factor}, extents));
  }

  known indices(const std::vector<index_t>& extents, index_t count) {
    return leaf_of(filled(extents, [&] { return static_cast<double>(below(static_cast<int>(count))); }),
                   dtype::i64, false, false);
  }

  int look_up() {
    const known x = pick();
    if (x.elements.order() == 0) return 0;
    const auto dim = static_cast<std::size_t>(below(static_cast<int>(x.elements.order())));
    std::vector<index_t> extents = x.elements.extents;
    const index_t size = extents[dim];
    if (chance(40)) {
      if (extents[0] == 0) return 0;
      std::vector<index_t> e = random_extents();
      e.resize(std::min<std::size_t>(e.size(), 2));
      if (e.size() + extents.size() - 1 > static_cast<std::size_t>(max_order)) return 0;
      const known index = indices(e, extents[0]);
      e.insert(e.end(), extents.begin() + 1, extents.end());
      const attributes reader{{static_cast<index_t>(index_reader::embedding)}, 1};
      return add(g.apply<op::index_select>(reader, x.in_graph, index.in_graph),
                 truth("index_select", {}, {&x.elements, &index.elements}, e));
    }
    if (chance(50)) {
      if (size == 0) return 0;
      extents[dim] = below(4);
      const known index = indices(extents, size);
      return add(gather_of(x.in_graph, index.in_graph, static_cast<index_t>(dim)),
                 truth("gather", {static_cast<index_t>(dim)}, {&x.elements, &index.elements}, extents));
    }
    const known index = indices(extents, 3);
    extents[dim] = 3;
    const attributes at{{static_cast<index_t>(dim), 3}, 2};
    return add(g.apply<op::scatter_sum>(at, index.in_graph, x.in_graph),
               truth("scatter_sum", {at[0], 3}, {&index.elements, &x.elements}, extents));
  }

  int joined() {
    known x = pick();
    if (x.elements.order() == 0) return 0;
    const auto dim = static_cast<std::size_t>(below(static_cast<int>(x.elements.order())));
    for (int parts = below(3); parts >= 0; --parts) {
      std::vector<index_t> extents = x.elements.extents;
      known y = pick();
      std::vector<index_t> fitting = y.elements.extents;
      if (fitting.size() == extents.size()) fitting[dim] = extents[dim];
      if (fitting != extents) {
        fitting = extents;
        fitting[dim] = below(4);
        y = leaf(fitting);
      }
      extents[dim] += y.elements.extents[dim];
      const attributes at{{static_cast<index_t>(dim)}, 1};
      const bool before = chance(50);
      const known &first = before ? y : x, &second = before ? x : y;
      const array all = truth("concat", {at[0]}, {&first.elements, &second.elements}, extents);
      x = {g.apply<op::concat>(at, first.in_graph, second.in_graph), all};
    }
    return add(x.in_graph, x.elements);
  }

  /// Merges, splits, adds and removes dims.
  int reshape() {
    const known x = pick();
    const int order = static_cast<int>(x.elements.order());
    array out = x.elements;
    value v = x.in_graph;
    switch (below(4)) {
      case 0: {
        if (order == 0) return 0;
        const int first = below(order), last = first + below(order - first);
        v = g.apply<op::flatten>(attributes{{first, last}, 2}, v);
        index_t n = 1;
        for (int d = first; d <= last; ++d) n *= out.extents[static_cast<std::size_t>(d)];
        out.extents.erase(out.extents.begin() + first, out.extents.begin() + last + 1);
        out.extents.insert(out.extents.begin() + first, n);
        break;
      }
      case 1: {
        if (order == 0 || order == max_order) return 0;
        const int dim = below(order);
        const index_t e = out.extents[static_cast<std::size_t>(dim)];
        std::vector<index_t> divisors;
        for (index_t d = 1; d <= std::max<index_t>(e, 1); ++d)
          if (e % d == 0) divisors.push_back(d);
        const index_t parts = divisors[static_cast<std::size_t>(below(static_cast<int>(divisors.size())))];
        v = g.apply<op::unflatten>(attributes{{dim, chance(40) ? size_given(parts) : parts}, 2}, v);
        out.extents[static_cast<std::size_t>(dim)] = e / parts;
        out.extents.insert(out.extents.begin() + dim, parts);
        break;
      }
      case 2: {
        if (order == max_order) return 0;
        const int dim = below(order + 1);
        const shape from = v.extents();
        shape to;
        for (int d = 0; d <= order; ++d) {
          if (d == dim) to.append(1);
          if (d < order) to.append(from[d]);
        }
        v = reshape_to(v, to);
        out.extents.insert(out.extents.begin() + dim, 1);
        break;
      }
      default: {
        shape to;
        std::vector<index_t> extents;
        for (int d = 0; d < order; ++d)
          if (g.dims.canonical(v.extents()[d]) != 1 || chance(40)) {
            to.append(v.extents()[d]);
            extents.push_back(out.extents[static_cast<std::size_t>(d)]);
          }
        v = reshape_to(v, to);
        out.extents = extents;
      }
    }
    return add(v, out);
  }

  index_t size_given(index_t n) {
    given.sizes.push_back(n);
    return g.dims.given(g.sizes++);
  }

  int view() {
    const known x = pick();
    int order = static_cast<int>(x.elements.order());
    std::vector<index_t> extents = x.elements.extents;
    if (order == 0) return 0;
    const int dim = below(order);
    index_t& e = extents[static_cast<std::size_t>(dim)];
    switch (below(6)) {
      case 0: {
        attributes at;
        at.count = order;
        std::vector<index_t> to;
        for (int d = 0; d < order; ++d) at[d] = d;
        std::shuffle(at.v, at.v + order, random_);
        for (int d = 0; d < order; ++d) to.push_back(extents[static_cast<std::size_t>(at[d])]);
        return add(permute_dims(x.in_graph, at), truth("permute", {at.v, at.v + order}, {&x.elements}, to));
      }
      case 1: {
        shape to = x.in_graph.extents();
        bool grows = false;
        for (int d = 0; d < order; ++d)
          if (g.dims.canonical(to[d]) == 1 && chance(70)) {
            extents[static_cast<std::size_t>(d)] = to[d] = 1 + below(4);
            grows = true;
          }
        if (!grows && order < max_order) {
          for (int d = order++; d > 0; --d) to[d] = to[d - 1];
          to.order = order;
          to[0] = 1 + below(3);
          extents.insert(extents.begin(), to[0]);
        }
        return add(expand_to(x.in_graph, to), truth("expand", {}, {&x.elements}, extents));
      }
      case 2:
      case 3: {
        const index_t start = below(static_cast<int>(e) + 1),
                      stop = start + below(static_cast<int>(e - start) + 1), step = 1 + below(3) / 2;
        const index_t first = chance(30) ? size_given(start) : start,
                      last = chance(30) ? size_given(stop) : stop;
        const std::vector<index_t> at{dim, start, stop, step};
        e = (stop - start + step - 1) / step;
        return add(slice_dim(x.in_graph, dim, first, last, step), truth("slice", at, {&x.elements}, extents));
      }
      case 4: {
        const value v = g.apply<op::flip>(attributes{{dim}, 1}, x.in_graph);
        return add(v, truth("flip", {dim}, {&x.elements}, extents));
      }
      default: {
        const index_t before = below(3), after = below(3);
        const index_t whole = g.dims.add(g.dims.canonical(x.in_graph.extents()[dim]), before + after);
        e += before + after;
        const value v = g.apply<op::pad>(attributes{{dim, before, whole, 1}, 4}, x.in_graph);
        return add(v, truth("pad", {dim, before, e, 1}, {&x.elements}, extents));
      }
    }
  }

  std::mt19937 random_;
  dtype type_;
};

// ------------------------------------------------------------------------------------- comparison

std::string text_of(const array& a) {
  std::string text = "[";
  for (index_t e : a.extents) text += std::to_string(e) + " ";
  text += "]:";
  for (std::size_t i = 0; i < a.at.size() && i < 40; ++i) text += " " + std::to_string(a.at[i]);
  return text;
}
bool near(const array& a, const array& b, double tolerance) {
  if (a.extents != b.extents) return false;
  for (std::size_t i = 0; i < a.at.size(); ++i)
    if (!(std::abs(a.at[i] - b.at[i]) <= tolerance * (1 + std::abs(b.at[i])))) return false;
  return true;
}

/// Throws if an output of `after` differs from that of `before`, or a postcondition does not hold.
struct examiner {
  const given_values& given;
  double tolerance;

  std::vector<array> outputs(const compute_graph& g, const given_values& v) const {
    const std::vector<array> values = test::interpreted(g, v);
    std::vector<array> out;
    for (int o : g.outputs) out.push_back(o < 0 ? array() : values[static_cast<std::size_t>(o)]);
    return out;
  }
  void same(const std::vector<array>& got, const std::vector<array>& expected, const std::string& pass,
            double within = 1e-9) const {
    if (got.size() != expected.size()) throw std::logic_error(pass + ": another number of outputs");
    for (std::size_t o = 0; o < got.size(); ++o)
      if (!near(got[o], expected[o], within))
        throw std::logic_error(pass + ": output " + std::to_string(o) + " is " + text_of(got[o]) +
                               ", expected " + text_of(expected[o]));
  }
  template <class Verify>
  compute_graph looked_at(compute_graph g, const std::vector<array>& expected, const char* pass,
                          Verify verify) const {
    if (const broken_promise b = verify(g))
      throw std::logic_error(std::string(pass) + ": " + b.what + " at " + std::to_string(b.at));
    same(outputs(g, given), expected, pass);
    return g;
  }

  /// Lowers a graph of expanded ops, and runs it with `leaves`, which are those of `v` rounded to their
  /// element types.
  std::vector<array> lowered(compute_graph g, const std::vector<array>& expected, const given_values& v,
                             const given_values& leaves, const char* what) const {
    examiner own{v, tolerance};
    g = own.looked_at(graph::with_transposed_products(g), expected, "with_transposed_products",
                      graph::verify_expanded);
    g = own.looked_at(graph::with_legal_views(g), expected, "with_legal_views", graph::verify_views);
    const graph::fusion fused = graph::fuse(g);
    if (const broken_promise b = graph::verify_fusion(g, fused))
      throw std::logic_error(std::string("fuse: ") + b.what);
    lower::plan p = lower::make_plan(g);
    if (const broken_promise b = lower::verify_plan(p))
      throw std::logic_error(std::string("make_plan: ") + b.what);
    const std::vector<array> out = played(p, leaves);
    same(out, expected, std::string(what) + ", played", tolerance);
    return out;
  }

  template <class T>
  static constexpr std::span<const T> table(const sequence<T>& s) {
    return {s.begin(), static_cast<std::size_t>(s.size())};
  }

  std::vector<array> played(lower::plan& p, const given_values& v) const {
    static const device where(std::make_shared<lower::reference_backend>());
    const lower::plan_view view{table(p.values),       table(p.steps),   table(p.operands), table(p.kernels),
                                table(p.instructions), table(p.symbols), table(p.checks),   table(p.laws),
                                table(p.outputs),      p.leaves};
    using enum native_op;
    for (lower::step_entry& s : p.steps)
      s.function =
          lower::native_function_of<product, checked_index, index_select, index_add, gather, scatter_sum,
                                    arg_extremum, argsort, cumsum>(lower::native_use_of(view, s));
    tensor_list leaves(static_cast<std::size_t>(p.leaves)),
        results(static_cast<std::size_t>(p.outputs.size()));
    for (const lower::value_entry& e : p.values)
      if (e.where == lower::storage::leaf)
        leaves[static_cast<std::size_t>(e.source)] =
            tensor_of(where, v.leaves[static_cast<std::size_t>(e.source)], e.result.type);
    for (std::size_t i = 0; i < leaves.size(); ++i)
      if (!leaves[i]) leaves[i] = tensor_of(where, v.leaves[i], dtype::f64);
    recycled_vector<any_number> numbers;
    for (double x : v.numbers) numbers.push_back(any_number::of(x));  // only floating arguments
    const runtime::symbol_values symbols =
        runtime::resolve_symbols(view, leaves, {v.sizes.data(), v.sizes.size()});
    runtime::specialization at(view, {}, symbols, *where);
    std::vector<std::byte> arena(at.arena_bytes() + 64, std::byte{0xFF});  // NaN
    for (std::size_t i = 0; i < leaves.size(); ++i) at.set_leaf(i, leaves[i]->memory.data());
    for (std::size_t o = 0; o < results.size(); ++o) {
      const int id = p.outputs[static_cast<int>(o)];
      if (id < 0) continue;
      results[o] = make_state(where, at.output_extents(static_cast<int>(o)), p.values[id].result.type);
      std::memset(results[o]->memory.data(), 0xFF, results[o]->bytes());
      at.set_output(o, {results[o]->memory.data()});
    }
    const auto aligned = (reinterpret_cast<std::uintptr_t>(arena.data()) + 63) / 64 * 64;
    at.run({*where, reinterpret_cast<void*>(aligned), numbers, 0, print_tapped, nullptr});
    std::vector<array> out;
    for (const auto& r : results) out.push_back(r ? array_of(*r) : array());
    return out;
  }
  static std::shared_ptr<tensor_state> tensor_of(const device& where, const array& a, dtype type) {
    shape s;
    for (index_t e : a.extents) s.append(e);
    auto t = make_state(where, s, type);
    visit_type(type, [&]<class T>(T) {
      for (std::size_t i = 0; i < a.at.size(); ++i)
        static_cast<T*>(t->memory.data())[i] = static_cast<T>(a.at[i]);
    });
    return t;
  }
  static array array_of(const tensor_state& t) {
    array a(std::vector<index_t>(t.extents.extent, t.extents.extent + t.extents.order));
    visit_type(t.type, [&]<class T>(T) {
      for (std::size_t i = 0; i < a.at.size(); ++i)
        a.at[i] = static_cast<double>(static_cast<const T*>(t.memory.data())[i]);
    });
    return a;
  }
};

double dot(const array& a, const array& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.at.size(); ++i) sum += a.at[i] * b.at[i];
  return sum;
}

/// Checks that the cotangents agree with a difference of the interpreted values along a random direction.
void check_derivative(const examiner& look, const compute_graph& g, const std::vector<array>& joint,
                      const array& seed, const std::vector<bool>& tracked) {
  std::mt19937 random(7);
  std::vector<array> direction = look.given.leaves;
  double along = 0, terms = 0;
  for (std::size_t i = 0; i < direction.size(); ++i) {
    for (double& d : direction[i].at) d = tracked[i] ? static_cast<double>(random()) / 2147483648.0 - 1 : 0;
    if (joint[i + 1].at.size() != direction[i].at.size()) continue;
    along += dot(joint[i + 1], direction[i]);
    terms += std::abs(dot(joint[i + 1], direction[i]));
  }
  const auto moved = [&](double t) {
    given_values v = look.given;
    for (std::size_t i = 0; i < direction.size(); ++i)
      for (std::size_t k = 0; k < direction[i].at.size(); ++k) v.leaves[i].at[k] += t * direction[i].at[k];
    return dot(look.outputs(g, v)[0], seed);
  };
  constexpr double h = 1e-5;
  const double here = moved(0), above = moved(h), below = moved(-h);
  const double right = (above - here) / h, left = (here - below) / h, slope = (above - below) / (2 * h);
  if (std::abs(right - left) > 1e-3 * (1 + terms + std::abs(slope))) return;  // a kink
  if (!(std::abs(along - slope) <= 1e-5 * (1 + terms + std::abs(slope))))
    throw std::logic_error("reverse: the derivative along a direction is " + std::to_string(along) +
                           ", expected " + std::to_string(slope));
}

bool hides_gradients(const compute_graph& g) {
  for (const graph::node& n : g.nodes)
    if (n.op == &graph::info_of<op::detach>) return true;
  return false;
}

void check_joint(const examiner& look, const compute_graph& canonical, const std::vector<array>& plain) {
  compute_graph joint = autodiff::with_cotangents(canonical);
  given_values given = look.given;
  array seed = plain[0];
  for (std::size_t k = 0; k < seed.at.size(); ++k) seed.at[k] = std::sin(1.0 + static_cast<double>(k));
  given.leaves.push_back(seed);
  const examiner own{given, look.tolerance};
  const std::vector<array> expected = own.outputs(joint, given);
  own.same({expected[0]}, plain, "reverse, value");
  std::vector<bool> tracked(given.leaves.size());
  for (const graph::node& n : canonical.nodes)
    if (n.op == &graph::info_of<op::leaf>) tracked[static_cast<std::size_t>(n.at[0])] = n.needs_gradient;
  if (!hides_gradients(canonical)) check_derivative(look, canonical, expected, seed, tracked);
  own.looked_at(graph::expanded(graph::with_wide_gradients(dtype::bf16, joint)), expected,
                "with_wide_gradients", graph::verify_expanded);
  joint = own.looked_at(graph::expanded(joint), expected, "expanded joint graph", graph::verify_expanded);
  for (const bool all_written : {true, false}) {
    const sequence<int> kept = autodiff::saved_values(joint, all_written);
    const compute_graph forward = autodiff::forward_part(joint, kept),
                        backward = autodiff::backward_part(joint, kept);
    const std::vector<array> saved_values = own.outputs(forward, given);
    own.same({saved_values[0]}, plain, "forward part");
    given_values later = look.given;
    later.leaves.insert(later.leaves.end(), saved_values.begin() + 1, saved_values.end());
    later.leaves.push_back(seed);
    const std::vector<array> cotangents(expected.begin() + 1, expected.end());
    own.same(own.outputs(backward, later), cotangents, "backward part");
    // Kept values as they were computed: a maximum must be found again among recomputed elements.
    const std::vector<array> kept_played = own.lowered(forward, saved_values, given, given, "forward part");
    given_values later_played = later;
    std::copy(kept_played.begin() + 1, kept_played.end(),
              later_played.leaves.begin() + static_cast<std::ptrdiff_t>(look.given.leaves.size()));
    own.lowered(backward, cotangents, later, later_played, "backward part");
  }
}

/// Lowers the graph with values, and sums of their rows and columns, as additional outputs, so that kernels
/// have several results.
void check_sums(const examiner& look, compute_graph g, const std::vector<builder::known>& values,
                unsigned seed) {
  std::mt19937 random(seed);
  for (const builder::known& k : values) {
    const value v{&g, k.in_graph.id};
    const int order = v.extents().order;
    if (order < 2) continue;
    const unsigned which = random() % 8;
    for (const auto& [bit, id] :
         {std::pair{1u, v.id}, {2u, sum_dims(v, order - 1, order).id}, {4u, sum_dims(v, 0, order - 1).id}})
      if ((which & bit) && !g.outputs.contains(id)) g.outputs.push_back(id);
  }
  const std::vector<array> expected = look.outputs(g, look.given);
  look.lowered(graph::expanded(graph::with_canonical_extents(g)), expected, look.given, look.given, "sums");
}

/// Runs all passes over the graph of this seed.
void check_graph(unsigned seed) {
  builder b(seed);
  b.build();
  const std::vector<array> values = test::interpreted(b.g, b.given);
  for (const builder::known& k : b.values)
    if (!near(values[static_cast<std::size_t>(k.in_graph.id)], k.elements, 1e-9))
      throw std::logic_error("apply: node " + std::to_string(k.in_graph.id) + " is " +
                             text_of(values[static_cast<std::size_t>(k.in_graph.id)]) + ", expected " +
                             text_of(k.elements) + "\n" + graph::to_text(b.g));
  const examiner look{b.given, b.type() == dtype::f32 ? 2e-4 : 1e-8};
  const std::vector<array> expected = look.outputs(b.g, b.given);
  try {
    look.looked_at(b.g, expected, "apply", graph::verify_graph);
    const compute_graph canonical = look.looked_at(graph::with_canonical_extents(b.g), expected,
                                                   "with_canonical_extents", graph::verify_graph);
    look.looked_at(graph::expanded(graph::with_products_in(dtype::bf16, canonical)), expected,
                   "with_products_in", graph::verify_expanded);
    look.lowered(look.looked_at(graph::expanded(canonical), expected, "expanded", graph::verify_expanded),
                 expected, b.given, b.given, "value");
    if (canonical[canonical.outputs[0]].needs_gradient) check_joint(look, canonical, expected);
    check_sums(look, b.g, b.values, seed);
  } catch (const std::exception& e) {
    throw std::logic_error(std::string(e.what()) + "\n" + graph::to_text(b.g));
  }
}

}  // namespace

TEST_CASE("random graphs: passes keep promises and values, plans compute them") {
  const int first = number_from("WEFT_TEST_SEED", 1), count = number_from("WEFT_TEST_GRAPHS", 1500);
  int wrong = 0;
  for (int seed = first; seed < first + count; ++seed) {
    try {
      check_graph(static_cast<unsigned>(seed));
    } catch (const std::exception& e) {
      if (++wrong > 3) continue;
      MESSAGE("graph ", seed, ": ", std::string(e.what()));
    }
  }
  CHECK(wrong == 0);
}
