// SPDX-License-Identifier: MIT
// Matrix products in bf16 and f16: what is rounded, and what is not.
#include <doctest/doctest.h>

#include <weft/nn/layers.hpp>
#include <weft/weft.hpp>

#include "../../compare.hpp"

using namespace weft;
using test::matches;
namespace oracle = test::oracle;

namespace {

template <class T>
std::vector<float> rounded(std::vector<float> v) {
  for (float& x : v) x = static_cast<float>(T(x));
  return v;
}

template <class Precision, class T>
void check_product() {
  context_in<Precision> c;
  const auto x = randn<float>(extents<dyn, 40>{9, 40}, {.seed = 1});
  variable<float, extents<40, 7>> w(randn<float>(extents<40, 7>{}, {.seed = 2}));
  const auto narrow = matmul(cast<T>(x), cast<T>(w));
  const auto y = eval(matmul(x, w), c);
  static_assert(std::is_same_v<typename decltype(y)::value_type, float>);
  // Stored as T and widened; a sum in another order may round differently.
  CHECK(matches(y, oracle::value(cast<float>(narrow)),
                {.relative = oracle::epsilon(dtype_of<T>), .of_largest = 1e-6}));
  CHECK(rounded<T>(y.to_vector()) == y.to_vector());
  const auto updated = zeros<float>(extents<dyn, 7>{9}), listed = zeros<float>(extents<dyn, 7>{9});
  const auto viewed = zeros<float>(extents<1, dyn, 7>{9});
  update(updated, matmul(x, w), c);
  update(c, {listed.state()}, matmul(x, w));
  update(viewed[0], matmul(x, w), c);
  for (const auto& same : {updated.to_vector(), listed.to_vector(), viewed.to_vector()})
    CHECK(same == y.to_vector());
  // The gradient of w is a product of rounded operands, and is not rounded itself.
  tape steps(c);
  const auto loss = steps.eval(sum(matmul(x, w) * 1.0f));
  steps.backward(loss);
  const auto of_w =
      oracle::value(matmul(transpose(cast<float>(cast<T>(x))), full<float>(extents<9, 7>{}, 1.0f)));
  CHECK(matches(w.grad(), of_w, {.of_largest = 1e-6}));
  CHECK(rounded<T>(w.grad().to_vector()) != w.grad().to_vector());
}

/// The values that the forward pass keeps, and their types.
template <class E, class... Choices>
std::vector<dtype> kept() {
  const lower::plan_view p = runtime::forward_program<E, options_of<Choices...>>::plan;
  std::vector<dtype> types;
  for (std::size_t i = 1; i < p.outputs.size(); ++i)
    types.push_back(p.values[static_cast<std::size_t>(p.outputs[i])].result.type);
  return types;
}

}  // namespace

TEST_CASE("bf16: operands and results of products are rounded, sums are not") {
  check_product<precision::bf16, bfloat16>();
}
TEST_CASE("f16: operands and results of products are rounded, sums are not") {
  check_product<precision::f16, float16>();
}

TEST_CASE("attention of f32 is that of rounded queries, keys and values, and so are its gradients") {
  const auto check = []<class Precision, class T>(Precision, T) {
    using by_head = extents<2, 5, 4, 6>;
    const auto drawn = [](std::uint64_t seed) { return randn<float>(by_head{}, {.seed = seed}); };
    const auto g = drawn(4);
    const auto results = [&](auto& c, auto rounded) {
      const variable<float, by_head> q(drawn(1)), k(drawn(2)), v(drawn(3));
      tape steps(c);
      const auto y = steps.eval(cast<float>(attention<causal>(rounded(q), rounded(k), rounded(v))));
      steps.backward(y, g);
      return std::array{y.to_vector(), q.grad().to_vector(), k.grad().to_vector(), v.grad().to_vector()};
    };
    context exact;
    context_in<Precision> mixed;
    const auto as_written = [](const auto& x) { return x; };
    const auto as_rounded = [](const auto& x) { return cast<T>(x); };
    CHECK(results(mixed, as_written) == results(exact, as_rounded));
    CHECK(results(mixed, as_written)[0] != results(exact, as_written)[0]);
    // The derivative inside an expression, with scores so large that rounding them shows.
    const auto q = eval(drawn(1) * 6.0f), k = drawn(2), v = drawn(3);
    const auto slopes = [&](auto& c, auto rounded) {
      const auto slope = [&](auto of, const auto& at) {
        return eval(grad([&](auto x) { return sum(cast<float>(of(x)) * g); }, at) * 1.0f, c).to_vector();
      };
      return std::array{
          slope([&](auto x) { return attention<causal>(rounded(x), rounded(k), rounded(v)); }, q),
          slope([&](auto x) { return attention<causal>(rounded(q), rounded(x), rounded(v)); }, k),
          slope([&](auto x) { return attention<causal>(rounded(q), rounded(k), rounded(x)); }, v)};
    };
    CHECK(slopes(mixed, as_written) == slopes(exact, as_rounded));
  };
  check(precision::bf16{}, bfloat16{});
  check(precision::f16{}, float16{});
}

