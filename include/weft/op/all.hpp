// SPDX-License-Identifier: MIT
// The list of all ops, which assigns op numbers and feeds the law tests and the table of ops.
#pragma once

#include <weft/op/elementwise.hpp>
#include <weft/op/compare.hpp>
#include <weft/op/activation.hpp>
#include <weft/op/angles.hpp>
#include <weft/op/movement.hpp>
#include <weft/op/join.hpp>
#include <weft/op/contraction.hpp>
#include <weft/op/division.hpp>
#include <weft/op/convolution.hpp>
#include <weft/op/conv_transpose.hpp>
#include <weft/op/pooling.hpp>
#include <weft/op/upsample.hpp>
#include <weft/op/reduce.hpp>
#include <weft/op/einsum.hpp>
#include <weft/op/normalization.hpp>
#include <weft/op/pair_loss.hpp>
#include <weft/op/loss.hpp>
#include <weft/op/attention.hpp>
#include <weft/op/index.hpp>
#include <weft/op/sort.hpp>
#include <weft/op/random.hpp>
#include <weft/op/select.hpp>
#include <weft/op/positions.hpp>
#include <weft/op/tap.hpp>
#include <weft/op/source.hpp>
#include <weft/op/guidance.hpp>

namespace weft::op {

/// A list of op types.
template <class... Ops>
struct op_list {
  static constexpr int size = sizeof...(Ops);
};

/// Every op of the library. The position of an element-wise op or reduction in the list is its opcode in the
/// instructions of fused kernels.
struct all {
  using list = op_list<
      add, subtract, multiply, divide, negate, maximum, minimum, pow, exp, log, log1p, expm1, sqrt, rsqrt,
      sin, cos, atan, tanh, erf, abs, sign, floor, round, cast, equal, less, less_equal, logical_and,
      logical_or, logical_not, where, contiguous, coordinate, reduce_sum, reduce_max,
      reduce_min,                                      // instructions
      leaf, argument, constant, extent_value, result,  // sources
      reshape, permute, expand, slice, flip, detach, differentiated_at, pad, pad_ends, concat, unflatten,
      flatten, unsqueeze, chunk,
      select,                                                                                     // movement
      contract, matmul, einsum, sum, mean, amax, amin, logsumexp, vector_norm, variance, stddev,  // folds
      relu, sigmoid, silu, gelu, gelu_tanh, softplus, leaky_relu, elu, square,  // activations
      asin, acos, atan2, floor_divide, remainder,                               // angles
      checked_index, index_select, index_add, gather, scatter_sum, scatter_add, arg_extremum, one_hot,
      argsort, argtopk, sort, topk, cumsum, cumprod, linear_recurrence,  // orders
      attention, attention_backward, masked_attention,                   // by index, attention
      softmax, log_softmax, standardize, rms_standardize, normalize, cosine_similarity,  // rows
      layer_norm, rms_norm, group_standardize, group_norm, channel_moments, batch_norm,  // groups, channels
      rotary, rotary_at,                                                                 // positions
      clamp, clamp_min, clamp_max, rounded_before,                                       // bounds
      cross_entropy, nll_loss, count_labels, mse_loss, l1_loss, huber_loss, smooth_l1_loss, bce_with_logits,
      weighted_bce_with_logits, binary_cross_entropy, hinge_embedding_loss, margin_ranking_loss,
      cosine_embedding_loss,                                                               // losses
      checked_probability, checked_weight, uniform_like, dropout, bernoulli, multinomial,  // random
      windows, fold_windows, arg_window_max, max_pool2d, avg_pool2d, conv2d,               // images
      depthwise_conv2d, depthwise_weight_gradient, conv_transpose2d, upsample_nearest, upsample_bilinear,
      sum_over_positions,  // over ranks
      tap>;
};

/// Position of `Op` in an op_list, -1 if it is not in the list.
template <class Op, class List>
inline constexpr int index_in = -1;
template <class Op, class... Ops>
inline constexpr int index_in<Op, op_list<Ops...>> = [] {
  int i = 0, found = -1;
  ((std::is_same_v<Op, Ops> ? (found = i, ++i) : ++i), ...);
  return found;
}();

/// Position in the list of all ops; -1 for an op defined by the user.
template <class Op>
inline constexpr int number_of_op = index_in<Op, all::list>;

/// The names of the ops of an op_list, by position.
template <class List>
struct op_names;
template <class... Ops>
struct op_names<op_list<Ops...>> {
  static constexpr const char* at[] = {Ops::name...};
};

/// The op at position I of an op_list.
template <int I, class List>
struct op_at;
template <int I, class First, class... Rest>
struct op_at<I, op_list<First, Rest...>> : op_at<I - 1, op_list<Rest...>> {};
template <class First, class... Rest>
struct op_at<0, op_list<First, Rest...>> {
  using type = First;
};

}  // namespace weft::op
