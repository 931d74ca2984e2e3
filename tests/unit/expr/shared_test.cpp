// SPDX-License-Identifier: MIT
// Shared values are computed once in every context.
#include <doctest/doctest.h>

#include <weft/weft.hpp>

using namespace weft;

namespace {

using row = extents<3>;
tensor<double, row> numbers() { return from(row{}, std::vector<double>{0.5, -1, 2}); }
variable<double, row> parameters() { return variable<double, row>(numbers()); }

auto residual(expression auto x, expression auto w) {
  auto y = shared(x + sin(x * w));
  return shared(y + cos(y * w));
}
auto residual_by_let(expression auto x, expression auto w) {
  return let(x, [w](auto x) {
    return let(x + sin(x * w), [w](auto y) { return y + cos(y * w); });
  });
}

template <class E>
constexpr int nodes_of = [] {
  graph::compute_graph g;
  graph::flatten<std::remove_const_t<E>>(g);
  return g.size();
}();
template <class E>
constexpr int leaves_of = [] {
  graph::compute_graph g;
  graph::flatten<std::remove_const_t<E>>(g);
  return g.leaves;
}();

}  // namespace

TEST_CASE("shared: each call is a type of its own, an occurrence is a pointer") {
  const auto x = numbers();
  const auto a = shared(x + 1.0), b = a;
  const auto c = shared(x + 1.0);
  static_assert(!std::is_same_v<decltype(a), decltype(c)>);
  CHECK(a.operand == b.operand);
  static_assert(sizeof(a) == sizeof(std::shared_ptr<int>));
  static_assert(std::is_same_v<decltype(shared(x)), tensor<double, row>>);
  static_assert(std::is_same_v<decltype(shared(a)), std::remove_const_t<decltype(a)>>);
  CHECK(eval(a * c).to_vector() == eval(square(x + 1.0)).to_vector());
}

TEST_CASE("shared: three blocks have the nodes of their let form") {
  const auto x = numbers(), w = numbers();
  auto natural = residual(residual(residual(x, w), w), w);
  auto by_let = residual_by_let(residual_by_let(residual_by_let(x, w), w), w);
  static_assert(nodes_of<decltype(natural)> ==
                nodes_of<decltype(by_let)> + 1);  // the leaf x, where let binds it
  CHECK(eval(natural).to_vector() == eval(by_let).to_vector());
}

TEST_CASE("shared: ten deep, and its derivatives") {
  auto x = parameters(), w = parameters();
  const auto deep = [&] {
    auto y = shared(x * w);
    return [&]<int... I>(std::integer_sequence<int, I...>, auto z) {
      const auto next = [&](auto self, auto at, auto left) {
        if constexpr (left() == 0) return at;
        else {
          auto once = shared(at + sin(at) * w);
          return self(self, once, std::integral_constant<int, left() - 1>{});
        }
      };
      return next(next, z, std::integral_constant<int, sizeof...(I)>{});
    }(std::make_integer_sequence<int, 10>{}, y);
  };
  const auto e = deep();
  static_assert(leaves_of<decltype(e)> == 12);
  std::vector<double> expected{0.5, -1, 2};
  for (double& v : expected) {
    const double u = v;
    v *= u;
    for (int i = 0; i < 10; ++i) v += std::sin(v) * u;
  }
  const auto got = eval(e).to_vector();
  for (std::size_t i = 0; i < 3; ++i) CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-12));
  CHECK(gradcheck([&] { return sum(deep()); }, x));
  CHECK(gradcheck([&] { return sum(deep()); }, w));
}

TEST_CASE("shared: inside let, beside it, and around it") {
  const auto x = numbers(), w = numbers();
  const auto outer = shared(x * 3.0);
  const auto f = [&](auto h) {
    const auto reads = shared(h + w);  // of the let's variable
    return reads * reads + outer + let(reads + 1.0, [&](auto k) { return k * reads * outer; });
  };
  // Twice one let: what reads its variable is not the same value.
  const auto e = let(x, f) + let(x * 2.0, f) + outer;
  std::vector<double> expected;
  for (double v : {0.5, -1.0, 2.0}) {
    const auto by_hand = [&](double h) { return (h + v) * (h + v) + 3 * v + (h + v + 1) * (h + v) * 3 * v; };
    expected.push_back(by_hand(v) + by_hand(2 * v) + 3 * v);
  }
  const auto got = eval(e).to_vector();
  for (std::size_t i = 0; i < 3; ++i) CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-12));
  static_assert(leaves_of<decltype(e)> ==
                2 + 3);  // x twice as a let's value, once in `outer`, w for each let
}

