// SPDX-License-Identifier: MIT
// Optimizers: SGD, Adam and AdamW with PyTorch's formulas and defaults.
//
// An update is an expression, computed in place by one kernel per parameter, or on GPUs by one launch for all
// parameters: in f64 for f64 parameters, in f32 for f32, bf16 and f16 ones, rounded once at the end. State
// has the type of the computation. `step` consumes the gradients: the next backward pass starts from none.
// parameter_update.hpp shows how to write your own.
//
//   adamw optimizer{.lr = 3e-4};
//   optimizer.step(model);
#pragma once

#include <cmath>

#include <weft/optim/fields.hpp>
#include <weft/optim/parameter_update.hpp>

namespace weft {

/// Stochastic gradient descent with momentum, optionally Nesterov's, and weight decay added to the gradient,
/// as torch.optim.SGD with dampening 0. State: "momentum", if momentum is not 0. Throws value_error at a step
/// if a setting is negative or NaN, or for nesterov without momentum.
struct sgd {
  double lr = 1e-3;
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
  optimizer_state state{};
  std::int64_t steps = 0;
  static constexpr bool assigns_once = true;
  static constexpr const char* saved_as = "sgd";

  /// Updates every parameter that has a gradient, which is multiplied by `scale`, and drops the gradients
  /// (update_parameters). `c` is on the device of the model. Throws usage_error if no parameter has a
  /// gradient, value_error if a setting is out of range.
  template <class Model>
  void step(Model& model, double scale = 1, context& c = default_context()) {
    update_parameters(*this, model, scale, c);
  }
  /// Compile-time error: `step` needs the model.
  template <class Model = void>
  void step() {
    static_assert(detail::unsupported<Model>,
                  "weft: optimizer: step takes the model: optimizer.step(model); "
                  "it clears the gradients");
  }

  template <element T>
  void update(const parameter_update<T>& u) const;
  void check() const {
    detail::require_fields("sgd", {{"lr", lr}, {"momentum", momentum}, {"weight_decay", weight_decay},
                                   {"steps", static_cast<double>(steps)}});
    if (nesterov && momentum == 0)
      detail::refuse_field("sgd", "momentum", momentum, "a value above 0, as Nesterov momentum needs");
  }
};

template <element T>
void sgd::update(const parameter_update<T>& u) const {
  const auto value = u.value();
  const auto g = u.gradient() + u.decay(value, weight_decay);
  const auto rate = u.number(lr);
  if (momentum == 0) return u.assign(value - g * rate);
  const auto mu = u.number(momentum);
  const bool first = !u.has_state("momentum");
  const auto velocity = u.state("momentum");
  const auto moved = velocity * (first ? u.number(0) : mu);
  if (nesterov)
    u.assign(let(g,
                 [&](auto slope) {
                   return let(moved + slope,
                              [&](auto v) { return u.results(value - (slope + v * mu) * rate, v); });
                 }),
             velocity);
  else u.assign(let(moved + g, [&](auto v) { return u.results(value - v * rate, v); }), velocity);
}
#ifdef WEFT_COMPILED
extern template void sgd::update(const parameter_update<float>&) const;
extern template void sgd::update(const parameter_update<double>&) const;
extern template void sgd::update(const parameter_update<bfloat16>&) const;
extern template void sgd::update(const parameter_update<float16>&) const;
#endif

namespace detail {
/// What a step of Adam and of AdamW needs.
struct adam_settings {
  double lr, beta1, beta2, eps;
  double decay;              // lr * decay * value is subtracted from the value
  double decay_in_gradient;  // decay_in_gradient * value is added to the gradient
  std::int64_t steps;

