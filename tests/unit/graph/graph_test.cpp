// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <vector>

#include <weft/grad/partition.hpp>
#include <weft/graph/fuse.hpp>
#include <weft/graph/print.hpp>
#include <weft/graph/products.hpp>
#include <weft/lower/plan.hpp>
#include <weft/lower/verify.hpp>

using namespace weft;
using graph::compute_graph;
using graph::info_of;
using graph::value;

namespace {
constexpr tensor_spec row_of(index_t n) { return {dtype::f32, {2, {4, n}}}; }
constexpr int count(const compute_graph& g, const graph::op_info& op) {
  int n = 0;
  for (const graph::node& each : g.nodes) n += each.op == &op;
  return n;
}
}  // namespace

static_assert([] {
  compute_graph g;
  const value x = g.leaf(row_of(8), leaf_role::variable);
  const value a = exp(x) + 1.0, b = exp(x) + 1.0;
  return a.id == b.id && (x * 1.0).id == x.id;
}(), "equal nodes are one node, and x * 1 is x");

TEST_CASE("simplify: only what holds for all IEEE values") {
  compute_graph g;
  const value x = g.leaf(row_of(8), leaf_role::untracked);
  CHECK((x * 0.0).id != x.id);
  CHECK((x + 0.0).id != x.id);  // -0 + 0 is +0
  CHECK((x - 0.0).id == x.id);
  CHECK((-(-x)).id == x.id);
  const value two = g.constant(2, dtype::f32);
  CHECK(number_of((two * 3.0).get().at) == 6.0);
}

TEST_CASE("rewrite: what no output needs is gone, the rest keeps its order") {
  compute_graph g;
  const value a = g.leaf(row_of(8), leaf_role::untracked), b = g.leaf(row_of(8), leaf_role::untracked);
  const value c = a + b;
  exp(c);
  g.outputs.push_back(c.id);
  const compute_graph lean = without_dead_code(g);
  CHECK(lean.size() == 3);
  CHECK(lean[2].op == &info_of<op::add>);
}

TEST_CASE("reverse: the derivative of a sum over a broadcast operand is summed back") {
  compute_graph g;
  const value x = g.leaf(row_of(8), leaf_role::variable);
  const value b = g.leaf({dtype::f32, {1, {8}}}, leaf_role::variable);
  const value y = x * b;
  const value seed = g.leaf(row_of(8), leaf_role::untracked);
  const sequence<int> c = autodiff::reverse(g, y.id, seed.id);
  CHECK(g[c[x.id]].result.extents == x.extents());
  CHECK(g[c[b.id]].result.extents == b.extents());
  CHECK(count(g, info_of<op::reduce_sum>) == 1);
}

TEST_CASE("fuse: softmax is one row kernel") {
  compute_graph g;
  const value x = g.leaf(row_of(8), leaf_role::untracked);
  const value e = exp(x - max_dims(x, 1, 2));
  g.outputs.push_back((e / sum_dims(e, 1, 2)).id);
  const graph::fusion f = graph::fuse(g);
  REQUIRE(f.groups.size() == 1);
  CHECK(f.groups[0].folds_rows);
  const lower::plan p = lower::make_plan(g);
  CHECK(p.kernels.size() == 1);
  CHECK(p.kernels[0].scratch_rows == 1);  // exp is not computed twice
}

TEST_CASE("fuse: a chain around a matmul is two kernels, and never a cycle") {
  compute_graph g;
  const value x = g.leaf({dtype::f32, {2, {8, 8}}}, leaf_role::untracked);
  const value a = exp(x);
  const value m = contract_of(a, x);
  g.outputs.push_back((a + m * 2.0).id);
  const lower::plan p = lower::make_plan(g);
  CHECK(p.steps.size() == 3);
}

TEST_CASE("fuse: a value that is an output, too, is computed by the only kernel that reads it") {
  compute_graph g;
  const value x = g.leaf({dtype::f32, {2, {8, 8}}}, leaf_role::untracked);
  const value top = max_dims(x, 1, 2);
  const value read_late = sum_dims(x * contract_of(x, x), 1, 2) - top;
  for (const value& v : {read_late, top}) g.outputs.push_back(v.id);
  CHECK(lower::make_plan(g).kernels.size() == 1);  // x is read once
  g.outputs.push_back(contract_of(top, transposed(read_late)).id);
  CHECK(lower::make_plan(g).kernels.size() == 2);  // `top` has another reader
}

