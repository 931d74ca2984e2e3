// SPDX-License-Identifier: MIT
// Losses: operands of other shapes are errors that name the loss, and values where formulas are easily wrong.
// agree/layers_test compares values and gradients with PyTorch's.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include <weft/weft.hpp>

using namespace weft;

namespace {

constexpr auto each = reduction_kind::none;

template <class T = float>
auto row(std::vector<T> v) {
  return from(extents<dyn>{static_cast<index_t>(v.size())}, v);
}
auto ones_of(index_t r, index_t c) { return full<float>(extents<dyn, dyn>{r, c}, 1.0f); }

/// The message of the shape_error that the evaluation of an expression throws.
template <expression E>
std::string refusal_of(const E& e) {
  try {
    (void)eval(e);
  } catch (const shape_error& refused) { return refused.what(); }
  return "";
}

/// f(x) and the gradient of its sum.
template <class T, class F>
std::pair<std::vector<T>, std::vector<T>> with_gradient(F f, std::vector<T> at) {
  const variable<T, extents<dyn>> x(row(at));
  tape steps;
  const auto y = steps.eval(f(x));
  const auto values = y.to_vector();
  steps.backward(steps.eval(sum(y)));
  return {values, x.grad().to_vector()};
}

}  // namespace

TEST_CASE("an extent of 1 in the type is not broadcast against a dynamic one") {
  const auto a = full<float>(extents<3, 1>{}, 1.0f);
  const auto b = full<float>(extents<3, dyn>{3, 5}, 2.0f);
  const auto said = [](const char* op) {
    return std::string("weft: ") + op +
           ": operands of shapes [3, 1] and [3, 5]: extents 1 and 5 must be equal";
  };
  CHECK(refusal_of(mse_loss(a, b)) == said("mse_loss"));
  CHECK(refusal_of(l1_loss<each>(a, b)) == said("l1_loss"));
  CHECK(refusal_of(bce_with_logits(a, b)) == said("bce_with_logits"));
  CHECK(refusal_of(binary_cross_entropy(a, b)) == said("binary_cross_entropy"));
  CHECK(refusal_of(margin_ranking_loss(a, b, b)) == said("margin_ranking_loss"));
  CHECK(refusal_of(triplet_margin_loss(a, b, b)) == said("triplet_margin_loss"));
  CHECK(refusal_of(triplet_margin_loss(a, a, b)) == said("triplet_margin_loss"));
  CHECK(refusal_of(cosine_embedding_loss(a, b, row({1, 1, 1}))) == said("cosine_embedding_loss"));
  CHECK(refusal_of(cosine_similarity(a, b)) == said("cosine_similarity"));
  CHECK(refusal_of(cross_entropy(b, a)) == said("cross_entropy"));
  CHECK(refusal_of(kl_div(b, a)) == said("kl_div"));
  CHECK(refusal_of(kl_div<each, true>(b, a)) == said("kl_div"));
  const std::string with_parameter = "[3, 1], [3, 5] and []: extents 1 and 5 must be equal";
  CHECK(refusal_of(huber_loss(a, b)) == "weft: huber_loss: operands of shapes " + with_parameter);
  CHECK(refusal_of(smooth_l1_loss(a, b)) == "weft: smooth_l1_loss: operands of shapes " + with_parameter);
  CHECK(refusal_of(hinge_embedding_loss(a, b)) ==
        "weft: hinge_embedding_loss: operands of shapes " + with_parameter);
  const auto rows = ones_of(3, 5);
  CHECK(refusal_of(cosine_embedding_loss(rows, rows, full<float>(extents<1>{}, 1.0f))) ==
        "weft: cosine_embedding_loss: operands of shapes [3], [1] and []: extents 3 and 1 must be equal");
}

TEST_CASE("other dynamic extents are reported under the name of the loss") {
  CHECK(refusal_of(mse_loss(ones_of(2, 3), ones_of(2, 4))) ==
        "weft: mse_loss: operands of shapes [2, 3] and [2, 4]: extents 3 and 4 must be equal");
  CHECK(refusal_of(mse_loss(ones_of(2, 3), ones_of(2, 1))) ==
        "weft: mse_loss: operands of shapes [2, 3] and [2, 1]: extents 3 and 1 must be equal");
  CHECK(refusal_of(nll_loss(ones_of(2, 3), row<std::int64_t>({0, 1, 1}))) ==
        "weft: nll_loss: operands of shapes [2, 3] and [3]: extents 2 and 3 must be equal");
}

