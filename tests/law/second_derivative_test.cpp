// SPDX-License-Identifier: MIT
// The law of derivatives, for second derivatives.
#include <doctest/doctest.h>

#include "../gradients.hpp"

using namespace weft;
using test::delivered;
using test::derivable;
using test::images;
using test::matches;
using test::matrix;
using test::numbers;
using test::twice_derivable;
using test::weighed;

TEST_CASE("second derivatives of attention") {
  using heads = extents<2, 5, 4, 3>;
  using keys = extents<dyn, dyn, dyn, dyn>;
  const auto number = [](auto e, std::uint64_t seed) {
    return variable<double, decltype(e)>(randn<double>(e, {.seed = seed}));
  };
  auto q = number(heads(), 0), k = number(heads(), 1), v = number(heads(), 2), c = number(heads(), 3);
  auto other = number(keys{2, 7, 2, 3}, 4), values = number(keys{2, 7, 2, 3}, 5);
  auto d = number(keys{2, 7, 2, 3}, 6);
  constexpr double within = 1e-3;  // second differences of quotients of exponentials are not more accurate
  const auto in_queries = [&](auto x) { return weighed(attention<causal>(x, k, v)); };
  CHECK(twice_derivable(in_queries, q, c, q, within));
  CHECK(twice_derivable(in_queries, q, c, k, within));
  CHECK(twice_derivable(in_queries, q, c, v, within));
  const auto in_keys = [&](auto x) { return weighed(attention<causal>(q, x, values, 2)); };
  CHECK(twice_derivable(in_keys, other, d, other, within));
  CHECK(twice_derivable(in_keys, other, d, q, within));
  CHECK(twice_derivable(in_keys, other, d, values, within));
  const auto in_values = [&](auto x) { return weighed(attention<false>(q, other, x)); };
  CHECK(twice_derivable(in_values, values, d, values, within));
  CHECK(twice_derivable(in_values, values, d, other, within));
  const auto in_all = [](auto x) { return weighed(attention<causal>(x, x * 0.5, sin(x))); };
  CHECK(twice_derivable(in_all, q, c, q, within));

  const auto by_formula = [&](auto x) {
    const auto scores = matmul(transpose<1, 2>(x), permute<0, 2, 3, 1>(k)) * (1 / std::sqrt(3.0));
    return weighed(transpose<1, 2>(matmul(softmax(scores), transpose<1, 2>(v))));
  };
  const auto fused = [&](auto x) { return weighed(attention<false>(x, k, v)); };
  for (auto* x : {&q, &k, &v})
    CHECK(matches(delivered(sum(grad(fused, q) * c), *x), delivered(sum(grad(by_formula, q) * c), *x),
                  {.absolute = 1e-12, .relative = 1e-12}));

  // the third derivative of causal grouped attention, through that of masked attention
  const auto mask = generate<bool>(extents<5, 7>{}, [](index_t i) { return i % 7 <= i / 7 + 2; });
  const auto in_groups = [&](auto x) { return weighed(attention<causal>(x, other, values, 2)); };
  const auto masked = [&](auto x) { return weighed(attention(x, other, values, mask)); };
  const auto third = [&](auto f, auto& x) { return delivered(sum(hvp(f, q, c) * c), x); };
  CHECK(matches(third(in_groups, q), third(masked, q), {.absolute = 1e-11, .relative = 1e-11}));
  CHECK(matches(third(in_groups, other), third(masked, other), {.absolute = 1e-11, .relative = 1e-11}));
  CHECK(matches(third(in_groups, values), third(masked, values), {.absolute = 1e-11, .relative = 1e-11}));
}

TEST_CASE("second derivatives of softmax, norms, matmul, cross-entropy") {
  auto x = numbers(3, 5), w = numbers(5, 4, 1), c = numbers(3, 5, 2);
  const auto second = [&](auto f) { return twice_derivable(f, x, c, x); };
  CHECK(second([](auto v) { return weighed(softmax(v)); }));
  CHECK(second([](auto v) { return weighed(log_softmax(v)); }));
  CHECK(second([&](auto v) { return weighed(matmul(v, w)); }));
  CHECK(second([](auto v) { return weighed(rms_norm(v, 2.0 * sum(v, dims<0>))); }));
  CHECK(second([](auto v) { return weighed(rotary(reshape<1, dyn, 1, 10>(concat<0>(v, v)), 1)); }));
  auto y = numbers(3, 5, 4);
  CHECK(second([&](auto v) { return weighed(cosine_similarity(v, y)); }));
  CHECK(second([&](auto v) { return weighed(cosine_similarity<0>(v, v + y)); }));
  CHECK(second([](auto v) { return weighed(clamp_min(clamp_max(v, 0.9) * v, 0.1)); }));
  auto pairs = from(extents<dyn>{3}, std::vector<std::int64_t>{1, -1, 0});
  CHECK(second([&](auto v) { return cosine_embedding_loss(v, y, pairs, -0.9); }));
  auto labels = from(extents<dyn>{3}, std::vector<std::int64_t>{4, 1, 0});
  CHECK(second([&](auto v) { return cross_entropy(v, labels); }));
}

