// SPDX-License-Identifier: MIT
// Reflection: members of plain aggregates and their names, without macros.
//
//   for_each_member(model, [](std::string_view name, auto& member) { ... });
//
// Members are found by structured bindings (member_pointers.hpp). A name is parsed from the compiler's
// printed form of a pointer to the member of an object that is declared but never defined.
#pragma once

#include <cstddef>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <weft/base/member_pointers.hpp>

namespace weft {

namespace detail {

template <class T>
struct never_defined {
  T object;
};
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wundefined-var-template"
#pragma clang diagnostic ignored "-Wundefined-internal"
#endif
template <class T>
extern const never_defined<T> sample;

template <class T>
struct pointer_holder {  // clang prints a member's address only from inside a class
  const T* pointer;
};
template <class T>
pointer_holder(const T*) -> pointer_holder<T>;

template <auto Pointer>
consteval std::string_view printed() {
  return __PRETTY_FUNCTION__;
}

/// The last identifier in the text that the compiler prints.
consteval std::string_view last_identifier(std::string_view text) {
  if (const auto rest = text.find("; std"); rest != text.npos) text = text.substr(0, rest);
  const auto in_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  std::size_t end = text.size();
  while (end > 0 && !in_name(text[end - 1])) --end;
  std::size_t begin = end;
  while (begin > 0 && in_name(text[begin - 1])) --begin;
  return text.substr(begin, end - begin);
}

template <class T, std::size_t I>
consteval std::string_view member_name() {
#if defined(__clang__)
  return last_identifier(printed<pointer_holder{std::get<I>(member_pointers(sample<T>.object))}>());
#else
  return last_identifier(printed<std::get<I>(member_pointers(sample<T>.object))>());
#endif
}

template <class T, class F, std::size_t... I>
constexpr void visit_members(T& t, F& f, std::index_sequence<I...>) {
  const auto members = member_pointers(t);
  (f(std::string_view(member_name<std::remove_const_t<T>, I>()), *std::get<I>(members)), ...);
}
#if defined(__clang__)
#pragma clang diagnostic pop
#endif

}  // namespace detail

/// Calls f(name, member) for each member of an aggregate, in order of declaration. T must be an aggregate
/// with at most 32 members, none of which is a C array.
template <class T, class F>
constexpr void for_each_member(T& t, F f) {
  using aggregate = std::remove_const_t<T>;
  static_assert(std::is_aggregate_v<aggregate>, "weft: a module is a plain struct without constructors");
  detail::visit_members(t, f, std::make_index_sequence<detail::count_members<aggregate>()>{});
}

}  // namespace weft
