// SPDX-License-Identifier: MIT
// Optimizers: SGD, Adam and AdamW with PyTorch's formulas and defaults.
//
// An update is an expression, computed in place by one kernel per parameter, or by one launch for all of them
// on GPUs: in f64 for f64 parameters, in f32 for f32, bf16 and f16 ones and rounded at the end. State has the
// type of the computation. `step` consumes the gradients: the next backward starts without.
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
  /// Compile-time error: no model.
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
      detail::refuse_field("sgd", "momentum", momentum, "above 0, as Nesterov's form needs");
  }
};

template <element T>
void sgd::update(const parameter_update<T>& u) const {
  const auto value = u.value();
  const auto g = u.gradient() + value * u.number(weight_decay);
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
  bool decoupled = true;     // false: decay is part of the gradient, as in Adam
  optimizer_state state{};
  std::int64_t steps = 0;
  static constexpr bool assigns_once = true;
  static constexpr const char* saved_as = "adamw";

  /// Updates every parameter that has a gradient, which is multiplied by `scale`, and drops the gradients
  /// (update_parameters). `c` is on the device of the model. Throws usage_error if no parameter has a
  /// gradient, value_error if a setting is out of range.
  template <class Model>
  void step(Model& model, double scale = 1, context& c = default_context()) {
    update_parameters(*this, model, scale, c);
  }
  /// Compile-time error: no model.
  template <class Model = void>
  void step() {
    static_assert(detail::unsupported<Model>,
                  "weft: optimizer: step takes the model: optimizer.step(model); "
                  "it clears the gradients");
  }

  template <element T>
  void update(const parameter_update<T>& u) const;
  void check() const {
    detail::require_fields(
        "adamw",
        {{"lr", lr}, {"eps", eps}, {"weight_decay", weight_decay}, {"steps", static_cast<double>(steps)}});
    detail::require_fractions("adamw", {{"beta1", beta1}, {"beta2", beta2}});
  }
};

template <element T>
void adamw::update(const parameter_update<T>& u) const {
  const double correction1 = 1 - std::pow(beta1, static_cast<double>(steps));
  const double correction2 = 1 - std::pow(beta2, static_cast<double>(steps));
  const auto b1 = u.number(beta1), rest1 = u.number(1 - beta1);
  const auto b2 = u.number(beta2), rest2 = u.number(1 - beta2);
  // m / correction1 / (sqrt(v) / root + eps), rearranged to save one product per element
  const double root = std::sqrt(correction2);
  const auto rate = u.number(lr * root / correction1), offset = u.number(eps * root);
  const double decay = u.order() >= decay_from_order ? weight_decay : 0;
  const auto shrink = u.number(decoupled ? 1 - lr * decay : 1);
  const auto coupled = u.number(decoupled ? 0 : decay);
  const auto first = u.state("exp_avg"), second = u.state("exp_avg_sq");
  const auto decayed_first = first * b1, decayed_second = second * b2;
  const auto slope = u.gradient();
  u.assign(let(u.value(),
               [&](auto value) {
                 return let(slope + value * coupled, [&](auto g) {
                   return let(decayed_first + g * rest1, [&](auto m) {
                     return let(decayed_second + g * g * rest2, [&](auto v) {
                       return u.results(value * shrink - m * rate / (sqrt(v) + offset), m, v);
                     });
                   });
                 });
               }),
           first, second);
}
#ifdef WEFT_COMPILED
extern template void adamw::update(const parameter_update<float>&) const;
extern template void adamw::update(const parameter_update<double>&) const;
extern template void adamw::update(const parameter_update<bfloat16>&) const;
extern template void adamw::update(const parameter_update<float16>&) const;
#endif

/// Adam (Kingma and Ba, 2015), as torch.optim.Adam; weight decay, if set, is added to the gradient.
inline adamw adam(double lr = 1e-3) { return adamw{.lr = lr, .weight_decay = 0, .decoupled = false}; }

}  // namespace weft
