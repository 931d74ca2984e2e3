// SPDX-License-Identifier: MIT
// Softmax and normalisation along a dim, as formulas; along the last dim each becomes one row kernel.
//
//   auto y = layer_norm(x, weight, bias);                       // epsilon 1e-5
//   auto z = layer_norm<per_million<1>>(x, weight, bias);       // epsilon 1e-6
//   auto g = group_norm<8>(x, weight, bias);                    // of 8 groups of channels
//   auto u = normalize(x);                                      // rows of norm 1
//   auto s = cosine_similarity(x, y);                           // of rows, in [-1, 1]
#pragma once

#include <type_traits>

#include <weft/op/functions.hpp>
#include <weft/op/join.hpp>
#include <weft/op/movement.hpp>
#include <weft/op/reduce.hpp>

namespace weft::op {

/// Base of formulas over rows, which keep the shape; integers become f32.
struct of_rows : composed<1> {
  static constexpr bool in_floats = true;
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    const shape& s = operands[0].extents;
    return {s.order > 0, {floating(operands[0].type), s}};
  }
};

/// The compile-time error for `apply<op::softmax, attr<...>>` with a dim that the operand does not have.
template <bool Holds, class... Extents>
struct along_dim_law {
  static_assert(Holds, "weft: softmax, log_softmax, normalize: attr<dim> must name a dim of the operand");
};

/// Base of formulas along a dim, v0.
struct along_dim : composed<1> {
  static constexpr bool in_floats = true;
  template <bool Holds, class... Extents>
  using law = along_dim_law<Holds, Extents...>;
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes& at, const tensor_spec* operands) {
    const shape& s = operands[0].extents;
    return {at.count == 1 && 0 <= at[0] && at[0] < s.order, {floating(operands[0].type), s}};
  }
};

/// exp(x) / sum(exp(x)) along dim v0.
struct softmax : along_dim {
  static constexpr auto name = "softmax";
  static constexpr auto value(const attributes& at, auto x) {
    const auto e = weft::exp(x - max_dims(x, at[0], at[0] + 1));
    return e / sum_dims(e, at[0], at[0] + 1);
  }
  static constexpr auto vjp(auto g, auto y, auto) {
    const index_t dim = y.attribute_values()[0];
    return y * (g - sum_dims(g * y, dim, dim + 1));
  }
};

/// log(softmax(x)) along dim v0, computed without underflow.
struct log_softmax : along_dim {
  static constexpr auto name = "log_softmax";
  static constexpr auto value(const attributes& at, auto x) {
    const auto shifted = x - max_dims(x, at[0], at[0] + 1);
    return shifted - weft::log(sum_dims(weft::exp(shifted), at[0], at[0] + 1));
  }
  static constexpr auto vjp(auto g, auto y, auto) {
    const index_t dim = y.attribute_values()[0];
    return g - weft::exp(y) * sum_dims(g, dim, dim + 1);
  }
};

/// (x - mean) / sqrt(variance + epsilon) over the last dim, with the biased variance. v0 holds the bits of
/// epsilon.
struct standardize : of_rows {
  static constexpr auto name = "standardize";
  static constexpr auto value(const attributes& at, auto x) {
    const int order = x.extents().order;
    const auto n = element_count(x, {1, {x.extents().last()}});
    const auto c = centre(x, [&](auto v) { return sum_dims(v, order - 1, order) / n; });
    return (c.near - c.rest) * weft::rsqrt(c.variance() + number_of(at));
  }
};

/// x / sqrt(mean(x^2) + epsilon) over the last dim. v0 holds the bits of epsilon.
struct rms_standardize : of_rows {
  static constexpr auto name = "rms_standardize";
  static constexpr auto value(const attributes& at, auto x) {
    const int order = x.extents().order;
    const auto n = element_count(x, {1, {x.extents().last()}});
    return x * weft::rsqrt(sum_dims(x * x, order - 1, order) / n + number_of(at));
  }
};

