// SPDX-License-Identifier: MIT
// L-BFGS with PyTorch's formulas and defaults: for functions without noise, such as the loss over all data.
//
//   lbfgs optimizer{.line_search = true};
//   optimizer.step(model, [&] {
//     tape steps;
//     auto loss = steps.eval(mse_loss(model(x), y));
//     steps.backward(loss);
//     return loss.item();
//   });
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include <weft/optim/fields.hpp>
#include <weft/optim/line_search.hpp>
#include <weft/optim/optimizer_state.hpp>
#include <weft/tensor/create.hpp>

namespace weft {

/// L-BFGS (Liu and Nocedal, 1989), as torch.optim.LBFGS. Keeps 2 `history_size` + 4 vectors of all
/// parameters. It is not for `bind`, and its history is not part of checkpoints: without it the next step
/// starts along the gradient.
struct lbfgs {
  double lr = 1;
  int max_iter = 20;               // directions in a step
  int max_eval = 0;                // evaluations in a step; 0: 5 / 4 of max_iter
  double tolerance_grad = 1e-7;    // ends a step: the largest element of the gradient
  double tolerance_change = 1e-9;  // ends a step: the largest change of a parameter, or that of the value
  int history_size = 100;
  bool line_search = false;  // "strong_wolfe"; otherwise step lengths are lr

  // The history, as left by the last step.
  struct correction {
    std::shared_ptr<tensor_state> step, change;  // change of the parameters; of the gradient
    double inverse;                              // 1 / (step . change)
  };
  std::deque<correction> corrections{};
  double curvature = 1;  // the scale of the first estimate of a direction
  std::shared_ptr<tensor_state> gradient{}, direction{};
  double length = 0;  // along `direction`
  std::vector<std::weak_ptr<tensor_state>> known_parameters{};  // the history is of these

  /// Minimises `function()`, which returns its value as a number after a backward pass that has set the
  /// gradients of `model`; it is called several times. Returns the value before the step. Parameters without
  /// a gradient do not change. `c` is on the device of the model. Throws value_error if a setting is negative
  /// or NaN, the parameters are not all f32 or all f64, one is sharded, or the history is of another model;
  /// usage_error if no parameter has a gradient. If `function` throws, the parameters are reset to those from
  /// which the last search began, and the next step starts along the gradient.
  template <class Model, std::invocable Function>
  double step(Model& model, Function function, context& c = default_context()) {
    (void)sizeof(detail::trained_model_law<detail::content_of<Model> != detail::content::none, Model>);
    check();
    const state_dict_t parameters = named_parameters(model);
    const bool is_wide = !parameters.empty() && parameters[0].second->type == dtype::f64;
    static_assert(std::is_arithmetic_v<std::invoke_result_t<Function&>>,
                  "weft: lbfgs: the function must compute gradients and return the loss as a number: "
                  "steps.backward(loss); return loss.item();");
    const std::function<double()> value = [&] { return static_cast<double>(function()); };
    return is_wide ? minimize<double>(parameters, value, c) : minimize<float>(parameters, value, c);
  }

 private:
  void check() const {
    detail::require_fields("lbfgs", {{"lr", lr},
                                     {"max_iter", static_cast<double>(max_iter)},
                                     {"max_eval", static_cast<double>(max_eval)},
                                     {"tolerance_grad", tolerance_grad},
                                     {"tolerance_change", tolerance_change},
                                     {"history_size", static_cast<double>(history_size)}});
  }
  template <element T>
  double minimize(const state_dict_t& parameters, const std::function<double()>& function, context& c);
  /// The direction at a point with the gradient `g`.
  template <element T>
  tensor<T, extents<dyn>> next_direction(const tensor<T, extents<dyn>>& g, context& c);
};

namespace detail {

/// The parameters of a model as one vector.
template <element T>
class parameter_vector {
 public:
  using vector = tensor<T, extents<dyn>>;

  parameter_vector(const state_dict_t& parameters, context& c) : context_(c) {
    for (const auto& [name, p] : parameters) {
      if (p->divided) refuse_part("lbfgs", name, *p);
      if (p->type != dtype_of<T>)
        refuse<value_error>({"weft: lbfgs: parameter ", name, " is ", name_of(p->type), ", not ",
                             name_of(dtype_of<T>), ": parameters must be all f32 or all f64"});
      if (!is_new(parameters_, p)) continue;  // which appends it
      size_ += p->extents.size();
    }
  }
  const tensor_list& states() const { return parameters_; }
  bool is_of(const std::vector<std::weak_ptr<tensor_state>>& known) const {
    return std::equal(parameters_.begin(), parameters_.end(), known.begin(), known.end(),
                      [](const auto& p, const auto& k) { return p == k.lock(); });
  }
  void clear_gradients() {
    for (const auto& p : parameters_) p->grad = nullptr;
  }
  /// 0 for parameters without a gradient. Throws usage_error if none has one.
  vector gradients() const {
    require_gradients(parameters_);
    return joined([](state_ref p) -> state_ref { return p->grad; });
  }
  vector values() const {
    return joined([](state_ref p) -> state_ref { return p; });
  }
  /// Sets the parameters to from + along * t, to `from` itself if t is 0.
  void set(const vector& from, const vector& along, double t) {
    index_t at = 0;
    for (const auto& p : parameters_) {
      const shape n{1, {p->extents.size()}};
      const vector start(part_of(*from.state(), at, n)), step(part_of(*along.state(), at, n));
      if (t == 0) update(flat_view<T>(p), start, context_);
      else update(flat_view<T>(p), start + step * static_cast<T>(t), context_);
      at += n[0];
    }
  }

