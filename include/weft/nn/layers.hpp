// SPDX-License-Identifier: MIT
// Layers with PyTorch's layouts and initial values.
//
// Sizes are template arguments; if one is dyn, the layer is made by its `create`. Layers with static sizes
// are default-constructed on the default device; create<Model>(device) of module.hpp makes them on another
// one.
//
//   struct mlp { linear<784, 128> hidden; linear<128, 10> output; ... };
//   auto wide = linear<>::create(768, 3072);
#pragma once

#include <cmath>

#include <weft/nn/module.hpp>
#include <weft/op/all.hpp>

namespace weft {

namespace init {
/// Initial values of parameters: uniform in [-bound, bound), normal with mean 0, or constant.
inline initializer uniform(double bound) { return {initializer::distribution::uniform, bound}; }
inline initializer normal(double deviation) { return {initializer::distribution::normal, deviation}; }
inline initializer constant(double value) { return {initializer::distribution::constant, value}; }
/// He's and Glorot's, as torch.nn.init.kaiming_uniform_ and kaiming_normal_ with nonlinearity="relu", and
/// xavier_uniform_ and xavier_normal_. `fan_in`: the number of inputs of an output, such as In of linear, and
/// In times the elements of the window of convolution2d; `fan_out`: of outputs of an input; both are
/// positive.
inline initializer kaiming_uniform(index_t fan_in) {
  return uniform(std::sqrt(6.0 / static_cast<double>(fan_in)));
}
inline initializer kaiming_normal(index_t fan_in) {
  return normal(std::sqrt(2.0 / static_cast<double>(fan_in)));
}
inline initializer xavier_uniform(index_t fan_in, index_t fan_out) {
  return uniform(std::sqrt(6.0 / static_cast<double>(fan_in + fan_out)));
}
inline initializer xavier_normal(index_t fan_in, index_t fan_out) {
  return normal(std::sqrt(2.0 / static_cast<double>(fan_in + fan_out)));
}
}  // namespace init

namespace detail {
/// A parameter if all extents are static; otherwise an undefined one, which `create` replaces.
template <index_t... E>
variable<float, extents<E...>> parameter_if_static(initializer how) {
  if constexpr (extents<E...>::dynamic_count == 0) return make_parameter(extents<E...>{}, how);
  else return {};
}
}  // namespace detail

/// x W^T + b: [..., In] -> [..., Out], with W [Out, In] and b [Out]. Elements start uniform in +-1 /
/// sqrt(In), as in torch.nn.Linear. `Division`: divided::columns<> or divided::rows<> if ranks may divide it.
template <index_t In = dyn, index_t Out = dyn, class Division = divided::nowhere>
struct linear {
  parameter<extents<Out, In>, float, typename Division::template weight<0, 1>> weight =
      detail::parameter_if_static<Out, In>(starting(In));
  parameter<extents<Out>, float, typename Division::bias> bias =
      detail::parameter_if_static<Out>(starting(In));

  /// For `in` and `out` features, with parameters on `where`. Throws shape_error if the type has a different
  /// static extent.
  static linear create(index_t in, index_t out, const device& where = parameter_device()) {
    return {make_parameter(extents<Out, In>{out, in}, starting(in), where),
            make_parameter(extents<Out>{out}, starting(in), where)};
  }
  auto operator()(expression auto x) const { return matmul(x, transpose(weight)) + bias; }

  static initializer starting(index_t in) {
    return init::uniform(in > 0 ? 1.0 / std::sqrt(static_cast<double>(in)) : 0.0);
  }
};

/// x W^T, a linear layer without bias: torch.nn.Linear(..., bias=False). `Division` as in `linear`.
template <index_t In = dyn, index_t Out = dyn, class Division = divided::nowhere>
struct linear_without_bias {
  parameter<extents<Out, In>, float, typename Division::template weight<0, 1>> weight =
      detail::parameter_if_static<Out, In>(linear<In, Out>::starting(In));