TEST_CASE("running products, also of zeros, and recurrences: twice and three times") {
  auto x = matrix(
      from(extents<dyn, dyn>{3, 4}, std::vector<double>{1, 0, 1.5, -0.5, 0, 0, 1.5, 1, 0.5, 1.2, -1, 0}));
  auto a = numbers(3, 4, 1), c = numbers(3, 4, 2);
  constexpr double within = 1e-4;  // second differences of long products are not more accurate
  CHECK(derivable(weighed(cumprod<1>(x)), x));
  CHECK(derivable(weighed(cumprod<0>(x)), x));
  CHECK(twice_derivable([](auto v) { return weighed(cumprod<1>(v)); }, x, c, x, within));
  CHECK(twice_derivable([](auto v) { return weighed(cumprod<0>(v)); }, x, c, x, within));
  const auto of_both = [&]<index_t Before, index_t FromEnd>(attr<Before, FromEnd>) {
    const auto before = [](auto v) { return weighed(apply<op::cumprod, attr<1, Before>>(v)); };
    CHECK(derivable(before(x), x));
    CHECK(twice_derivable(before, x, c, x, within));
    const auto in_a = [&](auto v) { return weighed(apply<op::linear_recurrence, attr<1, FromEnd>>(v, a)); };
    const auto in_b = [&](auto v) { return weighed(apply<op::linear_recurrence, attr<1, FromEnd>>(x, v)); };
    CHECK(derivable(in_a(x), x));
    CHECK(derivable(in_b(a), a));
    CHECK(twice_derivable(in_a, x, c, x, within));
    CHECK(twice_derivable(in_a, x, c, a, within));
    CHECK(twice_derivable(in_b, a, c, a, within));
  };
  of_both(attr<0, 0>());
  of_both(attr<1, 1>());
  // The derivative of x y z with respect to z and then x is y; its gradient is (0, 1, 0).
  auto v = from(extents<3>{}, std::vector<double>{0, 5, 0});
  const auto last = [](auto t) { return sum(slice<0, 2, 3>(cumprod<0>(t))); };
  const auto in = [](auto f, auto at) { return [=](auto t) { return sum(grad(f, t) * at); }; };
  auto first = from(extents<3>{}, std::vector<double>{1, 0, 0});
  auto third = from(extents<3>{}, std::vector<double>{0, 0, 1});
  CHECK(eval(grad(in(in(last, third), first), v)).to_vector() == std::vector<double>{0, 1, 0});
}

TEST_CASE("second derivatives of equations") {
  auto a = numbers(3, 4), b = numbers(4, 5, 1), c = numbers(3, 4, 2);
  CHECK(twice_derivable([&](auto v) { return weighed(einsum<"ij,jk->ki">(v, b)); }, a, c, a));
  CHECK(twice_derivable([&](auto v) { return weighed(einsum<"ij,jk->ki">(v, b)); }, a, c, b));
  CHECK(twice_derivable([](auto v) { return weighed(einsum<"ij,ik->jk">(v, v * v)); }, a, c, a));
}

TEST_CASE("second derivatives of windows, convolutions, pooling") {
  auto x = images(2, 1);
  variable<double, extents<4, 1, 3, 2>> w(randn<double>(extents<4, 1, 3, 2>{}, {.seed = 2}));
  constexpr conv_options stepped{.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 3}, .groups = 2};
  CHECK(twice_derivable([&](auto v) { return weighed(conv2d<stepped>(v, w) * 0.1); }, x, images(2, 3), w,
                        1e-5));
  constexpr conv_transpose_options spread{
      .stride = {2, 3}, .padding = {1, 0}, .output_padding = {1, 2}, .dilation = {1, 2}, .groups = 2};
  auto small = variable<double, extents<2, 4, 3, 2>>(randn<double>(extents<2, 4, 3, 2>{}, {.seed = 8}));
  auto direction = randn<double>(extents<2, 4, 3, 2>{}, {.seed = 9});
  const auto spread_out = [&](auto v) { return weighed(conv_transpose2d<spread>(v, w) * 0.1); };
  CHECK(twice_derivable(spread_out, small, direction, small, 1e-4));
  CHECK(twice_derivable(spread_out, small, direction, w, 1e-5));
  const auto enlarged = [](auto v) { return weighed(upsample_bilinear<height_width{3, 2}>(v * v) * 0.1); };
  CHECK(twice_derivable(enlarged, small, direction, small, 1e-4));
  variable<double, extents<2, 1, 3, 2>> each(randn<double>(extents<2, 1, 3, 2>{}, {.seed = 5}));
  CHECK(twice_derivable([&](auto v) { return weighed(conv2d<stepped>(v * v, each) * 0.1); }, x, images(2, 6),
                        x, 1e-5));
  CHECK(twice_derivable([&](auto v) { return weighed(conv2d<stepped>(v, each) * 0.1); }, x, images(2, 6),
                        each, 1e-5));
  CHECK(twice_derivable(
      [&](auto v) { return weighed(conv2d<stepped>(x, v * v) * 0.1); }, each,
      variable<double, extents<2, 1, 3, 2>>(randn<double>(extents<2, 1, 3, 2>{}, {.seed = 7})), x, 1e-5));
  CHECK(twice_derivable([&](auto v) { return weighed(windows<2>(avg_pool2d<2>(v * v)) * 0.1); }, x,
                        images(2, 4), x, 1e-5));
  constexpr pool_options to_end{.stride = 3, .padding = 1, .ceil_mode = true, .count_include_pad = false};
  CHECK(twice_derivable([&](auto v) { return weighed(avg_pool2d<2, to_end>(v * v) * 0.1); }, x, images(2, 4),
                        x, 1e-5));
}
