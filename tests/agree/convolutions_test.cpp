// SPDX-License-Identifier: MIT
// Convolutions and pooling, with their derivatives, agree with PyTorch: strides, padding, dilation, groups,
// windows that leave a remainder, equal elements, NaN, empty batches.
#include "cases.hpp"

using namespace weft;
using namespace weft::test;

namespace {

const io::stored_tensors& cases() {
  static const io::stored_tensors all = file("convolutions");
  return all;
}

template <index_t Height, index_t Width, conv_options O = conv_options{}, index_t Outputs = dyn>
void convolution(const std::string& name) {
  for_each_case(cases(), "conv2d_" + name, [](const stored_case& c) {
    auto x = c.variable<float, order4>("x");
    auto weight = c.variable<float, extents<Outputs, Outputs == dyn ? dyn : 1, Height, Width>>("weight");
    auto bias = c.variable<float, order1>("bias");
    c.agrees([&] { return conv2d<O>(x, weight, bias); }, 1e-5, 1, "x", x, "weight", weight, "bias", bias);
  });
}

template <conv_options O = conv_options{}>
void of_sequences(const std::string& name) {
  for_each_case(cases(), "conv1d_" + name, [](const stored_case& c) {
    auto x = c.variable<float, order3>("x");
    auto weight = c.variable<float, extents<dyn, dyn, 3>>("weight");
    auto bias = c.variable<float, order1>("bias");
    c.agrees([&] { return conv1d<O>(x, weight, bias); }, 1e-5, 1, "x", x, "weight", weight, "bias", bias);
  });
}

template <index_t Height, index_t Width, conv_transpose_options O = conv_transpose_options{},
          index_t Inputs = dyn>
void transposed(const std::string& name) {
  for_each_case(cases(), "conv_transpose2d_" + name, [](const stored_case& c) {
    auto x = c.variable<float, order4>("x");
    auto weight = c.variable<float, extents<Inputs, Inputs == dyn ? dyn : 1, Height, Width>>("weight");
    auto bias = c.variable<float, order1>("bias");
    c.agrees([&] { return conv_transpose2d<O>(x, weight, bias); }, 1e-5, 1, "x", x, "weight", weight, "bias",
             bias);
  });
}

template <height_width Factor>
void upsampled(const std::string& name) {
  for_each_case(cases(), "upsample_nearest_" + name, [](const stored_case& c) {
    auto x = c.variable<float, order4>("x");
    c.agrees([&] { return upsample_nearest<Factor>(x); }, 1e-6, 1, "x", x);
  });
  for_each_case(cases(), "upsample_bilinear_" + name, [](const stored_case& c) {
    auto x = c.variable<float, order4>("x");
    c.agrees([&] { return upsample_bilinear<Factor>(x); }, 1e-5, 1, "x", x);
  });
}

template <height_width Size, pool_options O = pool_options{}>
void pooling(const std::string& name) {
  if constexpr (O.count_include_pad)
    for_each_case(cases(), "max_pool2d_" + name, [](const stored_case& c) {
      auto x = c.variable<float, order4>("x");
      c.agrees([&] { return max_pool2d<Size, O>(x); }, 0, 0, "x", x);
    });
  for_each_case(cases(), "avg_pool2d_" + name, [](const stored_case& c) {
    auto x = c.variable<float, order4>("x");
    c.agrees([&] { return avg_pool2d<Size, O>(x); }, 1e-5, 1, "x", x);
  });
}

}  // namespace

TEST_CASE("convolutions") {
  convolution<3, 2>("plain");
  convolution<3, 2, conv_options{.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}}>("stepped");
  convolution<3, 3, conv_options{.padding = 1, .groups = 2}>("groups");
  convolution<3, 3, conv_options{.stride = 2, .groups = 5}>("depthwise");
  convolution<1, 1>("one");
  convolution<1, 5>("wide");
  convolution<3, 3, conv_options{.padding = 1, .groups = 4}, 4>("each");
  convolution<3, 2, conv_options{.stride = {2, 3}, .padding = {2, 1}, .dilation = {1, 2}, .groups = 3}, 3>(
      "each_stepped");
  convolution<1, 5, conv_options{.padding = {0, 2}, .groups = 2}, 2>("each_wide");
  convolution<1, 5, conv_options{.padding = {0, 2}, .groups = 2}, 2>("each_of_none");
  convolution<3, 5, conv_options{.padding = same_padding}>("same");
  convolution<3, 2, conv_options{.padding = same_padding, .dilation = {3, 2}, .groups = 2}>("same_dilated");
}

