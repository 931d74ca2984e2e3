// SPDX-License-Identifier: MIT
// The update of one parameter, and of all parameters of a model: the building blocks of optimizers.
//
//   struct sign_sgd {
//     double lr = 1e-3;
//     optimizer_state state{};
//     std::int64_t steps = 0;
//
//     template <element T>
//     void update(const parameter_update<T>& u) const {
//       u.assign(u.value() - sign(u.gradient()) * u.number(lr));
//     }
//   };
//   sign_sgd optimizer;
//   update_parameters(optimizer, model);      // or bind<plan>(model, optimizer, ranks)
#pragma once

#include <concepts>

#include <weft/optim/gradient_scale.hpp>
#include <weft/optim/optimizer_state.hpp>
#include <weft/optim/whole_computations.hpp>
#include <weft/run/joint_launch.hpp>

namespace weft {

namespace detail {
/// Calls f() with `t` moved to the device `where`, and moves it back.
template <class F>
void at_device(tensor_state& t, const device& where, F f) {
  const device home = t.where;
  move_to(t, where);
  try {
    f();
  } catch (...) {
    move_to(t, home);
    throw;
  }
  move_to(t, home);
}
}  // namespace detail

/// A parameter of element type T and its gradient, both flat, as an optimizer's `update` receives them.
/// Sharded strategies pass this rank's rows only, so an update must treat all elements alike, or compute on
/// whole parameters by `with_whole`.
template <element T>
class parameter_update {
 public:
  /// The type in which updates are computed: f64 for f64 parameters, otherwise f32.
  using number_type = detail::update_number<T>;

  /// Assignments may be deferred to `together`. `whole`: executes computations on whole parameters; null if
  /// parameters are not sharded. `needs_whole`: whether the optimizer declares it.
  parameter_update(const std::string& name, detail::state_ref parameter, detail::state_ref gradient,
                   gradient_scale& scale, optimizer_state& state, context& c,
                   runtime::joint_launch* together = nullptr, whole_computations* whole = nullptr,
                   bool needs_whole = false)
      : name_(name),
        parameter_(parameter),
        gradient_(gradient),
        scale_(scale),
        state_(state),
        context_(c),
        together_(together),
        whole_(whole),
        needs_whole_(needs_whole) {}

  const std::string& name() const { return name_; }
  /// Number of dims of the whole parameter.
  int order() const { return parameter_->extents.order; }
  /// The extents of the whole parameter. Throws value_error, naming the parameter and `optimizer`, which
  /// needs all of it, if this rank has only a part and the update is not executed by the run that sharded the
  /// parameter.
  shape whole_extents(const char* optimizer) const {
    if (whole_) return whole_->extents_of(name_);
    if (parameter_->divided) detail::refuse_part(optimizer, name_, *parameter_);
    return parameter_->extents;
  }
  /// The context that evaluates the update.
  context& run_context() const { return context_; }

  /// The parameter's elements as an expression of shape [elements] and type number_type.
  auto value() const { return detail::in_type<number_type>(flat_view<T>(parameter_)); }
  /// The gradient's elements, likewise, multiplied by the scale of the step.
  auto gradient() const {
    return detail::in_type<number_type>(flat_view<T>(gradient_)) *
           scale_.template as<number_type>(gradient_->where);
  }
  static constexpr number_type number(double x) { return static_cast<number_type>(x); }
  /// The value times `coefficient`, as weight decay adds it to the gradient; 0 if the coefficient is 0, even
  /// for infinite values.
  template <expression V>
  static auto decay(const V& value, double coefficient) {
    const number_type factor = number(coefficient);
    return where(scalar<bool>(factor == 0), number(0), value * factor);
  }

  /// Whether the parameter has a state tensor of this kind, that is, `state` has been called for it before.
  bool has_state(std::string_view kind) const { return state_.contains(kind, name_); }
  /// The state tensor `kind`, of shape [elements] and type number_type, whose elements are `initial` when it
  /// is first requested.
  tensor<number_type, extents<dyn>> state(std::string_view kind, double initial = 0) const {
    return flat_view<number_type>(state_.get(kind, name_, *parameter_, dtype_of<number_type>, initial));
  }

