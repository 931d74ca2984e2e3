// SPDX-License-Identifier: MIT
// Loss functions with PyTorch's definitions.
//
//   auto loss = cross_entropy(logits, labels);                    // mean over all labels
//   auto loss = cross_entropy<reduction_kind::sum>(logits, labels);
//   auto loss = huber_loss(values, targets, 0.5);
//
// Results have the dtype of the operands; bf16 and f16 are computed in f32 and rounded once.
#pragma once

#include <weft/op/activation.hpp>
#include <weft/op/index.hpp>
#include <weft/op/normalization.hpp>
#include <weft/op/positions.hpp>

namespace weft::op {

/// The compile-time error for labels whose shape does not match that of the logits.
template <bool Holds, class... Extents>
struct cross_entropy_law {
  static_assert(Holds, "weft: cross_entropy: labels must have the extents of the logits without "
                       "the last dim, which counts classes");
};
/// The compile-time error for logits or labels of a wrong type.
template <bool Holds, class... Types>
struct cross_entropy_type_law {
  static_assert(Holds, "weft: cross_entropy: logits must be floating and labels integers");
};

/// -log(softmax(logits)[label]) per row. v0: the label to ignore. v1: the bits of the label smoothing.
struct cross_entropy : composed<2> {
  static constexpr auto name = "cross_entropy";
  template <bool Holds, class... Extents>
  using law = cross_entropy_law<Holds, Extents...>;
  template <bool Holds, class... Types>
  using type_law = cross_entropy_type_law<Holds, Types...>;

  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    const shape &logits = operands[0].extents, &labels = operands[1].extents;
    inferred result{logits.order == labels.order + 1, {operands[0].type, labels}};
    for (int i = 0; i < labels.order && result.holds; ++i)
      result.holds = dims.unify(logits[i], labels[i], result.value.extents[i]);
    result.types_fit = is_floating(operands[0].type) && is_index(operands[1].type);
    return result;
  }

  static constexpr auto value(const attributes& at, auto logits, auto labels) {
    const int order = logits.extents().order;
    const auto label = class_of(at, labels, logits);
    const auto hit = chosen(logits, label);
    const auto top = max_dims(logits, order - 1, order);
    const auto shifted = logits - top;
    const auto log_sum = weft::log(sum_dims(weft::exp(shifted), order - 1, order));
    const double smoothing = std::bit_cast<double>(at[1]);
    // `top` is not added to the logarithm, which would lose precision where `top` is large. The logit is
    // selected in the memory-bound sweep that finds `top`, not in the compute-bound one over the
    // exponentials.
    const auto of_label = sum_dims(weft::where(hit, logits, 0), order - 1, order) - top;
    auto loss = log_sum - of_label * (1 - smoothing);
    if (smoothing > 0) {
      const auto classes = element_count(logits, {1, {logits.extents().last()}});
      loss = loss - sum_dims(shifted, order - 1, order) * (smoothing / classes);
    }
    const auto kept = weft::where(weft::less(label, 0), 0, loss);
    return reshape_to(kept, labels.extents());
  }

  /// softmax(logits) minus the target distribution, in one kernel with one division per row.
  static constexpr auto vjp(auto g, auto y, auto logits, auto labels) {
    const attributes at = y.attribute_values();
    const int order = logits.extents().order;
    const auto label = class_of(at, labels, logits);
    const double smoothing = std::bit_cast<double>(at[1]);
    const auto e = weft::exp(logits - max_dims(logits, order - 1, order));
    const auto classes = element_count(logits, {1, {logits.extents().last()}});
    const auto slope = weft::where(weft::less(label, 0), 0, with_class_dim(g, logits));
    const auto target = cast_to(chosen(logits, label), g.type()) * (1 - smoothing);
    const auto softmax = e * (1 / sum_dims(e, order - 1, order));
    const auto difference = smoothing > 0 ? softmax - (target + smoothing / classes)
                                          : softmax - target;
    return std::array{difference * slope, no_gradient(g)};
  }

