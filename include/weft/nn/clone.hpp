// SPDX-License-Identifier: MIT
// Deep copies. `auto b = a;` copies handles, so that both models share their tensors; a clone has its own.
//
//   auto best = clone(model);          // not changed when `model` is trained
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <weft/nn/module.hpp>

namespace weft {

namespace detail {

/// Copies made so far, so that tensors shared in the original are shared in the copy.
class copies_made {
 public:
  /// The copy of `original`, made by make() at the first call.
  template <class T, class F>
  std::shared_ptr<T> copy_of(const std::shared_ptr<T>& original, F make) {
    for (const auto& [from, to] : known_)
      if (from == original.get()) return std::static_pointer_cast<T>(to);
    std::shared_ptr<T> copy = make();
    known_.emplace_back(original.get(), copy);
    return copy;
  }

 private:
  std::vector<std::pair<const void*, std::shared_ptr<void>>> known_;
};

inline std::shared_ptr<tensor_state> cloned_state(const tensor_state& t) {
  require_memory(t);
  auto copy = make_state(t.where, t.extents, t.type);
  copy->init = t.init;
  copy->positions = t.positions;
  copy_elements(*t.where, t.type, copy->memory.data(), t.memory.data(), t.extents.size());
  return copy;
}

template <class T>
T cloned(const T& m, copies_made& made);

/// Replaces the children of a copied module by clones of the children of the original.
template <class To, class From>
void clone_children(To& to, const From& from, copies_made& made) {
  if constexpr (content_of<From> == content::none) return;
  else if constexpr (is_tuple<From>) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (clone_children(std::get<I>(to), std::get<I>(from), made), ...);
    }(std::make_index_sequence<std::tuple_size_v<From>>{});
  } else {
    to = cloned(from, made);
  }
}

template <class T>
T cloned_container(const T& m, copies_made& made) {
  if constexpr (map_container<T>) {
    T copy;
    for (const auto& [key, value] : m) copy.emplace(key, cloned(value, made));
    return copy;
  } else if constexpr (requires(T& copy) { copy.push_back(*m.begin()); } ||
                       requires(T& copy, typename T::value_type v) { copy.push_back(std::move(v)); }) {
    T copy;
    for (const auto& element : m) copy.push_back(cloned(element, made));
    return copy;
  } else {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return T{cloned(m[I], made)...};
    }(std::make_index_sequence<std::tuple_size_v<T>>{});
  }
}

template <class T>
struct pointer_clone;  // specialised by kind: a pointer holds one element, or none
template <class T>
struct pointer_clone<std::optional<T>> {
  static std::optional<T> of(const std::optional<T>& m, copies_made& made) {
    return m ? std::optional<T>(cloned(*m, made)) : std::optional<T>();
  }
};
template <class T>
struct pointer_clone<std::unique_ptr<T>> {
  static std::unique_ptr<T> of(const std::unique_ptr<T>& m, copies_made& made) {
    return m ? std::make_unique<T>(cloned(std::as_const(*m), made)) : nullptr;
  }
};
template <class T>
struct pointer_clone<std::shared_ptr<T>> {
  static std::shared_ptr<T> of(const std::shared_ptr<T>& m, copies_made& made) {
    if (!m) return nullptr;
    return made.copy_of(m, [&] { return std::make_shared<T>(cloned(std::as_const(*m), made)); });
  }
};

template <class T>
T cloned(const T& m, copies_made& made) {
  (void)sizeof(reachable_tensors_law<is_reachable<T>, T>);
  if constexpr (is_tensor<T>) {
    if (!m.defined()) return m;
    return T(made.copy_of(m.state(), [&] { return cloned_state(*m.state()); }));
  } else if constexpr (content_of<T> == content::none || !is_reachable<T>) {
    return m;
  } else if constexpr (is_container<T>) {
    return cloned_container(m, made);
  } else if constexpr (is_tuple<T>) {
    return std::apply([&](const auto&... element) { return T{cloned(element, made)...}; }, m);
  } else if constexpr (is_pointer_to_one<T>) {
    return pointer_clone<T>::of(m, made);
  } else if constexpr (has_children<T>) {
    T copy(m);
    auto&& to = copy.children();
    clone_children(to, m.children(), made);
    return copy;
  } else {
    return std::apply([&](const auto*... member) { return T{cloned(*member, made)...}; }, member_pointers(m));
  }
}

}  // namespace detail

/// A deep copy of a module or tensor: new tensors with the same elements on the same devices, for all
/// parameters and buffers that `state_dict` finds. Sharing is kept: tied weights stay tied, and modules
/// behind one shared_ptr stay one. Gradients, gradient hooks and optimizer state are not copied. Throws
/// value_error for parameters that are sharded over ranks; use the run's `full` for those.
template <class M>
M clone(const M& m) {
  detail::copies_made made;
  return detail::cloned(m, made);
}

/// Compile-time error: an expression has no elements.
template <expression E>
requires(!detail::is_leaf<E>) void clone(const E&) {
  static_assert(detail::unsupported<E>,
                "weft: clone: this expression is not computed yet; evaluating it makes a new tensor: auto y "
                "= eval(expression)");
}

}  // namespace weft
