// SPDX-License-Identifier: MIT
// Making tensors: from values, constant, counted, random.
//
// Random numbers are functions of a seed and the position of the element, the same on every
// device: uniform bits are exact, normal ones follow from them by Box and Muller's formula.
//
//   auto x = randn<float>(extents<dyn, 784>{32, 784}, {.seed = 7});
#pragma once

#include <cmath>
#include <vector>

#include <weft/base/philox.hpp>
#include <weft/tensor/tensor.hpp>

namespace weft {

template <element T, class Extents>
tensor<T, Extents> empty(Extents e, const device& where = default_device()) {
  return tensor<T, Extents>(static_cast<shape>(e), where);
}

namespace detail {
template <element T, class F>
std::shared_ptr<tensor_state> generated(const shape& s, F f, const device& where) {
  auto t = make_recycled<tensor_state>(where, s, dtype_of<T>);
  const bool in_place = where->host_accessible();
  const std::unique_ptr<T[]> host(in_place ? nullptr : new T[static_cast<std::size_t>(s.size())]);
  T* const elements = in_place ? static_cast<T*>(t->memory.data()) : host.get();
  for (index_t i = 0; i < s.size(); ++i) elements[i] = static_cast<T>(f(i));
  if (!in_place) where->upload(t->memory.data(), elements, t->bytes());
  return t;
}
}  // namespace detail

/// Elements f(0), f(1), ... in row-major order.
template <element T, class Extents, class F>
tensor<T, Extents> generate(Extents e, F f, const device& where = default_device()) {
  return tensor<T, Extents>(detail::generated<T>(static_cast<shape>(e), std::move(f), where));
}

namespace detail {
// Named types, so that a sequence is compiled once and not for every extents type.
template <class T>
struct constant_sequence {
  T value;
  T operator()(index_t) const { return value; }
};
}  // namespace detail

template <element T, class Extents>
tensor<T, Extents> full(Extents e, T value, const device& where = default_device()) {
  return tensor<T, Extents>(detail::generated<T>(static_cast<shape>(e), detail::constant_sequence<T>{value}, where));
}
template <element T, class Extents>
tensor<T, Extents> zeros(Extents e, const device& where = default_device()) {
  return full<T>(e, T(0), where);
}
template <element T, class Extents>
tensor<T, Extents> ones(Extents e, const device& where = default_device()) {
  return full<T>(e, T(1), where);
}

/// The elements in row-major order.
template <element T, class Extents>
tensor<T, Extents> from(Extents e, const std::vector<T>& values,
                        const device& where = default_device()) {
  tensor<T, Extents> t(static_cast<shape>(e), where);
  t.copy_from(values);
  return t;
}

/// 0, 1, ..., n - 1.
template <element T>
tensor<T, extents<dyn>> arange(index_t n, const device& where = default_device()) {
  return generate<T>(extents<dyn>{n}, [](index_t i) { return i; }, where);
}

/// What random elements are a function of, besides their position.
struct random_key {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  constexpr philox_key key() const { return key_of(mix(mix(0, seed), stream)); }
};

/// Element `i` of a standard normal sequence.
inline double normal_element(philox_key key, index_t i) {
  const auto words = philox(key, static_cast<std::uint64_t>(i) / 2);
  const std::size_t pair = static_cast<std::size_t>(i % 2) * 2;
  const double u = (static_cast<double>(words[pair]) + 1.0) * 0x1p-32;  // (0, 1]
  const double v = static_cast<double>(words[pair + 1]) * 0x1p-32;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586477 * v);
}

namespace detail {
struct uniform_sequence {
  philox_key key;
  float operator()(index_t i) const { return unit_interval(philox_word(key, static_cast<std::uint64_t>(i))); }
};
struct normal_sequence {
  philox_key key;
  double operator()(index_t i) const { return normal_element(key, i); }
};
}  // namespace detail

/// Uniform in [0, 1).
template <element T, class Extents>
tensor<T, Extents> rand(Extents e, random_key r = {}, const device& where = default_device()) {
  return tensor<T, Extents>(detail::generated<T>(static_cast<shape>(e), detail::uniform_sequence{r.key()}, where));
}

/// Standard normal.
template <element T, class Extents>
tensor<T, Extents> randn(Extents e, random_key r = {}, const device& where = default_device()) {
  return tensor<T, Extents>(detail::generated<T>(static_cast<shape>(e), detail::normal_sequence{r.key()}, where));
}

}  // namespace weft