TEST_CASE("weights of norms are [C], not [1]") {
  const auto x = full<float>(extents<2, dyn>{2, 3}, 1.0f);
  const auto one = full<float>(extents<1>{}, 2.0f);
  CHECK(refusal_of(layer_norm(x, one, full<float>(extents<dyn>{3}, 0.0f))) ==
        "weft: layer_norm: operands of shapes [2, 3], [1] and [3]: extents 3 and 1 must be equal");
  CHECK(refusal_of(rms_norm(x, one)) ==
        "weft: rms_norm: operands of shapes [2, 3] and [1]: extents 3 and 1 must be equal");
  const auto image = full<float>(extents<2, dyn, 3>{2, 4, 3}, 1.0f);
  const auto two = full<float>(extents<2>{}, 2.0f);
  CHECK(refusal_of(group_norm<2>(image, two, two)) ==
        "weft: group_norm: operands of shapes [2, 4, 3], [2] and [2]: extents 4 and 2 must be equal");
}

TEST_CASE("the vectors of vjp, hvp and jvp are not broadcast") {
  const auto x = row<double>({1, 2, 3});
  const auto one = full<double>(extents<1>{}, 1.0);
  const auto cube = [](auto v) { return v * v * v; };
  const std::string both = ": operands of shapes [3] and [1]: extents 3 and 1 must be equal";
  CHECK(refusal_of(vjp(cube, x, one)) == "weft: vjp" + both);
  CHECK(refusal_of(hvp([&](auto v) { return sum(cube(v)); }, x, one)) == "weft: hvp" + both);
  CHECK(refusal_of(jvp(cube, x, one)) == "weft: jvp" + both);
  CHECK(eval(jvp(cube, x, row<double>({1, 1, 2}))).to_vector() == std::vector<double>{3, 12, 54});
}

TEST_CASE("class weights: as many as classes, and labels are checked under the name of the loss") {
  const auto logits = ones_of(2, 3);
  const auto labels = row<std::int64_t>({0, 2});
  const auto weights = [](index_t n) { return full<float>(extents<dyn>{n}, 2.0f); };
  CHECK(refusal_of(cross_entropy(logits, labels, weights(5))) ==
        "weft: cross_entropy: operands of shapes [2, 3] and [5]: extents 3 and 5 must be equal");
  CHECK(refusal_of(nll_loss(logits, labels, weights(2))) ==
        "weft: nll_loss: operands of shapes [2, 3] and [2]: extents 3 and 2 must be equal");
  CHECK_FALSE(refusal_of(cross_entropy(logits, labels, full<float>(extents<1>{}, 1.0f))).empty());
  const auto bad = row<std::int64_t>({0, 7});
  CHECK_THROWS_WITH_AS(eval(cross_entropy(logits, bad, weights(3))),
                       "weft: cross_entropy: index 7 at position 1 is outside of [0, 3)", value_error);
  CHECK_THROWS_WITH_AS(eval(nll_loss(logits, bad)),
                       "weft: nll_loss: index 7 at position 1 is outside of [0, 3)", value_error);
  CHECK_THROWS_WITH_AS(eval(nll_loss(logits, bad, weights(3))),
                       "weft: nll_loss: index 7 at position 1 is outside of [0, 3)", value_error);
}

TEST_CASE("cross_entropy with class weights: f16 and bf16 are computed in f32") {
  const index_t rows = 66000;
  const variable<float16, extents<dyn, 4>> x(zeros<float16>(extents<dyn, 4>{rows}).state());
  const auto labels = zeros<std::int64_t>(extents<dyn>{rows});
  const auto weights = full<float16>(extents<4>{}, float16(1.0f));
  tape steps;
  const auto loss = steps.eval(cross_entropy(x, labels, weights));
  CHECK(static_cast<float>(loss.item()) == static_cast<float>(float16(std::log(4.0f))));
  steps.backward(loss, full<float16>(extents<>{}, float16(1024.0f)));
  CHECK(static_cast<float>(x.grad().to_vector()[0]) == doctest::Approx(-0.75 * 1024 / rows).epsilon(1e-2));
  const auto y = generate<bfloat16>(
      extents<dyn, 7>{301}, [](index_t i) { return bfloat16(std::sin(2.3f * static_cast<float>(i))); });
  const auto classes = generate<std::int64_t>(extents<dyn>{301}, [](index_t i) { return i % 7; });
  CHECK(static_cast<float>(
            eval(cross_entropy(y, classes, full<bfloat16>(extents<7>{}, bfloat16(1.0f)))).item()) ==
        static_cast<float>(eval(cross_entropy(y, classes)).item()));
}

TEST_CASE("smooth_l1_loss: any beta; 0 is l1_loss") {
  const auto with = [](double beta) {
    return with_gradient<float>(
        [&](auto x) { return smooth_l1_loss<each>(x, full<float>(extents<dyn>{4}, 0.0f), beta); },
        {1, -1e-3f, 0, 1e-30f});
  };
  for (const double beta : {0.0, 1e-46, 1e-40}) {
    const auto [value, slope] = with(beta);
    CHECK(value == std::vector<float>{1, 1e-3f, 0, 1e-30f});
    CHECK(slope == std::vector<float>{1, -1, 0, 1});
  }
  CHECK(with(std::numeric_limits<double>::infinity()).first == std::vector<float>{0, 0, 0, 0});
  CHECK_THROWS_AS(with(-1), value_error);
  CHECK_THROWS_AS(with(std::nan("")), value_error);
}

