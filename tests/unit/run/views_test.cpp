// SPDX-License-Identifier: MIT
// Sequences of up to three views on small shapes, each with every reader, against plain index arithmetic.
//
// Graphs are built at run time, go through all passes and run on the reference back end. The quick run covers
// all sequences of one and two views, those of two with some readers, and random sequences of three.
// WEFT_TEST_LARGE=1 covers all sequences with every reader, which takes an hour.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include <weft/graph/products.hpp>
#include <weft/lower/reference.hpp>
#include <weft/weft.hpp>

using namespace weft;
using graph::compute_graph;
using graph::value;

namespace {

constexpr int widest_order = 4, widest_extent = 3;
#ifdef WEFT_SANITIZED
constexpr bool is_sanitized = true;
#else
constexpr bool is_sanitized = false;
#endif

/// A view, as the indices of the elements that it shows, in row-major order.
struct elements {
  shape s;
  std::vector<index_t> at;
};

std::vector<index_t> coordinates(const shape& s, index_t i) {
  std::vector<index_t> c(static_cast<std::size_t>(s.order));
  for (int d = s.order; d-- > 0; i /= s[d]) c[static_cast<std::size_t>(d)] = i % s[d];
  return c;
}
index_t number_of_element(const shape& s, const std::vector<index_t>& c) {
  index_t i = 0;
  for (int d = 0; d < s.order; ++d) i = i * s[d] + c[static_cast<std::size_t>(d)];
  return i;
}

struct step {
  view_kind kind;
  attributes at;
  shape to;
};

elements viewed(const elements& from, const step& v) {
  if (v.kind == view_kind::reshape) return {v.to, from.at};
  elements result{v.to, {}};
  for (index_t i = 0; i < v.to.size(); ++i) {
    const std::vector<index_t> to = coordinates(v.to, i);
    std::vector<index_t> c(static_cast<std::size_t>(from.s.order));
    for (int d = 0; d < from.s.order; ++d) {
      const auto k = static_cast<std::size_t>(d);
      if (v.kind == view_kind::permute) c[static_cast<std::size_t>(v.at[d])] = to[k];
      else if (v.kind == view_kind::expand)
        c[k] = from.s[d] == 1 ? 0 : to[k + static_cast<std::size_t>(v.to.order - from.s.order)];
      else if (d != v.at[0]) c[k] = to[k];
      else c[k] = v.kind == view_kind::flip ? from.s[d] - 1 - to[k] : v.at[1] + to[k] * v.at[3];
    }
    result.at.push_back(from.at[static_cast<std::size_t>(number_of_element(from.s, c))]);
  }
  return result;
}

void for_each_shape(int order, const std::function<void(const shape&)>& f, shape s = {}) {
  if (s.order == order) return f(s);
  s.append(0);
  for (index_t e = 0; e <= widest_extent; ++e) {
    s[s.order - 1] = e;
    for_each_shape(order, f, s);
  }
}

/// All views of a value of shape `s`.
std::vector<step> views_of(const shape& s) {
  std::vector<step> all;
  for (int order = 0; order <= 3; ++order)
    for_each_shape(order, [&](const shape& to) {
      if (to.size() == s.size() && !(to == s))
        all.push_back({view_kind::reshape, extents_attributes(to), to});
    });
  for (index_t longer : {4, 6, 9, 12, 18})
    if (s.size() == longer) all.push_back({view_kind::reshape, {{longer}, 1}, {1, {longer}}});
  std::vector<int> order(static_cast<std::size_t>(s.order));
  for (int d = 0; d < s.order; ++d) order[static_cast<std::size_t>(d)] = d;
  while (std::next_permutation(order.begin(), order.end())) {
    step v{view_kind::permute, {{}, s.order}, s};
    for (int d = 0; d < s.order; ++d) {
      v.at[d] = order[static_cast<std::size_t>(d)];
      v.to[d] = s[order[static_cast<std::size_t>(d)]];
    }
    all.push_back(v);
  }
  for (int d = 0; d < s.order; ++d) {
    all.push_back({view_kind::flip, {{d}, 1}, s});
    for (index_t start = 0; start <= s[d]; ++start)
      for (index_t stop = start; stop <= s[d]; ++stop)
        for (index_t by = 1; by <= 2; ++by) {
          shape to = s;
          to[d] = (stop - start + by - 1) / by;
          all.push_back({view_kind::slice, {{d, start, stop, by}, 4}, to});
        }
    for (index_t e : {0, 2, 3})
      if (s[d] == 1) {
        shape to = s;
        to[d] = e;
        all.push_back({view_kind::expand, extents_attributes(to), to});
      }
  }
  if (s.order < widest_order) {
    shape to{s.order + 1, {2}};
    for (int d = 0; d < s.order; ++d) to[d + 1] = s[d];
    all.push_back({view_kind::expand, extents_attributes(to), to});
  }
  return all;
}

struct numbers {
  shape s;
  std::vector<double> v;
};

enum reader {
  elementwise,
  sum_last,
  sum_first,
  softmax_last,
  product,
  side_by_side,
  copied,
  looked_up,
  in_place,
  gradient,
  readers
};

/// A program of views: its graph, its inputs, and the expected result.
struct program {
  compute_graph g{};
  recycled_vector<index_t> sizes{};
  tensor_list leaves{};

