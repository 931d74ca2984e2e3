// SPDX-License-Identifier: MIT
// Printing of tensors: dtype, shape and elements; the middle of a long dim is elided.
#pragma once

#include <memory>
#include <ostream>

#include <weft/tensor/tensor.hpp>

namespace weft {

namespace detail {
template <class T>
[[gnu::cold]] void print_dim(std::ostream& out, const T* data, const shape& s, int dim, index_t offset) {
  constexpr index_t edge = 3;
  if (dim == s.order) {
    const T x = data[offset];
    if constexpr (sizeof(T) == 1) out << static_cast<int>(x);
    else if constexpr (!is_floating(dtype_of<T>)) out << x;
    else {
      const auto number = static_cast<std::conditional_t<sizeof(T) == 2, float, T>>(x);
      if (number != number) out << "nan";  // whatever its sign
      else out << number;
    }
    return;
  }
  index_t step = 1;
  for (int i = dim + 1; i < s.order; ++i) step *= s[i];
  out << '[';
  for (index_t i = 0; i < s[dim]; ++i) {
    if (i) out << (dim + 1 < s.order ? ",\n" + std::string(static_cast<std::size_t>(dim + 1), ' ') : ", ");
    if (s[dim] > 2 * edge + 1 && i == edge) {
      out << "...";
      i = s[dim] - edge - 1;
      continue;
    }
    print_dim(out, data, s, dim + 1, offset + i * step);
  }
  out << ']';
}

template <class T>
[[gnu::cold]] std::ostream& print(std::ostream& out, const tensor_state& t) {
  const std::unique_ptr<T[]> host(new T[static_cast<std::size_t>(t.extents.size())]);
  download_to(t, host.get());
  out << name_of(t.type) << ' ' << to_string(t.extents) << '\n';
  print_dim(out, host.get(), t.extents, 0, 0);
  return out;
}
}  // namespace detail

/// Prints dtype, shape and elements: of a dim with more than 7 entries, the first and last 3. A handle that
/// refers to no tensor, such as grad() before a backward pass, prints as "undefined". Copies the elements to
/// the host and waits for the device.
template <class T, class Extents, bool Tracked>
std::ostream& operator<<(std::ostream& out, const tensor<T, Extents, Tracked>& t) {
  return t.defined() ? detail::print<T>(out, *t.state()) : out << "undefined";
}

/// Compile-time error: an expression has no elements.
template <expression E>
  requires(!detail::is_leaf<E>)
std::ostream& operator<<(std::ostream& out, const E&) {
  static_assert(detail::unsupported<E>, "weft: nothing is computed yet: write std::cout << eval(e)");
  return out;
}

}  // namespace weft
