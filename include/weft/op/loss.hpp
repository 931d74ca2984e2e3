// SPDX-License-Identifier: MIT
// Losses of classes, with PyTorch's definitions; those of values are in op/pair_loss.hpp.
//
//   auto loss = cross_entropy(logits, labels);                    // mean over all labels
//   auto loss = cross_entropy<reduction_kind::sum>(logits, labels);
//
// Classes are along the last dim; in PyTorch, along dim 1. transpose<1, -1>(x) turns [B, C, L] into [B, L,
// C]. Results have the dtype of the operands; bf16 and f16 are computed in f32 and rounded once.
#pragma once

#include <weft/op/activation.hpp>
#include <weft/op/index.hpp>
#include <weft/op/normalization.hpp>
#include <weft/op/pair_loss.hpp>
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

namespace detail {
/// x [...] as [..., 1].
constexpr auto with_class_dim(auto x, auto logits) {
  shape s = logits.extents();
  s[s.order - 1] = 1;
  return reshape_to(x, s);
}
/// The class of each row [..., 1], -1 where the label is `ignored`. `reader` is the op to name in errors.
constexpr auto class_of(index_reader reader, index_t ignored, auto labels, auto logits) {
  const attributes within{{logits.extents().last(), static_cast<index_t>(reader), ignored, 1}, 4};
  return with_class_dim(labels.owner->template apply<checked_index>(within, labels), logits);
}
}  // namespace detail

/// The compile-time error for operands of nll_loss.
template <bool Holds, class... Operands>
struct nll_loss_law {
  static_assert(Holds,
                "weft: nll_loss: operands must be floating log-probabilities [..., C], as log_softmax "
                "returns, and integer labels [...]");
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
    const auto label = detail::class_of(index_reader::cross_entropy, at[0], labels, logits);
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
    const auto label = detail::class_of(index_reader::cross_entropy, at[0], labels, logits);
    const double smoothing = std::bit_cast<double>(at[1]);
    const auto e = weft::exp(logits - max_dims(logits, order - 1, order));
    const auto classes = element_count(logits, {1, {logits.extents().last()}});
    const auto slope = weft::where(weft::less(label, 0), 0, detail::with_class_dim(g, logits));
    const auto target = cast_to(chosen(logits, label), g.type()) * (1 - smoothing);
    const auto softmax = e * (1 / sum_dims(e, order - 1, order));
    const auto difference = smoothing > 0 ? softmax - (target + smoothing / classes)
                                          : softmax - target;
    return std::array{difference * slope, no_gradient(g)};
  }

 private:
  static constexpr auto chosen(auto logits, auto label) {
    return weft::equal(logits.owner->coordinate(logits.extents().last(), dtype::i32), label);
  }
};

/// -x[label] per row of log-probabilities. v0: the label to ignore.
struct nll_loss : composed<2> {
  static constexpr auto name = "nll_loss";
  template <bool Holds, class... Extents>
  using law = nll_loss_law<Holds, Extents...>;
  template <bool Holds, class... Types>
  using type_law = nll_loss_law<Holds, Types...>;

  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    return cross_entropy::infer(dims, at, operands);
  }
  static constexpr auto value(const attributes& at, auto x, auto labels) {
    const auto label = detail::class_of(index_reader::nll_loss, at[0], labels, x);
    const auto ignored = weft::less(label, 0);
    const auto chosen = gather_of(x, weft::where(ignored, 0, label), x.extents().order - 1);
    return reshape_to(weft::where(ignored, 0, -chosen), labels.extents());
  }
};

/// The compile-time error for class weights.
template <bool Holds, class... Extents>
struct class_weights_law {
  static_assert(Holds, "weft: cross_entropy, nll_loss: there must be as many weights as classes");
};
/// Rows [..., C], for which there must be C weights, in a formula that users know as `Name`.
template <op_name Name>
struct rows_with_class_weights : requirement {
  static constexpr const char* name = Name.text;
  template <bool Holds, class... Extents>
  using law = class_weights_law<Holds, Extents...>;
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    const shape &rows = operands[0].extents, &weights = operands[1].extents;
    inferred result{true, operands[0]};
    result.holds = rows.order > 0 && weights.order == 1 &&
                   dims.unify(rows.last(), weights[0], result.value.extents[rows.order - 1]);
    return result;
  }
};

/// The compile-time error for floating targets of a wrong shape.
template <bool Holds, class... Extents>
struct class_probabilities_law {
  static_assert(Holds,
                "weft: cross_entropy: logits must be floating; labels must be integers, one for each "
                "row; floating targets are probabilities and must have the shape of the logits");
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

}  // namespace weft::op

