// SPDX-License-Identifier: MIT
// Losses of values and targets of one shape, with PyTorch's definitions.
//
//   auto loss = mse_loss(values, targets);                          // mean over all elements
//   auto loss = huber_loss<reduction_kind::sum>(values, targets, 0.5);
//
// Operands must have the same shape; otherwise the call does not compile, or throws shape_error at
// evaluation. Results have the dtype of the operands; bf16 and f16 are computed in f32 and rounded once.
#pragma once

#include <concepts>
#include <limits>

#include <weft/op/activation.hpp>
#include <weft/op/normalization.hpp>

namespace weft::op {

/// The compile-time error for an input and a target of different shapes.
template <bool Holds, class... Extents>
struct loss_law {
  static_assert(Holds,
                "weft: loss: input and target must have the same shape: a target [N] would be "
                "broadcast against an input [N, 1]; write unsqueeze<1>(target), or flatten<0, 1>(input)");
};

/// The same for triplet_margin_loss and cosine_embedding_loss.
template <bool Holds, class... Extents>
struct triplet_law {
  static_assert(Holds,
                "weft: triplet_margin_loss: anchor, positive and negative must have one shape [..., C]");
};
template <bool Holds, class... Extents>
struct cosine_embedding_law {
  static_assert(Holds,
                "weft: cosine_embedding_loss: x and y must have the same shape [..., C], and targets, 1 "
                "or -1, the shape [...]");
};

/// Base of element-wise losses of an input and a target; further operands are parameters, which broadcast.
template <int Arity>
struct pair_loss : of_one_shape<Arity> {
  template <bool Holds, class... Extents>
  using law = loss_law<Holds, Extents...>;
};

/// (x - y)^2.
struct mse_loss : pair_loss<2> {
  static constexpr auto name = "mse_loss";
  static constexpr auto value(auto x, auto y) { return weft::apply<square>(x - y); }
};

/// |x - y|.
struct l1_loss : pair_loss<2> {
  static constexpr auto name = "l1_loss";
  static constexpr auto value(auto x, auto y) { return weft::abs(x - y); }
};

/// d^2 / 2 of d = x - y where |d| is at most delta, and delta (|d| - delta / 2) above: c (d - c / 2) with
/// c = d within [-delta, delta].
struct huber_loss : pair_loss<3> {
  static constexpr auto name = "huber_loss";
  static constexpr interval domain{0.25, 2};
  static constexpr auto value(auto x, auto y, auto delta) {
    const auto d = x - y, within = weft::clamp(d, -delta, delta);
    return within * (d - 0.5 * within);
  }
};

/// huber_loss / beta; c / beta is computed first, which is in [-1, 1] for any beta.
struct smooth_l1_loss : pair_loss<3> {
  static constexpr auto name = "smooth_l1_loss";
  static constexpr interval domain{0.25, 2};
  static constexpr auto value(auto x, auto y, auto beta) {
    const auto d = x - y, within = weft::clamp(d, -beta, beta);
    return within / beta * (d - 0.5 * within);
  }
};

/// max(x, 0) - x y + log(1 + exp(-|x|)) per element.
struct bce_with_logits : pair_loss<2> {
  static constexpr auto name = "bce_with_logits";
  static constexpr auto value(auto x, auto y) {
    return weft::where(weft::less(0, x), x * (1 - y), -(x * y)) + weft::log1p(weft::exp(-weft::abs(x)));
  }
  static constexpr auto vjp(auto g, auto, auto x, auto y) {
    return std::array{g * (weft::apply<sigmoid>(x) - y), -(g * x)};
  }
};

/// weight y log(1 + exp(-x)) + (1 - y) log(1 + exp(x)).
struct weighted_bce_with_logits : pair_loss<3> {
  static constexpr auto name = "bce_with_logits";
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    inferred result = pair_loss<3>::infer(dims, at, operands);
    const shape &x = operands[0].extents, &w = operands[2].extents;
    index_t common = 0;
    result.holds = result.holds && x.order > 0 && w.order == 1 && dims.unify(x.last(), w[0], common);
    return result;
  }
  static constexpr auto value(auto x, auto y, auto weight) {
    return weight * y * weft::apply<softplus>(-x) + (1 - y) * weft::apply<softplus>(x);
  }
};