  /// Computes f on a whole tensor x and calls done(y). `own` is this rank's part of x, sharded like the
  /// parameter, and y is this rank's part of f(x); all have shape [elements]. If ranks have rows or copies of
  /// the parameter, one of them computes f, and done is called before the step completes, so both must own
  /// copies of what they use, including this object. Otherwise both are called at once. Throws usage_error
  /// unless the optimizer declares needs_whole. If a step throws while parameters wait for done, drop the
  /// gradients.
  template <class F, class Done>
  void with_whole(const tensor<number_type, extents<dyn>>& own, F f, Done done) const {
    using numbers = tensor<number_type, extents<dyn>>;
    if (!needs_whole_)
      throw usage_error(
          "weft: optimizer: the update calls with_whole, but the optimizer lacks `static constexpr bool "
          "needs_whole = true;`");
    if (!whole_) return done(f(own));
    using state = whole_computation::state;
    whole_->add({name_, own.state(),
                 [f = std::move(f)](const state& whole) -> state { return f(numbers(whole)).state(); },
                 [done = std::move(done), p = parameter_, where = gradient_->where, of = &state_,
                  lent = state_.lend()](const state& rows) {
                   detail::at_device(*p, where, [&] { done(numbers(rows)); });
                   of->give_back(lent);
                   of->updated();
                 }});
  }

  /// The new values of the parameter, rounded to T, and of state tensors, as one expression, so that they can
  /// share a `let`.
  template <expression V, expression... State>
  static auto results(const V& value, const State&... state) {
    return bundled(detail::in_type<T>(value), state...);
  }
  /// Sets the parameter to `value`, rounded to T.
  template <expression V>
  void assign(const V& value) const {
    weft::update(context_, {parameter_}, detail::in_type<T>(value), together_);
  }
  /// Sets the parameter and these state tensors to `values`, made by `results`, in one kernel. All values are
  /// computed from the elements before the update.
  template <expression V, class... State>
    requires(sizeof...(State) > 0)
  void assign(const V& values, const State&... state) const {
    weft::update(context_, {parameter_, state.state()...}, values, together_);
  }

