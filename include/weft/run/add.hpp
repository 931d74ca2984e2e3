// SPDX-License-Identifier: MIT
// Adding two tensors of one shape: what tapes do to gradients. One kernel written by hand in words,
// so that including a tape compiles no program.
#pragma once

#include <weft/lower/cpu_kernel.hpp>
#include <weft/tensor/tensor.hpp>

namespace weft::run {

namespace detail {

template <dtype T>
inline constexpr std::uint64_t add_words[] = {
    lower::word{lower::sweep}.encoded(),
    lower::word{lower::load, T, 0}.encoded(),
    lower::word{lower::load, T, 1}.encoded(),
    lower::word{op::number_of_op<op::add>, T, 1, 2}.encoded(),
    lower::word{lower::store, T, 2, 3}.encoded(),
    lower::word{lower::end}.encoded()};

template <dtype T, int... I>
constexpr kernel_function add_function(std::integer_sequence<int, I...>) {
  return &lower::cpu_kernel<add_words<T>[I]...>::run;
}

}  // namespace detail

/// sum = a + b for f32 or f64.
inline void add(backend& device, const tensor_state& a, const tensor_state& b, tensor_state& sum) {
  const bool wide = sum.type == dtype::f64;
  constexpr std::make_integer_sequence<int, 6> words;
  kernel_call call;
  call.words = wide ? std::span<const std::uint64_t>(detail::add_words<dtype::f64>)
                    : std::span<const std::uint64_t>(detail::add_words<dtype::f32>);
  call.function = wide ? detail::add_function<dtype::f64>(words)
                       : detail::add_function<dtype::f32>(words);
  call.division = kernel_division::elements;
  call.args.arguments = 3;
  call.args.extent[0] = sum.extents.size();
  void* const memory[] = {a.memory.data(), b.memory.data(), sum.memory.data()};
  for (int i = 0; i < 3; ++i) {
    call.args.pointer[i] = memory[i];
    call.args.stride[i][0] = 1;
  }
  device.launch(call);
}

}  // namespace weft::run
