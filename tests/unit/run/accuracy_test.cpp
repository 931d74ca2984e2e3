// SPDX-License-Identifier: MIT
// What ops must not lose: large integers in formulas, small losses beside large logits, long sums.
#include <doctest/doctest.h>

#include <cmath>

#include <weft/weft.hpp>

#include "../../compare.hpp"

using namespace weft;

namespace {

/// f(x) of integers is that of the same numbers in f32.
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

/// How far a sum of n numbers 0.1f is from n * 0.1f, relatively.
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
  CHECK(std::abs(loss({15, 0}, 0) - std::log1p(std::exp(-15.0))) < 0x1p-23);  // of which 1 + e^-15 is rounded
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
