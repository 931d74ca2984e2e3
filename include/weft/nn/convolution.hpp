// SPDX-License-Identifier: MIT
// Convolution layers with PyTorch's layouts and initial values.
//
//   convolution2d<3, 16, 3, conv_options{.padding = 1}> first;       // [B, 3, H, W] -> [B, 16, H, W]
//   transposed_convolution2d<16, 3, 2, conv_transpose_options{.stride = 2}> last;     // -> [B, 3, 2 H, 2 W]
#pragma once

#include <weft/nn/layers.hpp>
#include <weft/op/conv_transpose.hpp>

namespace weft {

namespace detail {
/// Initial values of a convolution's parameters, as torch.nn.Conv2d: uniform in +-1 / sqrt(In Size / groups).
template <index_t In, index_t Size, index_t Groups>
initializer starting_convolution() {
  static_assert(
      In > 0 && Size > 0 && Groups > 0 && In % Groups == 0,
      "weft: convolution: channels and sizes must be positive, and groups must divide the channels");
  return init::uniform(1.0 / std::sqrt(static_cast<double>(In / Groups * Size)));
}
/// The same for torch.nn.ConvTranspose2d: uniform in +-1 / sqrt(Out Size / groups).
template <index_t In, index_t Out, index_t Size, index_t Groups>
initializer starting_transposed() {
  static_assert(In > 0 && Groups > 0 && In % Groups == 0,
                "weft: transposed_convolution: groups must divide the channels");
  return starting_convolution<Out, Size, Groups>();
}
}  // namespace detail

/// conv2d with a weight [Out, In / groups, height, width] and a bias [Out]: [B, In, H, W] -> [B, Out, ...].
/// torch.nn.Conv2d.
template <index_t In, index_t Out, height_width Size, conv_options O = conv_options{}>
struct convolution2d {
  parameter<extents<Out, In / O.groups, Size.height, Size.width>> weight =
      make_parameter(extents<Out, In / O.groups, Size.height, Size.width>{}, starting());
  parameter<extents<Out>> bias = make_parameter(extents<Out>{}, starting());

  auto operator()(expression auto x) const { return conv2d<O>(x, weight, bias); }

  static initializer starting() {
    return detail::starting_convolution<In, Size.height * Size.width, O.groups>();
  }
};

/// The same without bias: torch.nn.Conv2d(..., bias=False).
template <index_t In, index_t Out, height_width Size, conv_options O = conv_options{}>
struct convolution2d_without_bias {
  parameter<extents<Out, In / O.groups, Size.height, Size.width>> weight = make_parameter(
      extents<Out, In / O.groups, Size.height, Size.width>{}, convolution2d<In, Out, Size, O>::starting());

  auto operator()(expression auto x) const { return conv2d<O>(x, weight); }
};

/// conv1d with a weight [Out, In / groups, Size] and a bias [Out]: [B, In, L] -> [B, Out, ...]; of the
/// options, only the width is used. torch.nn.Conv1d.
template <index_t In, index_t Out, index_t Size, conv_options O = conv_options{}>
struct convolution1d {
  parameter<extents<Out, In / O.groups, Size>> weight =
      make_parameter(extents<Out, In / O.groups, Size>{}, starting());
  parameter<extents<Out>> bias = make_parameter(extents<Out>{}, starting());

  auto operator()(expression auto x) const { return conv1d<O>(x, weight, bias); }

  static initializer starting() { return detail::starting_convolution<In, Size, O.groups>(); }
};

/// conv_transpose2d with a weight [In, Out / groups, height, width] and a bias [Out]: [B, In, H, W] ->
/// [B, Out, ...]. torch.nn.ConvTranspose2d, also in its initial values, uniform in +-1 / sqrt(Out Size /
/// groups).
template <index_t In, index_t Out, height_width Size, conv_transpose_options O = conv_transpose_options{}>
struct transposed_convolution2d {
  parameter<extents<In, Out / O.groups, Size.height, Size.width>> weight =
      make_parameter(extents<In, Out / O.groups, Size.height, Size.width>{}, starting());
  parameter<extents<Out>> bias = make_parameter(extents<Out>{}, starting());

  auto operator()(expression auto x) const { return conv_transpose2d<O>(x, weight, bias); }

  static initializer starting() {
    return detail::starting_transposed<In, Out, Size.height * Size.width, O.groups>();
  }
};

/// The same without bias: torch.nn.ConvTranspose2d(..., bias=False).
template <index_t In, index_t Out, height_width Size, conv_transpose_options O = conv_transpose_options{}>
struct transposed_convolution2d_without_bias {
  parameter<extents<In, Out / O.groups, Size.height, Size.width>> weight =
      make_parameter(extents<In, Out / O.groups, Size.height, Size.width>{},
                     transposed_convolution2d<In, Out, Size, O>::starting());

  auto operator()(expression auto x) const { return conv_transpose2d<O>(x, weight); }
};

/// conv_transpose1d with a weight [In, Out / groups, Size] and a bias [Out]: [B, In, L] -> [B, Out, ...]; of
/// the options, only the width is used. torch.nn.ConvTranspose1d.
template <index_t In, index_t Out, index_t Size, conv_transpose_options O = conv_transpose_options{}>
struct transposed_convolution1d {
  parameter<extents<In, Out / O.groups, Size>> weight =
      make_parameter(extents<In, Out / O.groups, Size>{}, starting());
  parameter<extents<Out>> bias = make_parameter(extents<Out>{}, starting());

  auto operator()(expression auto x) const { return conv_transpose1d<O>(x, weight, bias); }

  static initializer starting() { return detail::starting_transposed<In, Out, Size, O.groups>(); }
};

}  // namespace weft
