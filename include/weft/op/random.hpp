// SPDX-License-Identifier: MIT
// Random numbers in expressions: functions of seed, step, program, call and element index.
//
// Each call is a separate draw; copies of the expression that it returns have the same numbers. The backward
// pass uses the numbers of the forward pass: what it reads of them is saved.
//
//   auto h = dropout(relu(x), 0.1f);
//   auto y = h + mlp(h);                       // one mask
#pragma once

#include <numbers>

#include <weft/op/functions.hpp>
#include <weft/op/index.hpp>
#include <weft/op/rule.hpp>
#include <weft/op/sort.hpp>

namespace weft::op {

/// Base of ops that draw random numbers: v0 is the number of the draw within its program (run/bind.hpp).
template <class Rule>
struct drawing : Rule {
  static constexpr bool draws = true;
  static constexpr unsigned extents = 0b1;  // given at run time
};

/// Uniform numbers in [0, 1) with the shape and dtype of the operand, whose elements are not read.
struct uniform_like : drawing<rule<1>> {
  static constexpr auto kind = op_kind::native;
  static constexpr auto name = "uniform_like";
  static constexpr auto divides = "A -> A";
  static constexpr native_code code{.op = native_op::uniform};
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, {floating(operands[0].type), operands[0].extents}, is_floating(operands[0].type)};
  }
  static constexpr auto vjp(auto g, auto, auto) { return no_gradient(g); }
};

/// x times the factor where a uniform number is at least the rate, otherwise 0. Operands: x, rate, factor.
struct dropout : drawing<elementwise<3>> {
  static constexpr auto name = "dropout";
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, {floating(operands[0].type), operands[0].extents}};
  }
  static constexpr auto value(const attributes& at, auto x, auto rate, auto factor) {
    return weft::where(weft::less(random_like(x, at[0]), rate), 0, x * factor);
  }
};

/// The operand, whose elements must be in [0, 1]: others are a value_error. v0: the op to name in errors, an
/// index into probability_readers.
///
/// A separate step, like `checked_index`, because fused kernels cannot report errors.
struct checked_probability : rule<1> {
  static constexpr auto kind = op_kind::native;
  static constexpr auto name = "checked_probability";
  static constexpr auto divides = "A -> A";
  static constexpr native_code code{.names = probability_readers,
                                    .named_by = 0,
                                    .fault = "a probability is not in [0, 1]",
                                    .op = native_op::checked_probability};
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, operands[0], is_floating(operands[0].type)};
  }
  static constexpr auto vjp(auto g, auto, auto) { return no_gradient(g); }
};

/// The same for the weights of `multinomial`, divided by the largest of their row. `row_without_weight`
/// stands for an element of a row whose largest is 0.
struct checked_weight : checked_probability {
  static constexpr auto name = "checked_weight";
  static constexpr native_code code{.names = probability_readers,
                                    .named_by = 0,
                                    .fault =
                                        "a weight is negative, infinite or NaN, or no weight of a row is "
                                        "above 0",
                                    .op = native_op::checked_probability};
};

/// The compile-time error for more draws than a row has positions.
template <bool Holds, class... Extents>
struct multinomial_law {
  static_assert(Holds, "weft: multinomial: a row has fewer than N positions");
};

/// 1 with the probability given by the operand, otherwise 0.
struct bernoulli : drawing<elementwise<1>> {
  static constexpr auto name = "bernoulli";
  static constexpr auto value(const attributes& at, auto x) {
    const auto p = cast_to(x, floating(x.type()));
    const auto checked = p.owner->template apply<checked_probability>(attributes{{0}, 1}, p);
    return cast_to(weft::less(random_like(p, at[0]), checked), x.type());
  }
};

/// Weights divided by the largest of their row and by exponentially distributed numbers: the positions of the
/// largest results in a row are a draw without replacement (Efraimidis and Spirakis, 2006). A small weight is
/// drawn only with a small exponential number, so the uniform numbers have 48 bits. v1: the number of
/// positions that will be drawn from a row.
struct multinomial : drawing<composed<1>> {
  static constexpr auto name = "multinomial";
  template <bool Holds, class... Extents>
  using law = multinomial_law<Holds, Extents...>;
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    const shape& s = operands[0].extents;
    return {s.order > 0 && dims.require_at_most(at[1], s.last()),
            {compute_type(floating(operands[0].type)), s}};  // rounded results could be equal
  }
  static constexpr auto value(const attributes& at, auto x) {
    const int order = x.extents().order;
    const auto p = cast_to(x, floating(x.type()));
    const auto largest = max_dims(p, order - 1, order);
    const auto of_largest = weft::where(weft::equal(largest, 0), row_without_weight, p / largest);
    const auto checked = p.owner->template apply<checked_weight>(
        attributes{{1}, 1}, weft::where(weft::less(p, 0), p, of_largest));
    const index_t low_bits =
        p.owner->dims.add(at[0], index_t{1} << 32);  // draws in a program have smaller numbers
    const auto uniform = random_like(p, at[0]) + (random_like(p, low_bits) + 0x1p-25) * 0x1p-24;
    return checked / -weft::log1p(-weft::minimum(uniform, 1 - 0x1p-24));  // 0 is reserved for weights of 0
  }
};

}  // namespace weft::op

