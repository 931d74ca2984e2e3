// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cmath>

#include <weft/weft.hpp>

#include "../../compare.hpp"

using namespace weft;

namespace {
/// Two convolutions, pooling and a linear layer for images of 8 x 8.
struct network {
  convolution2d<1, 4, 3, conv_options{.padding = 1}> first;
  convolution2d_without_bias<4, 6, 3, conv_options{.stride = 2, .groups = 2}> second;
  linear<6, 3> output;
  auto operator()(expression auto x) const {
    auto h = max_pool2d<2>(relu(first(x)));  // [B, 4, 4, 4]
    auto y = relu(second(h));                // [B, 6, 1, 1]
    return output(mean(y, dims<2, 3>));
  }
};
struct up_and_down {
  convolution2d<3, 8, 4, conv_options{.stride = 2, .padding = 1}> down;
  transposed_convolution2d<8, 6, 4, conv_transpose_options{.stride = 2, .padding = 1, .groups = 2}> up;
  transposed_convolution2d_without_bias<6, 3, 1> out;
  auto operator()(expression auto x) const { return out(up(down(x))); }
};
}  // namespace

TEST_CASE("convolution layers: PyTorch's names, shapes and bounds of the initial values") {
  network net;
  initialize(net, 3);
  std::string names;
  for (const auto& [name, p] : state_dict(net)) names += name + " " + to_string(p->extents) + " ";
  CHECK(names ==
        "first.weight [4, 1, 3, 3] first.bias [4] second.weight [6, 2, 3, 3] output.weight [3, 6] "
        "output.bias [3] ");
  const auto largest = [](const auto& p) { return eval(amax(abs(p))).item(); };
  CHECK(largest(net.first.weight) <= 1.f / 3);
  CHECK(largest(net.first.weight) > 0.8f / 3);
  CHECK(largest(net.first.bias) <= 1.f / 3);
  CHECK(largest(net.second.weight) <= 1 / std::sqrt(18.f));
  CHECK(largest(net.second.weight) > 0.9f / std::sqrt(18.f));
  convolution1d<4, 2, 5, conv_options{.groups = 2}> sequence;
  CHECK(state_dict(sequence)[0].second->extents == shape{3, {2, 2, 5}});
  CHECK(eval(sequence(ones<float>(extents<3, 4, 9>{}))).extents() == shape{3, {3, 2, 5}});
}

TEST_CASE(
    "a convolutional network learns where a spot is, in f32 and in bf16, with static and dynamic batches") {
  const auto trained = [](auto batch, auto& c) {
    constexpr index_t images = 48;
    const auto where = [](index_t i) { return i * 5 % 3; };
    auto x = generate<float>(extents<decltype(batch)::value, 1, 8, 8>{images, 1, 8, 8}, [&](index_t i) {
      const index_t image = i / 64, row = i / 8 % 8, column = i % 8, at = where(image) * 3;
      return (row == at && column == (image + row) % 8 ? 2.f : 0.f) + 0.1f * std::sin(static_cast<float>(i));
    });
    auto labels = generate<std::int32_t>(extents<decltype(batch)::value>{images},
                                         [&](index_t i) { return static_cast<std::int32_t>(where(i)); });
    network net;
    initialize(net, 1);
    adamw optimizer{.lr = 2e-2};
    float first = 0, last = 0;
    for (int step = 0; step < 60; ++step) {
      tape steps(c);
      auto loss = steps.eval(cross_entropy(net(x), labels));
      steps.backward(loss);
      optimizer.step(net, 1, c);
      last = static_cast<float>(loss.item());
      if (step == 0) first = last;
    }
    CHECK(first > 0.9f);
    return last;
  };
  context plain;
  const float fixed = trained(std::integral_constant<index_t, 48>{}, plain);
  CHECK(fixed < 0.3f);
  CHECK(trained(std::integral_constant<index_t, dyn>{}, plain) == fixed);
  context_in<precision::bf16> narrow;
  CHECK(trained(std::integral_constant<index_t, dyn>{}, narrow) < 0.35f);
}