 private:
  template <class F>
  vector joined(F of) const {
    vector all = zeros<T>(extents<dyn>{size_}, context_.where());
    index_t at = 0;
    for (const auto& p : parameters_) {
      const shape n{1, {p->extents.size()}};
      if (of(p)) update(vector(part_of(*all.state(), at, n)), flat_view<T>(of(p)), context_);
      at += n[0];
    }
    return all;
  }

  tensor_list parameters_;
  context& context_;
  index_t size_ = 0;
};

template <element T>
double dot(const tensor<T, extents<dyn>>& a, const tensor<T, extents<dyn>>& b, context& c) {
  return static_cast<double>(eval(sum(a * b), c).item());
}
template <element T>
double largest_magnitude(const tensor<T, extents<dyn>>& a, context& c) {
  return a.size() == 0 ? 0 : static_cast<double>(eval(amax(abs(a)), c).item());
}

}  // namespace detail

template <element T>
tensor<T, extents<dyn>> lbfgs::next_direction(const tensor<T, extents<dyn>>& g, context& c) {
  using vector = tensor<T, extents<dyn>>;
  vector d = eval(-g, c);
  if (!direction) return d;
  const vector change = eval(g - vector(gradient), c);
  const vector moved = eval(vector(direction) * static_cast<T>(length), c);
  const double product = detail::dot(change, moved, c);
  if (product > 1e-10 && history_size > 0) {
    if (std::ssize(corrections) >= history_size) corrections.pop_front();
    corrections.push_back({moved.state(), change.state(), 1 / product});
    curvature = product / detail::dot(change, change, c);
  }
  std::vector<double> factors(corrections.size());
  for (std::size_t i = corrections.size(); i-- > 0;) {
    const correction& k = corrections[i];
    factors[i] = detail::dot(vector(k.step), d, c) * k.inverse;
    update(d, d - vector(k.change) * static_cast<T>(factors[i]), c);
  }
  update(d, d * static_cast<T>(curvature), c);
  for (std::size_t i = 0; i < corrections.size(); ++i) {
    const correction& k = corrections[i];
    const double factor = factors[i] - detail::dot(vector(k.change), d, c) * k.inverse;
    update(d, d + vector(k.step) * static_cast<T>(factor), c);
  }
  return d;
}

template <element T>
double lbfgs::minimize(const state_dict_t& parameters, const std::function<double()>& function, context& c) {
  using vector = tensor<T, extents<dyn>>;
  detail::parameter_vector<T> all(parameters, c);
  if (gradient && !all.is_of(known_parameters))
    refuse<value_error>(
        {"weft: lbfgs: the history belongs to another model: use an optimizer for each model"});
  known_parameters.assign(all.states().begin(), all.states().end());
  std::int64_t evaluations = 0;
  const auto evaluate = [&](double t) {
    ++evaluations;
    all.clear_gradients();
    const double value = function();
    return detail::search_point{t, value, 0, all.gradients().state()};
  };
  const auto is_flat = [&](const detail::search_point& p) {
    return detail::largest_magnitude(vector(p.gradient), c) <= tolerance_grad;
  };
  const std::int64_t most = max_eval > 0 ? max_eval : std::int64_t{max_iter} * 5 / 4;
  detail::search_point now = evaluate(0);
  const double first = now.value;
  for (int i = 1; i <= max_iter && !is_flat(now); ++i) {
    const vector g(now.gradient), d = next_direction(g, c);
    length = direction ? lr : lr * std::min(1.0, 1 / static_cast<double>(eval(sum(abs(g)), c).item()));
    gradient = g.state();
    direction = d.state();
    now.t = 0;
    now.slope = detail::dot(g, d, c);
    if (now.slope > -tolerance_change) break;
    const double value = now.value, longest = detail::largest_magnitude(d, c);
    const vector start = all.values();
    const auto evaluate_at = [&](double t) {
      all.set(start, d, t);
      detail::search_point p = evaluate(t);
      p.slope = detail::dot(vector(p.gradient), d, c);
      return p;
    };
    try {
      if (line_search) {
        now = detail::strong_wolfe(now, length, most - evaluations, tolerance_change / longest, evaluate_at);
        length = now.t;
        all.set(start, d, length);
      } else if (i < max_iter) now = evaluate_at(length);
      else all.set(start, d, length);
    } catch (...) {  // `function` threw: the last direction gives no correction
      direction = nullptr;
      all.set(start, d, 0);
      throw;
    }
    if (evaluations >= most || longest * length <= tolerance_change ||
        std::abs(now.value - value) < tolerance_change)
      break;
  }
  all.clear_gradients();
  return first;
}

}  // namespace weft
