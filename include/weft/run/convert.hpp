// SPDX-License-Identifier: MIT
// Conversion of a tensor between floating types, for messages of half the size.
#pragma once

#include <weft/run/flat_kernel.hpp>

namespace weft::runtime {

namespace detail {
/// Both types are f32 in registers.
template <dtype From, dtype To>
inline constexpr std::array convert_words{
    lower::instruction{lower::sweep}.encoded(), lower::instruction{lower::load, From, 0}.encoded(),
    lower::instruction{lower::store, To, 1, 1}.encoded(), lower::instruction{lower::end}.encoded()};
}  // namespace detail

/// to = from, between f32 and bf16 or f16, with equal numbers of elements; rounds to nearest, ties to even.
/// Throws value_error for other types.
inline void convert(backend& device, const tensor_state& from, tensor_state& to) {
  const auto is = [&](dtype a, dtype b) { return from.type == a && to.type == b; };
  if (is(dtype::bf16, dtype::f32))
    launch_flat<detail::convert_words<dtype::bf16, dtype::f32>>(device, {&from, &to});
  else if (is(dtype::f16, dtype::f32))
    launch_flat<detail::convert_words<dtype::f16, dtype::f32>>(device, {&from, &to});
  else if (is(dtype::f32, dtype::bf16))
    launch_flat<detail::convert_words<dtype::f32, dtype::bf16>>(device, {&from, &to});
  else if (is(dtype::f32, dtype::f16))
    launch_flat<detail::convert_words<dtype::f32, dtype::f16>>(device, {&from, &to});
  else
    throw value_error(std::string("weft: convert: cannot convert from ") + name_of(from.type) + " to " +
                      name_of(to.type));
}

}  // namespace weft::runtime