/// -y log(x) - (1 - y) log(1 - x), with logarithms of at least -100.
struct binary_cross_entropy : pair_loss<2> {
  static constexpr auto name = "binary_cross_entropy";
  static constexpr interval domain{0.125, 0.875};
  static constexpr auto value(auto x, auto y) { return -(y * log_of(x)) - (1 - y) * log_of_rest(x); }
  static constexpr auto vjp(auto g, auto, auto x, auto y) {
    return std::array{g * (x - y) / weft::maximum((1 - x) * x, 1e-12), g * (log_of_rest(x) - log_of(x))};
  }

 private:
  static constexpr auto log_of(auto x) { return weft::maximum(weft::log(x), -100); }
  static constexpr auto log_of_rest(auto x) { return weft::maximum(weft::log1p(-x), -100); }
};

/// x where the target is 1, max(margin - x, 0) where it is -1, and the sum of both elsewhere, as in PyTorch.
struct hinge_embedding_loss : pair_loss<3> {
  static constexpr auto name = "hinge_embedding_loss";
  static constexpr auto value(auto x, auto y, auto margin) {
    return weft::where(weft::equal(y, 1), 0, weft::apply<clamp_min>(margin - x, 0)) +
           weft::where(weft::equal(y, -1), 0, x);
  }
};

/// max(margin - y d, 0) of the difference d of two scores.
struct margin_ranking_loss : pair_loss<3> {
  static constexpr auto name = "margin_ranking_loss";
  static constexpr auto value(auto d, auto y, auto margin) {
    return weft::apply<clamp_min>(margin - y * d, 0);
  }
};

/// 1 - c where the target is 1, max(c - margin, 0) where it is -1, otherwise 0, of cosines c.
struct cosine_embedding_loss : of_one_shape<3> {
  static constexpr auto name = "cosine_embedding_loss";
  template <bool Holds, class... Extents>
  using law = cosine_embedding_law<Holds, Extents...>;
  static constexpr auto value(auto c, auto y, auto margin) {
    const auto apart = weft::where(weft::equal(y, -1), weft::apply<clamp_min>(c - margin, 0), 0);
    return weft::where(weft::equal(y, 1), 1 - c, apart);
  }
};

}  // namespace weft::op

