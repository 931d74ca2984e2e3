// SPDX-License-Identifier: MIT
// Creating tensors: from given values, constant, counting or random.
//
// A random number is a function of the seed and of the element's index, and is the same on every device.
// Normal numbers are computed from uniform ones by the Box-Muller transform.
//
//   auto x = randn<float>(extents<dyn, 784>{32, 784}, {.seed = 7});
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include <weft/device/random.hpp>
#include <weft/tensor/tensor.hpp>

namespace weft {

/// A tensor with uninitialised elements. Like all functions that create tensors, throws out_of_memory_error
/// if the device has no memory left.
template <element T, class Extents>
tensor<T, Extents> empty(Extents e, const device& where = default_device()) {
  return tensor<T, Extents>(static_cast<shape>(e), where);
}

namespace detail {
/// A tensor whose elements are written on the host by fill(how, elements, count).
std::shared_ptr<tensor_state> filled(dtype type, const shape& s, const device& where,
                                     void (*fill)(const void*, void*, index_t), const void* how);
/// A tensor whose elements are written on the host by fill(elements, count).
template <element T, class Fill>
std::shared_ptr<tensor_state> filled(const shape& s, const device& where, const Fill& fill) {
  return filled(
      dtype_of<T>, s, where,
      [](const void* how, void* elements, index_t n) {
        (*static_cast<const Fill*>(how))(static_cast<T*>(elements), n);
      },
      &fill);
}
template <element T, class F>
std::shared_ptr<tensor_state> generated(const shape& s, F f, const device& where) {
  return filled<T>(s, where, [&](T* elements, index_t n) {
    for (index_t i = 0; i < n; ++i) elements[i] = static_cast<T>(f(i));
  });
}
}  // namespace detail

/// A tensor with the elements f(0), f(1), ... in row-major order, computed on the host.
template <element T, class Extents, class F>
tensor<T, Extents> generate(Extents e, F f, const device& where = default_device()) {
  return tensor<T, Extents>(detail::generated<T>(static_cast<shape>(e), std::move(f), where));
}

namespace detail {
// Named types, so that a sequence is compiled once rather than for every extents type.
template <class T>
struct constant_sequence {
  T value;
  T operator()(index_t) const { return value; }
};
}  // namespace detail

/// A tensor with all elements equal to `value`.
template <element T, class Extents>
tensor<T, Extents> full(Extents e, T value, const device& where = default_device()) {
  return tensor<T, Extents>(
      detail::generated<T>(static_cast<shape>(e), detail::constant_sequence<T>{value}, where));
}
/// A tensor of zeros.
template <element T, class Extents>
tensor<T, Extents> zeros(Extents e, const device& where = default_device()) {
  return tensor<T, Extents>(make_zeros(where, static_cast<shape>(e), dtype_of<T>));
}
/// A tensor of ones.
template <element T, class Extents>
tensor<T, Extents> ones(Extents e, const device& where = default_device()) {
  return full<T>(e, T(1), where);
}

/// A tensor with the elements `values` in row-major order. Throws shape_error if `e` has a different number
/// of elements.
template <element T, class Extents>
tensor<T, Extents> from(Extents e, const std::vector<T>& values,
                        const device& where = default_device()) {
  tensor<T, Extents> t(static_cast<shape>(e), where);
  detail::require_elements(*t.state(), "from", static_cast<index_t>(values.size()));
  if constexpr (std::is_same_v<T, bool>) {  // std::vector<bool> stores bits
    const auto elements = std::make_unique<bool[]>(values.size());
    std::copy(values.begin(), values.end(), elements.get());
    t.copy_from(elements.get());
  } else {
    t.copy_from(values.data());
  }
  return t;
}

namespace detail {
/// The compile-time error for a number of elements that differs from that of the extents.
template <bool Holds, class Extents, std::size_t Given>
struct element_count_law {
  static_assert(Holds, "weft: from: give as many elements as the extents have, in row-major order");
};
}  // namespace detail

/// The same for elements in braces or an array: from(extents<2, 2>{}, {1.0f, 2.0f, 3.0f, 4.0f}). Static
/// extents with a different number of elements do not compile.
template <element T, class Extents, std::size_t N>
tensor<T, Extents> from(Extents e, const T (&values)[N], const device& where = default_device()) {
  constexpr bool fits = Extents::dynamic_count != 0 || Extents::static_shape.size() == index_t{N};
  (void)sizeof(detail::element_count_law<fits, Extents, N>);
  tensor<T, Extents> t(static_cast<shape>(e), where);
  detail::require_elements(*t.state(), "from", index_t{N});
  t.copy_from(values);
  return t;
}

/// The tensor 0, 1, ..., n - 1 of shape [n]. Throws value_error if an integer type T cannot hold n - 1.
template <element T>
tensor<T, extents<dyn>> arange(index_t n, const device& where = default_device()) {
  if (std::is_integral_v<T> && n > 0 && static_cast<index_t>(static_cast<T>(n - 1)) != n - 1)
    refuse<value_error>({"weft: arange: ", n - 1, " is not a value of type ", name_of(dtype_of<T>)});
  auto t = generate<T>(extents<dyn>{n}, [](index_t i) { return i; }, where);
  t.state()->positions = counted_from_zero;
  return t;
}

/// The key of random tensors. Equal keys give equal elements; different streams of one seed are independent,
/// and so are uniform and normal numbers of one key.
struct random_key {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  constexpr philox_key key() const { return key_of(hash()); }
  constexpr philox_key uniform_key() const { return key_of(mix(hash(), 1)); }

