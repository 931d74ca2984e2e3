// SPDX-License-Identifier: MIT
// The law of derivatives for the ops of layers: normalizations, losses, look-ups, attention, windows.
#include <doctest/doctest.h>

#include "../gradients.hpp"

using namespace weft;
using test::derivable;
using test::images;
using test::numbers;
using test::points;
using test::weighed;

TEST_CASE("softmax, norms, losses") {
  auto x = numbers(3, 5);
  auto w = points(0.5, 1.5);
  auto wide = numbers(3, 7, 2);
  CHECK(derivable(weighed(softmax(x)), x));
  CHECK(derivable(weighed(log_softmax(x)), x));
  CHECK(derivable(weighed(softmax<0>(x)), x));
  CHECK(derivable(weighed(layer_norm(wide, w, w)), wide));
  CHECK(derivable(weighed(layer_norm(wide, w, w)), w));
  CHECK(derivable(weighed(rms_norm(wide, w)), wide));
  auto channels = variable<double, extents<2, 6, dyn>>(randn<double>(extents<2, 6, dyn>{3}));
  auto scale = variable<double, extents<6>>(randn<double>(extents<6>{}, {.seed = 1}));
  CHECK(derivable(weighed(group_norm<3>(channels, scale, scale)), channels));
  CHECK(derivable(weighed(group_norm<3>(channels, scale, scale)), scale));
  CHECK(derivable(weighed(apply<op::channel_moments>(channels)), channels));
  auto moments = variable<double, extents<2, 6>>(eval(exp(randn<double>(extents<2, 6>{}, {.seed = 2}))));
  const auto normal = [&](auto of) {
    return weighed(apply<op::batch_norm, attr<number_bits(1e-5)[0]>>(of, moments, scale, scale));
  };
  CHECK(derivable(normal(channels), channels));
  CHECK(derivable(normal(channels), moments));
  CHECK(derivable(normal(channels), scale));
  CHECK(derivable(normal(flatten<0, 1>(transpose<1, 2>(channels))), channels));
  auto labels = from(extents<dyn>{3}, std::vector<std::int64_t>{4, -100, 0});
  CHECK(derivable(cross_entropy(x, labels), x));
  CHECK(derivable(cross_entropy<reduction_kind::sum, -100, per_million<100'000>>(x, labels), x));
  auto y = numbers(3, 5, 9);
  CHECK(derivable(mse_loss(x, y), x));
  CHECK(derivable(l1_loss(x, y), x));
  CHECK(derivable(huber_loss(x, y, 0.7), x));
  CHECK(derivable(smooth_l1_loss(x, y, 0.7), x));
  const auto pairs = from(extents<dyn>{3}, std::vector<std::int64_t>{1, -1, -1});
  CHECK(derivable(cosine_embedding_loss(x, y, pairs, -0.9), x));
  CHECK(derivable(cosine_embedding_loss<reduction_kind::sum>(x, y, pairs, -0.9), y));
  CHECK(derivable(kl_div(x, softmax(y)), y));
  CHECK(derivable(cross_entropy(x, softmax(y)), x));
  CHECK(derivable(cross_entropy<reduction_kind::sum, -100, per_million<100'000>>(x, softmax(y)), y));
}

TEST_CASE("look-ups and attention") {
  auto table = numbers(5, 3);
  auto index = from(extents<dyn, dyn>{2, 2}, std::vector<std::int32_t>{4, 0, 4, 2});
  CHECK(derivable(weighed(embedding(table, index)), table));
  CHECK(derivable(weighed(embedding<1>(table, index)), table));  // which no index selects
  auto along = from(extents<dyn, dyn>{5, 2}, std::vector<std::int64_t>{2, 0, 1, 1, 0, 2, 2, 2, 1, 0});
  CHECK(derivable(weighed(gather<1>(table, along)), table));
  auto fixed = variable<double, extents<5, 2>>(randn<double>(extents<5, 2>{}));
  auto wide = randn<double>(extents<5, 3>{}, {.seed = 3});
  CHECK(derivable(weighed(scatter_add<1>(wide, along, fixed)), fixed));
  CHECK(
      derivable(weighed(index_select<1>(table, from(extents<2>{}, std::vector<std::int32_t>{2, 0}))), table));
  CHECK(derivable(weighed(sort<0>(table)), table));
  CHECK(derivable(weighed(sort<1, descending>(table)), table));
  CHECK(derivable(weighed(topk<0, 2>(table).values), table));
  CHECK(derivable(weighed(topk<1, smallest>(table, 2).values), table));
  CHECK(derivable(weighed(cumsum<0>(table)), table));
  CHECK(derivable(weighed(cumsum<1>(table * table)), table));
  CHECK(derivable(weighed(cumprod<0>(table)), table));
  CHECK(derivable(weighed(cumprod<1>(table + 0.5)), table));
  using heads = extents<2, 9, 2, 3>;
  auto q = variable<double, heads>(randn<double>(heads{})),
       k = variable<double, heads>(randn<double>(heads{}, {.seed = 1})),
       v = variable<double, heads>(randn<double>(heads{}, {.seed = 2}));
  CHECK(derivable(weighed(attention<causal>(q, k, v)), q));
  CHECK(derivable(weighed(attention<causal>(q, k, v)), k));
  CHECK(derivable(weighed(attention<false>(q, k, v)), v));
  using keys = extents<dyn, dyn, dyn, dyn>;
  auto more_k = variable<double, keys>(randn<double>(keys{2, 13, 1, 3}, {.seed = 4})),
       more_v = variable<double, keys>(randn<double>(keys{2, 13, 1, 3}, {.seed = 5}));
  CHECK(derivable(weighed(attention<causal>(q, more_k, more_v, 3)), q));
  CHECK(derivable(weighed(attention<causal>(q, more_k, more_v, 3)), more_k));
  CHECK(derivable(weighed(attention<false>(q, more_k, more_v)), more_v));
  auto bias = variable<double, extents<1, 2, 9, dyn>>(randn<double>(extents<1, 2, 9, dyn>{1, 2, 9, 13}));
  const auto some =
      generate<bool>(extents<2, 1, 1, dyn>{2, 1, 1, 13}, [](index_t i) { return i % 3 != 0 && i < 13; });
  CHECK(derivable(weighed(attention(q, more_k, more_v, bias)), bias));
  CHECK(derivable(weighed(attention(q, more_k, more_v, bias)), more_k));
  CHECK(derivable(weighed(attention(q, more_k, more_v, some)), q));
  CHECK(derivable(weighed(attention(q, more_k, more_v, some)), more_k));
  CHECK(derivable(weighed(attention(q, more_k, more_v, some)), more_v));
  auto pairs = variable<double, keys>(randn<double>(keys{2, 3, 2, 4}, {.seed = 6}));
  CHECK(derivable(weighed(rotary(pairs)), pairs));
  CHECK(derivable(weighed(rotary<100>(pairs, 2)), pairs));
  auto each = from(extents<dyn, dyn>{2, 3}, std::vector<std::int32_t>{5, 0, 2, 1, 2, 3});
  CHECK(derivable(weighed(rotary(pairs, each)), pairs));
  constexpr rope_scaling scaling{.factor = 8, .original_max_position_embeddings = 40};
  CHECK(derivable(weighed(rotary<100, scaling>(pairs, each)), pairs));
}

TEST_CASE("windows, convolutions, pooling") {
  auto x = images(2, 1);
  variable<double, extents<4, 1, 3, 2>> w(randn<double>(extents<4, 1, 3, 2>{}, {.seed = 2}));
  constexpr conv_options stepped{.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 3}, .groups = 2};
  CHECK(derivable(weighed(windows<height_width{2, 3}, height_width{2, 1}, height_width{1, 2}>(x)), x));
  CHECK(derivable(weighed(conv2d<stepped>(x, w)), x));
  CHECK(derivable(weighed(conv2d<stepped>(x, w)), w));
  CHECK(
      derivable(weighed(max_pool2d<height_width{3, 2}, pool_options{.stride = {2, 1}, .padding = 1}>(x)), x));
  CHECK(
      derivable(weighed(avg_pool2d<height_width{3, 2}, pool_options{.stride = {2, 1}, .padding = 1}>(x)), x));
  constexpr pool_options to_end{.stride = {3, 4}, .padding = {1, 0}, .ceil_mode = true};
  constexpr pool_options excluding{to_end.stride, to_end.padding, true, false};
  CHECK(derivable(weighed(max_pool2d<height_width{3, 2}, to_end>(x)), x));
  CHECK(derivable(weighed(avg_pool2d<height_width{3, 2}, to_end>(x)), x));
  CHECK(derivable(weighed(avg_pool2d<height_width{3, 2}, excluding>(x)), x));
  CHECK(derivable(
      weighed(conv2d<conv_options{.padding = same_padding, .dilation = {1, 2}, .groups = 2}>(x, w)), w));
  constexpr conv_transpose_options spread{
      .stride = {2, 3}, .padding = {1, 0}, .output_padding = {1, 2}, .dilation = {1, 2}, .groups = 2};
  auto small = variable<double, extents<2, 4, 3, 2>>(randn<double>(extents<2, 4, 3, 2>{}, {.seed = 8}));
  const auto spread_out = [&](auto v) { return weighed(conv_transpose2d<spread>(v, w) * 0.1); };
  CHECK(derivable(spread_out(small), small));
  CHECK(derivable(spread_out(small), w));
  CHECK(derivable(weighed(upsample_nearest<height_width{2, 3}>(small)), small));
  CHECK(derivable(weighed(upsample_bilinear<height_width{2, 3}>(small)), small));
  variable<double, extents<2, 1, 3, 2>> each(randn<double>(extents<2, 1, 3, 2>{}, {.seed = 5}));
  CHECK(derivable(weighed(conv2d<stepped>(x, each)), x));
  CHECK(derivable(weighed(conv2d<stepped>(x, each)), each));
}