TEST_CASE("convolutions of dynamic extents that do not fit are errors with the op and its shapes") {
  const auto x = ones<float>(extents<dyn, dyn, dyn, dyn>{2, 3, 4, 4});
  const auto w = ones<float>(extents<2, dyn, 5, 3>{2, 3, 5, 3});
  CHECK_THROWS_WITH_AS(eval(conv2d(x, w)), doctest::Contains("conv2d"), shape_error);
  CHECK(eval(conv2d<conv_options{.padding = {1, 0}}>(x, w)).extents() == shape{4, {2, 2, 2, 2}});
  const auto other = ones<float>(extents<2, dyn, 1, 1>{2, 2, 1, 1});
  CHECK_THROWS_WITH_AS(
      eval(conv2d(x, other)),
      "weft: conv2d: operands of shapes [2, 3, 4, 4] and [2, 2, 1, 1]: extents 3 and 2 must be equal",
      shape_error);
  CHECK_THROWS_AS(eval(max_pool2d<5>(x)), shape_error);
  const auto empty = ones<float>(extents<dyn, dyn, dyn, dyn>{1, 1, 0, 4});
  constexpr pool_options padded{.stride = 1, .padding = 1};
  CHECK_THROWS_WITH_AS((eval(max_pool2d<2, padded>(empty))),
                       "weft: max_pool2d: an operand of shape [1, 1, 0, 4]: the dim has no elements",
                       shape_error);
  CHECK_THROWS_AS((eval(avg_pool2d<2, padded>(empty))), shape_error);
  const auto odd = ones<float>(extents<dyn, 1, 1, 1>{3, 1, 1, 1});
  const auto two = ones<float>(extents<1, 2, 1, 1>{});
  CHECK_THROWS_WITH_AS((eval(conv2d<conv_options{.groups = 2}>(two, odd))), doctest::Contains("conv2d"),
                       shape_error);
  CHECK_THROWS_AS(eval(windows<height_width{3, 3}, 1, 2>(x)), shape_error);
}

TEST_CASE("pooling in ceil mode: a last window that ends later, unless it begins after all elements") {
  constexpr pool_options to_end{.stride = 2, .ceil_mode = true}, far{.stride = 3, .ceil_mode = true};
  const auto x = ones<float>(extents<dyn, 4, 5>{1, 4, 5});
  static_assert(decltype(max_pool2d<3, to_end>(x))::static_shape == shape{3, {dyn, 2, 2}});
  static_assert(decltype(avg_pool2d<2, far>(x))::static_shape == shape{3, {dyn, 2, 2}});
  static_assert(decltype(max_pool2d<1, far>(x))::static_shape == shape{3, {dyn, 2, 2}});
  const auto of_rows = [](index_t rows) { return ones<float>(extents<dyn, dyn>{rows, 3}); };
  for (index_t rows = 2; rows < 9; ++rows) {  // of 3, 2 apart
    CHECK(eval(max_pool2d<3, to_end>(of_rows(rows))).extents() == shape{2, {rows / 2, 1}});
    const auto means = eval(avg_pool2d<3, to_end>(of_rows(rows))).to_vector();
    CHECK(means == std::vector<float>(means.size(), 1.0f));
  }
  CHECK_THROWS_AS(eval(max_pool2d<3, to_end>(of_rows(1))), shape_error);
  CHECK_THROWS_AS((eval(max_pool2d<3, pool_options{.stride = 2}>(of_rows(2)))), shape_error);
}

TEST_CASE("convolutions with same_padding keep extents, static and dynamic, in layers too") {
  constexpr conv_options same{.padding = same_padding, .dilation = {2, 1}};
  convolution2d<3, 4, height_width{4, 5}, same> layer;
  const auto x = ones<float>(extents<dyn, 3, 6, dyn>{2, 3, 6, 7});
  static_assert(decltype(layer(x))::static_shape[2] == 6);
  CHECK(eval(layer(x)).extents() == shape{4, {2, 4, 6, 7}});
  convolution1d<3, 2, 9, conv_options{.padding = same_padding}> of_sequences;
  CHECK(eval(of_sequences(ones<float>(extents<1, 3, dyn>{1, 3, 2}))).extents() == shape{3, {1, 2, 2}});
}