namespace weft {

/// How a loss is reduced: to the mean or the sum of its elements, a scalar, or not at all.
enum class reduction_kind { mean, sum, none };

namespace detail {
template <reduction_kind How, expression E>
constexpr auto reduced(E e) {
  if constexpr (How == reduction_kind::mean) return mean(std::move(e));
  else if constexpr (How == reduction_kind::sum) return sum(std::move(e));
  else return e;
}

/// Integers as f32, as in formulas of one operand: differences of u8 would wrap.
template <expression X>
constexpr auto in_floats(X x) {
  if constexpr (is_floating(dtype_of<typename X::value_type>)) return x;
  else return cast<float>(std::move(x));
}

/// The reduction of Op(input, target, parameters...), the losses of the elements.
template <reduction_kind How, class Op, expression X, expression Y, std::same_as<double>... P>
constexpr auto loss_of_pair(X input, Y target, P... parameters) {
  const auto losses = [&](auto x, auto y) {
    constexpr dtype both =
        promoted(dtype_of<typename decltype(x)::value_type>, dtype_of<typename decltype(y)::value_type>);
    using T = element_of<both>;
    return reduced<How>(apply<Op>(std::move(x), std::move(y), scalar<T>(static_cast<T>(parameters))...));
  };
  return rounded_once(losses, in_floats(std::move(input)), in_floats(std::move(target)));
}

/// Whether elements of T can be 1 and -1.
template <element T>
inline constexpr bool has_sign = !std::is_same_v<T, bool> && !std::is_same_v<T, std::uint8_t>;
}  // namespace detail

/// Mean (or sum, or elements) of (x - y)^2. The operands of this and of the losses below must have the same
/// shape; otherwise the call does not compile, or throws shape_error at evaluation.
template <reduction_kind How = reduction_kind::mean, expression X, expression Y>
constexpr auto mse_loss(X x, Y y) {
  return detail::loss_of_pair<How, op::mse_loss>(std::move(x), std::move(y));
}

/// Mean (or sum, or elements) of |x - y|.
template <reduction_kind How = reduction_kind::mean, expression X, expression Y>
constexpr auto l1_loss(X x, Y y) {
  return detail::loss_of_pair<How, op::l1_loss>(std::move(x), std::move(y));
}

/// Mean (or sum, or elements) of d^2 / 2 where d = |x - y| is at most `delta`, and of delta (d - delta / 2)
/// above (Huber, 1964). Throws value_error if delta is not positive.
template <reduction_kind How = reduction_kind::mean, expression X, expression Y>
constexpr auto huber_loss(X x, Y y, double delta = 1) {
  if (!(delta > 0)) refuse<value_error>({"weft: huber_loss: delta is ", delta, ", not positive"});
  return detail::loss_of_pair<How, op::huber_loss>(std::move(x), std::move(y), delta);
}

/// Mean (or sum, or elements) of d^2 / (2 beta) where d = |x - y| is at most `beta`, and of d - beta / 2
/// above (Girshick, 2015): huber_loss / beta, and l1_loss if beta is 0. Throws value_error if beta is
/// negative or NaN.
template <reduction_kind How = reduction_kind::mean, expression X, expression Y>
constexpr auto smooth_l1_loss(X x, Y y, double beta = 1) {
  if (!(beta >= 0)) refuse<value_error>({"weft: smooth_l1_loss: beta is ", beta, ", not 0 or more"});
  constexpr double least =
      std::numeric_limits<float>::min();  // less is like 0, by which there is no quotient
  return detail::loss_of_pair<How, op::smooth_l1_loss>(std::move(x), std::move(y),
                                                       beta < least ? least : beta);
}

/// Mean (or sum, or elements) of q (log(q) - x), where x are log-probabilities and q probabilities, which are
/// not checked; 0 log(0) is 0. If `LogTarget` (torch's log_target), the targets are log(q). The mean is over
/// all elements, as in PyTorch; the mean divergence per row is the sum divided by the number of rows.
template <reduction_kind How = reduction_kind::mean, bool LogTarget = false, expression X, expression Y>
constexpr auto kl_div(X log_probabilities, Y targets) {
  const auto losses = [](auto x, auto q) {
    if constexpr (LogTarget)
      return detail::reduced<How>(exp(q) * apply<op::difference_of<"kl_div", op::loss_law>>(q, std::move(x)));
    else
      return detail::reduced<How>(q * log(where(q == 0, 1, q)) -
                                  apply<op::product_of<"kl_div", op::loss_law>>(q, std::move(x)));
  };
  return detail::rounded_once(losses, detail::in_floats(std::move(log_probabilities)),
                              detail::in_floats(std::move(targets)));
}

/// Mean (or sum, or the loss of each row) of max(|anchor - positive| - |anchor - negative| + margin, 0), with
/// Euclidean distances along the last dim; 1e-6 is added to the differences, as in PyTorch. All operands have
/// the same shape [..., C]. Throws value_error if margin is not positive.
template <reduction_kind How = reduction_kind::mean, expression A, expression P, expression N>
constexpr auto triplet_margin_loss(A anchor, P positive, N negative, double margin = 1) {
  static_assert(A::static_shape.order > 0,
                "weft: triplet_margin_loss: anchor, positive and negative must have one shape [..., C]");
  if (!(margin > 0)) refuse<value_error>({"weft: triplet_margin_loss: margin is ", margin, ", not positive"});
  const auto of_rows = [margin](auto a, auto p, auto n) {
    return let(std::move(a), [&](auto x) {
      const auto distance = [&](auto y) {
        return vector_norm(
            apply<op::difference_of<"triplet_margin_loss", op::triplet_law>>(x, std::move(y)) + 1e-6,
            dims<-1>);
      };
      return detail::reduced<How>(clamp_min(distance(std::move(p)) - distance(std::move(n)) + margin, 0));
    });
  };
  return detail::rounded_once(of_rows, detail::in_floats(std::move(anchor)),
                              detail::in_floats(std::move(positive)), detail::in_floats(std::move(negative)));
}

/// The mean (or sum, or elements) over rows of 1 - c where the target is 1, and of max(c - margin, 0) where
/// it is -1, with c the cosine of the angle between x and y along the last dim, as PyTorch computes it: sum(x
/// y) / sqrt((sum(x^2) + 1e-12) (sum(y^2) + 1e-12)). Targets are not checked; others have loss 0. x and y
/// must have the same shape [..., C], and targets, of any signed type, must be [...]: other static extents do
/// not compile, dynamic ones throw shape_error at evaluation.
///   auto loss = cosine_embedding_loss(embed(x), embed(y), same, 0.5);        // [B, C], [B, C], [B]
template <reduction_kind How = reduction_kind::mean, expression X, expression Y, expression Target>
constexpr auto cosine_embedding_loss(X x, Y y, Target target, double margin = 0) {
  static_assert(
      X::static_shape.order > 0,
      "weft: cosine_embedding_loss: x and y must have the same shape [..., C], and targets, 1 or -1, "
      "the shape [...]");
  static_assert(detail::has_sign<typename Target::value_type>,
                "weft: cosine_embedding_loss: targets are 1 or -1, of a signed type: from a bool b, "
                "where(b, ones_like(x), -ones_like(x))");
  const auto losses = [&](auto of_x, auto of_y) {
    using T = typename decltype(of_x)::value_type;
    const auto cosine = let(std::move(of_x), [&](auto a) {
      return let(std::move(of_y), [&](auto b) {
        const auto square_of_norm = [](auto v) { return sum(square(v), dims<-1>) + 1e-12; };
        return sum(apply<op::product_of<"cosine_embedding_loss", op::cosine_embedding_law>>(a, b), dims<-1>) /
               sqrt(square_of_norm(a) * square_of_norm(b));
      });
    });
    return detail::reduced<How>(
        apply<op::cosine_embedding_loss>(cosine, detail::in_type<T>(std::move(target)), margin));
  };
  return detail::in_common_type(losses, std::move(x), std::move(y));
}

/// Mean (or sum, or elements) of max(-y (first - second) + margin, 0): the scores of two alternatives, of
/// which the first should be higher where y is 1, and the second where y is -1.
template <reduction_kind How = reduction_kind::mean, expression A, expression B, expression Target>
constexpr auto margin_ranking_loss(A first, B second, Target target, double margin = 0) {
  static_assert(detail::has_sign<typename Target::value_type>,
                "weft: margin_ranking_loss: targets are 1 or -1, of a signed type");
  const auto losses = [&](auto a, auto b, auto y) {
    return detail::reduced<How>(apply<op::margin_ranking_loss>(
        apply<op::difference_of<"margin_ranking_loss", op::loss_law>>(std::move(a), std::move(b)),
        std::move(y), margin));
  };
  return detail::rounded_once(losses, detail::in_floats(std::move(first)),
                              detail::in_floats(std::move(second)), detail::in_floats(std::move(target)));
}

/// Mean (or sum, or elements) of x where the target is 1, and of max(margin - x, 0) where it is -1: x is a
/// distance, small for pairs that belong together. Targets are not checked.
template <reduction_kind How = reduction_kind::mean, expression X, expression Target>
constexpr auto hinge_embedding_loss(X x, Target target, double margin = 1) {
  static_assert(detail::has_sign<typename Target::value_type>,
                "weft: hinge_embedding_loss: targets are 1 or -1, of a signed type");
  return detail::loss_of_pair<How, op::hinge_embedding_loss>(std::move(x), std::move(target), margin);
}

/// Binary cross-entropy of logits and targets in [0, 1], which are not checked: the mean (or sum, or
/// elements) of max(x, 0) - x y + log(1 + exp(-|x|)), which does not overflow. PyTorch's
/// binary_cross_entropy_with_logits.
template <reduction_kind How = reduction_kind::mean, expression X, expression Y>
constexpr auto bce_with_logits(X logits, Y targets) {
  return detail::loss_of_pair<How, op::bce_with_logits>(std::move(logits), std::move(targets));
}

/// The same with a weight for each class (torch's pos_weight), by which the loss of targets 1 is multiplied:
/// logits and targets [..., C], weights [C].
template <reduction_kind How = reduction_kind::mean, expression X, expression Y, expression W>
constexpr auto bce_with_logits(X logits, Y targets, W of_ones) {
  const auto losses = [](auto x, auto y, auto w) {
    return detail::reduced<How>(
        apply<op::weighted_bce_with_logits>(std::move(x), std::move(y), std::move(w)));
  };
  return detail::rounded_once(losses, detail::in_floats(std::move(logits)),
                              detail::in_floats(std::move(targets)), detail::in_floats(std::move(of_ones)));
}

/// Binary cross-entropy of probabilities x and targets y, both in [0, 1] and not checked: the mean (or sum,
/// or elements) of -y log(x) - (1 - y) log(1 - x), with logarithms of at least -100, as in PyTorch.
/// bce_with_logits is more accurate.
template <reduction_kind How = reduction_kind::mean, expression X, expression Y>
constexpr auto binary_cross_entropy(X probabilities, Y targets) {
  return detail::loss_of_pair<How, op::binary_cross_entropy>(std::move(probabilities), std::move(targets));
}

}  // namespace weft
