// SPDX-License-Identifier: MIT
// Pointers to the members of an aggregate, found by structured bindings.
//
// C++20 has no structured bindings of packs, so there is one line per number of members.
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

namespace weft::detail {

struct anything {
  template <class T>
  operator T() const noexcept;
};

inline constexpr std::size_t most_members = 32;

/// Number of members, counted up to one more than the maximum.
template <class T, class... Found>
consteval std::size_t count_members() {
  if constexpr (sizeof...(Found) > most_members) return sizeof...(Found);
  else if constexpr (requires { T{Found{}..., anything{}}; }) return count_members<T, Found..., anything>();
  else return sizeof...(Found);
}

/// Converts only to base classes of T: an aggregate whose first element it initialises has a base class.
template <class T>
struct any_base_of {
  template <class Base>
    requires(std::is_base_of_v<Base, T> && !std::is_same_v<Base, T>)
  operator Base() const noexcept;
};
template <class T>
inline constexpr bool has_base = requires { T{any_base_of<T>{}}; };

/// Whether an initializer `{}` at this place stands for several values, the elements of an array.
template <class T, std::size_t... Before, std::size_t... After>
consteval bool is_array_at(std::index_sequence<Before...>, std::index_sequence<After...>) {
  constexpr auto any = [](std::size_t) { return anything{}; };
  constexpr bool takes_empty = requires { T{any(Before)..., {}}; };
  constexpr bool leaves_room = requires { T{any(Before)..., {}, any(After)...}; };
  return takes_empty && !leaves_room;
}
/// Whether a member of T is a C array with more than one element, each of which counts as a member.
template <class T>
consteval bool has_array() {
  constexpr std::size_t n = count_members<T>();
  return []<std::size_t... I>(std::index_sequence<I...>) {
    return (is_array_at<T>(std::make_index_sequence<I>(), std::make_index_sequence<n - 1 - I>()) || ...);
  }(std::make_index_sequence<n>());
}

template <bool Holds, class Struct>
struct number_of_members_law {
  static_assert(Holds, "weft: a module may have at most 32 members: group some in a struct");
};

/// A tuple of pointers to the members of `t`, in order of declaration.
template <class T>
constexpr auto member_pointers(T& t) {
  constexpr std::size_t n = count_members<std::remove_const_t<T>>();
  (void)sizeof(number_of_members_law<(n <= most_members), std::remove_const_t<T>>);
  if constexpr (n == 0 || n > most_members) return std::tuple<>{};
  else if constexpr (n == 1) { auto& [m0] = t; return std::tuple{&m0}; }
  else if constexpr (n == 2) { auto& [m0, m1] = t; return std::tuple{&m0, &m1}; }
  else if constexpr (n == 3) { auto& [m0, m1, m2] = t; return std::tuple{&m0, &m1, &m2}; }
  else if constexpr (n == 4) { auto& [m0, m1, m2, m3] = t; return std::tuple{&m0, &m1, &m2, &m3}; }
  else if constexpr (n == 5) { auto& [m0, m1, m2, m3, m4] = t; return std::tuple{&m0, &m1, &m2, &m3, &m4}; }
  else if constexpr (n == 6) {
    auto& [m0, m1, m2, m3, m4, m5] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5};
  }
  else if constexpr (n == 7) {
    auto& [m0, m1, m2, m3, m4, m5, m6] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6};
  }
  else if constexpr (n == 8) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7};
  }
  else if constexpr (n == 9) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8};
  }
  else if constexpr (n == 10) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9};
  }
  else if constexpr (n == 11) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10};
  }
  else if constexpr (n == 12) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10, &m11};
  }
  else if constexpr (n == 13) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10, &m11, &m12};
  }
  else if constexpr (n == 14) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10, &m11, &m12, &m13};
  }
  else if constexpr (n == 15) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10, &m11, &m12, &m13, &m14};
  }
  else if constexpr (n == 16) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10, &m11, &m12, &m13, &m14, &m15};
  }
  else if constexpr (n == 17) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10, &m11, &m12, &m13, &m14, &m15,
        &m16};
  }
  else if constexpr (n == 18) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10, &m11, &m12, &m13, &m14, &m15,
        &m16, &m17};
  }
  else if constexpr (n == 19) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10, &m11, &m12, &m13, &m14, &m15,
        &m16, &m17, &m18};
  }
  else if constexpr (n == 20) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10, &m11, &m12, &m13, &m14, &m15,
        &m16, &m17, &m18, &m19};
  }
  else if constexpr (n == 21) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
        m20] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10, &m11, &m12, &m13, &m14, &m15,
        &m16, &m17, &m18, &m19, &m20};
  }
  else if constexpr (n == 22) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20,
        m21] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10, &m11, &m12, &m13, &m14, &m15,
        &m16, &m17, &m18, &m19, &m20, &m21};
  }
  else if constexpr (n == 23) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20,
        m21, m22] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10, &m11, &m12, &m13, &m14, &m15,
        &m16, &m17, &m18, &m19, &m20, &m21, &m22};
  }
  else if constexpr (n == 24) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20,
        m21, m22, m23] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10, &m11, &m12, &m13, &m14, &m15,
        &m16, &m17, &m18, &m19, &m20, &m21, &m22, &m23};
  }
  else if constexpr (n == 25) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20,
        m21, m22, m23, m24] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10, &m11, &m12, &m13, &m14, &m15,
        &m16, &m17, &m18, &m19, &m20, &m21, &m22, &m23, &m24};
  }
  else if constexpr (n == 26) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20,
        m21, m22, m23, m24, m25] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10, &m11, &m12, &m13, &m14, &m15,
        &m16, &m17, &m18, &m19, &m20, &m21, &m22, &m23, &m24, &m25};
  }
  else if constexpr (n == 27) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20,
        m21, m22, m23, m24, m25, m26] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10, &m11, &m12, &m13, &m14, &m15,
        &m16, &m17, &m18, &m19, &m20, &m21, &m22, &m23, &m24, &m25, &m26};
  }
  else if constexpr (n == 28) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20,
        m21, m22, m23, m24, m25, m26, m27] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10, &m11, &m12, &m13, &m14, &m15,
        &m16, &m17, &m18, &m19, &m20, &m21, &m22, &m23, &m24, &m25, &m26, &m27};
  }
  else if constexpr (n == 29) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20,
        m21, m22, m23, m24, m25, m26, m27, m28] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10, &m11, &m12, &m13, &m14, &m15,
        &m16, &m17, &m18, &m19, &m20, &m21, &m22, &m23, &m24, &m25, &m26, &m27, &m28};
  }
  else if constexpr (n == 30) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20,
        m21, m22, m23, m24, m25, m26, m27, m28, m29] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10, &m11, &m12, &m13, &m14, &m15,
        &m16, &m17, &m18, &m19, &m20, &m21, &m22, &m23, &m24, &m25, &m26, &m27, &m28, &m29};
  }
  else if constexpr (n == 31) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20,
        m21, m22, m23, m24, m25, m26, m27, m28, m29, m30] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10, &m11, &m12, &m13, &m14, &m15,
        &m16, &m17, &m18, &m19, &m20, &m21, &m22, &m23, &m24, &m25, &m26, &m27, &m28, &m29, &m30};
  }
  else if constexpr (n == 32) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20,
        m21, m22, m23, m24, m25, m26, m27, m28, m29, m30, m31] = t;
    return std::tuple{&m0, &m1, &m2, &m3, &m4, &m5, &m6, &m7, &m8, &m9, &m10, &m11, &m12, &m13, &m14, &m15,
        &m16, &m17, &m18, &m19, &m20, &m21, &m22, &m23, &m24, &m25, &m26, &m27, &m28, &m29, &m30, &m31};
  }
}

}  // namespace weft::detail