TEST_CASE("margin losses pass the gradient at the hinge, as PyTorch's") {
  // The distances are 0 and 32.
  const auto triplet = with_gradient<float>(
      [](auto n) {
        return triplet_margin_loss<each>(full<float>(extents<1, 1>{}, 0.0f),
                                         full<float>(extents<1, 1>{}, 1e-6f), unsqueeze<0>(n), 32.0);
      },
      {-32});
  CHECK(triplet.first == std::vector<float>{0});
  CHECK(triplet.second == std::vector<float>{1});
  const auto ranking = with_gradient<float>(
      [](auto x) {
        return margin_ranking_loss<each>(x, row<float>({1, 1, 1}), row<std::int32_t>({1, -1, 1}), 2);
      },
      {0, 0, 3});
  CHECK(ranking.first == std::vector<float>{3, 1, 0});
  CHECK(ranking.second == std::vector<float>{-1, 1, -1});
  const auto hinge = with_gradient<float>(
      [](auto x) { return hinge_embedding_loss<each>(x, row<std::int32_t>({1, -1, -1, -1}), 2); },
      {3, 0.5f, 2, 3});
  CHECK(hinge.first == std::vector<float>{3, 1.5f, 0, 0});
  CHECK(hinge.second == std::vector<float>{1, -1, -1, 0});
}

TEST_CASE("binary_cross_entropy at 0 and 1 is finite, as PyTorch's") {
  const auto [value, slope] = with_gradient<double>(
      [](auto p) { return binary_cross_entropy<each>(p, row<double>({0, 1, 0, 1})); }, {0, 0, 1, 1});
  CHECK(value == std::vector<double>{0, 100, 100, 0});
  CHECK(slope == std::vector<double>{0, -1e12, 1e12, 0});
}

TEST_CASE("bce_with_logits: a weight for each class") {
  const auto x = from(extents<2, 3>{}, std::vector<double>{1, -2, 30, 0.5, 800, -800});
  const auto y = from(extents<2, 3>{}, std::vector<double>{1, 0, 1, 0.25, 0, 1});
  const auto w = from(extents<3>{}, std::vector<double>{2, 3, 4});
  const auto got = eval(bce_with_logits<each>(x, y, w)).to_vector();
  const std::vector<double> expected{2 * std::log1p(std::exp(-1.0)),
                                     std::log1p(std::exp(-2.0)),
                                     4 * std::log1p(std::exp(-30.0)),
                                     0.5 * std::log1p(std::exp(-0.5)) + 0.75 * std::log1p(std::exp(0.5)),
                                     800,
                                     3200};
  for (std::size_t i = 0; i < 6; ++i) CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-12));
}

TEST_CASE("cumprod: gradients after zeros, and where partial products do not fit into f32") {
  std::vector<float> v(200, 2.0f);
  v[0] = 0;
  auto slope = with_gradient<float>([](auto x) { return cumprod<0>(x); }, v).second;
  CHECK(slope[0] == INFINITY);
  for (std::size_t i = 1; i < slope.size(); ++i) CHECK(slope[i] == 0);
  slope = with_gradient<float>([](auto x) { return cumprod<0>(x); }, {1e-30f, 1, 1e20f, 1e20f}).second;
  CHECK(slope[1] == doctest::Approx(1e10f).epsilon(1e-6));
}

TEST_CASE("classes are along the last dim") {
  const auto x = generate<float>(extents<dyn, dyn, dyn>{2, 3, 4}, [](index_t i) { return float(i * i % 7); });
  const auto labels = generate<std::int64_t>(extents<dyn, dyn>{2, 3}, [](index_t i) { return i % 4; });
  const auto rows = eval(cross_entropy<each>(reshape<dyn, 4>(x), reshape<dyn>(labels))).to_vector();
  CHECK(eval(cross_entropy<each>(x, labels)).to_vector() == rows);
  CHECK(eval(cross_entropy<each>(transpose<1, -1>(eval(transpose<1, -1>(x))), labels)).to_vector() == rows);
}

TEST_CASE("kl_div: targets of 0, and logarithms as targets") {
  const auto x = row<double>({-1, -2, -0.5});
  const auto [value, slope] = with_gradient<double>([&](auto q) { return kl_div<each>(x, q); }, {0, 0.25, 1});
  CHECK(value[0] == 0);
  CHECK(slope[0] == 1);
  const auto of_logs = eval(kl_div<each, true>(x, row<double>({-3, std::log(0.25), 0}))).to_vector();
  CHECK(of_logs[0] == doctest::Approx(std::exp(-3.0) * -2));
  CHECK(of_logs[1] == doctest::Approx(value[1]));
  CHECK(of_logs[2] == doctest::Approx(value[2]));
}
