// SPDX-License-Identifier: MIT
// Optimisers: SGD, Adam and AdamW with PyTorch's formulas and defaults.
//
// An update is an expression, computed in place by one kernel a parameter: of f64 parameters in f64, of f32,
// bf16 and f16 ones in f32, rounded at the end. State is of the type that is computed with. `step` uses up
// the gradients: the next backward starts from none.
//
//   adamw optimizer{.lr = 3e-4};
//   optimizer.step(model);
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <weft/optim/clip.hpp>
#include <weft/optim/fields.hpp>

namespace weft {

namespace detail {

/// The sentence for a type in which there is nothing to train.
template <bool Holds, class Model>
struct trained_model_law {
  static_assert(Holds, "weft: optimizer: this type has no parameter: pass the model");
};

[[noreturn, gnu::cold]] inline void refuse_step(bool has_parameters) {
  throw usage_error(
      has_parameters
          ? "weft: optimizer: step: no parameter has a gradient: call backward(loss) on the tape that "
            "evaluated the loss, once before each step, with a loss that depends on this model"
          : "weft: optimizer: step: the model has no parameter with elements: members of type "
            "`parameter` are trained; layers with a dyn size are made by `create`");
}
inline void require_gradients(const tensor_list& parameters) {
  for (const auto& p : parameters)
    if (p->grad) return;
  refuse_step(!parameters.empty());
}

/// State tensors of parameters, by kind and name; zero when first asked for. A sorted array: maps of the
/// standard library would take a sixth of the time in which this library compiles.
class optimizer_state {
 public:
  bool contains(std::string_view kind, std::string_view name) const {
    return is_at(place_of(kind, name), kind, name);
  }
  /// Null if it has not been asked for yet.
  std::shared_ptr<tensor_state> find(std::string_view kind, std::string_view name) const {
    const std::size_t place = place_of(kind, name);
    return is_at(place, kind, name) ? slots_[place].tensor : nullptr;
  }
  /// Of the type `type`, on the device of the parameter `like`. Throws value_error if it is there and has
  /// another type or shape.
  std::shared_ptr<tensor_state> get(std::string_view kind, std::string_view name, const tensor_state& like,
                                    dtype type) {
    const std::size_t place = place_of(kind, name);
    std::shared_ptr<tensor_state> t;
    if (is_at(place, kind, name)) {
      t = slots_[place].tensor;
      if (t->type != type || !(t->extents == like.extents))
        throw value_error("weft: optimizer: " + std::string(kind) + " of " + std::string(name) + " is " +
                          name_of(t->type) + " " + to_string(t->extents) + ", not " + name_of(type) + " " +
                          to_string(like.extents));
      move_to(*t, like.where);
    } else {
      t = make_state(like.where, like.extents, type);
      t->where->fill_zero(t->memory.data(), t->bytes());
      insert(place, kind, name, t);
    }
    if (home_) lent_.push_back(t);
    return t;
  }
  std::size_t bytes() const {
    std::size_t n = 0;
    for (const slot& s : slots_) n += s.tensor->bytes();
    return n;
  }
  /// All of them, called "kind.name".
  state_dict_t tensors() const {
    state_dict_t all;
    for (const slot& s : slots_) all.emplace_back(s.kind + "." + s.name, s.tensor);
    return all;
  }
  void set(std::string_view kind, std::string_view name, std::shared_ptr<tensor_state> t) {
    const std::size_t place = place_of(kind, name);
    if (is_at(place, kind, name)) slots_[place].tensor = std::move(t);
    else insert(place, kind, name, std::move(t));
  }

  /// Forgets all of them, as before the first step.
  void clear() { slots_.clear(); }

  /// Where tensors are between updates, other than with their parameters.
  void keep_on(const device& home) {
    home_ = home;
    for (const slot& s : slots_) move_to(*s.tensor, home);
  }
  /// An update is over: what it asked for goes home.
  void updated() {
    for (const auto& t : lent_) move_to(*t, *home_);
    lent_.clear();
  }

  /// The parameters of `m` with their names, which are found anew only when they are other ones. Throws
  /// usage_error if there are none, or none has a gradient: a step that would change nothing.
  template <class M>
  const state_dict_t& to_update(const M& m) {
    (void)sizeof(trained_model_law<content_of<M> != content::none, M>);
    const tensor_list now = parameters_of(m);
    require_gradients(now);
    bool known = now.size() == named_.size();
    for (std::size_t i = 0; known && i < now.size(); ++i) known = now[i] == named_[i].second;
    if (!known) named_ = named_parameters(m);
    return named_;
  }

