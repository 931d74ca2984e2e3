// SPDX-License-Identifier: MIT
// Products in bf16 and f16: what is rounded, and what is not.
#include <doctest/doctest.h>

#include <cmath>

#include <weft/nn/layers.hpp>
#include <weft/weft.hpp>

using namespace weft;

namespace {

template <class T>
std::vector<float> rounded(std::vector<float> v) {
  for (float& x : v) x = static_cast<float>(T(x));
  return v;
}

/// [m, k] x [k, n] in double.
std::vector<double> product(const std::vector<float>& a, const std::vector<float>& b, std::size_t m, std::size_t k, std::size_t n) {
  std::vector<double> c(m * n);
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n; ++j)
      for (std::size_t p = 0; p < k; ++p) c[i * n + j] += static_cast<double>(a[i * k + p]) * static_cast<double>(b[p * n + j]);
  return c;
}

/// Largest difference in units of the largest element.
template <class A, class B>
double distance(const A& a, const B& b) {
  double most = 0, apart = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(b[i])));
    apart = std::max(apart, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return apart / most;
}

template <class Precision, class T>
void check_product(double step) {
  context_in<Precision> c;
  const auto x = randn<float>(extents<dyn, 40>{9, 40}, {.seed = 1});
  variable<float, extents<40, 7>> w(randn<float>(extents<40, 7>{}, {.seed = 2}));
  const auto exact = product(rounded<T>(x.to_vector()), rounded<T>(w.to_vector()), 9, 40, 7);
  const auto y = eval(matmul(x, w), c);
  static_assert(std::is_same_v<typename decltype(y)::value_type, float>);
  CHECK(distance(y.to_vector(), exact) < step / 2);
  CHECK(rounded<T>(y.to_vector()) == y.to_vector());  // stored as T, widened
  // The gradient of w is the product of rounded operands, and not rounded itself.
  tape steps(c);
  const auto loss = steps.eval(sum(matmul(x, w) * 1.0f));
  steps.backward(loss);
  std::vector<float> transposed(40 * 9), ones(9 * 7, 1.0f);
  const std::vector<float> elements = rounded<T>(x.to_vector());
  for (std::size_t i = 0; i < 9; ++i)
    for (std::size_t j = 0; j < 40; ++j) transposed[j * 9 + i] = elements[i * 40 + j];
  CHECK(distance(w.grad().to_vector(), product(transposed, ones, 40, 9, 7)) < 1e-6);
  CHECK(rounded<T>(w.grad().to_vector()) != w.grad().to_vector());
}

/// Forward's kept values and their types.
template <class E, class... Choices>
std::vector<dtype> kept() {
  const lower::plan_view p = run::forward_program<E, options_of<Choices...>>::plan;
  std::vector<dtype> types;
  for (std::size_t i = 1; i < p.outputs.size(); ++i) types.push_back(p.values[static_cast<std::size_t>(p.outputs[i])].result.type);
  return types;
}

}  // namespace

TEST_CASE("bf16: operands and results of products are rounded, sums are not") { check_product<precision::bf16, bfloat16>(0x1p-7); }
TEST_CASE("f16: operands and results of products are rounded, sums are not") { check_product<precision::f16, float16>(0x1p-10); }

TEST_CASE("what is written as f64 stays") {
  context_in<precision::bf16> c;
  const auto x = randn<double>(extents<3, 4>{}, {.seed = 1});
  const auto w = randn<double>(extents<4, 4>{}, {.seed = 2});
  CHECK(eval(matmul(x, w), c).to_vector() == eval(matmul(x, w)).to_vector());
}

TEST_CASE("backward keeps halves, and no copy of a parameter") {
  const auto x = randn<float>(extents<8, 16>{});
  const variable<float, extents<16, 16>> w(randn<float>(extents<16, 16>{}));
  const auto layers = matmul(gelu(matmul(x * 2.0f, w)), w);
  using E = std::remove_const_t<decltype(layers)>;
  CHECK(kept<E, precision::f32>() == std::vector<dtype>(3, dtype::f32));
  CHECK(kept<E, precision::bf16>() == std::vector<dtype>(3, dtype::bf16));
  // Selective: the first product alone; its operand and that of the second are computed again.
  CHECK(kept<E, recompute::selective>() == std::vector<dtype>(1, dtype::f32));
  CHECK(kept<E, precision::bf16, recompute::selective>() == std::vector<dtype>(1, dtype::bf16));
}

TEST_CASE("a parameter that products read twice, once transposed, is rounded once") {
  const variable<float, extents<16, 16>> w(randn<float>(extents<16, 16>{}));
  const auto x = randn<float>(extents<8, 16>{});
  const auto both = let(w, [&](auto w) { return matmul(matmul(x, w), transpose(w)); });
  using E = std::remove_const_t<decltype(both)>;
  const lower::plan_view p = run::value_program<E, options_of<precision::bf16>>::plan;
  int kernels = 0;
  for (const lower::step_entry& s : p.steps) kernels += s.kind == lower::step_kind::kernel;
  CHECK(kernels == 3);  // x and w rounded, the result widened
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
