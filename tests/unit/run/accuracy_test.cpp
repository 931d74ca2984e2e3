// SPDX-License-Identifier: MIT
// Accuracy that ops must keep: large integers in formulas, small losses with large logits, long sums.
#include <doctest/doctest.h>

#include <cmath>

#include <weft/weft.hpp>

#include "../../compare.hpp"

using namespace weft;

namespace {

/// Checks that f(x) of integers equals f of the same numbers in f32.
template <class T, class F>
bool as_of_floats(const std::vector<T>& numbers, F f) {
  const auto x = from(extents<dyn, 3>{static_cast<index_t>(numbers.size()) / 3}, numbers);
  const auto expected = eval(f(cast<float>(x)));
  for (float e : expected.to_vector())
    if (std::isnan(e)) return false;
  const auto y = f(x);
  static_assert(std::is_same_v<typename decltype(y)::value_type, float>);
  return eval(y).to_vector() == expected.to_vector();
}

template <class T>
void check_formulas(const std::vector<T>& numbers) {
  const auto w = full<float>(extents<3>{}, 0.5f);
  CHECK(as_of_floats(numbers, [](auto x) { return softmax(x); }));
  CHECK(as_of_floats(numbers, [](auto x) { return softmax<0>(x); }));
  CHECK(as_of_floats(numbers, [](auto x) { return log_softmax(x); }));
  CHECK(as_of_floats(numbers, [](auto x) { return logsumexp(x, dims<1>); }));
  CHECK(as_of_floats(numbers, [](auto x) { return vector_norm(x, dims<0>); }));
  CHECK(as_of_floats(numbers, [](auto x) { return normalize(x); }));
  CHECK(as_of_floats(numbers, [&](auto x) { return layer_norm(x, w, w); }));
  CHECK(as_of_floats(numbers, [&](auto x) { return rms_norm(x, w); }));
  CHECK(as_of_floats(numbers, [&](auto x) { return group_norm<1>(x, w, w); }));
  CHECK(as_of_floats(numbers, [](auto x) { return apply<op::channel_moments>(x); }));
  CHECK(as_of_floats(numbers, [](auto x) { return sigmoid(x) + silu(x); }));
  CHECK(as_of_floats(numbers, [](auto x) { return gelu(x) + gelu_tanh(x); }));
  CHECK(as_of_floats(numbers, [](auto x) { return softplus(x); }));
  CHECK(as_of_floats(numbers, [](auto x) { return mean(x); }));
  const auto image = [](auto x) { return reshape<1, 1, 2, 3>(x); };
  CHECK(as_of_floats(numbers, [&](auto x) { return avg_pool2d<2>(image(x)); }));
  CHECK(as_of_floats(numbers, [&](auto x) { return upsample_bilinear<2>(image(x)); }));
  CHECK(as_of_floats(numbers, [](auto x) { return pow(x, 2) + exp(x * 0.0f); }));
  CHECK(as_of_floats(numbers, [](auto x) { return x / 3 + atan2(x, x); }));
  CHECK(as_of_floats(numbers, [](auto x) { return leaky_relu(x) + elu(x); }));
}

/// The relative error of a sum of n numbers 0.1f against n * 0.1f.
template <class Sum>
double error_of_sum(index_t n, Sum sum) {
  return std::abs(static_cast<double>(sum) / (static_cast<double>(n) * static_cast<double>(0.1f)) - 1);
}

}  // namespace

