// SPDX-License-Identifier: MIT
// The rows of docs/semantics.md: what ops mean at NaN, infinities, ties and bounds, which types they give,
// and what they refuse. Expected values are PyTorch 2.13's unless the row says otherwise.
#include <doctest/doctest.h>

#include <limits>
#include <random>

#include <cmath>
#include <limits>
#include <numeric>

#include <weft/weft.hpp>

using namespace weft;

namespace {
constexpr float inf = std::numeric_limits<float>::infinity(), NaN = std::numeric_limits<float>::quiet_NaN();

tensor<float, extents<dyn>> vector_of(const std::vector<float>& v) {
  return from<float>(extents<dyn>{static_cast<index_t>(v.size())}, v);
}
template <class T>
tensor<T, extents<dyn>> list(const std::vector<T>& v) {
  return from<T>(extents<dyn>{static_cast<index_t>(v.size())}, v);
}
variable<float, extents<dyn>> tracked(const std::vector<float>& v) {
  return variable<float, extents<dyn>>(vector_of(v));
}

/// Equality, in which NaN equals only NaN.
bool same(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!(std::isnan(a[i]) ? std::isnan(b[i])
                           : std::abs(a[i] - b[i]) <= 1e-5f * std::abs(b[i]) || a[i] == b[i]))
      return false;
  return true;
}
/// The gradients of sum(f(x...)).
template <class F, class... X>
std::vector<std::vector<float>> gradients(F f, X... x) {
  tape steps;
  steps.backward(steps.eval(sum(f(x...))));
  return {x.grad().to_vector()...};
}
template <class E, class T>
constexpr bool has_type = std::is_same_v<typename E::value_type, T>;
}  // namespace

TEST_CASE("numbers: a number takes the tensor's type unless its category is higher") {
  auto half = cast<bfloat16>(vector_of({1}));
  auto ieee = cast<float16>(vector_of({1}));
  auto i32 = list<std::int32_t>({1});
  auto u8 = list<std::uint8_t>({1});
  auto i64 = list<std::int64_t>({1});
  auto flag = vector_of({1}) < 2.0f;
  CHECK(has_type<decltype(half + 1.0f), bfloat16>);
  CHECK(has_type<decltype(half * 2), bfloat16>);
  CHECK(has_type<decltype(ieee / 2.0), float16>);
  CHECK(has_type<decltype(i32 + 1), std::int32_t>);
  CHECK(has_type<decltype(i32 + std::int64_t{1}), std::int32_t>);
  CHECK(has_type<decltype(u8 + 1), std::uint8_t>);
  CHECK(has_type<decltype(i64 + 1), std::int64_t>);
  CHECK(has_type<decltype(i32 + 1.0f), float>);
  CHECK(has_type<decltype(u8 * 0.5), float>);
  CHECK(has_type<decltype(i64 + 1.0), float>);
  CHECK(has_type<decltype(i32 / 2), float>);
  CHECK(has_type<decltype(flag + 1), std::int64_t>);
  CHECK(has_type<decltype(flag + 1.0), float>);
  CHECK(has_type<decltype(i32 + true), std::int32_t>);
  CHECK(has_type<decltype(where(flag, i32, 0)), std::int32_t>);
  CHECK(has_type<decltype(vector_of({1}) + 1.0), float>);
  CHECK(eval(i32 + 1).item() == 2);
  CHECK(eval(u8 + 1).item() == 2);
  CHECK(eval(i32 + 0.5f).item() == 1.5f);
  CHECK(eval(flag + 1).item() == 2);
  CHECK(static_cast<float>(eval(half + 1.0f).item()) == 2);
  CHECK(static_cast<float>(eval(half * 0.5f).item()) == 0.5f);
}

TEST_CASE("numbers: of the narrow types as of float") {
  const auto check = []<class T>(T two) {
    const auto t = cast<T>(vector_of({1, 2, 3}));
    CHECK(has_type<decltype(t * two), T>);
    CHECK(has_type<decltype(two - vector_of({1})), float>);
    CHECK(has_type<decltype(list<std::int32_t>({1}) + two), float>);
    CHECK(same(eval(cast<float>(t * two)).to_vector(), {2, 4, 6}));
    CHECK(same(eval(cast<float>(two - t)).to_vector(), {1, 0, -1}));
    CHECK(same(eval(cast<float>(where(t == two, t, two))).to_vector(), {2, 2, 2}));
    CHECK(same(eval(maximum(vector_of({1, 7}), two)).to_vector(), {2, 7}));
    auto x = vector_of({1, 2});
    update(x, two);
    CHECK(same(x.to_vector(), {2, 2}));
  };
  check(bfloat16{2.0f});
  check(float16{2.0f});
}

TEST_CASE("from a vector of bool; arange of a type that has not all numbers") {
  const std::vector<bool> bits{true, false, true};
  const tensor<bool, extents<3>> flags = from(extents<3>{}, bits);
  CHECK(flags(0));
  CHECK(!flags(1));
  CHECK(eval(sum(flags)).item() == 2);
  CHECK_THROWS_AS(from(extents<2>{}, bits), shape_error);
  CHECK(arange<std::uint8_t>(256).to_vector().back() == 255);
  CHECK_THROWS_WITH_AS(arange<std::uint8_t>(257), "weft: arange: 256 is not a value of type u8", value_error);
}

TEST_CASE("numbers: one that the tensor's type does not have is an error") {
  auto u8 = list<std::uint8_t>({251});
  auto i32 = list<std::int32_t>({1});
  CHECK_THROWS_WITH_AS(eval(u8 == -5),
                       "weft: the number -5 is not a value of the tensor's type, u8: cast the tensor",
                       value_error);
  CHECK_THROWS_AS(eval(u8 + 256), value_error);
  CHECK_THROWS_AS(eval(i32 < (std::int64_t{1} << 31)), value_error);
  CHECK(eval(cast<std::int32_t>(u8) + -5).item() == 246);
  CHECK(eval(u8 + 4u).item() == 255);
  CHECK_THROWS_AS(update(u8, 300), value_error);
  CHECK_THROWS_AS(update(u8[0], -1), value_error);
  CHECK_THROWS_AS(update(i32, std::int64_t{1} << 40), value_error);
  CHECK(u8.item() == 251);
}