TEST_CASE("convolutions of sequences") {
  of_sequences("plain");
  of_sequences<conv_options{.stride = 2, .padding = 1, .dilation = 2}>("stepped");
  of_sequences<conv_options{.padding = same_padding, .dilation = 2}>("same");
}

TEST_CASE("transposed convolutions") {
  transposed<3, 2>("plain");
  transposed<3, 2,
             conv_transpose_options{
                 .stride = {2, 3}, .padding = {1, 2}, .output_padding = {1, 2}, .dilation = {1, 2}}>(
      "stepped");
  transposed<3, 3, conv_transpose_options{.stride = 2, .padding = 1, .groups = 2}>("groups");
  transposed<
      3, 2,
      conv_transpose_options{.stride = {2, 3}, .padding = {1, 0}, .output_padding = {1, 0}, .groups = 3}, 3>(
      "each");
  transposed<1, 1>("one");
  transposed<2, 2, conv_transpose_options{.stride = 2}>("of_none");
  constexpr conv_transpose_options dilated{
      .stride = {1, 2}, .output_padding = {1, 3}, .dilation = {2, 4}, .groups = 1};
  transposed<2, 3, dilated>("dilated");
  transposed<2, 3, conv_transpose_options{dilated.stride, 0, dilated.output_padding, dilated.dilation, 3}, 3>(
      "dilated_each");
  for_each_case(cases(), "conv_transpose1d", [](const stored_case& c) {
    constexpr conv_transpose_options o{.stride = 2, .padding = 1, .output_padding = 1, .dilation = 2};
    auto x = c.variable<float, order3>("x");
    auto weight = c.variable<float, extents<dyn, dyn, 3>>("weight");
    auto bias = c.variable<float, order1>("bias");
    c.agrees([&] { return conv_transpose1d<o>(x, weight, bias); }, 1e-5, 1, "x", x, "weight", weight, "bias",
             bias);
  });
}

TEST_CASE("upsampling") {
  upsampled<2>("both");
  upsampled<height_width{1, 3}>("wide");
  upsampled<height_width{4, 1}>("high");
}

TEST_CASE("pooling") {
  pooling<2>("plain");
  pooling<3, pool_options{.stride = 2, .padding = 1}>("stepped");
  pooling<height_width{3, 2}, pool_options{.stride = {1, 2}}>("wide");
  pooling<4, pool_options{.stride = 3, .padding = {2, 1}}>("padded");
}

namespace {
/// The same in ceil mode, and means that do not count padding.
template <height_width Size, pool_options O = pool_options{}>
void pooling_to_the_end(const std::string& name) {
  constexpr auto with = [](bool ceil, bool counts) {
    return pool_options{O.stride, O.padding, ceil, counts};
  };
  pooling<Size, with(true, true)>("ceil" + name);
  pooling<Size, with(true, false)>("excluding_ceil" + name);
  pooling<Size, with(false, false)>("excluding_floor_ceil" + name);
}
}  // namespace

TEST_CASE("pooling in ceil mode, and without padding in means") {
  pooling_to_the_end<3, pool_options{.stride = 2}>("");
  pooling_to_the_end<2, pool_options{.stride = 4}>("_far");
  pooling_to_the_end<height_width{3, 4}, pool_options{.stride = {2, 5}, .padding = {1, 2}}>("_padded");
  pooling_to_the_end<height_width{2, 3}>("_each");
}

TEST_CASE("pooling of sequences") {
  for_each_case(cases(), "max_pool1d_ceil", [](const stored_case& c) {
    auto x = c.variable<float, order3>("x");
    constexpr pool_options o{.stride = 2, .padding = 1, .ceil_mode = true};
    c.agrees([&] { return max_pool1d<3, o>(x); }, 0, 0, "x", x);
  });
  for_each_case(cases(), "avg_pool1d_ceil", [](const stored_case& c) {
    auto x = c.variable<float, order3>("x");
    constexpr pool_options o{.stride = 2, .padding = 1, .ceil_mode = true, .count_include_pad = false};
    c.agrees([&] { return avg_pool1d<3, o>(x); }, 1e-5, 1, "x", x);
  });
  for_each_case(cases(), "max_pool1d", [](const stored_case& c) {
    auto x = c.variable<float, order3>("x");
    c.agrees([&] { return max_pool1d<3, pool_options{.stride = 2, .padding = 1}>(x); }, 0, 0, "x", x);
  });
  for_each_case(cases(), "avg_pool1d", [](const stored_case& c) {
    auto x = c.variable<float, order3>("x");
    c.agrees([&] { return avg_pool1d<3, pool_options{.stride = 2, .padding = 1}>(x); }, 1e-5, 1, "x", x);
  });
}