TEST_CASE("forward keeps no windows: of a convolution its operand, of pooling by means nothing") {
  const auto x = variable<float, extents<1, 8, 64, 64>>(randn<float>(extents<1, 8, 64, 64>{}));
  const auto w = variable<float, extents<8, 8, 3, 3>>(randn<float>(extents<8, 8, 3, 3>{}));
  const auto held = [](auto f) {
    tape steps;
    steps.eval(f());  // memory of the context
    steps.clear();
    const std::size_t before = default_device().memory().figures().in_use;
    const auto y = steps.eval(f());
    return default_device().memory().figures().in_use - before;
  };
  constexpr std::size_t image = 8 * 64 * 64 * 4;
  CHECK(held([&] { return avg_pool2d<2>(x); }) <= image / 4 + 4096);
  CHECK(held([&] { return conv2d(x, w); }) <= image + 4096);
  CHECK(held([&] { return conv2d<conv_options{.padding = 1}>(x, w); }) <= image + 4096);
}

TEST_CASE("options that are negative or do not fit are refused") {
  using image = tensor<float, extents<1, 1, 4, 4>>;
  constexpr index_t large = (index_t{1} << 32) + 1;
  const auto fits = []<height_width Size, height_width Step, height_width Padding>() {
    return accepts<op::max_pool2d, attr<Size.packed(), Step.packed(), Padding.packed()>, image>;
  };
  CHECK(fits.operator()<2, 1, 1>());
  CHECK_FALSE(fits.operator()<0, 1, 0>());
  CHECK_FALSE(fits.operator()<-2, 1, 0>());
  CHECK_FALSE(fits.operator()<2, 0, 0>());
  CHECK_FALSE(fits.operator()<2, -1, 0>());
  CHECK_FALSE(fits.operator()<2, height_width{1, large}, 0>());
  CHECK_FALSE(fits.operator()<2, 1, -1>());
  CHECK_FALSE(fits.operator()<2, 1, 2>());
  const auto convolves = []<conv_options O>() {
    return accepts<op::conv2d, attr<O.stride.packed(), O.padding.packed(), O.dilation.packed(), O.groups>,
                   image, tensor<float, extents<1, 1, 2, 2>>>;
  };
  CHECK(convolves.operator()<conv_options{.stride = 2, .padding = 3, .dilation = 3}>());
  CHECK_FALSE(convolves.operator()<conv_options{.stride = 0}>());
  CHECK_FALSE(convolves.operator()<conv_options{.padding = -1}>());
  CHECK_FALSE(convolves.operator()<conv_options{.dilation = 4}>());
  CHECK_FALSE(convolves.operator()<conv_options{.groups = 0}>());
  CHECK_FALSE(convolves.operator()<conv_options{.stride = {1, large}}>());
  const auto spreads = []<conv_transpose_options O>() {
    return accepts<
        op::conv_transpose2d,
        attr<O.stride.packed(), O.padding.packed(), O.dilation.packed(), O.groups, O.output_padding.packed()>,
        image, tensor<float, extents<1, 1, 2, 2>>>;
  };
  CHECK(spreads.operator()<conv_transpose_options{.stride = 2, .padding = 3, .output_padding = 1}>());
  CHECK_FALSE(spreads.operator()<conv_transpose_options{.stride = 2, .padding = 4}>());  // nothing is left
  CHECK_FALSE(spreads.operator()<conv_transpose_options{.stride = 0}>());
  CHECK_FALSE(spreads.operator()<conv_transpose_options{.padding = -1}>());
  CHECK_FALSE(spreads.operator()<conv_transpose_options{.stride = 2, .output_padding = 2}>());
  CHECK(spreads.operator()<conv_transpose_options{.output_padding = 1, .dilation = 2}>());
  static_assert(!std::is_convertible_v<double, height_width>);  // 1.5 is not 1
  CHECK_FALSE(spreads.operator()<conv_transpose_options{.dilation = 0}>());
  CHECK_FALSE(spreads.operator()<conv_transpose_options{.groups = 2}>());
  const auto grows = []<height_width By>() {
    return accepts<op::upsample_bilinear, attr<By.packed()>, image>;
  };
  CHECK(grows.operator()<height_width{1, 3}>());
  CHECK_FALSE(grows.operator()<0>());
  CHECK_FALSE(grows.operator()<-2>());
}