  void check(const char* optimizer) const {
    require_fields(optimizer, {{"lr", lr},
                               {"eps", eps},
                               {"weight_decay", decay + decay_in_gradient},
                               {"steps", static_cast<double>(steps)}});
    require_fractions(optimizer, {{"beta1", beta1}, {"beta2", beta2}});
  }
};

/// `Amsgrad`: divides by the root of the largest exp_avg_sq so far (amsgrad.hpp).
template <bool Amsgrad, element T>
void adam_update(const parameter_update<T>& u, const adam_settings& s) {
  const double correction1 = 1 - std::pow(s.beta1, static_cast<double>(s.steps));
  const double correction2 = 1 - std::pow(s.beta2, static_cast<double>(s.steps));
  const auto b1 = u.number(s.beta1), rest1 = u.number(1 - s.beta1);
  const auto b2 = u.number(s.beta2), rest2 = u.number(1 - s.beta2);
  // m / correction1 / (sqrt(v) / root + eps), rearranged to save one product per element
  const double root = std::sqrt(correction2);
  const auto rate = u.number(s.lr * root / correction1), offset = u.number(s.eps * root);
  const auto shrink = u.number(1 - s.lr * s.decay);
  const auto first = u.state("exp_avg"), second = u.state("exp_avg_sq");
  const auto decayed_first = first * b1, decayed_second = second * b2;
  const auto slope = u.gradient();
  // Assigns the parameter and its state; size_of(v, f) calls f with the root by which the step is divided,
  // and the new values of `largest`.
  const auto assign = [&](auto size_of, const auto&... largest) {
    u.assign(let(u.value(),
                 [&](auto value) {
                   return let(slope + u.decay(value, s.decay_in_gradient), [&](auto g) {
                     return let(decayed_first + g * rest1, [&](auto m) {
                       return let(decayed_second + g * g * rest2, [&](auto v) {
                         return size_of(v, [&](auto size, auto... values) {
                           return u.results(value * shrink - m * rate / (size + offset), m, v, values...);
                         });
                       });
                     });
                   });
                 }),
             first, second, largest...);
  };
  if constexpr (Amsgrad) {
    const auto largest = u.state("max_exp_avg_sq");
    assign(
        [&](auto v, auto f) { return let(maximum(largest, v), [&](auto top) { return f(sqrt(top), top); }); },
        largest);
  } else {
    assign([](auto v, auto f) { return f(sqrt(v)); });
  }
}
#ifdef WEFT_COMPILED
extern template void adam_update<false>(const parameter_update<float>&, const adam_settings&);
extern template void adam_update<false>(const parameter_update<double>&, const adam_settings&);
extern template void adam_update<false>(const parameter_update<bfloat16>&, const adam_settings&);
extern template void adam_update<false>(const parameter_update<float16>&, const adam_settings&);
#endif
}  // namespace detail

/// Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as torch.optim.AdamW. State: "exp_avg" and
/// "exp_avg_sq". Unlike PyTorch's, biases are corrected by the steps of the optimizer, also of a parameter
/// whose first gradient comes later (docs/semantics.md). Throws value_error at a step if a setting is
/// negative or NaN, or beta1 or beta2 is 1 or more.
struct adamw {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  int decay_from_order = 0;  // parameters of lower order (biases, norms) are not decayed
  optimizer_state state{};
  std::int64_t steps = 0;
  static constexpr bool assigns_once = true;
  static constexpr const char* saved_as = "adamw";

  /// As sgd::step.
  template <class Model>
  void step(Model& model, double scale = 1, context& c = default_context()) {
    update_parameters(*this, model, scale, c);
  }
  /// Compile-time error: `step` needs the model.
  template <class Model = void>
  void step() {
    static_assert(detail::unsupported<Model>,
                  "weft: optimizer: step takes the model: optimizer.step(model); "
                  "it clears the gradients");
  }

  /// `Amsgrad`: see amsgrad.hpp.
  template <bool Amsgrad = false, element T>
  void update(const parameter_update<T>& u) const {
    detail::adam_update<Amsgrad>(u, settings(u.order() >= decay_from_order ? weight_decay : 0));
  }
  void check() const { settings(weight_decay).check(saved_as); }

 private:
  detail::adam_settings settings(double decay) const { return {lr, beta1, beta2, eps, decay, 0, steps}; }
};

/// Adam (Kingma and Ba, 2015), as torch.optim.Adam: weight decay is added to the gradient. Otherwise as
/// adamw.
struct adam {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  int decay_from_order = 0;  // as in adamw
  optimizer_state state{};
  std::int64_t steps = 0;
  static constexpr bool assigns_once = true;
  static constexpr const char* saved_as = "adam";

  /// As sgd::step.
  template <class Model>
  void step(Model& model, double scale = 1, context& c = default_context()) {
    update_parameters(*this, model, scale, c);
  }

  /// `Amsgrad`: see amsgrad.hpp.
  template <bool Amsgrad = false, element T>
  void update(const parameter_update<T>& u) const {
    detail::adam_update<Amsgrad>(u, settings(u.order() >= decay_from_order ? weight_decay : 0));
  }
  void check() const { settings(weight_decay).check(saved_as); }

 private:
  detail::adam_settings settings(double decay) const { return {lr, beta1, beta2, eps, 0, decay, steps}; }
};

}  // namespace weft
