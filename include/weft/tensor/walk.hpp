// SPDX-License-Identifier: MIT
// The walk over the tensors of a module: which types hold tensors, and how these are named.
//
// The walk visits members of plain structs, elements of vectors, arrays and other containers, values of maps
// (named by key), elements of pairs and tuples (named by index), and what optionals and smart pointers hold.
// It does not follow raw pointers, spans and references, since they do not own. A class whose members it
// cannot find does not compile, so that no tensor is omitted silently.
//
//   struct legacy_table { legacy_table(); ... };          // holds no tensors: declare it
//   template <> inline constexpr bool weft::holds_no_tensors<legacy_table> = true;
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <weft/base/reflect.hpp>
#include <weft/tensor/tensor.hpp>

namespace weft {

namespace detail {
template <class T>
consteval bool is_trivial_and_opaque();
}  // namespace detail

/// Whether a T contains no tensors. Specialise it for classes that hold none and have private members or
/// constructors. By default true for types that are copied byte by byte and that the walk cannot look into,
/// such as lambdas that capture numbers.
template <class T>
inline constexpr bool holds_no_tensors = detail::is_trivial_and_opaque<T>();
template <class... T>
inline constexpr bool holds_no_tensors<std::basic_string<T...>> = true;
template <class F>
inline constexpr bool holds_no_tensors<std::function<F>> = true;
template <>
inline constexpr bool holds_no_tensors<device> = true;

namespace detail {
/// Which tensors of a module are visited.
enum class tensors_of : std::uint8_t { parameters, buffers, both };

template <class T>
inline constexpr bool is_tensor = false;
template <class T, class Extents, bool Tracked>
inline constexpr bool is_tensor<tensor<T, Extents, Tracked>> = true;
template <class Extents, class T, class Division>
inline constexpr bool is_tensor<parameter<Extents, T, Division>> = true;

template <class T>
inline constexpr bool is_tuple = false;
template <class... T>
inline constexpr bool is_tuple<std::tuple<T...>> = true;
template <class A, class B>
inline constexpr bool is_tuple<std::pair<A, B>> = true;

template <class T>
inline constexpr bool is_pointer_to_one = false;
template <class T>
inline constexpr bool is_pointer_to_one<std::optional<T>> = true;
template <class T>
inline constexpr bool is_pointer_to_one<std::shared_ptr<T>> = true;
template <class T, class Delete>
inline constexpr bool is_pointer_to_one<std::unique_ptr<T, Delete>> = !std::is_array_v<T>;

/// What T refers to without owning it; void if T is no such type.
template <class T>
struct borrowed {
  using type = void;
};
template <class T>
struct borrowed<T*> {
  using type = T;
};
template <class T, std::size_t N>
struct borrowed<std::span<T, N>> {
  using type = T;
};
template <class T>
struct borrowed<std::reference_wrapper<T>> {
  using type = T;
};
template <class T>
inline constexpr bool is_borrowed = !std::is_void_v<typename borrowed<T>::type>;

// Containers are recognised by their members, so their headers need not be included.
template <class T>
inline constexpr bool is_container = false;
template <template <class...> class Container, class... T>
inline constexpr bool is_container<Container<T...>> = requires(const Container<T...>& c) {
  typename Container<T...>::value_type;
  typename Container<T...>::allocator_type;
  c.begin();
  c.end();
  c.size();
};
template <class T, std::size_t N>
inline constexpr bool is_container<std::array<T, N>> = true;

template <class T>
concept map_container = is_container<T> && requires {
  typename T::key_type;
  typename T::mapped_type;
};
template <class T>
concept has_children = requires(T& m) { m.children(); };

/// Whether a class has a reference as a member, which hides all members from structured bindings.
template <class T>
consteval bool hides_members() {
  if constexpr (std::is_class_v<T> && std::is_aggregate_v<T>)
    return count_members<T>() == 0 && !std::is_empty_v<T>;
  else return false;
}

/// Whether structured bindings can find the members of a class.
template <class T>
consteval bool is_plain_struct() {
  if constexpr (std::is_class_v<T> && std::is_aggregate_v<T>)
    return !has_base<T> && count_members<T>() <= most_members && !has_array<T>() && !hides_members<T>();
  else return false;
}

template <class T>
consteval bool is_trivial_and_opaque() {
  // The assignment of lambdas is deleted, so they are not trivially copyable to every compiler.
  constexpr bool is_copied_by_byte =
      std::is_trivially_copy_constructible_v<T> && std::is_trivially_destructible_v<T>;
  if constexpr (!is_copied_by_byte || is_borrowed<T> || is_container<T> || is_pointer_to_one<T> ||
                has_children<T>)
    return false;
  else return !is_plain_struct<T>() && !hides_members<T>();
}

/// Whether a type holds tensors, as far as is known.
enum class content : std::uint8_t { none, tensors, unknown };

template <class T>
consteval content find_content();
/// The content of several members together: `tensors` if any of them has some.
template <class... T>
consteval content content_of_all() {
  content all = content::none;
  for (content each : {content::none, find_content<std::remove_cvref_t<T>>()...})
    if (all != content::tensors && each != content::none) all = each;
  return all;
}
template <template <class...> class List, class... T>
consteval content content_of_elements(std::type_identity<List<T...>>) {
  return content_of_all<T...>();
}
template <class... T>
consteval content content_of_members(std::type_identity<std::tuple<T*...>>) {
  return content_of_all<T...>();
}

template <class T, int Depth>
consteval bool is_seen_to_hold_tensors();
template <int Depth, class... T>
consteval bool one_holds_tensors(std::type_identity<std::tuple<T*...>>) {
  return (is_seen_to_hold_tensors<T, Depth>() || ...);
}
/// Whether a T is a tensor, or a plain struct that has one within `Depth` levels of plain structs. An
/// incomplete type counts as holding none.
template <class T, int Depth>
consteval bool is_seen_to_hold_tensors() {
  if constexpr (is_tensor<T>) return true;
  else if constexpr (Depth == 0 || !std::is_class_v<T> || !requires { sizeof(T); }) return false;
  else if constexpr (holds_no_tensors<T> || !is_plain_struct<T>()) return false;
  else
    return one_holds_tensors<Depth - 1>(
        std::type_identity<decltype(member_pointers(std::declval<T&>()))>{});
}

template <class T>
consteval content find_content() {
  if constexpr (is_tensor<T>) return content::tensors;
  else if constexpr (is_borrowed<T>)  // who owns it is not known
    return is_seen_to_hold_tensors<std::remove_cv_t<typename borrowed<T>::type>, 4>() ? content::unknown
                                                                                      : content::none;
  else if constexpr (std::is_array_v<T>)
    return find_content<std::remove_all_extents_t<T>>() == content::none ? content::none : content::unknown;
  else if constexpr (!std::is_class_v<T>)
    return std::is_union_v<T> && !holds_no_tensors<T> ? content::unknown : content::none;
  else if constexpr (is_tuple<T>) return content_of_elements(std::type_identity<T>{});
  else if constexpr (holds_no_tensors<T>) return content::none;
  else if constexpr (map_container<T>) return content_of_all<typename T::mapped_type>();
  else if constexpr (is_container<T>) return content_of_all<typename T::value_type>();
  else if constexpr (is_pointer_to_one<T>) return content_of_all<decltype(*std::declval<T&>())>();
  else if constexpr (has_children<T>) return content_of_all<decltype(std::declval<T&>().children())>();
  else if constexpr (!is_plain_struct<T>()) return content::unknown;
  else return content_of_members(std::type_identity<decltype(member_pointers(std::declval<T&>()))>{});
}
template <class T>
inline constexpr content content_of = find_content<T>();

/// The compile-time error for a class whose tensors cannot be found.
template <bool Holds, class Class>
struct reachable_tensors_law {
  static_assert(Holds,
                "weft: the tensors of this class cannot be found: make it a plain struct (no constructor, "
                "private member, base class, reference, pointer or C array: use std::array; at most 32 "
                "members), or give it `auto& children()` and `auto& children() const`; if it holds none, "
                "specialise weft::holds_no_tensors");
};
/// Whether the walk can enter a T.
template <class T>
consteval bool find_reachable() {
  if constexpr (is_tensor<T> || is_tuple<T> || is_container<T> || is_pointer_to_one<T> || has_children<T>)
    return true;
  else return content_of<T> == content::none || is_plain_struct<T>();
}
template <class T>
inline constexpr bool is_reachable = find_reachable<T>();

/// The path of names in a walk; no_path where names are not needed.
struct named_path {
  std::string text;
  named_path member(std::string_view name) const;
  template <class Key>
  named_path element(const Key& key) const {
    static_assert(std::is_convertible_v<const Key&, std::string_view> || std::is_integral_v<Key>,
                  "weft: a map of modules must have strings or integers as keys, which are parts of names");
    if constexpr (std::is_integral_v<Key>) return member(std::to_string(key));
    else return member(key);
  }
};
struct no_path {
  no_path member(std::string_view) const { return {}; }
  template <class Key>
  no_path element(const Key&) const {
    return {};
  }
};

/// Calls f(key, value) in the order of keys, for unordered maps too.
template <class Map, class F>
void for_each_entry(Map& m, F f) {
  if constexpr (requires { typename Map::key_compare; }) {
    for (auto& [key, value] : m) f(key, value);
  } else {
    std::vector<decltype(&*m.begin())> sorted;
    for (auto& entry : m) sorted.push_back(&entry);
    std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->first < b->first; });
    for (auto* entry : sorted) f(entry->first, entry->second);
  }
}