TEST_CASE("fuse: the sum of rows takes along what only it reads") {
  compute_graph g;
  const value x = g.leaf(row_of(8), leaf_role::untracked), y = g.leaf(row_of(8), leaf_role::untracked);
  g.outputs.push_back(sum_dims(x * y, 0, 1).id);
  const lower::plan p = lower::make_plan(g);
  REQUIRE(p.steps.size() == 1);
  CHECK(p.kernels[0].division == kernel_division::columns);
}

TEST_CASE("fuse: sums of columns join the kernel that reduces the rows of the same elements") {
  const auto softmax_backward = [](compute_graph& g, auto more) {
    const value y = g.leaf(row_of(8), leaf_role::untracked), seed = g.leaf(row_of(8), leaf_role::untracked);
    const value dx = y * (seed - sum_dims(seed * y, 1, 2));
    g.outputs.push_back(dx.id);
    more(g, seed, dx);
    const graph::fusion f = graph::fuse(g);
    CHECK_FALSE(graph::verify_fusion(g, f));
    CHECK_FALSE(lower::verify_plan(lower::make_plan(g)));
    return f.groups.size();
  };
  const auto out = [](compute_graph& g, const value& v) { g.outputs.push_back(v.id); };
  {  // sums of its result, of its operand, of values computed from both
    compute_graph g;
    CHECK(softmax_backward(g, [&](compute_graph& to, const value& seed, const value& dx) {
            out(to, sum_dims(dx, 0, 1));
            out(to, sum_dims(seed, 0, 1));
            out(to, max_dims(dx * seed, 0, 1));
          }) == 1);
    const lower::plan p = lower::make_plan(g);
    REQUIRE(p.kernels.size() == 1);
    CHECK(p.kernels[0].division == kernel_division::rows);
    CHECK(p.kernels[0].column_folds == 3);
    CHECK(p.kernels[0].folds == 1);
  }
  {  // not if another kernel reads them
    compute_graph g;
    CHECK(softmax_backward(g, [&](compute_graph& to, const value& seed, const value&) {
            out(to, exp(sum_dims(seed, 0, 1)));
          }) == 3);
  }
  {  // not if they depend on its result
    compute_graph g;
    const value m = g.leaf({dtype::f32, {2, {8, 8}}}, leaf_role::untracked);
    CHECK(softmax_backward(g, [&](compute_graph& to, const value& seed, const value& dx) {
            out(to, sum_dims(contract_of(dx, m) * seed, 0, 1));
          }) == 2);
  }
  {  // not if they depend on it through a product, even after others have joined
    compute_graph g;
    const auto leaf = [&] { return g.leaf({dtype::f32, {2, {8, 8}}}, leaf_role::untracked); };
    const value x = leaf(), a = leaf(), b = leaf(), w = leaf();
    const value y = x * sum_dims(x, 1, 2);
    for (const value& v :
         {y, sum_dims(y, 0, 1), sum_dims(y * contract_of(a, b), 0, 1), sum_dims(y * contract_of(y, w), 0, 1)})
      out(g, v);
    CHECK_FALSE(lower::verify_plan(lower::make_plan(g)));
    CHECK(graph::fuse(g).groups.size() == 3);
  }
  {  // not if the kernel would compute with 64 bits, which changes its sums
    compute_graph g;
    CHECK(softmax_backward(g, [&](compute_graph& to, const value& seed, const value&) {
            out(to, sum_dims(cast_to(seed, dtype::f64), 0, 1));
          }) == 2);
  }
  {  // not of other elements
    compute_graph g;
    CHECK(softmax_backward(g, [&](compute_graph& to, const value&, const value&) {
            out(to, sum_dims(to.leaf(row_of(8), leaf_role::untracked) * 2.0, 0, 1));
          }) == 2);
    compute_graph other_rows;
    CHECK(softmax_backward(other_rows, [&](compute_graph& to, const value& seed, const value&) {
            out(to, sum_dims(reshape_to(seed, {2, {8, 4}}), 0, 1));
          }) == 2);
  }
}