TEST_CASE("types: ops that keep integers, and those that make f32 of them") {
  auto x = list<std::int32_t>({-3, 0, 4});
  CHECK(eval(floor(x)).to_vector() == std::vector<std::int32_t>{-3, 0, 4});
  CHECK(eval(round(x)).to_vector() == std::vector<std::int32_t>{-3, 0, 4});
  CHECK(eval(square(x)).to_vector() == std::vector<std::int32_t>{9, 0, 16});
  CHECK(eval(relu(x)).to_vector() == std::vector<std::int32_t>{0, 0, 4});
  CHECK(eval(clamp(x, -1, 2)).to_vector() == std::vector<std::int32_t>{-1, 0, 2});
  CHECK(eval(clamp_min(x, -1)).to_vector() == std::vector<std::int32_t>{-1, 0, 4});
  CHECK(eval(clamp_max(x, 2)).to_vector() == std::vector<std::int32_t>{-3, 0, 2});
  CHECK(same(eval(clamp_min(x, 0.5f)).to_vector(), {0.5f, 0.5f, 4}));
  CHECK(eval(sign(x)).to_vector() == std::vector<std::int32_t>{-1, 0, 1});
  CHECK(same(eval(sigmoid(x)).to_vector(), {0.04742587f, 0.5f, 0.98201376f}));
  CHECK(same(eval(gelu(x)).to_vector(), eval(gelu(cast<float>(x))).to_vector()));
  CHECK(same(eval(softplus(x)).to_vector(), eval(softplus(cast<float>(x))).to_vector()));
  CHECK(eval(logsumexp(x)).item() == doctest::Approx(4.0190599));
  static_assert(has_type<decltype(pow(x, 2)), float>);
  CHECK(same(eval(pow(x, 2)).to_vector(), {9, 0, 16}));
  CHECK(same(eval(clamp(x, -0.5f, 0.5f)).to_vector(), {-0.5f, 0, 0.5f}));
}

TEST_CASE("ties and NaN: maximum, minimum, relu, abs, sign") {
  auto a = tracked({NaN, 1, 2, NaN, inf, 1}), b = tracked({1, NaN, 2, NaN, inf, 2});
  CHECK(same(eval(maximum(a, b)).to_vector(), {NaN, NaN, 2, NaN, inf, 2}));
  auto g = gradients([](auto x, auto y) { return maximum(x, y); }, a, b);
  CHECK(same(g[0], {1, 1, 0.5f, 1, 0.5f, 0}));
  CHECK(same(g[1], {1, 1, 0.5f, 1, 0.5f, 1}));
  a.zero_grad(), b.zero_grad();
  g = gradients([](auto x, auto y) { return minimum(x, y); }, a, b);
  CHECK(same(g[0], {1, 1, 0.5f, 1, 0.5f, 1}));
  CHECK(same(g[1], {1, 1, 0.5f, 1, 0.5f, 0}));
  CHECK(same(gradients([](auto x) { return relu(x); }, tracked({NaN, 0, -1, 1, inf, -inf}))[0],
             {1, 0, 0, 1, 1, 0}));
  CHECK(same(eval(relu(vector_of({NaN, 0, -1, inf}))).to_vector(), {NaN, 0, 0, inf}));
  CHECK(same(gradients([](auto x) { return abs(x); }, tracked({0, NaN, -inf, 2}))[0], {0, 0, -1, 1}));
  // Long enough for vectors and a tail.
  std::vector<float> x(37, NaN), y(37, 0);
  for (std::size_t i = 0; i < 37; i += 3) x[i] = -2, y[i] = -1;
  CHECK(same(eval(sign(vector_of(x))).to_vector(), y));
}

TEST_CASE("clamp: the gradient passes where low <= x <= high") {
  CHECK(same(eval(clamp(vector_of({-2, NaN, 3}), -1.0f, 1.0f)).to_vector(), {-1, NaN, 1}));
  CHECK(same(gradients([](auto x) { return clamp(x, -1.0f, 1.0f); }, tracked({-2, -1, 0, 1, 2, NaN}))[0],
             {0, 1, 1, 1, 0, 0}));
  const auto g = gradients([](auto x, auto low, auto high) { return clamp(x, low, high); },
                           tracked({1, 2, 3, 2}), tracked({2, 0, 5, 1}), tracked({3, 1, 4, 3}));
  CHECK(same(g[0], {0, 0, 0, 1}));
  CHECK(same(g[1], {1, 0, 0, 0}));
  CHECK(same(g[2], {0, 1, 1, 0}));
  CHECK(eval(clamp(vector_of({1}), 2.0f, 1.0f)).item() == 1);
}

TEST_CASE("clamp_min, clamp_max: the gradient at the bound, NaN, bounds that broadcast") {
  auto x = tracked({NaN, 1, 2, 3, inf, -inf, 2, NaN}), bound = tracked({2, NaN, 2, 2, 2, 2, inf, NaN});
  CHECK(same(eval(clamp_min(x, bound)).to_vector(), {NaN, NaN, 2, 3, inf, 2, inf, NaN}));
  CHECK(same(eval(clamp_max(x, bound)).to_vector(), {NaN, NaN, 2, 2, 2, -inf, 2, NaN}));
  auto g = gradients([](auto a, auto b) { return clamp_min(a, b); }, x, bound);
  CHECK(same(g[0], {0, 0, 1, 1, 1, 0, 0, 0}));
  CHECK(same(g[1], {0, 0, 0, 0, 0, 1, 1, 0}));
  x.zero_grad(), bound.zero_grad();
  g = gradients([](auto a, auto b) { return clamp_max(a, b); }, x, bound);
  CHECK(same(g[0], {0, 0, 1, 0, 0, 1, 1, 0}));
  CHECK(same(g[1], {0, 0, 0, 1, 1, 0, 0, 0}));
  CHECK(same(eval(clamp_min(x, NaN)).to_vector(), std::vector<float>(8, NaN)));
  CHECK(same(eval(clamp_max(3.0f, vector_of({2, 4}))).to_vector(), {2, 3}));
  CHECK(eval(clamp_min(zeros<float>(extents<dyn, 3>{0}), ones<float>(extents<3>{}))).size() == 0);
  CHECK_THROWS_WITH_AS(eval(clamp_min(vector_of({1, 2}), vector_of({1, 2, 3}))),
                       doctest::Contains("clamp_min"), shape_error);
}

TEST_CASE("pow, division: gradients at 0 and at denormal numbers") {
  auto g = gradients([](auto x, auto y) { return pow(x, y); }, tracked({0, 0, 0, 0, -2, 2, NaN, 0}),
                     tracked({2, 0, -1, NaN, 2, 0, 2, 0.5f}));
  CHECK(same(g[0], {0, 0, -inf, NaN, -4, 0, NaN, inf}));
  CHECK(same(g[1], {0, 0, -inf, NaN, NaN, 0.69314718f, NaN, 0}));
  g = gradients([](auto x, auto y) { return x / y; }, tracked({1, 0, 1e-40f, 1, 0, inf}),
                tracked({0, 0, 1e-40f, 1e-40f, 1e-40f, inf}));
  CHECK(same(g[0], {inf, inf, inf, inf, inf, 0}));
  CHECK(same(g[1], {-inf, NaN, -inf, -inf, 0, NaN}));
}