  /// As linear::create.
  static linear_without_bias create(index_t in, index_t out, const device& where = parameter_device()) {
    return {make_parameter(extents<Out, In>{out, in}, linear<In, Out>::starting(in), where)};
  }
  auto operator()(expression auto x) const { return matmul(x, transpose(weight)); }
};

/// Rows of a table [Rows, Features] by index: [...] -> [..., Features]. Elements start standard normal, as in
/// torch.nn.Embedding. An index outside [0, Rows) throws value_error at evaluation. `Division`:
/// divided::vocabulary if ranks may divide the rows. `Padding`, PyTorch's padding_idx: the index of a row
/// that starts at 0 and gets no gradient from lookups.
///   embedding_table<1000, 64, divided::nowhere, 0> words;        // words.weight[0] stays 0
template <index_t Rows = dyn, index_t Features = dyn, class Division = divided::nowhere,
          index_t Padding = no_padding>
struct embedding_table {
  static_assert(Padding == no_padding || (Padding >= 0 && (Rows < 0 || Padding < Rows)),
                "weft: embedding_table: the padding index must be from 0 to Rows - 1");
  parameter<extents<Rows, Features>, float, Division> weight =
      detail::parameter_if_static<Rows, Features>(starting(Features));

  /// A table of `rows` rows of `features`, on `where`. Throws shape_error if the type has a different static
  /// extent, value_error if there is no row `Padding`.
  static embedding_table create(index_t rows, index_t features, const device& where = parameter_device()) {
    if (Padding != no_padding && Padding >= rows)
      refuse<value_error>(
          {"weft: embedding_table: the padding index ", Padding, " is not one of ", rows, " rows"});
    return {make_parameter(extents<Rows, Features>{rows, features}, starting(features), where)};
  }
  auto operator()(expression auto index) const { return embedding<Padding>(weight, index); }

  static initializer starting(index_t features) {
    initializer how = init::normal(1);
    if (Padding != no_padding) {
      how.zeros_begin = Padding * features;
      how.zeros_end = how.zeros_begin + features;
    }
    return how;
  }
};

/// Sets elements to 0 with probability `rate` while training, as torch.nn.Dropout; set `training` to false
/// for inference.
struct dropout_layer {
  float rate = 0.5f;
  bool training = true;
  auto operator()(expression auto x) const { return dropout(x, training ? rate : 0.0f); }
};

/// Layer normalisation over the last dim with weight (initially 1) and bias (0), as torch.nn.LayerNorm. [...,
/// Features] -> [..., Features].
template <index_t Features = dyn, class Epsilon = default_epsilon>
struct layer_normalization {
  parameter<extents<Features>> weight = detail::parameter_if_static<Features>(init::constant(1));
  parameter<extents<Features>> bias = detail::parameter_if_static<Features>(init::constant(0));

  /// For `features` features, on `where`. Throws shape_error if the type has a different static extent.
  static layer_normalization create(index_t features, const device& where = parameter_device()) {
    return {make_parameter(extents<Features>{features}, init::constant(1), where),
            make_parameter(extents<Features>{features}, init::constant(0), where)};
  }
  auto operator()(expression auto x) const { return layer_norm<Epsilon>(x, weight, bias); }
};

/// Root-mean-square normalisation over the last dim with weight (initially 1), as torch.nn.RMSNorm. [...,
/// Features] -> [..., Features].
template <index_t Features = dyn, class Epsilon = machine_epsilon>
struct rms_normalization {
  parameter<extents<Features>> weight = detail::parameter_if_static<Features>(init::constant(1));

  /// For `features` features, on `where`. Throws shape_error if the type has a different static extent.
  static rms_normalization create(index_t features, const device& where = parameter_device()) {
    return {make_parameter(extents<Features>{features}, init::constant(1), where)};
  }
  auto operator()(expression auto x) const { return rms_norm<Epsilon>(x, weight); }
};

/// Normalisation of each of `Groups` groups of channels with weight (initially 1) and bias (0) per channel,
/// as torch.nn.GroupNorm. [B, C, ...] -> [B, C, ...].
template <index_t Groups, index_t C = dyn, class Epsilon = default_epsilon>
struct group_normalization {
  static_assert(Groups > 0 && (C < 0 || C % Groups == 0),
                "weft: group_normalization: the number of groups must divide the channels");
  parameter<extents<C>> weight = detail::parameter_if_static<C>(init::constant(1));
  parameter<extents<C>> bias = detail::parameter_if_static<C>(init::constant(0));

  /// For `channels` channels, on `where`. Throws value_error unless `Groups` divides them, shape_error if the
  /// type has a different static extent.
  static group_normalization create(index_t channels, const device& where = parameter_device()) {
    if (channels % Groups)
      refuse<value_error>({"weft: group_normalization: ", Groups, " groups do not divide ", channels,
                           " channels"});
    return {make_parameter(extents<C>{channels}, init::constant(1), where),
            make_parameter(extents<C>{channels}, init::constant(0), where)};
  }
  auto operator()(expression auto x) const { return group_norm<Groups, Epsilon>(x, weight, bias); }
};

}  // namespace weft