TEST_CASE("shared: inside gradients, bundles, updates and compiled expressions") {
  auto x = parameters();
  const auto w = numbers();
  CHECK(gradcheck([&] { return sum(square(residual(x, w))); }, x));  // changes x
  const auto slope = grad([&](auto v) { return sum(square(residual(v, w))); }, x);
  tape steps;
  steps.backward(steps.eval(sum(square(residual(x, w)))));
  const auto by_tape = x.grad().to_vector(), by_graph = eval(slope).to_vector();
  for (std::size_t i = 0; i < 3; ++i) CHECK(by_graph[i] == doctest::Approx(by_tape[i]).epsilon(1e-12));
  x.zero_grad();
  CHECK(gradcheck([&] { return sum(grad([&](auto v) { return sum(square(residual(v, w))); }, x)); }, x));

  auto a = full<float>(extents<>{}, 3.0f), b = full<float>(extents<>{}, 0.0f);
  const auto y = shared(a + 1.0f);
  update(default_context(), {a.state(), b.state()}, bundled(y * 2.0f, y * y));
  CHECK(a.item() == 8);
  CHECK(b.item() == 16);
  auto p = from(row{}, std::vector<double>{1, 2, 3});
  auto step = compile(residual(p, w));
  CHECK(step().to_vector() == eval(residual(p, w)).to_vector());
  p.copy_from(std::vector<double>{4, 5, 6});
  CHECK(step().to_vector() == eval(residual(p, w)).to_vector());
}

namespace {
struct scale_block {
  variable<double, row> w = parameters();
  auto operator()(expression auto x) const { return residual(x, w); }
};
}  // namespace

TEST_CASE("shared: around and below repeats") {
  repeat<scale_block> blocks{std::vector<scale_block>(2)};
  auto x = parameters();
  const auto w = numbers();
  const auto around = [&] {
    auto y = shared(blocks(x + 0.0) + w);   // a boundary inside
    auto z = shared(y * y);                 // and inside what this reads
    return z + let(y + blocks(z), [&](auto h) {
      auto k = shared(h * w);               // reads a variable
      return k * k + blocks(h) + z;         // a boundary inside the let
    });
  };
  const auto block = [&](auto v) { return eval(residual(v, w)); };
  const auto y = eval(block(block(x)) + w), z = eval(y * y);
  const auto h = eval(y + block(block(z)));
  const auto k = eval(h * w);
  const auto expected = eval(z + k * k + block(block(h)) + z).to_vector(), got = eval(around()).to_vector();
  for (std::size_t i = 0; i < 3; ++i) CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-12));
  tape steps;
  steps.eval(around());
  // x + 0, two blocks, y, z, z again where the blocks begin, two blocks, h, h again, two blocks, k, the sum:
  // no value twice.
  CHECK(steps.size() == 14);
  CHECK(gradcheck([&] { return sum(around()); }, x, {.tolerance = 1e-4}));
}

TEST_CASE("shared: one call that made two values of one type says so") {
  const auto x = numbers(), other = from(row{}, std::vector<double>{7, 8, 9});
  const auto square_of = [](auto v) {
    auto y = shared(v + 1.0);
    return y * y;
  };
  CHECK_THROWS_WITH_AS(eval(square_of(x) + square_of(other)), doctest::Contains("shared"), usage_error);
  CHECK(eval(square_of(x) + let(other, square_of)).to_vector() ==
        eval(square(x + 1.0) + square(other + 1.0)).to_vector());
}

TEST_CASE("shared: numbers, sizes and changed operands are found in the order of the graph") {
  auto x = from(extents<dyn>{6}, std::vector<double>{1, 2, 3, 4, 5, 6});
  const auto part = [&](index_t from, double number) {
    auto y = shared(slice<0>(x, from, from + 3) * number);
    return y + y * 10.0;
  };
  CHECK(eval(part(2, 0.5)).to_vector() == std::vector<double>{16.5, 22, 27.5});
  const auto written = part(0, 1);
  x.copy_from(std::vector<double>{0, 0, 0, 0, 0, 0});
  CHECK_THROWS_AS(eval(written), value_error);
}