TEST_CASE("pow, elu: second derivatives at 0") {
  const auto second = [](auto f) {
    const auto slope = [f](auto x) { return sum(grad([f](auto t) { return sum(f(t)); }, x)); };
    return eval(grad(slope, tracked({0, 2, -1, NaN}))).to_vector();
  };
  CHECK(same(second([](auto x) { return pow(x, 0.0f); }), {0, 0, 0, 0}));
  CHECK(same(second([](auto x) { return pow(x, 2.0f); }), {2, 2, 2, 2}));
  CHECK(same(second([](auto x) { return elu(x, 0.5f); }), {0, 0, 0.18393972f, 0}));
  auto base = tracked({0, 0, 2}), exponent = tracked({2, 3.5f, 1});
  tape steps;
  steps.backward(steps.eval(sum(grad([&](auto e) { return sum(pow(base, e)); }, exponent))));
  CHECK(same(base.grad().to_vector(), {0, 0, 1.6931472f}));
  const auto of_alpha = gradients([](auto x, auto alpha) { return apply<op::elu>(x, alpha); },
                                  tracked({NaN, -1, 0, 1}), tracked({1, 1, 1, 1}))[1];
  CHECK(same(of_alpha, {NaN, -0.63212056f, 0, 0}));
}

TEST_CASE("variance, stddev: squares that no number holds") {
  const auto x = from<float>(extents<4>{}, {1e38f, -1e38f, 3e38f, 2e38f});
  CHECK(same(eval(concat<0>(unsqueeze<0>(variance(x)), unsqueeze<0>(stddev(x)))).to_vector(), {inf, inf}));
  for (const float e :
       eval(layer_norm(x * 0.01f, ones<float>(extents<4>{}), zeros<float>(extents<4>{}))).to_vector())
    CHECK(std::abs(e) <= 2);
}

TEST_CASE("amax, amin: ties share the gradient evenly over all dims together") {
  for (int flipped : {1, -1}) {
    auto x = variable<float, extents<2, 2>>(from<float>(extents<2, 2>{}, {1, 1, 0, 1}));
    tape steps;
    const auto s = static_cast<float>(flipped);
    if (flipped > 0) steps.backward(steps.eval(sum(amax(x, dims<0, 1>))));
    else steps.backward(steps.eval(sum(amin(x * s, dims<0, 1>) * s)));
    CHECK(same(x.grad().to_vector(), {1 / 3.0f, 1 / 3.0f, 0, 1 / 3.0f}));
  }
  auto cube = variable<float, extents<2, 2, 2>>(from<float>(extents<2, 2, 2>{}, {1, 2, 2, 2, 2, 2, 0, 2}));
  tape steps;
  steps.backward(steps.eval(sum(amax(cube, dims<0, 2>, keepdim))));
  CHECK(same(cube.grad().to_vector(), {0, 1 / 3.0f, 1 / 3.0f, 1 / 3.0f, 1 / 3.0f, 1 / 3.0f, 0, 1 / 3.0f}));
  CHECK(same(gradients([](auto x) { return amax(x, dims<0>); }, tracked({NaN, 1, NaN}))[0], {NaN, NaN, NaN}));
}

TEST_CASE("logsumexp: gradients beside infinities and NaN") {
  const auto of = [](std::vector<float> x) {
    return gradients([](auto v) { return logsumexp(v, dims<0>); }, tracked(x))[0];
  };
  CHECK(same(of({inf, 100, 1}), {NaN, 0, 0}));
  CHECK(same(of({inf, inf, 1}), {NaN, NaN, 0}));
  CHECK(same(of({-inf, -inf}), {NaN, NaN}));
  CHECK(same(of({NaN, 0, 1}), {NaN, NaN, NaN}));
  CHECK(same(of({-inf, 0, 1}), {0, 0.26894142f, 0.73105858f}));
  CHECK(of({1000, 1000})[0] ==
        doctest::Approx(0.5).epsilon(1e-4));  // the result, 1000.69, is rounded, in PyTorch too
  CHECK(eval(logsumexp(vector_of({inf, 1}))).item() == inf);
  CHECK(eval(logsumexp(vector_of({-inf, -inf}))).item() == -inf);
}

TEST_CASE("dims without elements") {
  auto none = empty<float>(extents<dyn, dyn>{0, 3});
  CHECK_THROWS_WITH_AS(eval(amax(none, dims<0>)),
                       "weft: amax: an operand of shape [0, 3]: the dim has no elements", shape_error);
  CHECK_THROWS_WITH_AS(eval(amin(none)), "weft: amin: an operand of shape [0, 3]: the dim has no elements",
                       shape_error);
  CHECK_THROWS_WITH_AS(eval(argmax<0>(none)),
                       "weft: argmax: an operand of shape [0, 3]: the dim has no elements", shape_error);
  CHECK_THROWS_WITH_AS(eval(argmin<0>(none)),
                       "weft: argmin: an operand of shape [0, 3]: the dim has no elements", shape_error);
  CHECK_THROWS_AS(eval(argmin(none)), shape_error);
  CHECK(eval(amax(none, dims<1>)).extents() == shape{1, {0}});
  CHECK(eval(argmax<1>(none)).extents() == shape{1, {0}});
  CHECK(eval(sum(none)).item() == 0);
  CHECK(std::isnan(eval(mean(none)).item()));
  CHECK(eval(logsumexp(none)).item() == -inf);
}

TEST_CASE("dropout: rate 1 drops all, without NaN; other rates are checked") {
  auto x = tracked({1, inf, NaN, -3});
  tape steps;
  auto y = steps.eval(dropout(x, 1.0f));
  CHECK(same(y.to_vector(), {0, 0, 0, 0}));
  steps.backward(steps.eval(sum(y)));
  CHECK(same(x.grad().to_vector(), {0, 0, 0, 0}));
  CHECK(same(eval(dropout(vector_of({1, 2}), 0.0f)).to_vector(), {1, 2}));
  for (float rate : {-0.1f, 1.5f, NaN}) CHECK_THROWS_AS(dropout(vector_of({1}), rate), value_error);
  CHECK_THROWS_AS(dropout_layer{.rate = 2}(vector_of({1})), value_error);
}