namespace weft {

/// Whether cross_entropy accepts these logits and labels.
template <class Logits, class Labels>
concept cross_entropy_compatible = accepts<op::cross_entropy, attr<0, 0>, Logits, Labels>;

/// The label that `cross_entropy` ignores by default, as PyTorch's ignore_index.
inline constexpr index_t ignored_label = -100;

namespace detail {
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
      auto sums = sum(apply<op::product_of<"cross_entropy", op::class_probabilities_law>>(p, y), dims<-1>);
      if constexpr (smoothing == 0) return -std::move(sums);
      else return -(std::move(sums) * (1 - smoothing) + mean(y, dims<-1>) * smoothing);
    }));
  };
  return detail::rounded_once(of_rows, std::move(logits), std::move(probabilities));
}

namespace detail {
/// The losses f(label) times the weights of the labels, reduced. The mean is divided by the sum of these.
template <reduction_kind How, index_t Ignore, index_reader Reader, class F, expression Y, expression W>
constexpr auto weighted_losses(F f, Y labels, W class_weights) {
  const auto weigh = [f = std::move(f), table = unsqueeze<1>(std::move(class_weights))](auto label) {
    auto rows =
        apply<op::index_select, attr<static_cast<index_t>(Reader)>>(table, where(label == Ignore, 0, label));
    return let(where(label == Ignore, 0, select<-1, 0>(std::move(rows))), [&](auto weight) {
      auto losses = f(label) * weight;
      if constexpr (How == reduction_kind::mean)
        return sum(std::move(losses)) / sum_of_weights(weight, label);
      else return reduced<How>(std::move(losses));
    });
  };
  return let(cast<std::int64_t>(std::move(labels)), weigh);
}
}  // namespace detail

/// The same for labels with a weight per class, `class_weights` [C]: each loss is multiplied by the weight of
/// its label, and the mean is divided by the sum of these weights, as in PyTorch. No smoothing. Weights of
/// another number than classes do not compile, or throw shape_error at evaluation.
template <reduction_kind How = reduction_kind::mean, index_t Ignore = ignored_label, expression X,
          expression Y, expression W>
constexpr auto cross_entropy(X logits, Y labels, W class_weights) {
  static_assert(cross_entropy_compatible<X, Y> && W::static_shape.order == 1 &&
                    is_floating(dtype_of<typename W::value_type>),
                "weft: cross_entropy: operands must be floating logits [..., C], integer labels [...] and "
                "floating class weights [C]");
  const auto losses = [&](auto x, auto weights) {
    const auto of = [x = apply<op::rows_with_class_weights<"cross_entropy">>(std::move(x), weights)](
                        auto label) { return cross_entropy<reduction_kind::none, Ignore>(x, label); };
    return detail::weighted_losses<How, Ignore, index_reader::cross_entropy>(of, std::move(labels),
                                                                             std::move(weights));
  };
  return detail::rounded_once(losses, std::move(logits), std::move(class_weights));
}

/// -x[label] for each row of log-probabilities x [..., C] and labels [...] of i64, i32 or u8: the mean (or
/// sum) over all labels, or the loss of each. `Ignore` as in cross_entropy(logits, labels), which equals
/// nll_loss(log_softmax(logits), labels) without rounding in between. A label that is neither `Ignore` nor in
/// [0, C) throws value_error at evaluation.
template <reduction_kind How = reduction_kind::mean, index_t Ignore = ignored_label, expression X,
          expression Y>
constexpr auto nll_loss(X log_probabilities, Y labels) {
  using T = typename X::value_type;
  if constexpr (is_narrow(dtype_of<T>)) {
    return cast<T>(nll_loss<How, Ignore>(cast<float>(std::move(log_probabilities)), std::move(labels)));
  } else {
    auto losses = apply<op::nll_loss, attr<Ignore>>(std::move(log_probabilities), labels);
    if constexpr (How == reduction_kind::mean)
      return sum(std::move(losses)) /
             apply<op::count_labels, attr<Ignore, static_cast<index_t>(dtype_of<T>)>>(std::move(labels));
    else return detail::reduced<How>(std::move(losses));
  }
}

/// The same with a weight per class, as in cross_entropy(logits, labels, class_weights).
template <reduction_kind How = reduction_kind::mean, index_t Ignore = ignored_label, expression X,
          expression Y, expression W>
constexpr auto nll_loss(X log_probabilities, Y labels, W class_weights) {
  static_assert(W::static_shape.order == 1 && is_floating(dtype_of<typename W::value_type>),
                "weft: nll_loss: class weights must be floating, [C]");
  const auto losses = [&](auto x, auto weights) {
    const auto of = [x = apply<op::rows_with_class_weights<"nll_loss">>(std::move(x), weights)](auto label) {
      return apply<op::nll_loss, attr<Ignore>>(x, label);
    };
    return detail::weighted_losses<How, Ignore, index_reader::nll_loss>(of, std::move(labels),
                                                                        std::move(weights));
  };
  return detail::rounded_once(losses, std::move(log_probabilities), std::move(class_weights));
}

}  // namespace weft