namespace weft {

namespace detail {
[[noreturn, gnu::cold]] inline void refuse_rate(float rate) {
  refuse<value_error>({"weft: dropout: a rate of ", rate, " is not in [0, 1]"});
}

/// A node of `Op` whose draw is identified by this call.
template <class Op, index_t... V, expression... X>
auto apply_drawing(X... x) {
  const index_t call[] = {next_call()};
  return apply_sized<Op, attr<dyn, V...>>(call, std::move(x)...);
}
}  // namespace detail

/// Sets each element of `x` to 0 with probability `rate` and multiplies the others by 1 / (1 - rate); at rate
/// 1 all are 0. Random numbers differ between evaluations and between calls; copies of the result in one
/// statement are one draw. Integers become f32. Throws value_error if the rate is outside [0, 1] or NaN.
template <expression X>
auto dropout(X x, float rate) {
  if (!(rate >= 0 && rate <= 1)) detail::refuse_rate(rate);
  using T = std::conditional_t<std::is_same_v<typename X::value_type, double>, double, float>;
  const T p = rate;
  return detail::apply_drawing<op::dropout>(std::move(x), scalar<T>(p), scalar<T>(p < 1 ? 1 / (1 - p) : 0));
}
/// 1 with probability `p`, otherwise 0, per element, in the dtype of `p`, which must be floating. A
/// probability outside [0, 1] or NaN throws value_error at evaluation. No derivative.
template <expression P>
auto bernoulli(P p) {
  return detail::apply_drawing<op::bernoulli>(std::move(p));
}
/// N positions drawn from each row of the last dim without replacement, i64: [..., C] -> [..., N], with
/// probabilities proportional to `weights`, of any numeric type; torch.multinomial. A weight that is
/// negative, infinite or NaN, or a row whose sum is 0, throws value_error at evaluation. An N above a static
/// C does not compile; above a dynamic one it throws shape_error at evaluation. Positions of weight 0 are
/// drawn only if a row has fewer than N others. Draws follow the rules of dropout. No derivative.
///   auto next = eval(multinomial(softmax(logits / temperature)));        // [B, V] -> [B, 1]
template <index_t N = 1, expression W>
auto multinomial(W weights) {
  static_assert(N > 0, "weft: multinomial: the number of positions must be positive");
  static_assert(W::static_shape.order > 0,
                "weft: multinomial: the weights must be [..., C], one row for each draw");
  auto drawn = detail::apply_drawing<op::multinomial, N>(std::move(weights));
  if constexpr (N == 1) return argmax<-1>(std::move(drawn), keepdim);
  else return topk<-1, N>(std::move(drawn)).indices;
}
/// Uniform numbers with the shape and floating dtype of `x`: multiples of 2^-24 in [0, 1), rounded to the
/// dtype, so that 1 can occur in bf16 and f16. Drawn like those of dropout. No derivative. torch.rand_like in
/// an expression; rand_like(x, key) creates a tensor.
template <expression X>
auto uniform_like(X x) {
  return detail::apply_drawing<op::uniform_like>(std::move(x));
}
/// Standard normal numbers with the shape and floating dtype of `x`, of magnitude at most 5.77, by the
/// Box-Muller transform (1958) of two draws of uniform_like; bf16 and f16 are computed in f32 and rounded
/// once. Drawn like those of dropout. No derivative. torch.randn_like in an expression; randn_like(x, key)
/// creates a tensor.
///   auto z = mean + exp(0.5f * log_variance) * normal_like(mean);        // torch.normal(mean, deviation)
template <expression X>
auto normal_like(X x) {
  static_assert(is_floating(dtype_of<typename X::value_type>),
                "weft: normal_like: the element type must be floating");
  const auto transformed = [](auto v) {
    return sqrt(-2 * log(1 - uniform_like(v))) * cos(2 * std::numbers::pi * uniform_like(v));
  };
  return detail::rounded_once(transformed, std::move(x));
}

}  // namespace weft
