// SPDX-License-Identifier: MIT
// A tensor in another floating type: messages in half the bytes.
#pragma once

#include <weft/run/flat_kernel.hpp>

namespace weft::run {

namespace detail {
/// Both are f32 in a register.
template <dtype From, dtype To>
inline constexpr std::array convert_words{
    lower::word{lower::sweep}.encoded(),
    lower::word{lower::load, From, 0}.encoded(),
    lower::word{lower::store, To, 1, 1}.encoded(),
    lower::word{lower::end}.encoded()};
}  // namespace detail

/// to = from, between f32 and bf16 or f16.
inline void convert(backend& device, const tensor_state& from, tensor_state& to) {
  const bool widens = to.type == dtype::f32, bf16 = (widens ? from : to).type == dtype::bf16;
  if (widens && bf16) launch_flat<detail::convert_words<dtype::bf16, dtype::f32>>(device, {&from, &to});
  else if (widens) launch_flat<detail::convert_words<dtype::f16, dtype::f32>>(device, {&from, &to});
  else if (bf16) launch_flat<detail::convert_words<dtype::f32, dtype::bf16>>(device, {&from, &to});
  else launch_flat<detail::convert_words<dtype::f32, dtype::f16>>(device, {&from, &to});
}

}  // namespace weft::run