TEST_CASE("fuse: sums of columns join the kernel that computes the elements") {
  const auto fused = [](auto build, int others = 0) {  // others: further stored values
    compute_graph g;
    const value x = g.leaf(row_of(8), leaf_role::untracked), y = g.leaf(row_of(8), leaf_role::untracked);
    for (const value& v : build(g, x, y)) g.outputs.push_back(v.id);
    const graph::fusion f = graph::fuse(g);
    CHECK_FALSE(graph::verify_fusion(g, f));
    const lower::plan p = lower::make_plan(g);
    CHECK_FALSE(lower::verify_plan(p));
    int stored = 0;
    for (const lower::step_entry& s : p.steps) stored += s.kind == lower::step_kind::kernel ? s.outputs : 0;
    CHECK(stored == g.outputs.size() + others);
    return f;
  };
  // A gradient and a bias's gradient: the rounded gradient is not stored separately.
  const graph::fusion rounded = fused([](compute_graph&, const value& x, const value& y) {
    const value slope = x * y;
    return std::vector{cast_to(slope, dtype::bf16), sum_dims(slope, 0, 1), max_dims(x, 0, 1)};
  });
  REQUIRE(rounded.groups.size() == 1);
  CHECK(rounded.groups[0].folds_columns);
  CHECK_FALSE(rounded.groups[0].folds_rows);
  // Prefers the kernel that computes an operand to an earlier kernel that reads one.
  const graph::fusion second = fused([](compute_graph& g, const value& x, const value& y) {
    const value m = g.leaf({dtype::f32, {2, {8, 8}}}, leaf_role::untracked);
    const value product = contract_of(x, m), deep = exp(contract_of(product, m) * x);
    const value late = exp(product * y);
    return std::vector{deep, late, sum_dims(late * x, 0, 1)};
  });
  REQUIRE(second.groups.size() == 2);
  CHECK_FALSE(second.groups[0].folds_columns);
  CHECK(second.groups[1].folds_columns);
  // Not if values per row are computed, as several threads may have parts of a row.
  const graph::fusion of_rows = fused([](compute_graph& g, const value& x, const value&) {
    const value scale = exp(g.leaf({dtype::f32, {2, {4, 1}}}, leaf_role::untracked)), y = x * scale;
    return std::vector{scale, y, sum_dims(y, 0, 1)};
  });
  REQUIRE(of_rows.groups.size() == 2);
  CHECK_FALSE(of_rows.groups[0].folds_columns);
  // Not for sums that another kernel reads.
  CHECK(fused([](compute_graph&, const value& x,
                 const value&) { return std::vector{exp(x), exp(sum_dims(x, 0, 1))}; },
              1)
            .groups.size() == 3);
}

TEST_CASE("cut: backward of relu keeps the matmul's result and recomputes the rest") {
  compute_graph g;
  const value x = g.leaf({dtype::f32, {2, {4, 8}}}, leaf_role::untracked);
  const value w = g.leaf({dtype::f32, {2, {8, 8}}}, leaf_role::variable);
  const value y = relu(contract_of(x, w) + 1.0);
  const value seed = g.leaf({dtype::f32, {2, {4, 8}}}, leaf_role::untracked);
  const sequence<int> c = autodiff::reverse(g, y.id, seed.id);
  g.outputs = {y.id, -1, c[w.id]};
  const compute_graph joint = graph::expanded(g);
  const sequence<int> kept = autodiff::saved_values(joint);
  CHECK(kept.size() == 1);
  const compute_graph back = autodiff::backward_part(joint, kept);
  CHECK(count(back, info_of<op::contract>) == 1);
}

TEST_CASE("views: a reshape that strides cannot follow gets a copy, one that they can does not") {
  compute_graph g;
  const value x = g.leaf({dtype::f32, {3, {2, 3, 4}}}, leaf_role::untracked);
  const value split = reshape_to(slice_dim(x, 2, 0, 2), {4, {2, 3, 1, 2}});
  const value merged = reshape_to(transposed(x), {2, {2, 12}});
  g.outputs = {exp(split).id, exp(merged).id};
  CHECK(count(graph::with_legal_views(g), info_of<op::contiguous>) == 1);
}

