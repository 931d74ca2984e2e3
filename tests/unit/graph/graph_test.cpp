// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <string_view>
#include <utility>
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
  const value tenth = cast_to(g.constant(0.1, dtype::f32), dtype::f64);
  CHECK(number_of(tenth.get().at) == double(0.1f));
}

TEST_CASE("simplify: a view of a repeated number is that number, repeated") {
  compute_graph g;
  const value one = g.constant(1, dtype::f32);
  const value parts = reshape_to(expand_to(one, {1, {12}}), {2, {3, 4}});
  CHECK(parts.get().op == &info_of<op::expand>);
  CHECK(parts.get().operand[0] == one.id);
  CHECK(transposed(parts).get().operand[0] == one.id);
  CHECK(transposed(parts).extents() == shape{2, {4, 3}});
  CHECK(reshape_to(expand_to(one, {1, {1}}), {}).id == one.id);
  const value x = g.leaf({dtype::f32, {2, {3, 4}}}, leaf_role::untracked);
  CHECK((x * parts).get().operand[1] == one.id);
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

TEST_CASE("fuse: two groups and the node that joins them are not too many for one") {
  compute_graph g;
  const value x = g.leaf(row_of(8), leaf_role::untracked), y = g.leaf(row_of(8), leaf_role::untracked);
  value a = x, b = y;
  for (int i = 0; i < graph::max_group / 2; ++i) {
    a = exp(a);
    b = tanh(b);
  }
  g.outputs = {(a + b).id};
  const graph::fusion f = graph::fuse(g);
  CHECK_FALSE(graph::verify_fusion(g, f));
  for (const graph::kernel_group& k : f.groups) CHECK(k.nodes.size() <= graph::max_group);
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

namespace {
struct with_scalar_vjp : op::elementwise<1> {
  static constexpr auto name = "with_scalar_vjp";
  static constexpr auto value(auto x) { return x * 0.5; }
  static constexpr auto vjp(auto g, auto, auto) { return g.owner->constant(0.5, g.type()); }
};
struct split : op::rule<1> {  // a native op with an integer as second result
  static constexpr auto kind = op::op_kind::native;
  static constexpr auto name = "split";
  static constexpr int results = 2;
  static constexpr native_code code{};
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, operands[0]};
  }
  static constexpr tensor_spec result_spec(int, const tensor_spec* operands) {
    return {dtype::i64, operands[0].extents};
  }
};
}  // namespace

TEST_CASE("reverse: a vjp whose result has fewer dims than the operand is refused") {
  compute_graph g;
  const value x = g.leaf({dtype::f32, {1, {1}}}, leaf_role::variable);
  const value y = g.apply<with_scalar_vjp>({}, x), seed = g.leaf(y.get().result, leaf_role::untracked);
  CHECK_THROWS_WITH_AS(autodiff::reverse(g, y.id, seed.id),
                       "weft: with_scalar_vjp: its vjp returns fewer dims than the operand has", shape_error);
}

TEST_CASE("build: gradients do not flow to integers") {
  compute_graph g;
  const value y = g.apply<split>({}, g.leaf(row_of(8), leaf_role::variable));
  CHECK(y.get().needs_gradient);
  CHECK_FALSE(result_of(y, 1).get().needs_gradient);
}

