// SPDX-License-Identifier: MIT
// The backward pass of attention on all types, for weft::compiled.
#pragma once

#include <weft/device/cpu/attention.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

template void attention_backward<float>(const native_call&);
template void attention_backward<double>(const native_call&);
template void attention_backward<bfloat16>(const native_call&);
template void attention_backward<float16>(const native_call&);

}  // namespace WEFT_ISA
}  // namespace weft::cpu
