// SPDX-License-Identifier: MIT
// AMSGrad: Adam and AdamW that divide by the root of the largest average of squares so far.
//
//   amsgrad optimizer{adamw{.lr = 1e-3}};
//   optimizer.step(model);
#pragma once

#include <concepts>
#include <cstdint>

#include <weft/optim/optimizer.hpp>

namespace weft {

/// AMSGrad (Reddi, Kale and Kumar, 2018) with the settings of an `adam` or `adamw`, as torch.optim.Adam and
/// AdamW with amsgrad=True. State: "exp_avg", "exp_avg_sq" and "max_exp_avg_sq"; the state and steps of
/// `settings` are not used. A type of its own, so that users of Adam do not compile it. Throws value_error at
/// a step if a setting is out of range.
template <class Adam>
struct amsgrad {
  static_assert(std::same_as<Adam, adam> || std::same_as<Adam, adamw>,
                "weft: amsgrad: the settings must be those of adam or adamw: amsgrad{adamw{.lr = 1e-3}}");
  Adam settings;
  optimizer_state state{};
  std::int64_t steps = 0;
  static constexpr bool assigns_once = true;
  static constexpr const char* saved_as = std::same_as<Adam, adam> ? "adam_amsgrad" : "adamw_amsgrad";

  /// As sgd::step.
  template <class Model>
  void step(Model& model, double scale = 1, context& c = default_context()) {
    update_parameters(*this, model, scale, c);
  }

  template <element T>
  void update(const parameter_update<T>& u) const {
    Adam now = settings;
    now.steps = steps;
    now.template update<true>(u);
  }
  void check() const { settings.check(); }
};
template <class Adam>
amsgrad(Adam) -> amsgrad<Adam>;

}  // namespace weft
