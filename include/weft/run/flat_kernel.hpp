// SPDX-License-Identifier: MIT
// Kernels written directly as instructions, over contiguous tensors of equal size: the library's own
// operations on gradients, for which no program is compiled.
#pragma once

#include <algorithm>
#include <array>

#include <weft/lower/cpu_kernel.hpp>
#include <weft/tensor/tensor.hpp>

namespace weft::runtime {

/// Launches the kernel whose encoded instructions are `Words`; they load and store the operands in this
/// order, and read `numbers`.
template <const auto& Words>
void launch_flat(backend& device, std::initializer_list<const tensor_state*> operands,
                 std::initializer_list<any_number> numbers = {}) {
  constexpr kernel_function function = []<std::size_t... I>(std::index_sequence<I...>) {
    return &lower::cpu_kernel<Words[I]...>::run;
  }(std::make_index_sequence<Words.size()>{});
  kernel_call call;
  call.instructions = Words;
  call.function = function;
  call.division = kernel_division::elements;
  call.args.extent[0] = (*operands.begin())->extents.size();
  for (const tensor_state* t : operands) {
    call.args.pointer[call.args.arguments] = const_cast<void*>(static_cast<const void*>(t->memory.data()));
    call.args.stride[call.args.arguments++][0] = 1;
  }
  std::copy(numbers.begin(), numbers.end(), call.args.number);
  device.launch(call);
}

}  // namespace weft::runtime