TEST_CASE("convolutions of f32 stay f32, and so do their gradients") {
  const auto x = randn<float>(extents<2, 3, 6, 5>{}, {.seed = 1});
  const auto image = randn<float>(extents<2, 4, 4, 3>{}, {.seed = 2});
  const auto all = [&](auto& c) {
    const variable<float, extents<4, 3, 3, 3>> w(randn<float>(extents<4, 3, 3, 3>{}, {.seed = 3}));
    tape steps(c);
    const auto y = steps.eval(conv2d(x, w)), z = steps.eval(conv_transpose2d(image, w));
    std::vector<std::vector<float>> values{y.to_vector(), z.to_vector()};
    steps.backward(steps.eval(sum(square(y)) + sum(square(z))));
    values.push_back(w.grad().to_vector());
    return values;
  };
  context_in<precision::bf16> narrow;
  context wide;
  CHECK(all(narrow) == all(wide));
}

TEST_CASE("what is written as f64 stays") {
  context_in<precision::bf16> c;
  const auto x = randn<double>(extents<3, 4>{}, {.seed = 1});
  const auto w = randn<double>(extents<4, 4>{}, {.seed = 2});
  CHECK(matches(eval(matmul(x, w), c), oracle::value(matmul(x, w)), {.of_largest = 1e-15}));
}

TEST_CASE("backward keeps halves, and no copy of a parameter") {
  const auto x = randn<float>(extents<8, 16>{});
  const variable<float, extents<16, 16>> w(randn<float>(extents<16, 16>{}));
  const auto layers = matmul(gelu(matmul(x * 2.0f, w)), w);
  using E = std::remove_const_t<decltype(layers)>;
  CHECK(kept<E, precision::f32>() == std::vector<dtype>(3, dtype::f32));
  CHECK(kept<E, precision::bf16>() == std::vector<dtype>(3, dtype::bf16));
  // Selective: keeps only the first product; its operand and the second product's are recomputed.
  CHECK(kept<E, recompute::selective>() == std::vector<dtype>(1, dtype::f32));
  CHECK(kept<E, precision::bf16, recompute::selective>() == std::vector<dtype>(1, dtype::bf16));
}

TEST_CASE("a parameter that products read twice, once transposed, is rounded once") {
  const variable<float, extents<16, 16>> w(randn<float>(extents<16, 16>{}));
  const auto x = randn<float>(extents<8, 16>{});
  const auto both = let(w, [&](auto w) { return matmul(matmul(x, w), transpose(w)); });
  using E = std::remove_const_t<decltype(both)>;
  const lower::plan_view p = runtime::value_program<E, options_of<precision::bf16>>::plan;
  int kernels = 0;
  for (const lower::step_entry& s : p.steps) kernels += s.kind == lower::step_kind::kernel;
  CHECK(kernels == 3);  // x and w rounded, the result widened
}

TEST_CASE("the gradient of what is repeated over a batch is a sum of products that are not rounded") {
  context_in<precision::bf16> c;
  using batch = extents<2, 1, 3>;
  const auto x = from(batch{}, std::vector<float>{1.0078125f, 1.0078125f, 1.0078125f, -1, -1, -1});
  const auto g =
      from(batch{}, std::vector<float>{1.0078125f, 1.0078125f, 1.0078125f, 1.015625f, 1.015625f, 1.015625f});
  variable<float, extents<1, 1>> w(ones<float>(extents<1, 1>{}));
  tape steps(c);
  steps.backward(steps.eval(matmul(w, x)), g);
  CHECK(w.grad().item() == 3 * 0x1p-14f);
}