  value leaf(const shape& known, const shape& now, dtype t, const std::function<double(index_t)>& f) {
    auto state = make_state(default_device(), now, t);
    for (index_t i = 0; i < now.size(); ++i)
      if (t == dtype::i64)
        static_cast<std::int64_t*>(state->memory.data())[i] = static_cast<std::int64_t>(f(i));
      else static_cast<float*>(state->memory.data())[i] = static_cast<float>(f(i));
    leaves.push_back(state);
    return g.leaf({t, known}, t == dtype::f32 ? leaf_role::variable : leaf_role::untracked);
  }

  std::vector<numbers> play(const tensor_list& targets = {}) {
    compute_graph lean = graph::expanded(graph::with_canonical_extents(g));
    lean = graph::with_legal_views(graph::with_transposed_products(lean));
    lower::plan p = lower::make_plan(lean);
    if (lower::verify_plan(p)) throw error("a plan breaks a promise");
    const auto span = [](const auto& s) { return std::span(s.begin(), static_cast<std::size_t>(s.size())); };
    const lower::plan_view view{span(p.values),       span(p.steps),   span(p.operands), span(p.kernels),
                                span(p.instructions), span(p.symbols), span(p.checks),   span(p.laws),
                                span(p.outputs),      p.leaves};
    using enum native_op;
    for (lower::step_entry& s : p.steps)
      s.function = lower::native_function_of<product, checked_index, index_select, index_add, gather,
                                             scatter_sum>(lower::native_use_of(view, s));
    context c;
    static lower::reference_backend reference;
    c.set_backend(&reference);
    runtime::operands o;
    o.leaves = leaves;
    o.sizes = sizes;
    tensor_list outputs = targets;
    if (!targets.empty()) runtime::execute_into(c, {view, {}}, o, targets);
    else
      runtime::execute(c, {view, {}}, o.leaves, o.numbers, runtime::resolve_symbols(view, o.leaves, o.sizes),
                       outputs);
    std::vector<numbers> results;
    for (const auto& t : outputs) {
      const float* v = static_cast<const float*>(t->memory.data());
      results.push_back(
          {t->extents, v ? std::vector<double>(v, v + t->extents.size()) : std::vector<double>()});
    }
    return results;
  }
};

double element(index_t i) { return static_cast<double>(i * i % 11 + i + 1); }

/// The expected result of reader `which` for `v`.
numbers expected(int which, const elements& v) {
  const shape& s = v.s;
  numbers r{s, {}};
  const auto x = [&](index_t i) { return element(v.at[static_cast<std::size_t>(i)]); };
  const index_t n = s.size();
  if (which == elementwise || which == in_place)
    for (index_t i = 0; i < n; ++i) r.v.push_back(x(i) * 2 + 1);
  if (which == copied)
    for (index_t i = 0; i < n; ++i) r.v.push_back(x(i));
  if (which == sum_last || which == sum_first) {
    const int d = which == sum_last ? s.order - 1 : 0;
    r.s[d] = 1;
    r.v.assign(static_cast<std::size_t>(r.s.size()), 0);
    for (index_t i = 0; i < n; ++i) {
      std::vector<index_t> c = coordinates(s, i);
      c[static_cast<std::size_t>(d)] = 0;
      r.v[static_cast<std::size_t>(number_of_element(r.s, c))] += x(i);
    }
  }
  if (which == softmax_last)
    for (index_t i = 0; i < n; ++i) {
      const index_t row = i / s.last() * s.last();
      double all = 0;
      for (index_t k = row; k < row + s.last(); ++k) all += std::exp(x(k) - x(i));
      r.v.push_back(1 / all);
    }
  if (which == product) {  // v v^T
    const index_t rows = s[s.order - 2], inner = s.last();
    r.s[s.order - 1] = rows;
    for (index_t i = 0; i < r.s.size(); ++i) {
      const index_t batch = i / (rows * rows), a = i / rows % rows, b = i % rows;
      double sum = 0;
      for (index_t k = 0; k < inner; ++k)
        sum += x((batch * rows + a) * inner + k) * x((batch * rows + b) * inner + k);
      r.v.push_back(sum);
    }
  }
  if (which == side_by_side) {  // along the last dim: v, 2 v, v
    r.s[s.order - 1] = 3 * s.last();
    for (index_t i = 0; i < r.s.size(); ++i) {
      const index_t row = i / (3 * s.last()), c = i % (3 * s.last());
      r.v.push_back(x(row * s.last() + c % s.last()) * (c / s.last() == 1 ? 2 : 1));
    }
  }
  if (which == looked_up)  // along the first dim, by the position in the value
    for (index_t i = 0; i < n; ++i) {
      std::vector<index_t> c = coordinates(s, i);
      c[0] = i % s[0];
      r.v.push_back(x(number_of_element(s, c)));
    }
  return r;
}

bool equal(const numbers& a, const numbers& b) {
  if (!(a.s == b.s) || a.v.size() != b.v.size()) return false;
  for (std::size_t i = 0; i < a.v.size(); ++i)
    if (!(std::abs(a.v[i] - b.v[i]) <= 1e-5 * (1 + std::abs(b.v[i])))) return false;
  return true;
}

struct checker {
  std::mt19937 random{7};
  long programs = 0, refused = 0;
  long failures = 0;

