// SPDX-License-Identifier: MIT
// Products of all types, for weft::compiled.
#pragma once

#include <weft/device/cpu/product.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

template void product<float>(const native_call&);
template void product<double>(const native_call&);
template void product<bfloat16>(const native_call&);
template void product<float16>(const native_call&);

}  // namespace WEFT_ISA
}  // namespace weft::cpu