TEST_CASE("views: the gradients of the parts of a divided tensor are written side by side, once") {
  for (const dtype type : {dtype::f32, dtype::bf16}) {  // sums of the latter are computed in f32
    compute_graph g;
    const value x = g.leaf({type, {2, {4, 9}}}, leaf_role::variable);
    value y = slice_dim(x, 1, 0, 3);
    for (int k = 1; k < 3; ++k) y = y * slice_dim(x, 1, 3 * k, 3 * k + 3);
    const value seed = g.leaf({type, {2, {4, 3}}}, leaf_role::untracked);
    const sequence<int> c = autodiff::reverse(g, y.id, seed.id);
    g.outputs = {c[x.id]};
    const compute_graph legal = graph::with_legal_views(graph::expanded(g));
    CHECK(count(legal, info_of<op::pad>) == 0);
    const lower::plan p = lower::make_plan(legal);
    CHECK(p.steps[p.steps.size() - 1].kind == lower::step_kind::concat);
    CHECK(p.steps[p.steps.size() - 1].inputs == 3);
    for (int s = 0; s + 1 < p.steps.size(); ++s) CHECK(p.steps[s].kind != lower::step_kind::concat);
  }
}

TEST_CASE("views: an output that is a computed value reshaped is that value's memory, once") {
  compute_graph g;
  const value x = g.leaf(row_of(8), leaf_role::untracked);
  const value sums = sum_dims(x, 0, 1);
  const auto reshaped = [&](shape s) { return reshape_to(sums, s).id; };
  g.outputs = {reshaped({1, {8}}), reshaped({2, {2, 4}}), sums.id};
  const compute_graph legal = graph::with_legal_views(g);
  CHECK(count(legal, info_of<op::contiguous>) == 2);
  CHECK_FALSE(graph::verify_views(legal));
  const lower::plan p = lower::make_plan(legal);
  CHECK_FALSE(lower::verify_plan(p));
  CHECK(p.steps.size() == 3);
  CHECK(p.values[p.outputs[0]].result.extents == shape{1, {8}});
  CHECK(p.values[p.operands[p.steps[0].first_operand + p.steps[0].inputs]].output == 0);
}

namespace {
/// How a graph of two operands is executed.
struct execution {
  int products = 0, copies = 0, steps = 0;
  bool operator==(const execution&) const = default;
};
template <class F>
execution execution_of(const shape& a, const shape& b, F f) {
  compute_graph g;
  const value x = g.leaf({dtype::f32, a}, leaf_role::untracked),
              y = g.leaf({dtype::f32, b}, leaf_role::untracked);
  g.outputs = {f(x, y).id};
  g = graph::with_legal_views(graph::with_transposed_products(graph::expanded(g)));
  return {count(g, info_of<op::contract>), count(g, info_of<op::contiguous>),
          lower::make_plan(g).steps.size()};
}
/// The execution of an einsum, given the letters of both operands and the result as digits.
execution by_letters(index_t of_a, index_t of_b, index_t of_result, const shape& a, const shape& b) {
  const attributes at{{of_a, of_b, of_result}, 3};
  return execution_of(a, b, [&](value x, value y) { return x.owner->apply<op::einsum>(at, x, y); });
}
}  // namespace