  /// A number in an attribute, stored in the graph or given at run time.
  index_t size_of(program& p, index_t n, bool dynamic) {
    if (!dynamic || random() % 2) return n;
    p.sizes.push_back(n);
    return p.g.dims.given(p.g.sizes++);
  }

  value applied(program& p, value x, const step& v, bool dynamic) {
    attributes at = v.at;
    if (v.kind == view_kind::reshape || v.kind == view_kind::expand)
      for (int i = 0; i < at.count; ++i) at[i] = size_of(p, at[i], dynamic);
    if (v.kind == view_kind::slice)
      for (int i = 1; i < 3; ++i) at[i] = size_of(p, at[i], dynamic);
    switch (v.kind) {
      case view_kind::reshape: return reshape_to(x, shape_of(at));
      case view_kind::permute: return permute_dims(x, at);
      case view_kind::expand: return p.g.apply<op::expand>(at, x);
      case view_kind::slice: return p.g.apply<op::slice>(at, x);
      default: return p.g.apply<op::flip>(at, x);
    }
  }

  /// The node that reader `which` computes from `v`, which shows the elements `now`.
  value read_by(program& p, int which, value v, const elements& now) {
    const int order = now.s.order;
    if (which == elementwise || which == in_place) return v * 2.0 + 1.0;
    if (which == sum_last) return sum_dims(v, order - 1, order);
    if (which == sum_first) return sum_dims(v, 0, 1);
    if (which == softmax_last) {
      const value e = exp(v - max_dims(v, order - 1, order));
      return e / sum_dims(e, order - 1, order);
    }
    if (which == product) return contract_of(v, transposed(v));
    if (which == side_by_side) {
      const attributes dim{{order - 1}, 1};
      return p.g.apply<op::concat>(dim, p.g.apply<op::concat>(dim, v, v * 2.0), v);
    }
    if (which == looked_up)
      return gather_of(
          v, p.leaf(now.s, now.s, dtype::i64, [&](index_t i) { return static_cast<double>(i % now.s[0]); }),
          0);
    return v;
  }

  void check(const shape& from, const std::vector<step>& steps, int which, bool dynamic) {
    elements now{from, {}};
    for (index_t i = 0; i < from.size(); ++i) now.at.push_back(i);
    const shape& to = steps.back().to;
    if (to.order == 0 && which != elementwise && which != copied && which != gradient) return;
    if (which == product && to.order < 2) return;
    if (which == in_place && !(to == from)) return;
    program p;
    shape known = from;
    for (int d = 0; dynamic && d < from.order; ++d)
      if (random() % 2) known[d] = dyn;
    const value x = p.leaf(known, from, dtype::f32, element);
    try {
      value v = x;
      for (const step& each : steps) {
        v = applied(p, v, each, dynamic);
        now = viewed(now, each);
      }
      const tensor_list leaves = p.leaves;
      if (which == gradient) {
        check_gradient(p, x, v, now, from);
      } else {
        p.g.outputs.push_back(read_by(p, which, v, now).id);
        const numbers got = p.play(which == in_place ? leaves : tensor_list())[0];
        report(equal(got, expected(which, now)), from, steps, which, dynamic);
      }
    } catch (const shape_error& e) {
      ++refused;  // a dim of unknown extent does not broadcast
      report(dynamic, from, steps, which, dynamic, e.what());
    }
  }