 private:
  static constexpr auto with_class_dim(auto x, auto logits) {
    shape s = logits.extents();
    s[s.order - 1] = 1;
    return reshape_to(x, s);
  }
  /// The class of each row, -1 where the label is ignored.
  static constexpr auto class_of(const attributes& at, auto labels, auto logits) {
    const attributes within{
        {logits.extents().last(), static_cast<index_t>(index_reader::cross_entropy), at[0], 1}, 4};
    return with_class_dim(labels.owner->template apply<checked_index>(within, labels), logits);
  }
  static constexpr auto chosen(auto logits, auto label) {
    return weft::equal(logits.owner->coordinate(logits.extents().last(), dtype::i32), label);
  }
};

/// The number of labels other than v0, the ignored one, as a scalar of dtype v1.
struct count_labels : composed<1> {
  static constexpr auto name = "count_labels";
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes& at, const tensor_spec*) {
    return {true, {static_cast<dtype>(at[1]), {}}};
  }
  static constexpr auto value(const attributes& at, auto labels) {
    const auto ignored = labels.owner->constant(at[0], dtype::i64);  // may not fit the type of the labels
    const auto counted = weft::where(weft::equal(cast_to(labels, dtype::i64), ignored),
                                     labels.owner->constant(0, static_cast<dtype>(at[1])), 1);
    return reshape_to(sum_dims(counted, 0, labels.extents().order), shape{});
  }
};

/// max(x, 0) - x y + log(1 + exp(-|x|)) per element.
struct bce_with_logits : elementwise<2> {
  static constexpr auto name = "bce_with_logits";
  static constexpr auto value(auto x, auto y) {
    return weft::where(weft::less(0, x), x * (1 - y), -(x * y)) + weft::log1p(weft::exp(-weft::abs(x)));
  }
  static constexpr auto vjp(auto g, auto, auto x, auto y) {
    return std::array{g * (weft::apply<sigmoid>(x) - y), -(g * x)};
  }
};

}  // namespace weft::op

namespace weft {

/// Whether cross_entropy accepts these logits and labels.
template <class Logits, class Labels>
concept cross_entropy_compatible = accepts<op::cross_entropy, attr<0, 0>, Logits, Labels>;

/// How a loss is reduced: to the mean or the sum of its elements, a scalar, or not at all.
enum class reduction_kind { mean, sum, none };

/// The label that `cross_entropy` ignores by default, as PyTorch's ignore_index.
inline constexpr index_t ignored_label = -100;

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

/// The reduction of f(input, target), the losses of the elements.
template <reduction_kind How, class F, expression X, expression Y>
constexpr auto loss_of_pair(F f, X input, Y target) {
  static_assert(can_be_equal(X::static_shape, Y::static_shape),
                "weft: loss: input and target must have the same shape: a target [N] would be broadcast "
                "against an input [N, 1]; write unsqueeze<1>(target), or flatten<0, 1>(input)");
  return rounded_once([&](auto x, auto y) { return reduced<How>(f(x, y)); }, in_floats(std::move(input)),
                      in_floats(std::move(target)));
}

/// d^2 / 2 of the difference where |d| is at most delta, and delta (|d| - delta / 2) above: c (d - c / 2)
/// with c = d within [-delta, delta].
constexpr auto huber(auto difference, double delta) {
  return let(difference, [delta](auto d) {
    return let(clamp(d, -delta, delta), [d](auto within) { return within * (d - 0.5 * within); });
  });
}

/// The sum of `weights`, one per label. Where ranks divide positions: the mean weight over all of them times
/// the number of labels on this rank, so that the mean over ranks of losses divided by it equals the result
/// on one rank. Its derivative is that of the sum.
template <expression W, expression Labels>
constexpr auto sum_of_weights(W weights, Labels labels) {
  using T = typename W::value_type;
  using S = std::conditional_t<is_narrow(dtype_of<T>), float, T>;
  auto figures = stack<0>(in_type<S>(sum(std::move(weights))), sum(cast<S>(labels == labels)));
  return let(std::move(figures), [](auto own) {
    auto more = let(sum_over_positions(own), [own](auto all) {
      const auto of_own = select<0, 0>(all) / (select<0, 1>(all) / select<0, 1>(own));
      return detach(of_own - select<0, 0>(own));
    });
    return in_type<T>(select<0, 0>(own) + std::move(more));
  });
}

template <class Smoothing>
consteval double checked_smoothing() {
  static_assert(Smoothing::value >= 0 && Smoothing::value <= 1,
                "weft: cross_entropy: the smoothing must be in [0, 1]");
  return Smoothing::value;
}
}  // namespace detail

