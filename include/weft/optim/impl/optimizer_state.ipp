// SPDX-License-Identifier: MIT
// Definitions of <weft/optim/optimizer_state.hpp>.
#pragma once

#include <algorithm>
#include <utility>

#include <weft/base/config.hpp>
#include <weft/optim/optimizer_state.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE void refuse_step(bool has_parameters) {
  throw usage_error(
      has_parameters
          ? "weft: optimizer: step: no parameter has a gradient: call backward(loss) on the tape that "
            "evaluated the loss, once before each step, with a loss that depends on this model"
          : "weft: optimizer: step: the model has no parameter with elements: members of type "
            "`parameter` are trained; layers with a dyn size are made by `create`");
}

WEFT_DEFINE void refuse_step(const std::string& parameter, const tensor_state& gradient, const device& here) {
  refuse<device_error>({"weft: optimizer: step: the gradient of parameter ", parameter, " of shape ",
                        gradient.extents, " is on device ", gradient.where->name(),
                        ", but the context computes on ", here->name(),
                        ": pass the context of the tape: optimizer.step(model, 1, c)"});
}

WEFT_DEFINE void refuse_part(const char* optimizer, const std::string& name, const tensor_state& parameter) {
  refuse<value_error>({"weft: ", optimizer, ": parameter ", name, " is sharded: this rank has ",
                       parameter.extents, " of ", parameter.whole(), "; ", optimizer,
                       " needs whole parameters"});
}

}  // namespace detail

WEFT_DEFINE std::shared_ptr<tensor_state> optimizer_state::find(std::string_view kind,
                                                                std::string_view name) const {
  const std::size_t place = place_of(kind, name);
  return is_at(place, kind, name) ? slots_[place].tensor : nullptr;
}

WEFT_DEFINE std::shared_ptr<tensor_state> optimizer_state::get(std::string_view kind, std::string_view name,
                                                               const tensor_state& like, dtype type,
                                                               double initial) {
  const std::size_t place = place_of(kind, name);
  std::shared_ptr<tensor_state> t;
  if (is_at(place, kind, name)) {
    t = slots_[place].tensor;
    if (t->type != type || !(t->extents == like.extents))
      refuse<value_error>({"weft: optimizer: ", kind, " of ", name, " is ", name_of(t->type), " ", t->extents,
                           ", not ", name_of(type), " ", like.extents});
    move_to(*t, like.where);
  } else {
    t = add(place, kind, name, like, type, initial);
  }
  if (home_) lent_.push_back(t);
  return t;
}

WEFT_DEFINE state_dict_t optimizer_state::tensors() const {
  state_dict_t all;
  for (const slot& s : slots_) all.emplace_back(s.kind + "." + s.name, s.tensor);
  return all;
}

WEFT_DEFINE void optimizer_state::set(std::string_view kind, std::string_view name,
                                      std::shared_ptr<tensor_state> t) {
  const std::size_t place = place_of(kind, name);
  if (is_at(place, kind, name)) slots_[place].tensor = std::move(t);
  else insert(place, kind, name, std::move(t));
}

WEFT_DEFINE std::shared_ptr<tensor_state> optimizer_state::add(std::size_t place, std::string_view kind,
                                                               std::string_view name,
                                                               const tensor_state& like, dtype type,
                                                               double initial) {
  std::shared_ptr<tensor_state> t;
  if (initial == 0) t = make_zeros(like.where, like.extents, type);
  else
    visit_type(type, [&]<class T>(T) {
      const detail::constant_sequence<T> of{converted<T>(initial)};
      t = detail::generated<T>(like.extents, of, like.where);
    });
  t->memory.describe("optimizer state");
  t->memory.set_name(std::string(kind) + " of " + std::string(name));
  insert(place, kind, name, t);
  return t;
}

WEFT_DEFINE void optimizer_state::set_named(state_dict_t now, const char* model) {
  named_ = {};  // whose references are not a model's
  std::erase_if(owners_, [](const auto& o) { return o.second.expired(); });
  std::vector<std::pair<const tensor_state*, const std::string*>> names;  // of owners, by address
  for (const auto& [name, p] : owners_) names.emplace_back(p.lock().get(), &name);
  std::sort(names.begin(), names.end());
  const auto place_of_owner = [&](const std::string& name) {
    return std::partition_point(owners_.begin(), owners_.end(),
                                [&](const auto& o) { return o.first < name; });
  };
  for (const auto& [name, p] : now) {
    const auto at = place_of_owner(name);
    if (at != owners_.end() && at->first == name && at->second.lock() != p)
      refuse<usage_error>(
          {"weft: optimizer: step: parameter ", name,
           " is not the one of earlier steps, whose model is still alive: to continue with other weights, "
           "copy_weights(model, from) instead of model = from; otherwise make an optimizer for each model, "
           "and for each run; checkpoints carry its state from one run to the next"});
    const auto known =
        std::partition_point(names.begin(), names.end(), [&](const auto& n) { return n.first < p.get(); });
    if (known != names.end() && known->first == p.get() && *known->second != name)
      refuse<usage_error>({"weft: optimizer: step: parameter ", name, " was ", *known->second,
                           " in earlier steps: pass the same model to every step (parameters without a "
                           "gradient do not change), or make an optimizer for each part"});
  }
  for (const auto& [name, p] : now)
    if (const auto at = place_of_owner(name); at == owners_.end() || at->first != name)
      owners_.emplace(at, name, p);
  named_.parameters = std::move(now);
  named_.model = model;
}

WEFT_DEFINE void optimizer_state::keep_for(const std::shared_ptr<const void>& run) {
  if (!run_.of.expired())
    throw usage_error(
        "weft: bind: the optimizer already updates the model of another run and counts its steps: make an "
        "optimizer for each run");
  run_.of = run;
}

WEFT_DEFINE std::size_t optimizer_state::place_of(std::string_view kind, std::string_view name) const {
  const auto at = std::partition_point(slots_.begin(), slots_.end(), [&](const slot& s) {
    return s.kind < kind || (s.kind == kind && s.name < name);
  });
  return static_cast<std::size_t>(at - slots_.begin());
}

WEFT_DEFINE void optimizer_state::insert(std::size_t place, std::string_view kind, std::string_view name,
                                         std::shared_ptr<tensor_state> t) {
  if (!is_kind(kind))
    refuse<value_error>(
        {"weft: optimizer: \"", kind,
         "\" is not a valid kind of state: a kind must be a word without \".\", \"#\" or line ends"});
  slots_.insert(slots_.begin() + static_cast<std::ptrdiff_t>(place),
                slot{std::string(kind), std::string(name), std::move(t)});
}

}  // namespace weft