  void check_gradient(program& p, value x, value v, const elements& now, const shape& from) {
    const value y = v * 3.0;
    graph::node seed;
    seed.op = &graph::info_of<op::leaf>;
    seed.at = {{p.g.leaves++}, 1};
    seed.result = y.get().result;
    const int seed_id = p.g.append(seed).id;
    auto weights = make_state(default_device(), now.s, dtype::f32);
    numbers sums{from, std::vector<double>(static_cast<std::size_t>(from.size()), 0)};
    for (std::size_t i = 0; i < now.at.size(); ++i) {
      static_cast<float*>(weights->memory.data())[i] = static_cast<float>(i + 1);
      sums.v[static_cast<std::size_t>(now.at[i])] += 3 * static_cast<double>(i + 1);
    }
    p.leaves.push_back(weights);
    const sequence<int> cotangents = autodiff::reverse(p.g, y.id, seed_id);
    p.g.outputs = {cotangents[x.id]};
    if (!equal(p.play()[0], sums)) throw error("a gradient differs");
  }

  void report(bool right, const shape& from, const std::vector<step>& steps, int which, bool dynamic,
              const char* why = "") {
    ++programs;
    if (right || ++failures > 1) return;  // one is enough to read
    std::string text = to_string(from);
    for (const step& s : steps) {
      text += " kind " + std::to_string(static_cast<int>(s.kind)) + " (";
      for (int i = 0; i < s.at.count; ++i) text += std::to_string(s.at[i]) + " ";
      text += ") " + to_string(s.to);
    }
    text += " read by " + std::to_string(which) + (dynamic ? ", dynamic " : " ") + why;
    FAIL_CHECK(text);
  }

  void check_guarded(const shape& from, const std::vector<step>& steps, int which, bool dynamic) {
    try {
      check(from, steps, which, dynamic);
    } catch (const error& e) { report(false, from, steps, which, dynamic, e.what()); }
  }
};

/// Calls f(leaf, steps) for sequences of `count` views, extending one in `one_of` sequences.
template <class F>
void for_each_sequence(const shape& from, std::vector<step>& steps, int count, std::mt19937& random,
                       unsigned one_of, const F& f) {
  const shape s = steps.empty() ? from : steps.back().to;
  for (const step& v : views_of(s)) {
    if (one_of > 1 && random() % one_of) continue;
    steps.push_back(v);
    if (count == 1) f(steps);
    else for_each_sequence(from, steps, count - 1, random, one_of, f);
    steps.pop_back();
  }
}

void check_sequences(int count, unsigned one_of, int readers_of_each) {
  checker c;
  std::mt19937 random{static_cast<unsigned>(count)};
  for (int order = 0; order <= 3; ++order)
    for_each_shape(order, [&](const shape& from) {
      std::vector<step> steps;
      for_each_sequence(from, steps, count, random, one_of, [&](const std::vector<step>& s) {
        const int first = readers_of_each < 2 * readers ? static_cast<int>(random() % (2 * readers)) : 0;
        for (int k = 0; k < readers_of_each; ++k) {
          const int which = (first + k) % (2 * readers);
          c.check_guarded(from, s, which % readers, which >= readers);
        }
      });
    });
  MESSAGE(count << " views: " << c.programs << " programs, " << c.refused << " refused");
  CHECK(c.programs > 0);
  CHECK(c.failures == 0);
}

bool all_of_them() { return std::getenv("WEFT_TEST_LARGE") != nullptr; }
/// One in how many views is taken whenever a sequence is extended.
unsigned one_of(unsigned quick, unsigned sanitized) {
  return all_of_them() ? 1 : is_sanitized ? sanitized : quick;
}

}  // namespace

TEST_CASE("views: one view with every reader") { check_sequences(1, 1, 2 * readers); }
TEST_CASE("views: two views") {
  check_sequences(2, one_of(1, 2), all_of_them() ? 2 * readers : is_sanitized ? 1 : 2);
}
TEST_CASE("views: three views") {
  check_sequences(3, one_of(4, 16), all_of_them() ? 2 * readers : 1);
}