TEST_CASE("labels: outside of the classes is an error, the ignored one is not") {
  auto logits = from<float>(extents<dyn, dyn>{2, 3}, {1, 2, 3, 1, 1, 1});
  const auto loss = [&](std::vector<std::int64_t> labels) {
    return eval(cross_entropy(logits, list(labels))).item();
  };
  CHECK(loss({2, 0}) == doctest::Approx(0.7531));
  CHECK(loss({2, -100}) == doctest::Approx(0.4076));
  CHECK(std::isnan(loss({-100, -100})));
  CHECK_THROWS_WITH_AS(loss({2, 3}), "weft: cross_entropy: index 3 at position 1 is outside of [0, 3)",
                       value_error);
  CHECK_THROWS_AS(loss({-1, 0}), value_error);
  CHECK_THROWS_AS(loss({std::int64_t{1} << 32, 0}), value_error);
  CHECK_THROWS_AS(eval(cross_entropy(logits, list<std::int32_t>({0, 3}))), value_error);
  CHECK_THROWS_AS(eval(cross_entropy(logits, list<std::uint8_t>({156, 0}))),
                  value_error);  // 156 is -100 in 8 bits
  CHECK(eval(cross_entropy<reduction_kind::mean, 255>(logits, list<std::uint8_t>({2, 255}))).item() ==
        doctest::Approx(0.4076));
  tape steps;
  auto tracked_logits = variable<float, extents<dyn, dyn>>(logits);
  CHECK_THROWS_AS(steps.eval(cross_entropy(tracked_logits, list<std::int64_t>({0, 3}))), value_error);
  CHECK(same(eval(one_hot<3>(list<std::int32_t>({2, 0}))).to_vector(), {0, 0, 1, 1, 0, 0}));
  CHECK_THROWS_WITH_AS(eval(one_hot<3>(list<std::int64_t>({0, std::int64_t{1} << 32}))),
                       "weft: one_hot: index 4294967296 at position 1 is outside of [0, 3)", value_error);
  CHECK_THROWS_AS(eval(one_hot<3>(list<std::int64_t>({-1}))), value_error);
}

TEST_CASE("indices: errors name the op that was called") {
  auto x = from<float>(extents<dyn, dyn>{2, 3}, {1, 2, 3, 4, 5, 6});
  auto bad = list<std::int64_t>({1, 3});
  CHECK_THROWS_WITH_AS(eval(embedding(x, bad)), "weft: embedding: index 3 at position 1 is outside of [0, 2)",
                       value_error);
  CHECK_THROWS_WITH_AS(eval(index_select<1>(x, bad)),
                       "weft: index_select: index 3 at position 1 is outside of [0, 3)", value_error);
  auto at = from<std::int64_t>(extents<dyn, 2>{2, 2}, {1, 2, 0, 3});
  CHECK_THROWS_WITH_AS(eval(gather<1>(x, at)), "weft: gather: index 3 at position 3 is outside of [0, 3)",
                       value_error);
  CHECK_THROWS_WITH_AS(eval(scatter_add<1>(x, at, slice<1, 0, 2>(x))),
                       "weft: scatter_add: index 3 at position 3 is outside of [0, 3)", value_error);
  auto inside = from<std::int32_t>(extents<dyn, 2>{2, 2}, {1, 2, 0, 0});
  CHECK(same(eval(scatter_add<1>(x, inside, slice<1, 0, 2>(x))).to_vector(), {1, 3, 5, 13, 5, 6}));
  CHECK_THROWS_WITH_AS(
      eval(scatter_add<1>(x, inside, x)),
      "weft: scatter_add: operands of shapes [2, 3], [2, 2] and [2, 3]: extents 2 and 3 must be equal",
      shape_error);
  CHECK_FALSE(accepts<op::scatter_add, attr<0>, tensor<float, extents<3>>, tensor<float, extents<2>>,
                      tensor<float, extents<2>>>);
  CHECK_FALSE(accepts<op::scatter_add, attr<0>, tensor<bool, extents<3>>, tensor<int, extents<2>>,
                      tensor<bool, extents<2>>>);
  CHECK_FALSE(accepts<op::scatter_add, attr<0>, tensor<float, extents<3>>, tensor<int, extents<2>>,
                      tensor<float, extents<3>>>);
  CHECK(accepts<op::scatter_add, attr<0>, tensor<float, extents<3>>, tensor<int, extents<2>>,
                tensor<float, extents<2>>>);
}

TEST_CASE("argmax, argmin: of all elements without a dim") {
  auto x = from<float>(extents<dyn, 3>{2, 3}, {1, 7, 3, 7, 0, 6});
  CHECK(eval(argmax(x)).item() == 1);
  CHECK(eval(argmin(x)).item() == 4);
  CHECK(eval(argmax<-1>(x)).to_vector() == std::vector<std::int64_t>{1, 0});
  CHECK(eval(argmax(sum(x))).item() == 0);
  CHECK(eval(argmax(from<float>(extents<3>{}, {1, NaN, 5}))).item() == 1);
}