/// x / max(norm(x), 1e-12) along dim v0.
struct normalize : along_dim {
  static constexpr auto name = "normalize";
  static constexpr auto value(const attributes& at, auto x) {
    const attributes keeping{{index_t{1} << at[0], 1}, 2};
    return x / weft::maximum(x.owner->template apply<vector_norm>(keeping, x), 1e-12);
  }
};

/// The last step of cosine_similarity: the product of operands that have the same extent in the dim v0,
/// counted from the right from 1; other dims broadcast.
struct cosine_similarity : composed<2> {
  static constexpr auto name = "cosine_similarity";
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    const int from_right = static_cast<int>(at[0]) - 1;
    index_t extent = 0;
    const bool holds = dims.unify(operands[0].extents.from_right(from_right),
                                  operands[1].extents.from_right(from_right), extent);
    inferred result = broadcast_all(dims, operands, 2);
    result.holds = result.holds && holds;
    return result;
  }
  static constexpr auto value(auto a, auto b) { return a * b; }
};

/// The compile-time error for a weight or bias of a norm.
template <bool Holds, class... Extents>
struct norm_weight_law {
  static_assert(Holds, "weft: layer_norm, rms_norm: for an operand [..., C], weight and bias must be [C]");
};

/// Base of norms with a weight and, if Arity is 3, a bias for each element along a dim.
template <int Arity>
struct weighted_norm : composed<Arity> {
  static constexpr bool in_floats = true;
  template <bool Holds, class... Extents>
  using law = norm_weight_law<Holds, Extents...>;

 protected:
  /// The law for weights along `dim` of operand 0.
  template <class Dims>
  static constexpr inferred weighted(Dims& dims, const tensor_spec* operands, int dim) {
    inferred result{0 <= dim && dim < operands[0].extents.order, operands[0]};
    for (int k = 1; k < Arity && result.holds; ++k) {
      const shape& w = operands[k].extents;
      index_t& extent = result.value.extents[dim];
      result.holds = w.order == 1 && dims.unify(extent, w[0], extent);
      result.value.type = promoted(result.value.type, operands[k].type);
    }
    result.value.type = floating(result.value.type);
    return result;
  }
};

/// `standardize` times a weight plus a bias. v0 holds the bits of epsilon.
struct layer_norm : weighted_norm<3> {
  static constexpr auto name = "layer_norm";
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    return weighted(dims, operands, operands[0].extents.order - 1);
  }
  static constexpr auto value(const attributes& at, auto x, auto weight, auto bias) {
    return x.owner->template apply<standardize>(at, x) * weight + bias;
  }
};

/// `rms_standardize` times a weight. v0 holds the bits of epsilon.
struct rms_norm : weighted_norm<2> {
  static constexpr auto name = "rms_norm";
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    return weighted(dims, operands, operands[0].extents.order - 1);
  }
  static constexpr auto value(const attributes& at, auto x, auto weight) {
    return x.owner->template apply<rms_standardize>(at, x) * weight;
  }
};

/// The compile-time error for a group norm whose number of groups does not divide the channels.
template <bool Holds, class... Extents>
struct group_law {
  static_assert(Holds,
                "weft: group_norm: the operand must be [batch, channels, ...], the number of groups must "
                "divide "
                "the channels, and weight and bias must be [channels]");
};

/// `standardize` over all elements of a group of channels, [batch, channels, ...]. v0 holds the bits of
/// epsilon, v1 is the number of groups.
struct group_standardize : composed<1> {
  static constexpr bool in_floats = true;
  static constexpr auto name = "group_standardize";
  template <bool Holds, class... Extents>
  using law = group_law<Holds, Extents...>;
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes& at, const tensor_spec* operands) {
    const shape& s = operands[0].extents;
    return {s.order >= 2 && at[1] > 0 && (s[1] < 0 || s[1] % at[1] == 0), {floating(operands[0].type), s}};
  }
  static constexpr auto value(const attributes& at, auto x) {
    auto& dims = x.owner->dims;
    const shape s = x.extents();
    index_t elements = dims.divide(s[1], at[1]);
    for (int d = 2; d < s.order; ++d) elements = dims.multiply(elements, s[d]);
    const auto groups = reshape_to(x, shape{3, {s[0], at[1], elements}});
    return reshape_to(x.owner->template apply<standardize>(attributes{{at[0]}, 1}, groups), s);
  }
};

