// SPDX-License-Identifier: MIT
// Adding two tensors of one shape: what tapes do to gradients.
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
}  // namespace detail

/// sum = a + b for f32 or f64.
inline void add(backend& device, const tensor_state& a, const tensor_state& b, tensor_state& sum) {
  if (sum.type == dtype::f64) launch_flat<detail::add_words<dtype::f64>>(device, {&a, &b, &sum});
  else launch_flat<detail::add_words<dtype::f32>>(device, {&a, &b, &sum});
}

}  // namespace weft::run
