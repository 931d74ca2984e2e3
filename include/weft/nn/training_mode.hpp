// SPDX-License-Identifier: MIT
// Training or inference, for all layers of a model at once.
//
//   set_training(model, false);      // model.eval() in PyTorch
//   auto predicted = eval(model(x));
//   set_training(model, true);       // model.train()
#pragma once

#include <weft/tensor/walk.hpp>

namespace weft {

namespace detail {
/// Sets the members `training` of the modules that a walk enters, and of those that it skips because they
/// hold no tensors.
struct training_setter {
  bool training;

  void operator()(const no_path&, auto&) const {}
  template <class T>
  void enter(T& m) {
    if constexpr (requires { requires std::is_same_v<decltype(m.training), bool>; }) m.training = training;
    if constexpr (std::is_class_v<T> && content_of<T> == content::none) enter_members(m);
  }

 private:
  template <class T>
  void enter_members(T& m) {
    if constexpr (map_container<T>)
      for (auto& [key, value] : m) enter(value);
    else if constexpr (is_container<T>) {
      if constexpr (std::is_class_v<typename T::value_type>)
        for (auto& element : m) enter(element);
    } else if constexpr (is_tuple<T>) std::apply([&](auto&... each) { (enter(each), ...); }, m);
    else if constexpr (is_pointer_to_one<T>) {
      if (m) enter(*m);
    } else if constexpr (is_plain_struct<T>() && !std::is_empty_v<T>)
      for_each_member(m, [&](std::string_view, auto& member) { enter(member); });
  }
};
}  // namespace detail

/// Sets the member `bool training` of `m` and of all modules in it that have one: dropout_layer,
/// batch_normalization, and your own modules. PyTorch's m.train(training) and m.eval().
template <class M>
void set_training(M& m, bool training) {
  detail::training_setter set{training};
  detail::walk<detail::tensors_of::both>(m, detail::no_path{}, set);
}

}  // namespace weft