TEST_CASE("orders: equal elements, NaN") {
  auto x = vector_of({3, NaN, -0.f, 0, 3, -inf, inf});
  CHECK(eval(argsort<0>(x)).to_vector() == std::vector<std::int64_t>{5, 2, 3, 0, 4, 6, 1});
  CHECK(eval(argsort<0, descending>(x)).to_vector() == std::vector<std::int64_t>{1, 6, 0, 4, 2, 3, 5});
  CHECK(same(eval(sort(x)).to_vector(), {-inf, -0.f, 0, 3, 3, inf, NaN}));
  const auto [values, indices] = topk<0, 3>(x);
  CHECK(same(eval(values).to_vector(), {NaN, inf, 3}));
  CHECK(eval(indices).to_vector() == std::vector<std::int64_t>{1, 6, 0});
  CHECK(eval(topk<0, smallest>(x, 3).indices).to_vector() == std::vector<std::int64_t>{5, 2, 3});
  CHECK(eval(cast<int>(sort<0, descending>(x > 0.f))).to_vector() == std::vector<int>{1, 1, 1, 0, 0, 0, 0});
  CHECK(eval(sort(list<std::int64_t>({std::int64_t{1} << 62, -1, std::int64_t{1} << 62 | 1}))).to_vector() ==
        std::vector<std::int64_t>{-1, std::int64_t{1} << 62, std::int64_t{1} << 62 | 1});
  CHECK(eval(cumsum<0>(list<std::uint8_t>({200, 100}))).to_vector() == std::vector<std::int64_t>{200, 300});
  CHECK(eval(cumprod<0>(list<std::uint8_t>({20, 100}))).to_vector() == std::vector<std::int64_t>{20, 2000});
  CHECK(eval(cumprod<0>(list<std::int64_t>({std::int64_t{1} << 62, 2, 2}))).to_vector() ==
        std::vector<std::int64_t>{std::int64_t{1} << 62, std::numeric_limits<std::int64_t>::min(), 0});
  CHECK(same(eval(cumprod<0>(vector_of({-1, 0, 3, NaN, 0}))).to_vector(), {-1, -0.f, -0.f, NaN, NaN}));
  CHECK(std::signbit(eval(cumprod<0>(vector_of({-1, 0, 3}))).to_vector()[2]));
  CHECK(eval(cumprod<1>(empty<float>(extents<3, dyn>{0}))).extents() == shape{2, {3, 0}});
  CHECK(gradients([](auto v) { return cumprod<0>(v); }, tracked({2, 0, 3, 4}))[0] ==
        std::vector<float>{1, 32, 0, 0});
  CHECK(eval(topk<0>(x, 0).values).extents() == shape{1, {0}});
  CHECK(eval(sort<1>(empty<float>(extents<dyn, 0>{3}))).extents() == shape{2, {3, 0}});
  CHECK_THROWS_WITH_AS(eval(topk<0>(x, 8).values), "weft: topk: an operand of shape [7]: 8 must be at most 7",
                       shape_error);
  CHECK_THROWS_WITH_AS(eval(topk<0, 8>(x).indices),
                       "weft: topk: an operand of shape [7]: 8 must be at most 7", shape_error);
  CHECK_THROWS_WITH_AS(topk<0>(x, -1), "weft: topk: cannot return -1 elements", value_error);
  static_assert(topk_compatible<1, 3, tensor<float, extents<2, 3>>> &&
                !topk_compatible<1, 4, tensor<float, extents<2, 3>>>);
}

TEST_CASE("einsum: what it takes and what it refuses") {
  auto a = from<float>(extents<2, dyn>{3}, {1, 2, 3, 4, 5, 6});
  auto b = from<float>(extents<dyn, 2>{3}, {1, 0, 2, -1, 0, 5});
  CHECK(eval(einsum<"ij,jk">(a, b)).to_vector() == std::vector<float>{5, 13, 14, 25});
  CHECK(eval(einsum<" i j , j k -> k i ">(a, b)).to_vector() == std::vector<float>{5, 14, 13, 25});
  CHECK(eval(einsum<"aB,Bc->ac">(a, b)).to_vector() == std::vector<float>{5, 13, 14, 25});
  CHECK(eval(einsum<"Ba,ac">(a, reshape<3, 2>(b))).to_vector() == std::vector<float>{5, 13, 14, 25});
  CHECK(eval(einsum<"aB,cB">(a, a)).to_vector() == std::vector<float>{14, 32, 32, 77});
  CHECK(eval(einsum<"ij,ji->">(a, b)).item() == 30);
  CHECK(eval(einsum<"ij->">(a)).item() == 21);
  CHECK(eval(einsum<"ji">(a)).to_vector() == std::vector<float>{1, 4, 2, 5, 3, 6});  // the result is ij
  CHECK(eval(einsum<"ij->ji">(cast<int>(a))).to_vector() == std::vector<int>{1, 4, 2, 5, 3, 6});
  static_assert(std::is_same_v<decltype(einsum<"ij->j">(cast<int>(a)))::value_type, std::int64_t>);
  static_assert(decltype(einsum<"ij,jk->kij">(a, b))::static_shape == shape{3, {2, 2, dyn}});
  using six = extents<1, 2, 1, 2, 1, 2>;
  CHECK(eval(einsum<"abcdef,abcdef->fedcba">(ones<float>(six{}), ones<float>(six{}))).extents() ==
        shape{6, {2, 1, 2, 1, 2, 1}});
  CHECK(eval(einsum<"abcdef,ghabij->cdefgh">(ones<float>(six{}), ones<float>(six{}))).to_vector()[0] == 4);
  CHECK_THROWS_WITH_AS(eval(einsum<"ij,jk->ik">(a, empty<float>(extents<dyn, 2>{4}))),
                       "weft: einsum: operands of shapes [2, 3] and [4, 2]: extents 3 and 4 must be equal",
                       shape_error);
  CHECK_THROWS_AS(eval(einsum<"ij,ik->ijk">(a, empty<float>(extents<dyn, 2>{1}))), shape_error);
}

TEST_CASE("orders of long rows, by several threads") {
  const index_t rows = 7, width = 5'003;
  const auto x = generate<float>(extents<dyn, dyn>{rows, width}, [](index_t i) {
    return static_cast<float>(i * 7'919 % 1'009);  // each number about five times
  });
  const auto elements = x.to_vector();
  const auto first = eval(argsort<1>(x)).to_vector(), best = eval(topk<1>(x, 100).indices).to_vector();
  for (index_t r = 0; r < rows; ++r) {
    const auto at = [&](index_t i) { return elements[static_cast<std::size_t>(r * width + i)]; };
    std::vector<std::int64_t> order(static_cast<std::size_t>(width));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](auto a, auto b) { return at(a) != at(b) ? at(a) < at(b) : a < b; });
    CHECK(std::equal(order.begin(), order.end(), first.begin() + r * width));
    std::sort(order.begin(), order.end(),
              [&](auto a, auto b) { return at(a) != at(b) ? at(a) > at(b) : a < b; });
    CHECK(std::equal(order.begin(), order.begin() + 100, best.begin() + r * 100));
  }
}

TEST_CASE("== and != compare element by element") {
  auto x = vector_of({1, 2, NaN});
  const auto count = [](auto e) { return eval(sum(e)).item(); };
  CHECK(count(x == vector_of({1, 3, NaN})) == 1);
  CHECK(count(x != vector_of({1, 3, NaN})) == 2);
  CHECK(count(x == 2.0f) == 1);
  CHECK(count(2.0f != x) == 2);
  CHECK(count(list<std::int64_t>({1, 5}) == list<std::int32_t>({1, 4})) == 1);
  CHECK(has_type<decltype(x == x), bool>);
}