TEST_CASE("transposed convolutions and upsampling of dynamic extents that do not fit are errors") {
  const auto x = ones<float>(extents<dyn, dyn, dyn, dyn>{2, 3, 2, 4});
  const auto w = ones<float>(extents<3, dyn, 2, 2>{3, 5, 2, 2});
  CHECK(eval(conv_transpose2d(x, w)).extents() == shape{4, {2, 5, 3, 5}});
  CHECK_THROWS_WITH_AS(eval(conv_transpose2d<conv_transpose_options{.padding = {2, 0}}>(x, w)),
                       doctest::Contains("weft: conv_transpose2d: operands of shapes [2, 3, 2, 4]"),
                       shape_error);
  const auto other = ones<float>(extents<2, dyn, 1, 1>{2, 2, 1, 1});
  CHECK_THROWS_WITH_AS(eval(conv_transpose2d(x, other)), doctest::Contains("extents 3 and 2 must be equal"),
                       shape_error);
  const auto odd = ones<float>(extents<dyn, 2, 1, 1>{3, 2, 1, 1});
  CHECK_THROWS_AS(eval(conv_transpose2d<conv_transpose_options{.groups = 2}>(x, odd)), shape_error);
  const auto empty = ones<float>(extents<dyn, dyn, dyn, dyn>{1, 3, 0, 4});
  CHECK_THROWS_WITH_AS(eval(conv_transpose2d(empty, w)), doctest::Contains("the dim has no elements"),
                       shape_error);
  CHECK_THROWS_WITH_AS(eval(upsample_bilinear<2>(empty)), doctest::Contains("the dim has no elements"),
                       shape_error);
  CHECK(eval(upsample_nearest<2>(empty)).extents() == shape{4, {1, 3, 0, 8}});
}

TEST_CASE("layers of transposed convolutions: PyTorch's names, shapes and bounds; a size is restored") {
  up_and_down net;
  initialize(net, 4);
  std::string names;
  for (const auto& [name, p] : state_dict(net)) names += name + " " + to_string(p->extents) + " ";
  CHECK(names ==
        "down.weight [8, 3, 4, 4] down.bias [8] up.weight [8, 3, 4, 4] up.bias [6] out.weight [6, 3, 1, 1] ");
  const auto largest = [](const auto& p) { return eval(amax(abs(p))).item(); };
  const float bound = 1 / std::sqrt(3.f * 16);
  CHECK(largest(net.up.weight) <= bound);
  CHECK(largest(net.up.weight) > 0.9f * bound);
  CHECK(largest(net.up.bias) <= bound);
  CHECK(eval(net(ones<float>(extents<2, 3, 10, 6>{}))).extents() == shape{4, {2, 3, 10, 6}});
  transposed_convolution1d<4, 2, 3, conv_transpose_options{.stride = 2}> sequence;
  CHECK(state_dict(sequence)[0].second->extents == shape{3, {4, 2, 3}});
  CHECK(eval(sequence(ones<float>(extents<3, 4, 5>{}))).extents() == shape{3, {3, 2, 11}});
}

TEST_CASE("bilinear upsampling: what is not finite stays between the centres of the elements beside it") {
  const auto seen = [](auto x, auto by) {
    std::string finite;
    for (const float y : eval(upsample_bilinear<height_width{1, decltype(by)::value}>(x)).to_vector())
      finite += std::isfinite(y) ? '1' : '0';
    return finite;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  const auto x = from(extents<1, 5>{}, std::vector<float>{1, 2, nan, 3, 4});
  CHECK(seen(x, std::integral_constant<index_t, 3>()) == "111110000011111");
  CHECK(seen(x, std::integral_constant<index_t, 2>()) == "1110000111");
  const auto last = from(extents<1, 3>{}, std::vector<float>{1, 2, infinity});
  CHECK(seen(last, std::integral_constant<index_t, 3>()) == "111110000");
}