/// Cross-entropy -log(softmax(logits)[label]) of floating `logits` [..., C] and labels [...] of i64, i32 or
/// u8: the mean (or sum) over all labels, or the loss of each. Rows of finite logits whose label is `Ignore`
/// have loss and gradient 0; the mean is over the others, and NaN if there are none. `Smoothing`
/// (per_million<...>, in [0, 1]) is the share of the target that is spread evenly over all classes. A label
/// that is neither `Ignore` nor in [0, C) throws value_error at evaluation.
template <reduction_kind How = reduction_kind::mean, index_t Ignore = ignored_label,
          class Smoothing = per_million<0>, expression X, expression Y>
constexpr auto cross_entropy(X logits, Y labels) {
  using T = typename X::value_type;
  using at = attr<Ignore, number_bits(detail::checked_smoothing<Smoothing>())[0]>;
  constexpr auto type = static_cast<index_t>(dtype_of<T>);
  if constexpr (is_narrow(dtype_of<T>)) {
    return cast<T>(cross_entropy<How, Ignore, Smoothing>(cast<float>(std::move(logits)), std::move(labels)));
  } else if constexpr (How == reduction_kind::mean) {
    auto count = apply<op::count_labels, attr<Ignore, type>>(labels);
    return sum(apply<op::cross_entropy, at>(std::move(logits), std::move(labels))) /
           std::move(count);
  } else {
    return detail::reduced<How>(
        apply<op::cross_entropy, at>(std::move(logits), std::move(labels)));
  }
}

/// The same for floating targets, which are class probabilities in the shape of the logits:
/// -sum(p log_softmax(logits)) of each row. They are not checked, and no row is ignored.
template <reduction_kind How = reduction_kind::mean, index_t Ignore = ignored_label,
          class Smoothing = per_million<0>, expression X, expression Y>
  requires(is_floating(dtype_of<typename Y::value_type>))
constexpr auto cross_entropy(X logits, Y probabilities) {
  static_assert(is_floating(dtype_of<typename X::value_type>) && X::static_shape.order > 0 &&
                    detail::can_be_equal(X::static_shape, Y::static_shape),
                "weft: cross_entropy: logits must be floating; labels must be integers, one for each row; "
                "floating targets are probabilities and must have the shape of the logits");
  const auto of_rows = [](auto x, auto p) {
    return detail::reduced<How>(let(log_softmax(x), [&](auto y) {
      constexpr double smoothing = detail::checked_smoothing<Smoothing>();
      if constexpr (smoothing == 0) return -sum(p * y, dims<-1>);
      else return -(sum(p * y, dims<-1>) * (1 - smoothing) + mean(y, dims<-1>) * smoothing);
    }));
  };
  return detail::rounded_once(of_rows, std::move(logits), std::move(probabilities));
}

/// The same for labels with a weight per class, `class_weights` [C]: each loss is multiplied by the weight of
/// its label, and the mean is divided by the sum of these weights, as in PyTorch. No smoothing.
template <reduction_kind How = reduction_kind::mean, index_t Ignore = ignored_label, expression X,
          expression Y, expression W>