TEST_CASE("matmul: a vector on the left is a row, on the right a column") {
  constexpr index_t K = 5, M = 3, B = 2;
  const auto a = randn<double>(extents<B, M, K>{}, {.stream = 1});
  const auto v = randn<double>(extents<K>{}, {.stream = 2});
  const auto from_left = eval(matmul(v, transpose<1, 2>(a)));
  const tensor<double, extents<dyn, dyn, dyn>> dynamic = a;
  const auto from_right = eval(matmul(dynamic, tensor<double, extents<dyn>>(v)));
  CHECK(from_left.extents() == shape{2, {B, M}});
  CHECK(from_right.extents() == shape{2, {B, M}});
  double square = 0;
  for (index_t k = 0; k < K; ++k) square += v(k) * v(k);
  CHECK(eval(matmul(v, v)).extents() == shape{});
  CHECK(eval(matmul(v, v)).item() == doctest::Approx(square));
  for (index_t b = 0; b < B; ++b)
    for (index_t m = 0; m < M; ++m) {
      double sum = 0;
      for (index_t k = 0; k < K; ++k) sum += a(b, m, k) * v(k);
      CHECK(from_left(b, m) == doctest::Approx(sum));
      CHECK(from_right(b, m) == doctest::Approx(sum));
      CHECK(eval(matmul(a[b], v))(m) == doctest::Approx(sum));
    }
  variable<double, extents<dyn>> x(randn<double>(extents<dyn>{K}, {.stream = 3}));
  CHECK(gradcheck([&](auto at) { return matmul(at, at) * sum(matmul(a[0], at) * matmul(a[1], v)); }, x));
  CHECK(std::isnan(eval(matmul(v, full<double>(extents<K>{}, NaN))).item()));
  CHECK(eval(matmul(empty<float>(extents<dyn>{0}), empty<float>(extents<dyn, 2>{0}))).to_vector() ==
        std::vector<float>{0, 0});
  CHECK_THROWS_WITH_AS(eval(matmul(eval(tensor<double, extents<dyn>>(v)), zeros<double>(extents<dyn>{4}))),
                       "weft: matmul: operands of shapes [1, 5] and [4, 1]: extents 5 and 4 must be equal",
                       shape_error);
}

TEST_CASE("isnan, isfinite, any, all") {
  const auto bits = [](auto e) {
    static_assert(has_type<decltype(e), bool>);
    return eval(cast<std::int32_t>(e)).to_vector();
  };
  using ints = std::vector<std::int32_t>;
  const auto of_type = [&]<class T>(T) {
    const auto x = cast<T>(vector_of({1, NaN, inf, -inf, 0, -1e30f}));
    CHECK(bits(isnan(x)) == ints{0, 1, 0, 0, 0, 0});
    const bool overflows = std::is_same_v<T, float16>;
    CHECK(bits(isfinite(x)) == ints{1, 0, 0, 0, 1, !overflows});
    CHECK(bits(any(x)) == ints{1});
    CHECK(bits(all(x)) == ints{0});
    CHECK(bits(all(slice<0, 0, 4>(x))) == ints{1});  // NaN is not 0
    CHECK(bits(any(slice<0, 4, 5>(x))) == ints{0});
  };
  of_type(double{});
  of_type(float{});
  of_type(bfloat16{});
  of_type(float16{});
  const auto whole = list<std::int64_t>({0, 1, 1ll << 40});
  CHECK(bits(isnan(whole)) == ints{0, 0, 0});
  CHECK(bits(isfinite(whole)) == ints{1, 1, 1});
  CHECK(bits(isfinite(whole > 0)) == ints{1, 1, 1});
  CHECK(bits(any(whole)) == ints{1});
  CHECK(bits(all(whole != 2)) == ints{1});
  const auto m = eval(reshape<3, 2>(vector_of({0, 0, 0, 2, 3, 4})));
  CHECK(bits(any(m, dims<1>)) == ints{0, 1, 1});
  CHECK(bits(all(m, dims<-1>)) == ints{0, 0, 1});
  CHECK(eval(any(m, dims<0>, keepdim)).extents() == shape{2, {1, 2}});
  CHECK(bits(all(m > 0, dims<0>, keepdim)) == ints{0, 0});
  const auto none = empty<float>(extents<dyn, dyn>{0, 3});
  CHECK(bits(any(none)) == ints{0});
  CHECK(bits(all(none, dims<0>)) == ints{1, 1, 1});
}

TEST_CASE("x[i] and select: one slice without its dim") {
  auto x = generate<float>(extents<dyn, 3>{2, 3}, [](index_t i) { return i; });
  CHECK(same(eval(x[1]).to_vector(), {3, 4, 5}));
  CHECK(same(eval(x[-1] + 1.0f).to_vector(), {4, 5, 6}));
  CHECK(eval(vector_of({4, 5})[0]).item() == 4);
  CHECK(same(eval(select<-1, 0>(exp(x * 0.0f))).to_vector(), {1, 1}));
  CHECK(eval(select<0>(x, 0)).extents() == shape{1, {3}});
  CHECK_THROWS_WITH_AS(x[2], "weft: index 2 of dim 0 is outside of [-2, 2) for a tensor of shape [2, 3]",
                       value_error);
  CHECK_THROWS_AS(x[-3], value_error);
  CHECK_THROWS_WITH_AS(select<1>(x, 3),
                       "weft: index 3 of dim 1 is outside of [-3, 3) for a tensor of shape [2, 3]",
                       value_error);
  CHECK_THROWS_WITH_AS(eval(select<0>(x + 1.0f, 2)),
                       "weft: select: an operand of shape [2, 3]: 3 must be at most 2", shape_error);
  auto w = variable<float, extents<dyn, 3>>(x);
  tape steps;
  steps.backward(steps.eval(sum(square(w[1]))));
  CHECK(same(w.grad().to_vector(), {0, 0, 0, 6, 8, 10}));
}

TEST_CASE("select: along the last dim") {
  auto x = generate<float>(extents<dyn, 3>{2, 3}, [](index_t i) { return i; });
  CHECK(same(eval(select<1>(x, 2)).to_vector(), {2, 5}));
}

