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

[[noreturn, gnu::cold]] void refuse_step(bool has_parameters);
[[noreturn, gnu::cold]] void refuse_step(const std::string& parameter, const tensor_state& gradient,
                                         const device& here);
[[noreturn, gnu::cold]] void refuse_part(const char* optimizer, const std::string& name,
                                         const tensor_state& parameter);
inline void require_gradients(const tensor_list& parameters) {
  for (const auto& p : parameters)
    if (p->grad) return;
  for (const auto& p : parameters) require_own_gradient(*p, "step");
  refuse_step(!parameters.empty());
}

}  // namespace detail

/// State tensors of an optimizer by kind ("exp_avg") and parameter name; a kind is a word without ".", "#" or
/// line ends. Copies of an optimizer share the tensors, and the steps of each change them; to copy the
/// elements, save a checkpoint or call bound_run::full_optimizer(). Stored as a sorted array, because
/// std::map would add a sixth to this library's compile time.
class optimizer_state {
 public:
  bool contains(std::string_view kind, std::string_view name) const {
    return is_at(place_of(kind, name), kind, name);
  }
  /// Null if there is no such tensor yet.
  std::shared_ptr<tensor_state> find(std::string_view kind, std::string_view name) const;
  /// The state tensor for the parameter `like`, of its shape and of dtype `type`, moved to its device; its
  /// elements are `initial` if it is new. Throws value_error if it exists with another dtype or shape, or
  /// `kind` is not valid.
  std::shared_ptr<tensor_state> get(std::string_view kind, std::string_view name, const tensor_state& like,
                                    dtype type, double initial = 0);
  std::size_t bytes() const {
    std::size_t n = 0;
    for (const slot& s : slots_) n += s.tensor->bytes();
    return n;
  }
  /// All tensors, named "kind.name".
  state_dict_t tensors() const;
  /// Sets a state tensor, which has the shape of the part of the parameter that this rank updates. Throws
  /// value_error if `kind` is not valid.
  void set(std::string_view kind, std::string_view name, std::shared_ptr<tensor_state> t);

  /// Whether `text` is a valid kind; names in files and messages are "kind.parameter".
  static bool is_kind(std::string_view text) {
    return !text.empty() && text.find_first_of(".#\n") == text.npos;
  }

  /// Removes all tensors, as before the first step.
  void clear() {
    slots_.clear();
    owners_.clear();
    named_ = {};
  }

  /// Sets the device on which state is kept between updates; by default state stays on the device of its
  /// parameters.
  void keep_on(const device& home) {
    home_ = home;
    for (const slot& s : slots_) move_to(*s.tensor, home);
  }
  bool is_kept_elsewhere() const { return home_.has_value(); }

  /// Marks this state as used by a run for as long as `run` exists. Throws usage_error if another run uses
  /// it.
  void keep_for(const std::shared_ptr<const void>& run);

  /// Ends an update: moves the tensors that it used back to the device of keep_on.
  void updated() { give_back(lend()); }
  /// The tensors that the update in progress has used so far, which now stay where they are until give_back.
  tensor_list lend() { return std::exchange(lent_, {}); }
  void give_back(const tensor_list& lent) {
    for (const auto& t : lent) move_to(*t, *home_);
  }

  /// The parameters of `m` with their names, cached while the parameters and the type of `m` are the same.
  /// Throws usage_error if there are none or none has a gradient, because a step would change nothing; if
  /// another model that this optimizer has updated is still alive, because parameters of the same names would
  /// share state; or if a parameter was updated under another name, whose state would be left behind.
  template <class M>
  const state_dict_t& to_update(const M& m) {
    (void)sizeof(detail::trained_model_law<detail::content_of<M> != detail::content::none, M>);
    const tensor_list now = parameters_of(m);
    detail::require_gradients(now);
    const state_dict_t& known = named_.parameters;
    const auto is_same = [](const auto& p, const auto& named) { return p == named.second; };
    if (named_.model != &model_type<M> ||
        !std::equal(now.begin(), now.end(), known.begin(), known.end(), is_same))
      set_named(named_parameters(m), &model_type<M>);
    return known;
  }
  /// The same for the named parameters of a part of a model, none of which needs a gradient.
  void to_update(const state_dict_t& now) {
    if (named_.parameters != now) set_named(now, nullptr);
  }

 private:
  struct slot {
    std::string kind, name;
    std::shared_ptr<tensor_state> tensor;
  };

  /// The run that uses the state; copies of the state belong to no run.
  struct owner {
    std::weak_ptr<const void> of{};
    owner() = default;
    owner(const owner&) {}
    owner& operator=(const owner&) { return *this; }
  };

  /// The parameters of the last update, whose model is of the type with this model_type. A copy of the state
  /// has none, so that it keeps no parameters alive.
  struct last_parameters {
    state_dict_t parameters{};
    const char* model = nullptr;
    last_parameters() = default;
    last_parameters(const last_parameters&) {}
    last_parameters& operator=(const last_parameters&) {
      parameters.clear();
      model = nullptr;
      return *this;
    }
  };
  template <class M>
  static constexpr char model_type = 0;

  [[gnu::cold]] void set_named(state_dict_t now, const char* model);

  /// The index of a slot, or of the place at which it would be inserted.
  std::size_t place_of(std::string_view kind, std::string_view name) const;
  bool is_at(std::size_t place, std::string_view kind, std::string_view name) const {
    return place < slots_.size() && slots_[place].kind == kind && slots_[place].name == name;
  }
  [[gnu::cold]] std::shared_ptr<tensor_state> add(std::size_t place, std::string_view kind,
                                                  std::string_view name, const tensor_state& like, dtype type,
                                                  double initial);
  [[gnu::cold]] void insert(std::size_t place, std::string_view kind, std::string_view name,
                            std::shared_ptr<tensor_state> t);

  std::vector<slot> slots_;  // by kind and name
  std::optional<device> home_;
  tensor_list lent_;
  last_parameters named_;
  std::vector<std::pair<std::string, std::weak_ptr<tensor_state>>> owners_;  // in any update, by name
  owner run_;
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/optim/impl/optimizer_state.ipp>
#endif
