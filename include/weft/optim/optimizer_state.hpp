// SPDX-License-Identifier: MIT
// The state of an optimizer: tensors such as moving averages, one of each kind per parameter.
//
//   optimizer.state.find("exp_avg", "hidden.weight")
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <weft/optim/clip.hpp>

namespace weft {

namespace detail {

/// The compile-time error for a type without parameters.
template <bool Holds, class Model>
struct trained_model_law {
  static_assert(Holds, "weft: optimizer: this type has no parameter: pass the model, "
                       "a struct with members such as linear<...> or parameter<...>");
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

}  // namespace detail

/// State tensors of an optimizer by kind ("exp_avg") and parameter name. A sorted array, as std::map would
/// add a sixth to the time in which this library compiles.
class optimizer_state {
 public:
  bool contains(std::string_view kind, std::string_view name) const {
    return is_at(place_of(kind, name), kind, name);
  }
  /// Null if there is no such tensor yet.
  std::shared_ptr<tensor_state> find(std::string_view kind, std::string_view name) const {
    const std::size_t place = place_of(kind, name);
    return is_at(place, kind, name) ? slots_[place].tensor : nullptr;
  }
  /// The state tensor for the parameter `like`, of its shape and of dtype `type`, moved to its device; zero
  /// if it is new. Throws value_error if it exists with another type or shape.
  std::shared_ptr<tensor_state> get(std::string_view kind, std::string_view name, const tensor_state& like,
                                    dtype type) {
    const std::size_t place = place_of(kind, name);
    std::shared_ptr<tensor_state> t;
    if (is_at(place, kind, name)) {
      t = slots_[place].tensor;
      if (t->type != type || !(t->extents == like.extents))
        refuse<value_error>({"weft: optimizer: ", kind, " of ", name, " is ", name_of(t->type), " ",
                             t->extents, ", not ", name_of(type), " ", like.extents});
      move_to(*t, like.where);
    } else {
      t = add(place, kind, name, like, type);
    }
    if (home_) lent_.push_back(t);
    return t;
  }
  std::size_t bytes() const {
    std::size_t n = 0;
    for (const slot& s : slots_) n += s.tensor->bytes();
    return n;
  }
  /// All tensors, named "kind.name".
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

  /// Removes all tensors, as before the first step.
  void clear() { slots_.clear(); }

  /// Sets the device on which state is kept between updates; without it state stays where its parameters are.
  void keep_on(const device& home) {
    home_ = home;
    for (const slot& s : slots_) move_to(*s.tensor, home);
  }
  /// Ends an update: the tensors it used move back to the device of keep_on.
  void updated() {
    for (const auto& t : lent_) move_to(*t, *home_);
    lent_.clear();
  }

  /// The parameters of `m` with their names, which are cached while the parameters are the same. Throws
  /// usage_error if there are none, or none has a gradient: a step would change nothing.
  template <class M>
  const state_dict_t& to_update(const M& m) {
    (void)sizeof(detail::trained_model_law<detail::content_of<M> != detail::content::none, M>);
    const tensor_list now = parameters_of(m);
    detail::require_gradients(now);
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

  /// Index of a slot, or where it would be inserted.
  std::size_t place_of(std::string_view kind, std::string_view name) const {
    const auto at = std::partition_point(slots_.begin(), slots_.end(), [&](const slot& s) {
      return s.kind < kind || (s.kind == kind && s.name < name);
    });
    return static_cast<std::size_t>(at - slots_.begin());
  }
  bool is_at(std::size_t place, std::string_view kind, std::string_view name) const {
    return place < slots_.size() && slots_[place].kind == kind && slots_[place].name == name;
  }
  [[gnu::cold]] std::shared_ptr<tensor_state> add(std::size_t place, std::string_view kind,
                                                  std::string_view name, const tensor_state& like,
                                                  dtype type) {
    auto t = make_zeros(like.where, like.extents, type);
    insert(place, kind, name, t);
    return t;
  }
  [[gnu::cold]] void insert(std::size_t place, std::string_view kind, std::string_view name,
                            std::shared_ptr<tensor_state> t) {
    slots_.insert(slots_.begin() + static_cast<std::ptrdiff_t>(place),
                  slot{std::string(kind), std::string(name), std::move(t)});
  }

  std::vector<slot> slots_;  // by kind and name
  std::optional<device> home_;
  tensor_list lent_;
  state_dict_t named_;
};

}  // namespace weft