constexpr auto cross_entropy(X logits, Y labels, W class_weights) {
  static_assert(cross_entropy_compatible<X, Y> && W::static_shape.order == 1 &&
                    is_floating(dtype_of<typename W::value_type>),
                "weft: cross_entropy: operands must be floating logits [..., C], integer labels [...] and "
                "floating class weights [C]");
  static_assert(X::static_shape.last() < 0 || W::static_shape.last() < 0 ||
                    X::static_shape.last() == W::static_shape.last(),
                "weft: cross_entropy: there must be as many weights as classes");
  const auto weigh = [logits = std::move(logits),
                      table = unsqueeze<1>(std::move(class_weights))](auto label) {
    auto weights = select<-1, 0>(embedding(table, where(label == Ignore, 0, label)));
    return let(where(label == Ignore, 0, std::move(weights)), [&](auto weight) {
      auto losses = cross_entropy<reduction_kind::none, Ignore>(logits, label) * weight;
      if constexpr (How == reduction_kind::mean)
        return sum(std::move(losses)) / detail::sum_of_weights(weight, label);
      else return detail::reduced<How>(std::move(losses));
    });
  };
  return let(cast<std::int64_t>(std::move(labels)), weigh);
}

/// -x[label] for each row of log-probabilities x [..., C] and labels [...] of i64, i32 or u8: the mean (or
/// sum) over all labels, or the loss of each. `Ignore` as in cross_entropy(logits, labels), which equals
/// nll_loss(log_softmax(logits), labels) without rounding in between. A label that is neither `Ignore` nor in
/// [0, C) throws value_error at evaluation.
template <reduction_kind How = reduction_kind::mean, index_t Ignore = ignored_label, expression X,
          expression Y>
constexpr auto nll_loss(X log_probabilities, Y labels) {
  static_assert(cross_entropy_compatible<X, Y>,
                "weft: nll_loss: operands must be floating log-probabilities [..., C], as log_softmax "
                "returns, and integer labels [...]");
  using T = typename X::value_type;
  if constexpr (is_narrow(dtype_of<T>)) {
    return cast<T>(nll_loss<How, Ignore>(cast<float>(std::move(log_probabilities)), std::move(labels)));
  } else {
    return let(cast<std::int64_t>(std::move(labels)), [x = std::move(log_probabilities)](auto label) {
      auto losses = -select<-1, 0>(gather<-1>(x, unsqueeze<-1>(where(label == Ignore, 0, label))));
      auto kept = where(label == Ignore, 0, std::move(losses));
      if constexpr (How == reduction_kind::mean)
        return sum(std::move(kept)) /
               apply<op::count_labels, attr<Ignore, static_cast<index_t>(dtype_of<T>)>>(label);
      else return detail::reduced<How>(std::move(kept));
    });
  }
}

/// Mean (or sum, or elements) of (x - y)^2. The operands of this and of the losses below must have the same
/// shape; otherwise the call does not compile, or throws shape_error at evaluation.
template <reduction_kind How = reduction_kind::mean, expression X, expression Y>
constexpr auto mse_loss(X x, Y y) {
  return detail::loss_of_pair<How>([](auto a, auto b) { return square(a - b); }, std::move(x), std::move(y));
}

/// Mean (or sum, or elements) of |x - y|.
template <reduction_kind How = reduction_kind::mean, expression X, expression Y>
constexpr auto l1_loss(X x, Y y) {
  return detail::loss_of_pair<How>([](auto a, auto b) { return abs(a - b); }, std::move(x), std::move(y));
}

/// Mean (or sum, or elements) of d^2 / 2 where d = |x - y| is at most `delta`, and of delta (d - delta / 2)
/// above (Huber, 1964). Throws value_error if delta is not positive.
template <reduction_kind How = reduction_kind::mean, expression X, expression Y>
constexpr auto huber_loss(X x, Y y, double delta = 1) {
  if (!(delta > 0)) refuse<value_error>({"weft: huber_loss: delta is ", delta, ", not positive"});
  return detail::loss_of_pair<How>([delta](auto a, auto b) { return detail::huber(a - b, delta); },
                                   std::move(x), std::move(y));
}