TEST_CASE("shapes: errors at run time name the op and the shapes of its operands") {
  const auto of = [](index_t r, index_t c) { return full<float>(extents<dyn, dyn>{r, c}, 1.0f); };
  CHECK_THROWS_WITH_AS(
      eval(matmul(of(2, 63), of(64, 5))),
      "weft: matmul: operands of shapes [2, 63] and [64, 5]: extents 63 and 64 must be equal", shape_error);
  CHECK_THROWS_WITH_AS(eval(exp(of(2, 3) + of(3, 3))),
                       "weft: add: operands of shapes [2, 3] and [3, 3]: extents 2 and 3 must be equal",
                       shape_error);
  CHECK_THROWS_WITH_AS(eval(of(1, 3) + of(2, 3)),
                       "weft: add: operands of shapes [1, 3] and [2, 3]: extents 1 and 2 must be equal: an "
                       "extent that broadcasts must be 1 in the type, as reshape<1, dyn>(x) makes it",
                       shape_error);
  CHECK_THROWS_WITH_AS(eval(expand(of(1, 3), extents<dyn, 3>{2})),
                       "weft: expand: an operand of shape [1, 3]: extents 1 and 2 must be equal: an extent "
                       "that broadcasts must be 1 in the type, as reshape<1, dyn>(x) makes it",
                       shape_error);
  CHECK(eval(reshape<1, dyn>(of(1, 3)) + of(2, 3)).to_vector() == std::vector<float>(6, 2.0f));
  CHECK_THROWS_WITH_AS(
      eval(unflatten<1>(of(2, 3), 2)),
      "weft: unflatten: an operand of shape [2, 3]: an extent of 3 cannot be divided into parts of 2",
      shape_error);
  CHECK_THROWS_WITH_AS(
      eval(cross_entropy(of(2, 3), list<std::int64_t>({1}))),
      "weft: cross_entropy: operands of shapes [2, 3] and [1]: extents 2 and 1 must be equal", shape_error);
  tape steps;
  auto w = variable<float, extents<dyn, dyn>>(of(4, 5));
  CHECK_THROWS_WITH_AS(steps.eval(sum(matmul(of(2, 3), w))),
                       "weft: matmul: operands of shapes [2, 3] and [4, 5]: extents 3 and 4 must be equal",
                       shape_error);
  CHECK_THROWS_WITH_AS(eval(matmul(of(2, 1), of(4, 5))),  // the inner extents do not broadcast
                       "weft: matmul: operands of shapes [2, 1] and [4, 5]: extents 1 and 4 must be equal",
                       shape_error);
  tensor<float, extents<784, dyn>> nothing;
  CHECK_THROWS_WITH_AS(nothing + 1.0f,
                       "weft: a tensor of type f32 [784, ?] is used before it has elements, or after it was "
                       "moved; layers with a dyn "
                       "size are made by create",
                       value_error);
  CHECK_THROWS_WITH_AS(of(2, 3).extent(2), "weft: dim 2 is out of range for a tensor of shape [2, 3]",
                       value_error);
  CHECK(of(2, 3).extent(-1) == 3);
}

TEST_CASE("random numbers: a default context and an unseeded key repeat") {
  CHECK(randn<float>(extents<4>{}).to_vector() == randn<float>(extents<4>{}).to_vector());
  CHECK(randn<float>(extents<4>{}, {.stream = 1}).to_vector() != randn<float>(extents<4>{}).to_vector());
}

TEST_CASE("handles share elements and gradient, a clone neither") {
  auto t = vector_of({1, 2});
  const auto gradient_of = [](variable<float, extents<dyn>> x) {
    tape steps;
    steps.backward(steps.eval(sum(x * x)));
    return x.grad().to_vector();
  };
  using handle = variable<float, extents<dyn>>;
  CHECK(same(gradient_of(handle(t)), {2, 4}));
  CHECK(same(gradient_of(handle(t)), {4, 8}));
  CHECK(same(gradient_of(handle(clone(t))), {2, 4}));
  handle other(t);
  other.mutable_data()[0] = 5;
  CHECK(t(0) == 5);
}

TEST_CASE("bools: &, |, ! and ~ are the logical functions") {
  const auto x = vector_of({-1, 0, 0.5, 1, 2, NaN});
  const auto bits = [](const auto& e) {
    std::string text;
    for (std::int32_t b : eval(cast<std::int32_t>(e)).to_vector()) text += b ? '1' : '0';
    return text;
  };
  CHECK(bits((x > 0) & (x < 2)) == "001100");
  CHECK(bits((x < 0) | (x == 1)) == "100100");
  CHECK(bits(!(x > 0)) == "110001");
  CHECK(bits(~(x > 0)) == "110001");
  CHECK(bits(((x > 0) & !(x > 1)) | (x != x)) == "001101");
}

TEST_CASE("random: copies of an expression are one draw, two calls are two") {
  const auto x = full<float>(extents<100>{}, 1.0f);
  const auto twice = [](auto e) { return eval(sum(abs(e - e))).item(); };
  CHECK(twice(dropout(x, 0.5f)) == 0);
  CHECK(twice(uniform_like(x)) == 0);
  CHECK(twice(bernoulli(x * 0.5f)) == 0);
  CHECK(twice(shared(dropout(x, 0.5f))) == 0);
  CHECK(twice(eval(dropout(x, 0.5f))) == 0);
  CHECK(eval(sum(abs(let(dropout(x, 0.5f), [](auto e) { return e - e; })))).item() == 0);
  CHECK(eval(sum(abs(dropout(x, 0.5f) - dropout(x, 0.5f)))).item() > 0);
}

TEST_CASE("random: two statements draw anew, a value does not") {
  const auto x = full<float>(extents<100>{}, 1.0f);
  context c;
  const auto e = dropout(x, 0.5f);
  CHECK(eval(e, c).to_vector() != eval(e, c).to_vector());
  const auto y = eval(e, c);
  CHECK(eval(y * 1.0f, c).to_vector() == eval(y * 1.0f, c).to_vector());
}

TEST_CASE("random: contexts begin with the same numbers, unless they have another seed") {
  const auto x = full<float>(extents<100>{}, 1.0f);
  const auto drawn = [&](std::uint64_t seed) {
    context c;
    c.seed = seed;
    return eval(dropout(x, 0.5f), c).to_vector();
  };
  CHECK(drawn(0) == drawn(0));
  CHECK(drawn(0) != drawn(1));
  context c;
  CHECK(eval(dropout(x, 0.5f), c).to_vector() != eval(dropout(x, 0.5f), c).to_vector());
}

TEST_CASE("vector_norm, normalize: the derivatives at 0") {
  const auto norms = [](auto v) { return vector_norm(v, dims<1>); };
  variable<float, extents<2, 2>> x(from<float>(extents<2, 2>{}, {0, 0, 3, -4}));
  tape steps;
  steps.backward(steps.eval(sum(norms(x))));
  CHECK(x.grad().to_vector() == std::vector<float>{0, 0, 0.6f, -0.8f});
  x.zero_grad();
  steps.backward(steps.eval(sum(square(grad([&](auto v) { return sum(norms(v) * 2.0f); }, x)))));
  for (const float g : x.grad().to_vector()) CHECK(std::abs(g) < 1e-6f);  // a unit vector, or 0: not NaN
  x.zero_grad();
  steps.backward(steps.eval(sum(normalize(x) * from<float>(extents<2>{}, {1, 2}))));
  const auto g = x.grad().to_vector();  // torch: x / clamp_min(norm, 1e-12)
  CHECK(g[0] == doctest::Approx(1e12));
  CHECK(g[1] == doctest::Approx(2e12));
  CHECK(g[2] == doctest::Approx(0.32));
  CHECK(g[3] == doctest::Approx(0.24));
}