/// `group_standardize` times a weight plus a bias for each channel. v0 holds the bits of epsilon, v1 is the
/// number of groups.
struct group_norm : weighted_norm<3> {
  static constexpr auto name = "group_norm";
  template <bool Holds, class... Extents>
  using law = group_law<Holds, Extents...>;
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    inferred result = weighted(dims, operands, 1);
    result.holds = result.holds && group_standardize::infer(dims, at, &result.value).holds;
    return result;
  }
  static constexpr auto value(const attributes& at, auto x, auto weight, auto bias) {
    shape of_channel{1, {x.extents()[1]}};
    while (of_channel.order < x.extents().order - 1) of_channel.append(1);
    return x.owner->template apply<group_standardize>(at, x) * reshape_to(weight, of_channel) +
           reshape_to(bias, of_channel);
  }
};

/// The compile-time error for operands of batch norm.
template <bool Holds, class... Extents>
struct channel_law {
  static_assert(Holds,
                "weft: batch_norm: the operand must be [batch, channels, ...], and weight, bias and running "
                "statistics must have one element for each channel");
};

/// Base of ops on channels of x [batch, channels, ...].
template <int Arity>
struct of_channels : composed<Arity> {
  static constexpr bool in_floats = true;
  template <bool Holds, class... Extents>
  using law = channel_law<Holds, Extents...>;

 protected:
  /// x as [batch, channels, elements], or [batch, channels]: rows of whole channels, whatever the dims.
  static constexpr auto rows_of(auto x) {
    const shape s = x.extents();
    if (s.order == 2) return x;
    index_t elements = s[2];
    for (int d = 3; d < s.order; ++d) elements = x.owner->dims.multiply(elements, s[d]);
    return reshape_to(x, shape{3, {s[0], s[1], elements}});
  }
  /// v [1, channels] in a shape that broadcasts with `rows`.
  static constexpr auto beside(auto rows, auto v) {
    return rows.extents().order == 2 ? v : reshape_to(v, shape{3, {1, rows.extents()[1], 1}});
  }
  /// The sums over each channel, [1, channels].
  static constexpr auto sums_of(auto rows) {
    const shape s = rows.extents();
    if (s.order == 3) rows = reshape_to(sum_dims(rows, 2, 3), shape{2, {s[0], s[1]}});
    return sum_dims(rows, 0, 1);
  }
};

/// Mean and biased variance of each channel, [2, channels].
struct channel_moments : of_channels<1> {
  static constexpr auto name = "channel_moments";
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    const shape& s = operands[0].extents;
    return {s.order >= 2, {floating(operands[0].type), shape{2, {2, s[1]}}}};
  }
  static constexpr auto value(auto x) {
    const auto rows = rows_of(x);
    shape of_channel = rows.extents();
    of_channel[1] = 1;
    const auto n = element_count(x, of_channel), mean = sums_of(rows) / n;
    const auto centred = rows - beside(rows, mean);
    return x.owner->template apply<concat>(attributes{{0}, 1}, mean, sums_of(centred * centred) / n);
  }
};