 private:
  struct slot {
    std::string kind, name;
    std::shared_ptr<tensor_state> tensor;
  };

  /// Where a slot is, or would be.
  std::size_t place_of(std::string_view kind, std::string_view name) const {
    const auto at = std::partition_point(slots_.begin(), slots_.end(), [&](const slot& s) {
      return s.kind < kind || (s.kind == kind && s.name < name);
    });
    return static_cast<std::size_t>(at - slots_.begin());
  }
  bool is_at(std::size_t place, std::string_view kind, std::string_view name) const {
    return place < slots_.size() && slots_[place].kind == kind && slots_[place].name == name;
  }
  void insert(std::size_t place, std::string_view kind, std::string_view name,
              std::shared_ptr<tensor_state> t) {
    slots_.insert(slots_.begin() + static_cast<std::ptrdiff_t>(place),
                  slot{std::string(kind), std::string(name), std::move(t)});
  }

  std::vector<slot> slots_;  // by kind and name
  std::optional<device> home_;
  tensor_list lent_;
  state_dict_t named_;
};

/// Calls f(name, parameter, gradient) if the parameter has a gradient, then drops it. A parameter that lives
/// elsewhere is on the device of its gradient for its update.
template <class F>
void use_gradient(const std::string& name, state_ref p, optimizer_state& state, F f) {
  const std::shared_ptr<tensor_state> grad = std::exchange(p->grad, nullptr);
  if (!grad || p->extents.size() == 0) return;
  const device home = p->where;
  move_to(*p, grad->where);
  f(name, p, grad);
  move_to(*p, home);
  state.updated();
}

/// Calls f(T{}, name, parameter, gradient) for every parameter of `m` that has a gradient, T being its type.
/// `named` are the parameters with their names.
template <class M, class F>
void for_each_update(M& m, const state_dict_t& named, optimizer_state& state, F f) {
  std::size_t next = 0;
  const auto visit = [&](no_path, const auto& p) {
    using T = typename std::remove_cvref_t<decltype(p)>::value_type;
    const std::string& name = named[next++].first;
    if constexpr (is_floating(dtype_of<T>))
      use_gradient(name, p.state(), state, [&](const auto&... update) { f(T{}, update...); });
  };
  walk<tensors_of::parameters>(m, no_path{}, visit);
}

/// Throws value_error if a parameter with a gradient is not f32.
template <class Parameters>
void require_f32(const Parameters& parameters) {
  for (const auto& [name, p] : parameters)
    if (p->grad && p->type != dtype::f32)
      throw value_error("weft: optimizer: parameter " + name + " is " + name_of(p->type) + ", not f32");
}
/// As `for_each_update` for parameters of f32 by name.
template <class Parameters, class F>
void for_each_f32_update(const Parameters& parameters, optimizer_state& state, F f) {
  for (const auto& [name, p] : parameters)
    use_gradient(name, p, state, [&](const auto&... update) { f(float{}, update...); });
}

}  // namespace detail

/// Stochastic gradient descent with momentum, Nesterov's form of it, and weight decay.
struct sgd {
  double lr = 1e-3;
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
  detail::optimizer_state state{};
  std::int64_t steps = 0;

  /// `scale` multiplies the gradients: 1 / number of accumulated ones, or a clipping factor. Parameters may
  /// be of any floating types.
  template <class M>
  void step(M& model, double scale = 1, context& c = default_context()) {
    check();
    const state_dict_t& named = state.to_update(model);
    ++steps;
    detail::for_each_update(model, named, state,
                            [&](auto type, const auto&... of) { change<decltype(type)>(of..., scale, c); });
  }
  /// The same for parameters of f32 by name. A template so that units that train nothing pay nothing. Throws
  /// value_error before anything has changed if a parameter is of another type.
  template <class Parameters>
  void step_all(const Parameters& parameters, double scale, context& c) {
    check();
    detail::require_f32(parameters);
    ++steps;
    detail::for_each_f32_update(
        parameters, state, [&](auto type, const auto&... of) { change<decltype(type)>(of..., scale, c); });
  }

