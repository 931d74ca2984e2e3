// SPDX-License-Identifier: MIT
// Settings of an optimizer that differ between parameters.
//
//   parameter_groups optimizer{adamw{.lr = 3e-4}, [](const std::string& name, adamw& of) {
//     if (name.starts_with("backbone.")) of.lr *= 0.1;
//     if (name.ends_with(".bias")) of.weight_decay = 0;
//   }};
//   optimizer.step(model);                              // or bind<plan>(model, optimizer, ranks)
#pragma once

#include <concepts>

#include <weft/optim/parameter_update.hpp>

namespace weft {

/// An optimizer in which `adjust(name, settings)` may change the settings for each parameter, like
/// torch.optim's parameter groups. It is called before each update with the parameter's name (as in
/// named_parameters) and a copy of `settings`, whose `state` and `steps` are not used: those of this object
/// hold for all parameters. Change `settings` between steps for a schedule: optimizer.settings.lr =
/// rate(optimizer.steps). Its checkpoints can be loaded into an `Optimizer`, and those of an `Optimizer` into
/// it. Throws value_error at a step, before any parameter changes, if adjusted settings are out of range; for
/// this check `adjust` is called more than once per parameter in a step.
template <optimizer_like Optimizer, class Adjust>
struct parameter_groups {
  static_assert(std::invocable<const Adjust&, const std::string&, Optimizer&> &&
                    !std::invocable<const Adjust&, const std::string&, Optimizer&&>,
                "weft: parameter_groups: adjust must take a parameter's name and settings of the optimizer's "
                "type, which it changes: [](const std::string& name, adamw& settings) { ... }");
  Optimizer settings;
  Adjust adjust;
  optimizer_state state{};
  std::int64_t steps = 0;
  static constexpr bool assigns_once = detail::assigns_once<Optimizer>;
  static constexpr bool needs_whole = detail::needs_whole<Optimizer>;
  static constexpr const char* saved_as = detail::name_of_optimizer<Optimizer>;

  /// Updates every parameter that has a gradient, which is multiplied by `scale`, and drops the gradients
  /// (update_parameters). `c` is on the device of the model. Throws usage_error if no parameter has a
  /// gradient, value_error if a setting is out of range.
  template <class Model>
  void step(Model& model, double scale = 1, context& c = default_context()) {
    update_parameters(*this, model, scale, c);
  }

  template <element T>
  void update(const parameter_update<T>& u) const {
    of(u.name()).update(u);
  }
  void check() const { detail::check_settings(settings); }
  /// Checks the settings of each of these parameters.
  void check(const state_dict_t& parameters) const {
    for (const auto& [name, p] : parameters) detail::check_settings(of(name));
  }

 private:
  Optimizer of(const std::string& name) const {
    Optimizer adjusted = settings;
    adjusted.steps = steps;
    adjust(name, adjusted);
    return adjusted;
  }
};

template <class Optimizer, class Adjust>
parameter_groups(Optimizer, Adjust) -> parameter_groups<Optimizer, Adjust>;

}  // namespace weft