TEST_CASE("einsum: no more products, copies and kernels than if written by hand") {
  constexpr execution product{1, 0, 1}, fused{0, 0, 1};
  const shape square{2, {3, 5}}, batch{3, {2, dyn, 5}}, heads{4, {2, dyn, 3, 5}};
  CHECK(by_letters(0x12, 0x23, 0x13, {2, {dyn, 5}}, {2, {dyn, 7}}) == product);  // ij,jk->ik
  CHECK(by_letters(0x12, 0x23, 0x31, square, {2, {5, 7}}) == product);           // ij,jk->ki
  CHECK(by_letters(0x12, 0x32, 0x13, square, {2, {7, 5}}) == product);           // ij,kj->ik
  CHECK(by_letters(0x123, 0x34, 0x412, batch, {2, {5, 7}}) == product);          // abi,ic->cab
  CHECK(by_letters(0x123, 0x134, 0x124, batch, {3, {2, 5, 7}}) == product);      // bij,bjk->bik
  CHECK(by_letters(0x123, 0x34, 0x124, batch, {2, {5, 7}}) == product);          // bij,jk->bik
  CHECK(by_letters(0x1234, 0x345, 0x125, heads, {3, {3, 5, 7}}) == product);     // bthd,hde->bte
  CHECK(by_letters(0x1234, 0x1534, 0x1325, heads, heads) == product);            // bthd,bshd->bhts
  CHECK(by_letters(0x12, 0x2, 0x1, square, {1, {5}}) == product);                // ij,j->i
  CHECK(by_letters(0x2, 0x12, 0x1, {1, {5}}, square) == product);                // j,ij->i
  CHECK(by_letters(0x1, 0x2, 0x12, {1, {3}}, {1, {5}}) == fused);                // i,j->ij
  CHECK(by_letters(0x12, 0x12, 0x1, square, square) == fused);                   // bi,bi->b
  CHECK(by_letters(0x12, 0x12, 0, square, square) ==                             // ij,ij->
        execution_of(square, square, [](value x, value y) { return apply<op::sum, attr<0b11, 0>>(x * y); }));
  const execution with_copy{1, 1, 2};  // of the operand whose inner dims stand in another order
  CHECK(by_letters(0x123, 0x324, 0x14, {3, {2, 3, 5}}, {3, {5, 3, 7}}) == with_copy);  // ijk,kjl->il
}

TEST_CASE("products: one that is only read transposed is computed transposed, without a copy") {
  compute_graph g;
  const value x = g.leaf({dtype::f32, {2, {4, 8}}}, leaf_role::untracked);
  const value w = g.leaf({dtype::f32, {2, {6, 8}}}, leaf_role::variable);
  const value y = contract_of(x, transposed(w));  // a weight stored as [out, in]
  const value seed = g.leaf({dtype::f32, {2, {4, 6}}}, leaf_role::untracked);
  const sequence<int> c = autodiff::reverse(g, y.id, seed.id);
  g.outputs = {c[w.id]};
  CHECK(lower::make_plan(graph::with_legal_views(g)).steps.size() == 2);
  const compute_graph direct = graph::with_transposed_products(g);
  CHECK(lower::make_plan(graph::with_legal_views(direct)).steps.size() == 1);
  CHECK(direct[direct.outputs[0]].result.extents == w.extents());

  compute_graph twice;  // read both ways: computed once, as it is
  const value a = twice.leaf(row_of(4), leaf_role::untracked);
  const value b = twice.leaf(row_of(4), leaf_role::untracked);
  const value product = contract_of(a, b);
  twice.outputs.push_back((product + transposed(product)).id);
  CHECK(count(graph::with_transposed_products(twice), info_of<op::contract>) == 1);
}

TEST_CASE("simplify: cotangents of the parts of a tensor are joined, not added") {
  compute_graph g;
  const value a = g.leaf({dtype::f32, {1, {2}}}, leaf_role::untracked);
  const value b = g.leaf({dtype::f32, {1, {2}}}, leaf_role::untracked);
  const value left = g.apply<op::pad>(attributes{{0, 0, 4, 1}, 4}, a);
  const value right = g.apply<op::pad>(attributes{{0, 2, 4, 1}, 4}, b);
  CHECK((left + right).get().op == &info_of<op::concat>);
  CHECK((right + left).get().op == &info_of<op::concat>);
}

TEST_CASE("print: a graph as text and as DOT") {
  compute_graph g;
  const value x = g.leaf(row_of(8), leaf_role::untracked);
  g.outputs.push_back((exp(x) * 2.0).id);
  CHECK(graph::to_text(g) ==
        "%0 = leaf()  f32 [4, 8]\n%1 = exp(%0)  f32 [4, 8]\n%2 = 2\n"
        "%3 = multiply(%1, %2)  f32 [4, 8]  -> output\n");
  CHECK(graph::to_dot(g).find("n1 -> n3;") != std::string::npos);
  CHECK(graph::to_dot(g).find("n3 [label=\"multiply f32 [4, 8]\", style=bold];") != std::string::npos);
}