 private:
  constexpr std::uint64_t hash() const { return mix(mix(0, seed), stream); }
};

namespace detail {
template <class T>
struct uniform_numbers {
  random_key r;
  void operator()(T* to, index_t n) const { cpu::fill_uniform(r.uniform_key(), 0, n, to); }
};
template <class T>
struct normal_numbers {
  random_key r;
  void operator()(T* to, index_t n) const { cpu::fill_normal(r.key(), 0, n, to); }
};
}  // namespace detail

/// Uniform random numbers: multiples of 2^-24 in [0, 1), rounded to T, so that 1 can occur in bf16 and f16.
/// Each is a function of `r` and the element's index, the same for every shape and device.
template <element T, class Extents>
tensor<T, Extents> rand(Extents e, random_key r = {}, const device& where = default_device()) {
  static_assert(is_floating(dtype_of<T>),
                "weft: rand: the element type must be floating; for integers from 0 to n - 1, write "
                "eval(cast<std::int64_t>(rand<double>(extents<3>{}) * n))");
  return tensor<T, Extents>(detail::filled<T>(static_cast<shape>(e), where, detail::uniform_numbers<T>{r}));
}

/// Standard normal random numbers by the Box-Muller transform (1958), computed in f32. Each is a function of
/// `r` and the element's index.
template <element T, class Extents>
tensor<T, Extents> randn(Extents e, random_key r = {}, const device& where = default_device()) {
  static_assert(is_floating(dtype_of<T>), "weft: randn: the element type must be floating");
  return tensor<T, Extents>(detail::filled<T>(static_cast<shape>(e), where, detail::normal_numbers<T>{r}));
}

/// Tensors with the element type, extents and device of `x`.
template <element T, class Extents, bool Tracked>
tensor<T, Extents> full_like(const tensor<T, Extents, Tracked>& x, T value) {
  return tensor<T, Extents>(
      detail::generated<T>(x.extents(), detail::constant_sequence<T>{value}, x.state()->where));
}
template <element T, class Extents, bool Tracked>
tensor<T, Extents> zeros_like(const tensor<T, Extents, Tracked>& x) {
  return tensor<T, Extents>(make_zeros(x.state()->where, x.extents(), dtype_of<T>));
}
template <element T, class Extents, bool Tracked>
tensor<T, Extents> ones_like(const tensor<T, Extents, Tracked>& x) {
  return full_like(x, T(1));
}
/// Uniform random numbers with key `r` in the shape of `x`, as `rand`; `uniform_like(x)` draws anew at each
/// evaluation.
///   auto mask = eval(rand_like(x, {.seed = 7}) < 0.15f);
template <element T, class Extents, bool Tracked>
tensor<T, Extents> rand_like(const tensor<T, Extents, Tracked>& x, random_key r = {}) {
  static_assert(is_floating(dtype_of<T>), "weft: rand_like: the element type must be floating");
  return tensor<T, Extents>(detail::filled<T>(x.extents(), x.state()->where, detail::uniform_numbers<T>{r}));
}
/// Normal random numbers with key `r` in the shape of `x`, as `randn`; `normal_like(x)` draws anew at each
/// evaluation.
template <element T, class Extents, bool Tracked>
tensor<T, Extents> randn_like(const tensor<T, Extents, Tracked>& x, random_key r = {}) {
  static_assert(is_floating(dtype_of<T>), "weft: randn_like: the element type must be floating");
  return tensor<T, Extents>(detail::filled<T>(x.extents(), x.state()->where, detail::normal_numbers<T>{r}));
}
/// Compile-time errors: an expression has no device before it is evaluated.
template <expression E>
  requires(!detail::is_leaf<E>)
void rand_like(const E&, random_key = {}) {
  static_assert(detail::unsupported<E>,
                "weft: rand_like creates a tensor and takes one: rand_like(eval(x)); in "
                "an expression, uniform_like(x)");
}
template <expression E>
  requires(!detail::is_leaf<E>)
void randn_like(const E&, random_key = {}) {
  static_assert(detail::unsupported<E>,
                "weft: randn_like creates a tensor and takes one: randn_like(eval(x)); "
                "in an expression, normal_like(x)");
}

/// Compile-time errors: an element type that tensors do not support.
template <class T, class E, class... Rest>
  requires(!element<T> && detail::is_extents<E>)
void zeros(E, Rest...) {
  static_assert(detail::unsupported<T>,
                "weft: zeros: the element type must be float, double, weft::bfloat16, weft::float16, "
                "std::int64_t, std::int32_t, std::uint8_t or bool");
}
template <class T, class E, class... Rest>
  requires(!element<T> && detail::is_extents<E>)
void ones(E, Rest...) {
  static_assert(detail::unsupported<T>,
                "weft: ones: the element type must be float, double, weft::bfloat16, weft::float16, "
                "std::int64_t, std::int32_t, std::uint8_t or bool");
}
/// Compile-time errors: the element type of arange.
template <int = 0, class... N>
  requires(sizeof...(N) > 0)
void arange(N...) {
  static_assert(detail::unsupported<N...>,
                "weft: arange: the element type is a template argument: arange<std::int64_t>(n)");
}
template <element T, std::integral... N>
  requires(sizeof...(N) > 0)
void arange(index_t, N...) {
  static_assert(detail::unsupported<T>,
                "weft: arange: arange<T>(n) returns 0 to n - 1; for another start or step, write "
                "arange<T>(n) * step + first");
}
/// Compile-time errors: extents are part of a tensor's type.
template <element T, class... Rest>
void zeros(detail::numbers_at_run_time, Rest...) {
  static_assert(
      detail::unsupported<T>,
      "weft: zeros: extents are a type: zeros<float>(extents<2, 3>{}), zeros<float>(extents<dyn, 3>{n})");
}
template <element T, class... Rest>
void ones(detail::numbers_at_run_time, Rest...) {
  static_assert(
      detail::unsupported<T>,
      "weft: ones: extents are a type: ones<float>(extents<2, 3>{}), ones<float>(extents<dyn, 3>{n})");
}
template <element T, class... Rest>
void empty(detail::numbers_at_run_time, Rest...) {
  static_assert(
      detail::unsupported<T>,
      "weft: empty: extents are a type: empty<float>(extents<2, 3>{}), empty<float>(extents<dyn, 3>{n})");
}
template <element T>
void full(detail::numbers_at_run_time, T, const device& = default_device()) {
  static_assert(detail::unsupported<T>,
                "weft: full: extents are a type: full<float>(extents<2, 3>{}, 2.5f), "
                "full<float>(extents<dyn, 3>{n}, 2.5f)");
}
template <element T, class... Rest>
void rand(detail::numbers_at_run_time, Rest...) {
  static_assert(
      detail::unsupported<T>,
      "weft: rand: extents are a type: rand<float>(extents<2, 3>{}), rand<float>(extents<dyn, 3>{n})");
}
template <element T>
void rand(detail::numbers_at_run_time, random_key, const device& = default_device()) {
  static_assert(
      detail::unsupported<T>,
      "weft: rand: extents are a type: rand<float>(extents<2, 3>{}), rand<float>(extents<dyn, 3>{n})");
}
template <element T, class... Rest>
void randn(detail::numbers_at_run_time, Rest...) {
  static_assert(
      detail::unsupported<T>,
      "weft: randn: extents are a type: randn<float>(extents<2, 3>{}), randn<float>(extents<dyn, 3>{n})");
}
template <element T>
void randn(detail::numbers_at_run_time, random_key, const device& = default_device()) {
  static_assert(
      detail::unsupported<T>,
      "weft: randn: extents are a type: randn<float>(extents<2, 3>{}), randn<float>(extents<dyn, 3>{n})");
}
/// Compile-time errors: the element type must be named.
template <class E, class... Rest>
requires detail::is_extents<E>
void zeros(E, Rest...) {
  static_assert(detail::unsupported<E>, "weft: zeros: name the element type: zeros<float>(extents<2, 3>{})");
}
template <class E, class... Rest>
requires detail::is_extents<E>
void ones(E, Rest...) {
  static_assert(detail::unsupported<E>, "weft: ones: name the element type: ones<float>(extents<2, 3>{})");
}
template <class E, class... Rest>
requires detail::is_extents<E>
void empty(E, Rest...) {
  static_assert(detail::unsupported<E>, "weft: empty: name the element type: empty<float>(extents<2, 3>{})");
}
template <class E, class... Rest>
requires detail::is_extents<E>
void rand(E, Rest...) {
  static_assert(detail::unsupported<E>, "weft: rand: name the element type: rand<float>(extents<2, 3>{})");
}
template <class E, class... Rest>
requires detail::is_extents<E>
void randn(E, Rest...) {
  static_assert(detail::unsupported<E>, "weft: randn: name the element type: randn<float>(extents<2, 3>{})");
}
template <element T, std::size_t N>
void from(const T (&)[N]) {
  static_assert(detail::unsupported<T>,
                "weft: from: extents come first: from(extents<3>{}, {1.0f, 2.0f, 3.0f})");
}
template <element T>
void from(const std::vector<T>&) {
  static_assert(detail::unsupported<T>, "weft: from: extents come first: from(extents<dyn, 3>{n}, values)");
}
template <element T, class Extents, std::size_t M, std::size_t N>
void from(Extents, const T (&)[M][N]) {
  static_assert(detail::unsupported<T>,
                "weft: from: give the elements as one list, row by row: from(extents<2, 2>{}, {1.0f, 2.0f, "
                "3.0f, 4.0f})");
}

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/tensor/impl/create.ipp>
#endif