/// Mean (or sum, or elements) of d^2 / (2 beta) where d = |x - y| is at most `beta`, and of d - beta / 2
/// above (Girshick, 2015): huber_loss / beta. Throws value_error if beta is not positive.
template <reduction_kind How = reduction_kind::mean, expression X, expression Y>
constexpr auto smooth_l1_loss(X x, Y y, double beta = 1) {
  if (!(beta > 0)) refuse<value_error>({"weft: smooth_l1_loss: beta is ", beta, ", not positive"});
  return detail::loss_of_pair<How>([beta](auto a, auto b) { return detail::huber(a - b, beta) / beta; },
                                   std::move(x), std::move(y));
}

/// Mean (or sum, or elements) of q (log(q) - x), where x are log-probabilities and q probabilities, which are
/// not checked; 0 log(0) is 0. The mean is over all elements, as in PyTorch; the mean divergence per row is
/// the sum divided by the number of rows.
template <reduction_kind How = reduction_kind::mean, expression X, expression Y>
constexpr auto kl_div(X log_probabilities, Y probabilities) {
  const auto of_elements = [](auto x, auto q) { return q * log(where(q == 0, 1, q)) - q * x; };
  return detail::loss_of_pair<How>(of_elements, std::move(log_probabilities), std::move(probabilities));
}

/// Mean (or sum, or the loss of each row) of max(|anchor - positive| - |anchor - negative| + margin, 0), with
/// Euclidean distances along the last dim; 1e-6 is added to the differences, as in PyTorch. All operands have
/// the same shape [..., C]. Throws value_error if margin is not positive.
template <reduction_kind How = reduction_kind::mean, expression A, expression P, expression N>
constexpr auto triplet_margin_loss(A anchor, P positive, N negative, double margin = 1) {
  static_assert(A::static_shape.order > 0 && detail::can_be_equal(A::static_shape, P::static_shape) &&
                    detail::can_be_equal(A::static_shape, N::static_shape),
                "weft: triplet_margin_loss: anchor, positive and negative must have one shape [..., C]");
  if (!(margin > 0)) refuse<value_error>({"weft: triplet_margin_loss: margin is ", margin, ", not positive"});
  const auto of_rows = [margin](auto a, auto p, auto n) {
    return let(std::move(a), [&](auto x) {
      const auto distance = [&](auto y) { return vector_norm(x - std::move(y) + 1e-6, dims<-1>); };
      return detail::reduced<How>(relu(distance(std::move(p)) - distance(std::move(n)) + margin));
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
  constexpr auto without_last_dim = [](shape s) {
    --s.order;
    return s;
  };
  static_assert(
      X::static_shape.order > 0 && detail::can_be_equal(X::static_shape, Y::static_shape) &&
          detail::can_be_equal(without_last_dim(X::static_shape), Target::static_shape),
      "weft: cosine_embedding_loss: x and y must have the same shape [..., C], and targets, 1 or -1, "
      "the shape [...]");
  const auto losses = [&](auto of_x, auto of_y) {
    const auto cosine = let(std::move(of_x), [&](auto a) {
      return let(std::move(of_y), [&](auto b) {
        const auto square_of_norm = [](auto v) { return sum(square(v), dims<-1>) + 1e-12; };
        return sum(a * b, dims<-1>) / sqrt(square_of_norm(a) * square_of_norm(b));
      });
    });
    return detail::reduced<How>(let(cosine, [&](auto c) {
      return where(target == 1, 1 - c, where(target == -1, clamp_min(c - margin, 0), 0));
    }));
  };
  return detail::in_common_type(losses, std::move(x), std::move(y));
}

/// Binary cross-entropy of logits and targets in [0, 1], which are not checked: the mean (or sum, or
/// elements) of max(x, 0) - x y + log(1 + exp(-|x|)), which does not overflow. PyTorch's
/// binary_cross_entropy_with_logits.
template <reduction_kind How = reduction_kind::mean, expression X, expression Y>
constexpr auto bce_with_logits(X logits, Y targets) {
  return detail::loss_of_pair<How>([](auto x, auto y) { return apply<op::bce_with_logits>(x, y); },
                                   std::move(logits), std::move(targets));
}

}  // namespace weft