[[noreturn, gnu::cold]] inline void refuse_undefined_parameter(const std::string& path, dtype type,
                                                               const shape& extents) {
  refuse<value_error>(
      {"weft: the parameter ", path, " of type ", name_of(type), " ", extents,
       " has no elements: give it some (layers with a dyn size are made by `create`), or make "
       "it a std::optional if it may be absent"});
}

/// Calls f(path, tensor) for the tensors of `m` that have elements, in order of declaration, and, if f has
/// such a function, f.enter(x) for each part x of `m` before its tensors. A parameter without elements throws
/// value_error where names are needed; buffers may have none.
template <tensors_of Which, class M, class Path, class F>
void walk(M& m, const Path& path, F& f) {
  using T = std::remove_const_t<M>;
  (void)sizeof(reachable_tensors_law<is_reachable<T>, T>);
  if constexpr (requires { f.enter(m); }) f.enter(m);
  if constexpr (is_tensor<T>) {
    if constexpr (Which == tensors_of::both || T::requires_grad == (Which == tensors_of::parameters)) {
      if (m.defined()) return f(path, m);
      if constexpr (T::requires_grad && std::is_same_v<Path, named_path>)
        refuse_undefined_parameter(path.text, dtype_of<typename T::value_type>, T::static_shape);
    }
  } else if constexpr (content_of<T> == content::none || !is_reachable<T>) {
    return;
  } else if constexpr (map_container<T>) {
    for_each_entry(m, [&](const auto& key, auto& value) { walk<Which>(value, path.element(key), f); });
  } else if constexpr (is_container<T>) {
    std::size_t i = 0;
    for (auto& element : m) walk<Which>(element, path.element(i++), f);
  } else if constexpr (is_tuple<T>) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (walk<Which>(std::get<I>(m), path.element(I), f), ...);
    }(std::make_index_sequence<std::tuple_size_v<T>>{});
  } else if constexpr (is_pointer_to_one<T>) {
    using held = std::remove_reference_t<decltype(*m)>;
    if (m) walk<Which>(static_cast<std::conditional_t<std::is_const_v<M>, const held, held>&>(*m), path, f);
  } else if constexpr (has_children<T>) {
    auto&& children = m.children();
    walk<Which>(children, path, f);  // the module gives its own path to its children
  } else {
    for_each_member(m,
                    [&](std::string_view name, auto& member) { walk<Which>(member, path.member(name), f); });
  }
}
}  // namespace detail

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/tensor/impl/walk.ipp>
#endif