 private:
  const std::string& name_;
  std::shared_ptr<tensor_state> parameter_, gradient_;
  gradient_scale& scale_;
  optimizer_state& state_;
  context& context_;
  runtime::joint_launch* together_;
  whole_computations* whole_;
  bool needs_whole_;
};

/// An optimizer: `update` changes one parameter, `state` holds its state tensors, and `steps` is the number
/// of steps, incremented before the first update of a step. Both are saved in checkpoints. Optional:
/// `check()`, called before each step, throws value_error for settings out of range, as does
/// `check(parameters)`, called with the parameters before they change; `assigns_once`, true if the only
/// `assign` of `update` is its last statement and it reads nothing of other parameters, so that devices can
/// update all parameters in one launch; `needs_whole`, true if `update` calls with_whole, in which case all
/// ranks that shard a parameter call `update`, also those without rows; `saved_as`, the optimizer's name in
/// checkpoints: a checkpoint with another name is not loaded.
template <class O>
concept optimizer_like = requires(O& o, const parameter_update<float>& u) {
  { o.state } -> std::same_as<optimizer_state&>;
  { o.steps } -> std::same_as<std::int64_t&>;
  o.update(u);
};

namespace detail {

/// Whether optimizers of this type assign to each parameter once.
template <class O>
inline constexpr bool assigns_once = false;
template <class O>
  requires requires { O::assigns_once; }
inline constexpr bool assigns_once<O> = O::assigns_once;

/// Whether optimizers of this type compute with whole parameters.
template <class O>
inline constexpr bool needs_whole = false;
template <class O>
  requires requires { O::needs_whole; }
inline constexpr bool needs_whole<O> = O::needs_whole;

/// The name of optimizers of this type in checkpoints; empty if they declare none.
template <class O>
inline constexpr const char* name_of_optimizer = "";
template <class O>
  requires requires { O::saved_as; }
inline constexpr const char* name_of_optimizer<O> = O::saved_as;

/// Updates a parameter if it has a gradient, and drops the gradient, unless the update fails. A parameter
/// kept on another device is moved to the device of its gradient for the update, which is then not deferred
/// to `together`.
template <element T, class O>
void update_parameter(O& o, const std::string& name, state_ref p, gradient_scale& scale, context& c,
                      runtime::joint_launch& together, whole_computations* whole = nullptr) {
  const std::shared_ptr<tensor_state> grad = std::exchange(p->grad, nullptr);
  if (!grad || (p->extents.size() == 0 && !needs_whole<O>)) return;
  const bool moves = !(p->where == grad->where) || o.state.is_kept_elsewhere();
  try {
    at_device(*p, grad->where, [&] {
      o.update(parameter_update<T>(name, p, grad, scale, o.state, c,
                                   assigns_once<O> && !moves ? &together : nullptr, whole, needs_whole<O>));
    });
  } catch (...) {
    p->grad = grad;  // restored
    throw;
  }
  o.state.updated();
}

/// Throws device_error if a gradient is on another device than the context, which computes the updates.
inline void check_devices(const state_dict_t& parameters, const context& c) {
  for (const auto& [name, p] : parameters)
    if (p->grad && !(p->grad->where == c.where())) refuse_step(name, *p->grad, c.where());
}

/// Executes one step, which is not counted in `steps` if it fails.
template <class Update>
void in_one_step(std::int64_t& steps, const Update& update) {
  ++steps;
  try {
    update();
  } catch (...) {
    --steps;
    throw;
  }
}

template <class O>
void check_settings(const O& o) {
  if constexpr (requires { o.check(); }) o.check();
}
template <class O>
void check_settings(const O& o, const state_dict_t& parameters) {
  if constexpr (requires { o.check(parameters); }) o.check(parameters);
}

}  // namespace detail

/// One step of `o` on every parameter of `model` that has a gradient, of any floating type. Gradients are
/// multiplied by `scale`, such as 1 / number of micro-batches or a clipping factor, and dropped afterwards.
/// Throws usage_error if no parameter has a gradient, value_error for settings out of range, and, before any
/// change, device_error if `c` is on another device. If an update fails, for example for lack of memory, that
/// parameter and those after it keep their gradients, and another call completes the step.
template <optimizer_like O, class Model>
  requires(!std::same_as<std::remove_const_t<Model>, state_dict_t>)
void update_parameters(O& o, Model& model, gradient_scale scale = 1, context& c = default_context()) {
  detail::check_settings(o);
  const state_dict_t& named = o.state.to_update(model);
  detail::check_settings(o, named);
  detail::check_devices(named, c);
  std::size_t next = 0;
  runtime::joint_launch together(c, "optimizer step");
  const auto visit = [&](detail::no_path, const auto& p) {
    using parameter_type = typename std::remove_cvref_t<decltype(p)>::value_type;
    const std::string& name = named[next++].first;
    if constexpr (is_floating(dtype_of<parameter_type>))
      detail::update_parameter<parameter_type>(o, name, p.state(), scale, c, together);
  };
  detail::in_one_step(o.steps, [&] {
    detail::walk<detail::tensors_of::parameters>(model, detail::no_path{}, visit);
    together.launch();
  });
}

/// The same for f32 parameters by name, which need not have gradients; `whole` as in parameter_update. A
/// template, so that programs that train nothing do not compile it. Throws value_error before any change if a
/// parameter with a gradient has another dtype.
template <optimizer_like O>
void update_parameters(O& o, const state_dict_t& parameters, gradient_scale scale = 1,
                       context& c = default_context(), whole_computations* whole = nullptr) {
  detail::check_settings(o);
  for (const auto& [name, p] : parameters)
    if (p->grad && p->type != dtype::f32)
      refuse<value_error>({"weft: optimizer: parameter ", name, " is ", name_of(p->type), ", not f32"});
  o.state.to_update(parameters);
  detail::check_settings(o, parameters);
  detail::check_devices(parameters, c);
  runtime::joint_launch together(c, "optimizer step");
  detail::in_one_step(o.steps, [&] {
    for (const auto& [name, p] : parameters)
      detail::update_parameter<float>(o, name, p, scale, c, together, whole);
    if (whole) whole->finish();
    together.launch();
  });
}

}  // namespace weft