namespace {
__extension__ using wide = __int128;
/// Compares with 128-bit division, for pairs of extreme numbers and of numbers of all sizes.
template <class T>
void check_division() {
  using limits = std::numeric_limits<T>;
  const T edges[] = {
      limits::min(), limits::max(), T(limits::min() + 1), T(limits::max() - 1), 0, 1, T(-1), 2, T(-2), 3,
      T(-7)};
  std::vector<T> a, b;
  for (const T x : edges)
    for (const T y : edges) a.push_back(x), b.push_back(y);
  std::mt19937_64 random(5);
  const auto any = [&] { return static_cast<T>(static_cast<T>(random()) >> random() % (8 * sizeof(T))); };
  for (int i = 0; i < 5000; ++i) a.push_back(any()), b.push_back(any());
  const auto x = from(extents<dyn>{static_cast<index_t>(a.size())}, a),
             y = from(extents<dyn>{static_cast<index_t>(a.size())}, b);
  std::vector<T> quotients, rests;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const wide n = a[i], d = b[i];
    wide q = d == 0 ? 0 : n / d;
    if (d != 0 && n % d != 0 && (n < 0) != (d < 0)) --q;
    quotients.push_back(static_cast<T>(q));
    rests.push_back(static_cast<T>(n - q * d));
  }
  CHECK(eval(floor_divide(x, y)).to_vector() == quotients);
  CHECK(eval(x % y).to_vector() == rests);
}
}  // namespace

TEST_CASE("floor_divide, remainder: integers, negative ones, extremes, 0") {
  check_division<std::int64_t>();
  check_division<std::int32_t>();
  check_division<std::uint8_t>();
  // torch.remainder(torch.tensor([7, -7, 5.5, 0]), 3)
  const auto x = from(extents<4>{}, std::vector<float>{7, -7, 5.5f, 0});
  CHECK(eval(x % 3).to_vector() == std::vector<float>{1, 2, 2.5f, 0});
  CHECK(eval(floor_divide(x, 2.5f)).to_vector() == std::vector<float>{2, -3, 2, 0});
  CHECK(eval(-1 % arange<std::int64_t>(4)).to_vector() == std::vector<std::int64_t>{-1, 0, 1, 2});
}

TEST_CASE("zeros_like, ones_like, full_like of expressions: the type and shape alone matter") {
  variable<float, extents<dyn, 3>> x(from(extents<dyn, 3>{2}, std::vector<float>{1, NAN, INFINITY, 4, 5, 6}));
  CHECK(eval(zeros_like(x * 2.0f)).to_vector() == std::vector<float>(6, 0));
  CHECK(eval(ones_like(transpose(x))).extents() == shape{2, {3, 2}});
  CHECK(eval(sum(full_like(x > 2.0f, true))).item() == 6);
  const auto sevens = eval(full_like(cast<std::int64_t>(x), std::int64_t{1} << 40));
  CHECK(sevens.to_vector() == std::vector<std::int64_t>(6, std::int64_t{1} << 40));
  CHECK(eval(zeros_like(slice<0>(x, 1, 1))).size() == 0);
  tape steps;
  steps.backward(steps.eval(sum(full_like(tanh(x), 2.0f) * slice<1, 0, 1>(x))));
  CHECK(x.grad().to_vector() == std::vector<float>{6, 0, 0, 6, 0, 0});
}

TEST_CASE("variance, stddev: of one element, of equal elements") {
  variable<float, extents<2, 2>> x(from<float>(extents<2, 2>{}, {12345.678f, 12345.678f, 1, 3}));
  CHECK(eval(variance(x, dims<1>)).to_vector() == std::vector<float>{0, 2});
  CHECK(std::isnan(eval(variance(slice<0, 0, 1>(select<1, 0>(x)))).item()));
  CHECK(eval(variance<0>(slice<0, 0, 1>(select<1, 0>(x)))).item() == 0);
  for (const float bad : {NAN, INFINITY})
    CHECK(std::isnan(eval(variance(from(extents<3>{}, std::vector<float>{1, bad, 2}))).item()));
  tape steps;
  steps.backward(steps.eval(sum(stddev(x, dims<1>))));
  const auto g = x.grad().to_vector();
  CHECK(g[0] == 0);
  CHECK(g[1] == 0);
  CHECK(g[2] == doctest::Approx(-std::sqrt(0.5)));
  CHECK(g[3] == doctest::Approx(std::sqrt(0.5)));
}

TEST_CASE("rms_norm: the epsilon is that of the type") {
  // torch.nn.functional.rms_norm(torch.full((4,), 1e-3, dtype=...), (4,))
  const auto of = [](auto one) {
    using T = decltype(one);
    const auto x = full<T>(extents<4>{}, T(1e-3f));
    return static_cast<double>(eval(cast<double>(rms_norm(x, full<T>(extents<4>{}, one))))(0));
  };
  CHECK(of(1.0f) == doctest::Approx(0.94524491).epsilon(1e-6));
  CHECK(of(1.0) == doctest::Approx(1).epsilon(1e-9));
  CHECK(of(bfloat16(1.0f)) == 0.9453125);
  CHECK(of(float16(1.0f)) == 0.9453125);
  const auto x = full<float>(extents<4>{}, 1e-3f), one = full<float>(extents<4>{}, 1.0f);
  CHECK(eval(rms_norm<default_epsilon>(x, one))(0) == doctest::Approx(0.30151134));
}

TEST_CASE("gelu far left: the absolute error stays") {
  const auto x =
      generate<float>(extents<dyn>{50'000}, [](index_t i) { return -1 - 1e-4f * static_cast<float>(i); });
  const auto y = eval(gelu(x));
  double absolute = 0, at_three = 0;
  for (std::size_t i = 0; i < 50'000; ++i) {
    const double at = static_cast<double>(x.data()[i]), right = at / 2 * std::erfc(-at * std::sqrt(0.5));
    const double error = std::abs(static_cast<double>(y.data()[i]) - right);
    absolute = std::max(absolute, error);
    if (at > -3) at_three = std::max(at_three, error / std::abs(right));
  }
  CHECK(absolute < 1.5e-7);
  CHECK(at_three < 2e-5);
}
