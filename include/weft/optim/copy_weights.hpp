// SPDX-License-Identifier: MIT
// Copies of weights into a model that exists, and moving averages of weights.
//
//   copy_weights(target, model);             // target.load_state_dict(model.state_dict())
//   lerp_weights(average, model, 0.01);      // average = 0.99 average + 0.01 model
//
// `model = best` replaces the tensors of a model instead: optimizers and runs then have the state of others.
#pragma once

#include <type_traits>
#include <utility>
#include <vector>

#include <weft/nn/module.hpp>
#include <weft/optim/clip.hpp>

namespace weft {

namespace detail {
/// A tensor, and another one of the same name.
using weight_pair = std::pair<std::shared_ptr<tensor_state>, std::shared_ptr<tensor_state>>;

/// Each tensor of `to`, in its order and a tied one once, with that of the same name in `from`. `what` names
/// the function in errors; see copy_weights.
std::vector<weight_pair> matched_weights(const char* what, const state_dict_t& to, const state_dict_t& from);
/// Copies elements, from another device through the host.
void copy_weight(tensor_state& to, const tensor_state& from);

template <class M>
state_dict_t weights_of(const M& m) {
  if constexpr (std::is_same_v<M, state_dict_t>) return m;
  else return state_dict(m);
}
}  // namespace detail

/// Sets the elements of all parameters and buffers of `to` to those of the same names in `from`; each is a
/// model or a state_dict_t, such as run.full(). The tensors of `to` stay the same, so it may be bound, unless
/// ranks hold different elements of it. Gradients and the state of optimizers stay. Throws value_error if a
/// name, dtype or shape differs, or `from` is sharded over ranks, and usage_error if `to` is; nothing is
/// copied then.
template <class To, class From>
void copy_weights(const To& to, const From& from) {
  for (const auto& [t, f] :
       detail::matched_weights("copy_weights", detail::weights_of(to), detail::weights_of(from)))
    detail::copy_weight(*t, *f);
}

/// Moves the parameters and buffers of the model `to` towards those of `from` by the fraction `weight` of the
/// difference, as a moving average of the weights does; tensors of integers and bool, such as the number of
/// batches that a batch norm has seen, are copied. Otherwise as copy_weights. Throws device_error if a tensor
/// is not on the device of `c`.
template <class To, class From>
void lerp_weights(const To& to, const From& from, double weight, context& c = default_context()) {
  const auto all = detail::matched_weights("lerp_weights", detail::weights_of(to), detail::weights_of(from));
  auto next = all.begin();
  const auto move = [&]<class Tensor>(detail::no_path, const Tensor& t) {
    using type = typename Tensor::value_type;
    if (next == all.end() || next->first != t.state()) return;  // a tied one, which has moved
    const auto& [old, now] = *next++;
    if constexpr (is_floating(dtype_of<type>)) {
      using number = detail::update_number<type>;
      const auto part = static_cast<number>(weight);
      update(c, {old},
             detail::in_type<type>(detail::in_type<number>(flat_view<type>(old)) * (1 - part) +
                                   detail::in_type<number>(flat_view<type>(now)) * part));
    } else {
      detail::copy_weight(*old, *now);
    }
  };
  detail::walk<detail::tensors_of::both>(to, detail::no_path{}, move);
}

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/optim/impl/copy_weights.ipp>
#endif