/// (x - mean) / sqrt(variance + epsilon) * weight + bias, for x, moments [2, channels], weight and bias
/// [channels]. v0 holds the bits of epsilon.
struct batch_norm : of_channels<4> {
  static constexpr auto name = "batch_norm";
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    const shape& s = operands[0].extents;
    inferred result{s.order >= 2 && operands[1].extents.order == 2 && operands[2].extents.order == 1 &&
                        operands[3].extents.order == 1,
                    {floating(operands[0].type), s}};
    for (int k = 1; k < 4 && result.holds; ++k)
      result.holds = dims.unify(s[1], operands[k].extents.last(), result.value.extents[1]);
    return result;
  }
  static constexpr auto value(const attributes& at, auto x, auto moments, auto weight, auto bias) {
    const auto rows = rows_of(x);
    const shape one{2, {1, rows.extents()[1]}};
    const auto mean = slice_dim(moments, 0, 0, 1), variance = slice_dim(moments, 0, 1, 2);
    const auto scale = weft::rsqrt(variance + number_of(at)) * reshape_to(weight, one);
    return reshape_to((rows - beside(rows, mean)) * beside(rows, scale) + beside(rows, reshape_to(bias, one)),
                      x.extents());
  }
};

}  // namespace weft::op

namespace weft {

namespace detail {
/// Applies `Op` along dim Dim.
template <class Op, index_t Dim, expression X>
constexpr auto along(X x) {
  constexpr index_t dim = normalized_dim(Dim, X::static_shape.order);
  static_assert(dim < X::static_shape.order,
                "weft: softmax, log_softmax, normalize: the dim is out of range");
  return apply<Op, attr<dim>>(std::move(x));
}
}  // namespace detail

/// exp(x) / sum(exp(x)) along dim Dim, by default the last, shifted by the maximum so that exp does not
/// overflow. Same shape; integers become f32. NaN in a row makes the whole row NaN.
template <index_t Dim = -1, expression X>
constexpr auto softmax(X x) {
  return detail::along<op::softmax, Dim>(std::move(x));
}
/// Logarithm of the softmax along dim Dim, by default the last: x - logsumexp(x), which stays accurate where
/// the softmax underflows.
template <index_t Dim = -1, expression X>
constexpr auto log_softmax(X x) {
  return detail::along<op::log_softmax, Dim>(std::move(x));
}

/// x divided by its Euclidean norm along dim Dim, by default the last, or by 1e-12 if the norm is smaller:
/// torch.nn.functional.normalize, whose default dim is 1. Same shape; integers become f32.
template <index_t Dim = -1, expression X>
constexpr auto normalize(X x) {
  return detail::along<op::normalize, Dim>(std::move(x));
}

namespace detail {
/// f(a, b) with both operands in their common floating type, or in f32 if that is bf16 or f16, to which the
/// result is then rounded.
template <class F, expression A, expression B>
constexpr auto in_common_type(F f, A a, B b) {
  constexpr dtype both =
      op::floating(promoted(dtype_of<typename A::value_type>, dtype_of<typename B::value_type>));
  using computed = element_of<compute_type(both)>;
  return in_type<element_of<both>>(f(in_type<computed>(std::move(a)), in_type<computed>(std::move(b))));
}
}  // namespace detail

/// The cosine of the angle between `a` and `b` along dim Dim of their common shape, by default the last,
/// which is removed: the sum of a / max(|a|, eps) b / max(|b|, eps), in [-1, 1] up to rounding.
/// torch.nn.functional.cosine_similarity, whose dim is 1 by default. Other dims broadcast: all pairs of rows
/// of a [N, 1, C] and b [M, C] are [N, M]. The extents along Dim must be equal: other static extents do not
/// compile, dynamic ones throw shape_error at evaluation. Integers become f32; bf16 and f16 are computed in
/// f32 and rounded once. Throws value_error if eps is negative or NaN.
///   auto nearest = argmax<1>(cosine_similarity(unsqueeze<1>(queries), keys));      // [N, C], [M, C] -> [N]
template <index_t Dim = -1, expression A, expression B>
constexpr auto cosine_similarity(A a, B b, double eps = 1e-8) {
  constexpr shape of_a = A::static_shape, of_b = B::static_shape;
  constexpr int order = of_a.order > of_b.order ? of_a.order : of_b.order;
  constexpr int dim = normalized_dim(Dim, order) - order;  // from the right, as shapes are aligned
  static_assert(-of_a.order <= dim && -of_b.order <= dim && dim < 0,
                "weft: cosine_similarity: the dim is out of range for one of the operands");
  if constexpr (-of_a.order <= dim && -of_b.order <= dim && dim < 0) {
    constexpr index_t m = of_a.from_right(-dim - 1), n = of_b.from_right(-dim - 1);
    static_assert(m < 0 || n < 0 || m == n,
                  "weft: cosine_similarity: both operands must have the same extent along the dim");
    if (!(eps >= 0)) refuse<value_error>({"weft: cosine_similarity: eps is ", eps, ", not 0 or more"});
    const auto of_norm_1 = [eps](auto x) {
      return let(std::move(x),
                 [eps](auto v) { return v / clamp_min(vector_norm(v, dims<dim>, keepdim), eps); });
    };
    const auto similarity = [&](auto x, auto y) {
      return sum(apply<op::cosine_similarity, attr<-dim>>(of_norm_1(std::move(x)), of_norm_1(std::move(y))),
                 dims<dim>);
    };
    return detail::in_common_type(similarity, std::move(a), std::move(b));
  }
}

/// Millionths as a type, for epsilons and other small numbers in template arguments: per_million<10> is 1e-5.
template <index_t Millionths>
struct per_million {
  static constexpr double value = static_cast<double>(Millionths) * 1e-6;
};
/// The epsilon of norms, 1e-5 as in PyTorch's layer_norm.
using default_epsilon = per_million<10>;
/// The machine epsilon of the type in which a norm is computed, 2^-52 for f64 and 2^-23 otherwise, as in
/// PyTorch's rms_norm.
struct machine_epsilon {};

namespace detail {
template <class Epsilon, class T>
consteval double epsilon_of() {
  if constexpr (!std::is_same_v<Epsilon, machine_epsilon>) return Epsilon::value;
  else return std::is_same_v<T, double> ? 0x1p-52 : 0x1p-23;
}
}  // namespace detail

/// (x - mean) / sqrt(variance + epsilon) * weight + bias over the last dim, with the biased variance (Ba,
/// Kiros and Hinton, 2016). x [..., C], weight [C], bias [C] -> [..., C]. bf16 and f16 are computed in f32
/// and rounded once.
template <class Epsilon = default_epsilon, expression X, expression W, expression B>
constexpr auto layer_norm(X x, W weight, B bias) {
  return apply<op::layer_norm, attr<number_bits(Epsilon::value)[0]>>(std::move(x), std::move(weight),
                                                                     std::move(bias));
}

/// x / sqrt(mean(x^2) + epsilon) * weight over the last dim (Zhang and Sennrich, 2019). x [..., C], weight
/// [C] -> [..., C]. bf16 and f16 are computed in f32 and rounded once.
template <class Epsilon = machine_epsilon, expression X, expression W>
constexpr auto rms_norm(X x, W weight) {
  constexpr double epsilon = detail::epsilon_of<Epsilon, typename X::value_type>();
  return apply<op::rms_norm, attr<number_bits(epsilon)[0]>>(std::move(x), std::move(weight));
}

/// Layer norm over each group of channels (Wu and He, 2018): (x - mean) / sqrt(variance + epsilon) over the
/// channels of a group and all dims after them, times weight plus bias per channel. x [B, C, ...], weight
/// [C], bias [C] -> [B, C, ...]. PyTorch's functional.group_norm. If `Groups` does not divide C, it does not
/// compile, or throws shape_error at evaluation. bf16 and f16 are computed in f32 and rounded once.
template <index_t Groups, class Epsilon = default_epsilon, expression X, expression W, expression B>
constexpr auto group_norm(X x, W weight, B bias) {
  return apply<op::group_norm, attr<number_bits(Epsilon::value)[0], Groups>>(std::move(x), std::move(weight),
                                                                             std::move(bias));
}

}  // namespace weft