 private:
  void check() const {
    detail::require_fields("sgd", {{"lr", lr}, {"momentum", momentum}, {"weight_decay", weight_decay},
                                   {"steps", static_cast<double>(steps)}});
    if (nesterov && momentum == 0)
      detail::refuse_field("sgd", "momentum", momentum, "above 0, as Nesterov's form needs");
  }
  template <element T>
  void change(const std::string& name, detail::state_ref p, detail::state_ref grad, double scale,
              context& c) {
    using number = detail::update_number<T>;
    const auto value = detail::in_type<number>(flat_view<T>(p));
    const auto g = detail::in_type<number>(flat_view<T>(grad)) * static_cast<number>(scale) +
                   value * static_cast<number>(weight_decay);
    const auto rate = static_cast<number>(lr);
    if (momentum == 0) {
      update(c, {p}, detail::in_type<T>(value - g * rate));
      return;
    }
    const auto mu = static_cast<number>(momentum);
    const bool first = !state.contains("momentum", name);
    const auto& velocity = state.get("momentum", name, *p, dtype_of<number>);
    const auto moved = flat_view<number>(velocity) * (first ? number{0} : mu);
    if (nesterov)
      update(c, {p, velocity}, let(g, [&](auto slope) {
               return let(moved + slope, [&](auto v) {
                 return bundled(detail::in_type<T>(value - (slope + v * mu) * rate), v);
               });
             }));
    else
      update(c, {p, velocity},
             let(moved + g, [&](auto v) { return bundled(detail::in_type<T>(value - v * rate), v); }));
  }
};

/// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
struct adamw {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  int decay_from_order = 0;  // parameters of lower order (biases, norms) are not decayed
  bool decoupled = true;     // false: decay is part of the gradient, as in Adam
  detail::optimizer_state state{};
  std::int64_t steps = 0;

  /// As `sgd::step`.
  template <class M>
  void step(M& model, double scale = 1, context& c = default_context()) {
    check();
    const state_dict_t& named = state.to_update(model);
    ++steps;
    detail::for_each_update(model, named, state,
                            [&](auto type, const auto&... of) { change<decltype(type)>(of..., scale, c); });
  }
  /// As `sgd::step_all`.
  template <class Parameters>
  void step_all(const Parameters& parameters, double scale, context& c) {
    check();
    detail::require_f32(parameters);
    ++steps;
    detail::for_each_f32_update(
        parameters, state, [&](auto type, const auto&... of) { change<decltype(type)>(of..., scale, c); });
  }

 private:
  void check() const {
    detail::require_fields(
        "adamw",
        {{"lr", lr}, {"eps", eps}, {"weight_decay", weight_decay}, {"steps", static_cast<double>(steps)}});
    detail::require_fractions("adamw", {{"beta1", beta1}, {"beta2", beta2}});
  }
  template <element T>
  void change(const std::string& name, detail::state_ref p, detail::state_ref grad, double scale,
              context& c) {
    using number = detail::update_number<T>;
    const double correction1 = 1 - std::pow(beta1, static_cast<double>(steps));
    const double correction2 = 1 - std::pow(beta2, static_cast<double>(steps));
    const auto b1 = static_cast<number>(beta1), rest1 = static_cast<number>(1 - beta1);
    const auto b2 = static_cast<number>(beta2), rest2 = static_cast<number>(1 - beta2);
    // m / correction1 / (sqrt(v) / root + eps), written with one product less an element
    const double root = std::sqrt(correction2);
    const auto rate = static_cast<number>(lr * root / correction1), offset = static_cast<number>(eps * root);
    const auto& first = state.get("exp_avg", name, *p, dtype_of<number>);
    const auto& second = state.get("exp_avg_sq", name, *p, dtype_of<number>);
    const double decay = p->extents.order >= decay_from_order ? weight_decay : 0;
    const auto shrink = static_cast<number>(decoupled ? 1 - lr * decay : 1);
    const auto coupled = static_cast<number>(decoupled ? 0 : decay);
    const auto decayed_first = flat_view<number>(first) * b1, decayed_second = flat_view<number>(second) * b2;
    update(c, {p, first, second}, let(detail::in_type<number>(flat_view<T>(p)), [&](auto value) {
             return let(
                 detail::in_type<number>(flat_view<T>(grad)) * static_cast<number>(scale) + value * coupled,
                 [&](auto g) {
                   return let(decayed_first + g * rest1, [&](auto m) {
                     return let(decayed_second + g * g * rest2, [&](auto v) {
                       return bundled(detail::in_type<T>(value * shrink - m * rate / (sqrt(v) + offset)), m,
                                      v);
                     });
                   });
                 });
           }));
  }
};

/// Adam (Kingma and Ba, 2015): weight decay, if any, is added to the gradient.
inline adamw adam(double lr = 1e-3) { return adamw{.lr = lr, .weight_decay = 0, .decoupled = false}; }

}  // namespace weft