TEST_CASE(
    "products of narrow tensors keep their type beside those of the context, also of a gradient in an "
    "expression") {
  context_in<precision::f16> c;
  const auto x = full<bfloat16>(extents<2, 1, 1>{}, bfloat16(1e6f));  // more than f16 has
  const auto w = ones<bfloat16>(extents<1, 1>{});
  const auto slope = grad([&](auto t) { return sum(cast<float>(matmul(t, x))); }, w);
  CHECK(static_cast<float>(eval(slope, c).item()) == doctest::Approx(2e6).epsilon(0.01));
}

TEST_CASE("a compiled expression keeps the precision of its context") {
  context_in<precision::bf16> c;
  const auto x = randn<float>(extents<3, 8>{}, {.seed = 1});
  const auto w = randn<float>(extents<8, 4>{}, {.seed = 2});
  const auto step = compile(matmul(x, w), c);
  CHECK(step().to_vector() == eval(matmul(x, w), c).to_vector());
  CHECK(step().to_vector() != eval(matmul(x, w)).to_vector());
}

TEST_CASE("a scaled loss scales gradients and not the loss") {
  variable<float, extents<4>> x(randn<float>(extents<4>{}));
  context c;
  const auto gradient = [&] {
    x.state()->grad.reset();
    tape steps(c);
    const auto loss = steps.eval(sum(square(x)));
    steps.backward(loss);
    return std::pair(loss.item(), x.grad().to_vector());
  };
  const auto [loss, plain] = gradient();
  c.loss_scale = 1024;
  const auto [same_loss, scaled] = gradient();
  CHECK(same_loss == loss);
  for (std::size_t i = 0; i < 4; ++i) CHECK(scaled[i] == 1024 * plain[i]);
}

namespace {
/// Checks that gradients of bf16 or f16 tensors, and of a value of that type between statements, have their
/// type.
template <class Precision, class T>
void check_narrow_leaves() {
  const auto gradients = [](auto& c) {
    variable<T, extents<5, 4>> x(eval(cast<T>(randn<float>(extents<5, 4>{}, {.seed = 1}))));
    variable<T, extents<4, 3>> w(eval(cast<T>(randn<float>(extents<4, 3>{}, {.seed = 2}))));
    variable<float, extents<3, 2>> v(randn<float>(extents<3, 2>{}, {.seed = 3}));
    tape steps(c);
    const auto h = steps.eval(matmul(x, w));
    static_assert(std::is_same_v<typename decltype(h)::value_type, T>);
    const auto y = steps.eval(matmul(h, cast<T>(v)) + matmul(x, matmul(w, cast<T>(v))));
    steps.backward(steps.eval(sum(square(cast<float>(y)))));
    std::vector<std::vector<float>> all;
    for (const auto& g : {eval(cast<float>(x.grad())).to_vector(), eval(cast<float>(w.grad())).to_vector(),
                          v.grad().to_vector()})
      all.push_back(g);
    return all;
  };
  context_in<Precision> narrow;
  context wide;
  const auto got = gradients(narrow), expected = gradients(wide);
  for (std::size_t i = 0; i < got.size(); ++i)
    CHECK(matches(got[i], expected[i], {.of_largest = 4 * oracle::epsilon(dtype_of<T>)}));
}
}  // namespace

TEST_CASE("leaves of the type of products have gradients of their type") {
  check_narrow_leaves<precision::bf16, bfloat16>();
  check_narrow_leaves<precision::f16, float16>();
}

TEST_CASE("a gradient of two leaves, one of the type of products, is rounded once for both") {
  context_in<precision::bf16> c;
  const auto x = full<float>(extents<2, 4>{}, 1.0f);
  const variable<float, extents<4, 3>> a(full<float>(extents<4, 3>{}, 1.0f));
  const variable<bfloat16, extents<4, 3>> b(full<bfloat16>(extents<4, 3>{}, bfloat16(2.0f)));
  tape steps(c);
  steps.backward(steps.eval(sum(matmul(x, a + b) * 1.0f)));
  CHECK(a.grad().to_vector() == std::vector<float>(12, 2));
  CHECK(b.grad().to_vector() == std::vector<bfloat16>(12, bfloat16(2.0f)));
}
