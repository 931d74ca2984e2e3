// SPDX-License-Identifier: MIT
// Attention on all types, for weft::compiled.
#pragma once

#include <weft/device/cpu/attention.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

template void attention<float>(const native_call&);
template void attention<double>(const native_call&);
template void attention<bfloat16>(const native_call&);
template void attention<float16>(const native_call&);

}  // namespace WEFT_ISA
}  // namespace weft::cpu
