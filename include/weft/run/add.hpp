// SPDX-License-Identifier: MIT
// What tapes do to gradients: add two of one shape, multiply one by a scalar.
#pragma once

#include <weft/run/flat_kernel.hpp>

namespace weft::run {

namespace detail {
template <dtype T>
inline constexpr std::array add_words{
    lower::word{lower::sweep}.encoded(),
    lower::word{lower::load, T, 0}.encoded(),
    lower::word{lower::load, T, 1}.encoded(),
    lower::word{op::number_of_op<op::add>, T, 1, 2}.encoded(),
    lower::word{lower::store, T, 2, 3}.encoded(),
    lower::word{lower::end}.encoded()};
template <dtype T>
inline constexpr std::array scale_words{
    lower::word{lower::load_row, T, 1}.encoded(),
    lower::word{lower::argument, T, 0}.encoded(),
    lower::word{op::number_of_op<op::multiply>, T, 0, 1}.encoded(),
    lower::word{lower::sweep}.encoded(),
    lower::word{lower::load, T, 0}.encoded(),
    lower::word{op::number_of_op<op::multiply>, T, 4, 2}.encoded(),
    lower::word{lower::store, T, 2, 5}.encoded(),
    lower::word{lower::end}.encoded()};
}  // namespace detail

/// x *= scalar * factor, for f32 or f64.
inline void scale(backend& device, tensor_state& x, const tensor_state& scalar, double factor) {
  if (x.type == dtype::f64) launch_flat<detail::scale_words<dtype::f64>>(device, {&x, &scalar, &x}, {factor});
  else launch_flat<detail::scale_words<dtype::f32>>(device, {&x, &scalar, &x}, {factor});
}

/// sum = a + b for f32 or f64.
inline void add(backend& device, const tensor_state& a, const tensor_state& b, tensor_state& sum) {
  if (sum.type == dtype::f64) launch_flat<detail::add_words<dtype::f64>>(device, {&a, &b, &sum});
  else launch_flat<detail::add_words<dtype::f32>>(device, {&a, &b, &sum});
}

}  // namespace weft::run