TEST_CASE("formulas of integers are computed in f32, where squares and differences do not wrap") {
  check_formulas<std::int32_t>({50'000, 20'000, 10'000, -90'000, -50'000, 3});
  check_formulas<std::int32_t>({1'500'000'000, -1'500'000'000, 0, 7, -9, -2'147'483'647});
  check_formulas<std::int64_t>({4'000'000'000, 2'000'000'000, 1'000'000'000, -1, 0, 1});
  check_formulas<std::uint8_t>({255, 0, 200, 1, 2, 3});
  const auto grow =
      generate<std::int32_t>(extents<1, 1000>{}, [](index_t i) { return 5'000'000 + i * 10'000; });
  const auto w = ones<float>(extents<1000>{});
  CHECK(eval(layer_norm(grow, w, w)).to_vector() == eval(layer_norm(cast<float>(grow), w, w)).to_vector());
}

TEST_CASE("losses of integers are those of the same numbers in f32") {
  const auto check = []<class T>(T, const std::vector<T>& first, const std::vector<T>& second) {
    const extents<dyn> e{static_cast<index_t>(first.size())};
    const auto x = from(e, first), y = from(e, second);
    const auto same = [&](auto loss) {
      return eval(loss(x, y)).item() == eval(loss(cast<float>(x), cast<float>(y))).item() &&
             eval(loss(cast<float>(x), y)).item() == eval(loss(cast<float>(x), cast<float>(y))).item();
    };
    CHECK(same([](auto a, auto b) { return mse_loss(a, b); }));
    CHECK(same([](auto a, auto b) { return l1_loss<reduction_kind::sum>(a, b); }));
    CHECK(same([](auto a, auto b) { return huber_loss(a, b, 3); }));
    CHECK(same([](auto a, auto b) { return smooth_l1_loss(a, b, 3); }));
    CHECK(same([](auto a, auto b) { return triplet_margin_loss(a, b, b); }));
    CHECK(same([](auto a, auto b) { return triplet_margin_loss(a, b, a, 500'000); }));
    CHECK(same([](auto a, auto b) { return cosine_embedding_loss(a, b, scalar<int>(1)); }));
  };
  check(std::uint8_t{}, {10, 200, 0, 255}, {20, 100, 1, 0});
  check(std::int32_t{}, {100'000, -70'000, 5, 2'000'000'000}, {-100'000, 1, 6, -2'000'000'000});
}

TEST_CASE("cross_entropy is right beside large logits, and where the loss is small") {
  const auto loss = [](const std::vector<float>& logits, std::int32_t label) {
    const auto x = from(extents<1, dyn>{static_cast<index_t>(logits.size())}, logits);
    const auto y = full<std::int32_t>(extents<1>{}, label);
    const double seen = static_cast<double>(eval(cross_entropy(x, y)).item());
    const double composed = static_cast<double>(eval(nll_loss(log_softmax(x), y)).item());
    CHECK(std::abs(seen - composed) <= 1e-6 * composed);
    return seen;
  };
  const auto near = [](double seen, double expected) { return std::abs(seen - expected) < 1e-6 * expected; };
  CHECK(near(loss({1000, 1000}, 0), std::log(2)));
  CHECK(near(loss({1e5f, 1e5f}, 1), std::log(2)));
  CHECK(near(loss({3e38f, 3e38f}, 0), std::log(2)));
  CHECK(near(loss({1e8f, 1e8f, 1e8f}, 2), std::log(3)));
  CHECK(near(loss({-1000, -1001}, 1), std::log(1 + std::exp(1.0))));
  CHECK(std::abs(loss({15, 0}, 0) - std::log1p(std::exp(-15.0))) < 0x1p-23);  // 1 + e^-15 is rounded
  CHECK(std::abs(loss({50, 38}, 0) - std::log1p(std::exp(-12.0))) < 0x1p-23);
  const auto smoothed = cross_entropy<reduction_kind::mean, ignored_label, per_million<100'000>>(
      full<float>(extents<1, 2>{}, 1e5f), zeros<std::int32_t>(extents<1>{}));
  CHECK(near(static_cast<double>(eval(smoothed).item()), std::log(2)));
}

TEST_CASE("long sums of equal numbers") {
  for (const index_t n : {10'000, 100'000, 3'000'000, 20'000'000}) {
    CAPTURE(n);
    const auto x = full<float>(extents<dyn>{n}, 0.1f);
    CHECK(error_of_sum(n, eval(sum(x)).item()) < 4e-6);
    CHECK(error_of_sum(n, eval(sum(x * x)).item() / 0.1f) < 4e-6);
    CHECK(std::abs(static_cast<double>(eval(mean(x)).item()) / static_cast<double>(0.1f) - 1) < 4e-6);
  }
  const auto rows = full<float>(extents<dyn, dyn>{70, 100'000}, 0.1f);  // so many that rows are not divided
  for (const float row : eval(sum(rows, dims<1>)).to_vector()) CHECK(error_of_sum(100'000, row) < 4e-6);
  const auto check_columns = [](index_t n, index_t columns) {
    CAPTURE(n);
    CAPTURE(columns);
    const auto x = full<float>(extents<dyn, dyn>{n, columns}, 0.1f);
    for (const float column : eval(sum(x, dims<0>)).to_vector()) CHECK(error_of_sum(n, column) < 1e-5);
    const auto batch = full<float>(extents<dyn, dyn, dyn>{3, n, columns}, 0.1f);
    for (const float column : eval(sum(batch * 1.0f, dims<1>)).to_vector())
      CHECK(error_of_sum(n, column) < 1e-5);
  };
  check_columns(100'000, 4);
  check_columns(20'000, 33);
  check_columns(1000, 1000);
  check_columns(129, 7);
  check_columns(1'000'003, 2);
}

TEST_CASE("attention of scores that are too large for their differences to be seen after rounding") {
  const auto check = [](auto type, double size) {
    using T = decltype(type);
    CAPTURE(size);
    const auto q = full<T>(extents<1, 1, 1, 2>{}, static_cast<T>(size));
    const auto v = full<T>(extents<1, 3, 1, 2>{}, T(3));
    const auto k = full<T>(extents<1, 3, 1, 2>{}, static_cast<T>(size));
    for (const T y : eval(attention<false>(q, k, v)).to_vector()) CHECK(y == T(3));
  };
  for (const double size : {1.0, 1e3, 5e4, 1e6, 1e12, 1e18}) check(float{}, size);
  for (const double size : {1.0, 1e9, 1e20, 1e100}) check(double{}, size);
}

TEST_CASE("second derivatives of formulas whose exponentials overflow") {
  // The second derivative of f at x: the gradient of its gradient.
  const auto second = [](auto f, const std::vector<double>& at) {
    variable<double, extents<dyn>> x(from(extents<dyn>{static_cast<index_t>(at.size())}, at));
    tape steps;
    steps.backward(steps.eval(sum(grad([f](auto v) { return sum(f(v)); }, x))));
    return x.grad().to_vector();
  };
  const std::vector<double> points{-1e6, -2000, -711, -100, -50, -20, 20, 50, 100, 711, 2000, 1e6};
  const auto vanishes = [&](auto f) {
    for (const double y : second(f, points))
      if (!(std::abs(y) < 1e-6)) return false;
    return true;
  };
  CHECK(vanishes([](auto x) { return softplus(x); }));
  CHECK(vanishes([](auto x) { return -softplus(-x); }));
  CHECK(vanishes([](auto x) { return silu(x); }));
  CHECK(vanishes([](auto x) { return gelu_tanh(x); }));
  CHECK(vanishes(
      [](auto x) { return bce_with_logits<reduction_kind::none>(x, full<double>(extents<dyn>{12}, 0.25)); }));
  const std::vector<double> near{0, 0.25, -0.5, 2, -2};
  const auto targets = zeros<double>(extents<dyn>{5});
  const auto of_huber = second([&](auto x) { return huber_loss<reduction_kind::sum>(x, targets); }, near);
  CHECK(of_huber == std::vector<double>{1, 1, 1, 0, 0});
}

TEST_CASE("bce_with_logits of infinite and of large logits") {
  const auto logits = from(extents<4>{}, std::vector<float>{INFINITY, -INFINITY, -1e4f, 1e4f});
  const auto targets = from(extents<4>{}, std::vector<float>{0.5f, 0.5f, 1e-3f, 0.75f});
  const auto losses = eval(bce_with_logits<reduction_kind::none>(logits, targets)).to_vector();
  CHECK(losses[0] == INFINITY);
  CHECK(losses[1] == INFINITY);
  CHECK(losses[2] == doctest::Approx(10).epsilon(1e-6));
  CHECK(losses[3] == 2500);
}

TEST_CASE("norms and variances of rows whose mean is large beside the deviations from it") {
  for (const float mean : {12345.678f, 1e7f, 1e10f, 3e18f, 1e30f})
    for (const index_t n : {1, 7, 60, 1000}) {
      const extents<dyn, dyn> size{2, n};
      const auto equal = full<float>(size, mean);
      for (const float y :
           eval(layer_norm(equal, ones<float>(extents<dyn>{n}), zeros<float>(extents<dyn>{n}))).to_vector())
        CHECK(y == 0);
      for (const float v : eval(variance<0>(equal, dims<1>)).to_vector()) CHECK(v == 0);
    }
  // Numbers around 4096 as they are after rounding, against f64.
  for (const index_t n : {7, 61, 1000}) {
    const extents<dyn, dyn> size{3, n};
    const auto x = eval(randn<float>(size, {.seed = 3}) * 0.01f + 4096);
    const auto exact = cast<double>(x);
    const auto v = eval(variance(x, dims<1>)), y = eval(variance(transpose(x), dims<0>));
    const auto expected = eval(variance(exact, dims<1>));
    for (index_t i = 0; i < 3; ++i) {
      CHECK(v(i) == doctest::Approx(expected(i)).epsilon(1e-5));
      CHECK(y(i) == doctest::Approx(expected(i)).epsilon(1e-5));
    }
    const auto one = ones<float>(extents<dyn>{n}), none = zeros<float>(extents<dyn>{n});
    const auto normed = eval(layer_norm(x, one, none)).to_vector();
    const auto right = eval(layer_norm(exact, cast<double>(one), cast<double>(none))).to_vector();
    for (std::size_t i = 0; i < normed.size(); ++i) CHECK(std::abs(normed[i] - right[i]) < 2e-5);
  }
}

TEST_CASE("gradients of layer_norm do not depend on the size of a row") {
  for (const float size : {1.0f, 1e10f, 1e14f, 1e15f, 1e17f}) {
    CAPTURE(size);
    variable<float, extents<1, 4>> x(
        from(extents<1, 4>{}, std::vector<float>{size, 2 * size, -size, 0.5f * size}));
    tape steps;
    steps.backward(steps.eval(layer_norm(x, ones<float>(extents<4>{}), zeros<float>(extents<4>{}))),
                   from(extents<1, 4>{}, std::vector<float>{1, -2, 3, 0.5f}));
    const double expected[] = {0.8868, -0.4434, -0.1478, -0.2956};  // in f64
    const auto seen = x.grad().to_vector();
    for (std::size_t i = 0; i < 4; ++i)
      CHECK(std::abs(static_cast<double>(seen[i] * size) - expected[i]) < 2e-4);
  }
}
