// SPDX-License-Identifier: MIT
// Muon with PyTorch's formulas and defaults: a matrix is updated by its momentum with all singular values
// brought near 1; other parameters are updated by AdamW.
//
//   muon optimizer{.lr = 2e-2, .others = {.lr = 3e-4}};
//   optimizer.step(model);
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>

#include <weft/op/contraction.hpp>
#include <weft/optim/optimizer.hpp>

namespace weft {

/// Muon (Jordan et al., 2024), as torch.optim.Muon, which computes its products in bf16; here they are in
/// f32, or in f64 for f64 parameters. State: "momentum_buffer" for matrices, and AdamW's for other
/// parameters. Each step multiplies a matrix of n rows and m columns 3 `ns_steps` times, 2 n m min(n, m)
/// operations each. Of the ranks that shard a matrix or hold copies of it, one computes the products and
/// sends the result; ranks that divide a layer (axis tp) all compute them. Throws value_error at a step if a
/// setting is negative or NaN, or momentum is 1 or more.
struct muon {
  enum class adjustment { original, match_rms_adamw };

  double lr = 1e-3;
  double weight_decay = 0.1;
  double momentum = 0.95;
  bool nesterov = true;
  int ns_steps = 5;   // Newton-Schulz iterations
  double eps = 1e-7;  // lower bound of the norm by which a matrix is divided
  adjustment adjust_lr =
      adjustment::original;  // scales the rate by the shape: sqrt(max(1, n / m)), or 0.2 sqrt(max(n, m))
  /// Which matrices are updated by Muon, by name; by default all. Embeddings and the last layer are usually
  /// left to AdamW.
  std::function<bool(const std::string& name)> uses{};
  adamw others{};  // settings for all other parameters; its state and steps are not used
  optimizer_state state{};
  std::int64_t steps = 0;
  static constexpr bool needs_whole = true;
  static constexpr const char* saved_as = "muon";

  /// As sgd::step.
  template <class Model>
  void step(Model& model, double scale = 1, context& c = default_context()) {
    update_parameters(*this, model, scale, c);
  }

  template <element T>
  void update(const parameter_update<T>& u) const;
  void check() const {
    detail::require_fields("muon", {{"lr", lr},
                                    {"weight_decay", weight_decay},
                                    {"ns_steps", static_cast<double>(ns_steps)},
                                    {"eps", eps}});
    detail::require_fractions("muon", {{"momentum", momentum}});
    others.check();
  }
};

namespace detail {

/// The matrix with the singular vectors of `x` and singular values near 1, by the Newton-Schulz iteration of
/// fifth order with the coefficients of Jordan et al. `x` has no more rows than columns.
template <class Matrix>
Matrix orthogonalized(Matrix x, int iterations, double eps, context& c) {
  using number = typename Matrix::value_type;
  const auto norm = eval(sqrt(sum(square(flat_view<number>(x.state())))), c);
  x = eval(x / maximum(norm, static_cast<number>(eps)), c);
  for (int i = 0; i < iterations; ++i) {
    const Matrix gram = eval(matmul(x, transpose(x)), c);
    const Matrix factors = eval(gram * number(-4.7750) + matmul(gram, gram) * number(2.0315), c);
    x = eval(x * number(3.4445) + matmul(factors, x), c);
  }
  return x;
}

}  // namespace detail

template <element T>
void muon::update(const parameter_update<T>& u) const {
  if (u.order() != 2 || (uses && !uses(u.name()))) {
    adamw now = others;
    now.steps = steps;
    return now.update(u);
  }
  using number = typename parameter_update<T>::number_type;
  using matrix = tensor<number, extents<dyn, dyn>>;
  const shape s = u.whole_extents("muon");
  context& c = u.run_context();
  const auto velocity = u.state("momentum_buffer");
  // Nothing changes before the last assignment, so that an update that fails can be repeated.
  const auto moved = [u, velocity, kept = u.number(momentum), rest = u.number(1 - momentum)] {
    return velocity * kept + u.gradient() * rest;
  };
  const auto g = u.gradient();
  const auto slope = nesterov ? eval(g + (moved() - g) * u.number(momentum), c) : eval(moved(), c);
  const auto rows = static_cast<double>(s[0]), columns = static_cast<double>(s[1]);
  const double factor = adjust_lr == adjustment::original ? std::sqrt(std::max(1.0, rows / columns))
                                                          : 0.2 * std::sqrt(std::max(rows, columns));
  const auto direction = [s, &c, n = ns_steps, least = eps](const auto& whole) {
    matrix x(detail::viewed_as(whole.state(), s));
    const bool is_tall = s[0] > s[1];
    if (is_tall) x = eval(transpose(x), c);
    x = detail::orthogonalized(x, n, least, c);
    if (is_tall) x = eval(transpose(x), c);
    return flat_view<number>(x.state());
  };
  u.with_whole(slope, direction,
               [u, velocity, moved, shrink = u.number(1 - lr * weight_decay), rate = u.number(lr * factor)](
                   const auto& x) { u.assign(u.results(u.value() * shrink - x * rate, moved()), velocity); });
}

}  // namespace weft
