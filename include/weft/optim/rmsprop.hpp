// SPDX-License-Identifier: MIT
// RMSprop and Adagrad with PyTorch's formulas and defaults.
//
//   rmsprop optimizer{.lr = 1e-3, .momentum = 0.9};
//   optimizer.step(model);
#pragma once

#include <weft/optim/optimizer.hpp>

namespace weft {

/// RMSprop (Hinton, 2012), as torch.optim.RMSprop: the gradient is divided by the root of a running mean of
/// its square, minus, if `centered`, the square of its running mean. State: "square_avg", and "grad_avg" and
/// "momentum_buffer" if they are used. Throws value_error at a step if a setting is negative or NaN, or alpha
/// is 1 or more.
struct rmsprop {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
  optimizer_state state{};
  std::int64_t steps = 0;
  static constexpr bool assigns_once = true;
  static constexpr const char* saved_as = "rmsprop";

  /// As sgd::step.
  template <class Model>
  void step(Model& model, double scale = 1, context& c = default_context()) {
    update_parameters(*this, model, scale, c);
  }

  template <element T>
  void update(const parameter_update<T>& u) const;
  void check() const {
    detail::require_fields(
        "rmsprop", {{"lr", lr}, {"eps", eps}, {"weight_decay", weight_decay}, {"momentum", momentum}});
    detail::require_fractions("rmsprop", {{"alpha", alpha}});
  }
};

template <element T>
void rmsprop::update(const parameter_update<T>& u) const {
  const auto kept = u.number(alpha), taken = u.number(1 - alpha), rate = u.number(lr), offset = u.number(eps);
  const auto value = u.value();
  const auto square = u.state("square_avg");
  const auto g = u.gradient() + u.decay(value, weight_decay);
  // Assigns the parameter and the state tensors `means`. `size_of(slope, f)` calls f with the divisor of the
  // gradient and the new values of `means`.
  const auto assign = [&](auto size_of, const auto&... means) {
    const auto velocity_of = [&](auto slope) {
      return u.state("momentum_buffer") * u.number(momentum) + slope;
    };
    if (momentum > 0)
      u.assign(let(g,
                   [&](auto slope) {
                     return size_of(slope, [&](auto size, auto... values) {
                       return let(velocity_of(slope / size),
                                  [&](auto v) { return u.results(value - v * rate, values..., v); });
                     });
                   }),
               means..., u.state("momentum_buffer"));
    else
      u.assign(let(g,
                   [&](auto slope) {
                     return size_of(slope, [&](auto size, auto... values) {
                       return u.results(value - slope / size * rate, values...);
                     });
                   }),
               means...);
  };
  if (centered) {
    const auto mean = u.state("grad_avg");
    assign(
        [&](auto slope, auto f) {
          return let(square * kept + slope * slope * taken, [&](auto s) {
            return let(mean + (slope - mean) * taken,
                       [&](auto m) { return f(sqrt(s - m * m) + offset, s, m); });
          });
        },
        square, mean);
  } else {
    assign(
        [&](auto slope, auto f) {
          return let(square * kept + slope * slope * taken, [&](auto s) { return f(sqrt(s) + offset, s); });
        },
        square);
  }
}

/// Adagrad (Duchi, Hazan and Singer, 2011), as torch.optim.Adagrad: the gradient is divided by the root of
/// the sum of its squares so far. State: "sum". Throws value_error at a step if a setting is negative or NaN.
struct adagrad {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
  optimizer_state state{};
  std::int64_t steps = 0;
  static constexpr bool assigns_once = true;
  static constexpr const char* saved_as = "adagrad";

  /// As sgd::step.
  template <class Model>
  void step(Model& model, double scale = 1, context& c = default_context()) {
    update_parameters(*this, model, scale, c);
  }

  template <element T>
  void update(const parameter_update<T>& u) const;
  void check() const {
    detail::require_fields("adagrad", {{"lr", lr},
                                       {"lr_decay", lr_decay},
                                       {"weight_decay", weight_decay},
                                       {"initial_accumulator_value", initial_accumulator_value},
                                       {"eps", eps}});
  }
};

template <element T>
void adagrad::update(const parameter_update<T>& u) const {
  const auto rate = u.number(lr / (1 + static_cast<double>(steps - 1) * lr_decay)), offset = u.number(eps);
  const auto value = u.value();
  const auto sum = u.state("sum", initial_accumulator_value);
  u.assign(let(u.gradient() + u.decay(value, weight_decay),
               [&](auto g) {
                 return let(sum + g * g,
                            [&](auto s) { return u.results(value - g / (sqrt(s) + offset) * rate, s); });
               }),
           sum);
}

}  // namespace weft
