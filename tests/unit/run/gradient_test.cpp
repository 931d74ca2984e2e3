// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <vector>

#include <weft/nn/repeat.hpp>
#include <weft/weft.hpp>

#include "../../throws_with.hpp"

using namespace weft;

namespace {
using line = extents<64>;
using row = extents<3>;
struct same {
  auto operator()(expression auto x) const { return x * 1.0f; }
};
repeat<same> identity() { return {std::vector<same>(2)}; }
tensor<float, row> row_of(float x) { return full<float>(row{}, x); }

/// An op without a derivative.
struct nowhere : op::rule<1> {
  static constexpr auto kind = op::op_kind::native;
  static constexpr auto name = "nowhere";
  static constexpr native_code code{};
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, operands[0]};
  }
};
template <class E>
int nodes_of(const E&) {
  graph::compute_graph g;
  graph::flatten<E>(g);
  return g.size();
}
}  // namespace

TEST_CASE("grad: draws in its function and in its point are those of the statement") {
  const auto h = identity();
  const auto x = full<float>(line{}, 1.0f), z = full<float>(line{}, 3.0f);
  const auto differ = [](auto a, auto b) { return eval(sum(abs(a - b))).item() > 0; };
  const auto d = dropout(x, 0.5f);
  const auto beside = grad([&](auto a) { return sum(a * d); }, z);
  CHECK_FALSE(differ(beside, h(d)));
  CHECK_FALSE(differ(h(d), beside));
  const auto inside = grad([](auto a) { return sum(dropout(a, 0.5f)); }, z);
  CHECK_FALSE(differ(inside, h(inside)));
  const auto at = grad([](auto a) { return sum(a * a) * 0.5f; }, d);
  CHECK_FALSE(differ(at, h(d)));
  const auto twice = [&](auto a) {
    return sum(grad([&](auto b) { return sum(dropout(b, 0.5f) * a * d); }, a));
  };
  const auto nested = grad(twice, z);
  CHECK_FALSE(differ(nested, h(nested)));
  CHECK_FALSE(differ(nested, nested * h(d) * 0.5f));
  const auto in_let = grad(
      [&](auto a) {
        return let(a * d, [](auto b) { return sum(let(dropout(b, 0.5f), [](auto c) { return c * c; })); });
      },
      z);
  CHECK_FALSE(differ(in_let, h(in_let)));
  CHECK(differ(grad([](auto a) { return sum(dropout(a, 0.5f)); }, z), h(inside)));

  variable<float, line> v(x);
  tape steps;
  const auto e = grad([&](auto a) { return sum(a * a * dropout(v, 0.5f)); }, v);  // 4 v or 0
  steps.backward(steps.eval(sum(e * h(e))));
  for (float g : v.grad().to_vector()) CHECK_UNARY(g == 0 || g == 64);
}

TEST_CASE("grad: reads the variable of a let around a repeat") {
  const auto h = identity();
  const auto x = row_of(1);
  const auto expect = [&](float expected, auto f) {
    CHECK(eval(let(x * 2.0f, f)).to_vector() == std::vector<float>(3, expected));
  };
  expect(4, [&](auto v) { return grad([&](auto a) { return sum(a * v); }, x) + h(v); });
  expect(2 * 2 * 2 * 1 + 2, [&](auto v) {
    return grad(
               [&](auto a) {
                 const auto s = shared(a * v);
                 return sum(s * s);
               },
               x) +
           h(v);
  });
  expect(6 + 8 + 2, [&](auto v) {
    return h(v) + let(v + 1.0f, [&](auto u) {
             const auto s = shared(u * v);
             return s + (s + 2.0f);
           });
  });
  expect(12 + 2, [&](auto v) {
    return let(grad([&](auto a) { return let(a * v, [&](auto b) { return sum(b * b * v); }); }, x * 0.75f),
               [](auto g) { return g; }) +
           h(v);
  });
}

TEST_CASE("grad: zero for a function that does not read its argument") {
  const auto x = row_of(1), w = row_of(2);
  const auto e = let(sum(w), [&](auto s) { return grad([&](auto) { return s; }, x) + s; });
  CHECK(eval(e).to_vector() == std::vector<float>(3, 6));
}

TEST_CASE("grad: ops below its point and beside it need no derivative") {
  const variable<float, row> w(row_of(2));
  CHECK(nodes_of(grad([](auto h) { return sum(h * h); }, apply<nowhere>(w))) > 0);
  CHECK(nodes_of(grad([&](auto h) { return sum(h * apply<nowhere>(w)); }, row_of(1))) > 0);
  const auto nodes = [](auto x) {
    return nodes_of(grad([](auto h) { return sum(h * h); }, tanh(exp(tanh(exp(x))))));
  };
  CHECK(nodes(w) == nodes(row_of(2)));
}

TEST_CASE("grad: its variable is no other value, and is not copied") {
  const auto w = row_of(3);
  const auto e =
      let(w, [&](auto x) { return grad([&](auto h) { return sum(h * apply<op::contiguous>(x)); }, x); });
  CHECK(eval(e).to_vector() == std::vector<float>(3, 3));
  using square = tensor<float, extents<8, 8>>;
  using slope = decltype(grad([](auto h) { return sum(relu(matmul(h, h))); }, square()));
  for (const lower::step_entry& s : runtime::value_program<slope>::plan.steps) CHECK_FALSE(s.is_copy);
}

TEST_CASE("a tensor changed in place is noticed wherever an expression holds it") {
  const auto refused = [](auto write) {
    const auto x = row_of(1);
    const auto e = write(x);
    update(x, x + 1.0f);
    return test::throws_with<value_error>([&] { eval(e); }, {"shape [3]", "changed in place"});
  };
  const auto h = identity();
  CHECK(refused([](auto x) { return x * x; }));
  CHECK(refused([](auto x) { return let(x, [](auto v) { return v * v; }); }));
  CHECK(refused([](auto x) { return grad([](auto v) { return sum(v * v); }, x); }));
  CHECK(refused([](auto x) { return let(shared(x), [](auto v) { return v * v; }); }));
  CHECK(refused([&](auto x) { return h(x); }));
  const auto x = row_of(1), to = row_of(0), other = row_of(0);
  const auto both = bundled(x, x * 2.0f);
  update(x, x + 1.0f);
  CHECK(test::throws_with<value_error>([&] { update(default_context(), {to.state(), other.state()}, both); },
                                       {"changed in place"}));
}

TEST_CASE("grad: x[i] of a gradient") {
  const auto g = grad([](auto h) { return sum(h * h); }, row_of(2));
  CHECK(eval(g[1]).item() == 4);
}