TEST_CASE("verify: what is broken is reported") {
  const auto says = [](const broken_promise& broken, std::string_view what) {
    CHECK(std::string_view(broken ? broken.what : "nothing") == what);
  };
  const auto changed = [](auto what, auto change) {
    change(what);
    return what;
  };
  compute_graph joint;
  const value x = joint.leaf(row_of(8), leaf_role::variable), w = joint.leaf(row_of(8), leaf_role::variable);
  joint.outputs = {sum_dims(exp(x) * w, 1, 2).id};
  joint = graph::expanded(autodiff::with_cotangents(joint));
  REQUIRE_FALSE(graph::verify_cotangents(joint));
  REQUIRE(joint[3].op == &info_of<op::multiply>);
  const auto of_graph = [&](auto change, auto verify) { return verify(changed(joint, change)); };
  using graph::verify_graph, graph::verify_expanded, graph::verify_cotangents;
  says(of_graph([](auto& g) { g.nodes[3].op = {}; }, verify_graph), "a node has no op");
  says(of_graph([](auto& g) { g.nodes[3].operands = 9; }, verify_graph), "a node has too many operands");
  says(of_graph([](auto& g) { g.nodes[3].operand[0] = 3; }, verify_graph),
       "an operand does not stand before its node");
  says(of_graph([](auto& g) { g.nodes[0].at[0] = 7; }, verify_graph), "a leaf has no number");
  says(of_graph([](auto& g) { g.nodes[1].result = row_of(5); }, verify_graph),
       "operands do not fit the law of their op");
  says(of_graph([](auto& g) { g.nodes[3].result = row_of(5); }, verify_graph),
       "a spec does not follow from its operands");
  says(of_graph([](auto& g) { g.outputs[0] = g.size(); }, verify_graph), "an output is not a node");
  says(of_graph([](auto& g) { g.nodes[2].op = &info_of<op::differentiated_at>; }, verify_expanded),
       "a formula is left");
  says(of_graph([](auto& g) { g.nodes[0].result.type = dtype::bf16; }, verify_expanded),
       "an op computes with a storage type");
  says(of_graph([](auto& g) { g.outputs[1] = g.outputs[0]; }, verify_cotangents),
       "a cotangent has another shape than its leaf");
  says(of_graph([](auto& g) { g.nodes[g.outputs[1]].result.type = dtype::f64; }, verify_cotangents),
       "a cotangent has another type than its leaf");
  says(of_graph([](auto& g) { g.outputs[1] = 0; }, graph::verify_views),
       "an output has no memory of its own");
  says(of_graph([](auto& g) { g.outputs[1] = g.outputs[2]; }, graph::verify_views),
       "two outputs share their memory");

  compute_graph g;
  const value m = g.leaf(row_of(4), leaf_role::untracked);
  g.outputs = {sum_dims(tanh(contract_of(m, exp(m))), 1, 2).id};  // a kernel, a product, a kernel
  const graph::fusion fused = graph::fuse(g);
  REQUIRE_FALSE(graph::verify_fusion(g, fused));
  const auto of_fusion = [&](auto change) { return graph::verify_fusion(g, changed(fused, change)); };
  says(of_fusion([](auto& f) { f.group_of[f.groups[0].nodes[0]] = 1; }),
       "a node is in a group that it does not name");
  says(of_fusion([](auto& f) { std::swap(f.groups[1].nodes[0], f.groups[1].nodes[1]); }),
       "the nodes of a group are out of order");
  says(of_fusion([](auto& f) { f.groups[0].space = {2, {4, 5}}; }),
       "a node does not fit the space of its group");
  says(of_fusion([](auto& f) { f.groups[0].nodes = {}; }), "a node is in no group, or in several");
  says(of_fusion([](auto& f) { f.groups[0].nodes = sequence<int>(graph::max_group + 1, 0); }),
       "a group has too many nodes");

  const lower::plan plan = lower::make_plan(g);
  REQUIRE_FALSE(lower::verify_plan(plan));
  REQUIRE(plan.steps.size() == 3);
  const auto of_plan = [&](auto change) { return lower::verify_plan(changed(plan, change)); };
  const auto result_of_step = [](const lower::plan& p, int t) {
    return p.operands[p.steps[t].first_operand + p.steps[t].inputs];
  };
  says(of_plan([](auto& p) { std::swap(p.steps[0], p.steps[1]); }), "a step reads what is not computed");
  says(of_plan([](auto& p) { p.steps.push_back(p.steps[0]); }), "a value is computed twice");
  says(of_plan([](auto& p) { p.steps.pop_back(); }), "an output is not computed");
  says(of_plan([&](auto& p) { p.values[result_of_step(p, 0)].last_step = 0; }),
       "a step reads a value that is not live");
  says(of_plan([&](auto& p) { p.values[result_of_step(p, 0)].where = lower::storage::leaf; }),
       "a step writes memory that is not the program's");
  const auto of_code = [&](auto finds, auto change) {
    return of_plan([&](auto& p) {
      for (std::uint64_t& code : p.instructions) {
        lower::instruction i = lower::instruction::decoded(code);
        if (finds(i)) change(i);
        code = i.encoded();
      }
    });
  };
  says(of_code([](auto& i) { return i.op == lower::store; }, [](auto& i) { i.a = 9; }),
       "a kernel's buffer index is out of range");
  says(of_code([](auto& i) { return i.op == lower::store; }, [](auto& i) { i.b = 99; }),
       "a kernel stores what it has not computed");
  says(of_code([](auto& i) { return i.op < lower::first_opcode; }, [](auto& i) { i.a = 99; }),
       "an instruction reads what comes later");
  says(of_code([](auto& i) { return lower::is_row_fold(i); }, [](auto& i) { i.a = 99; }),
       "a reduction reads what comes later");
}
