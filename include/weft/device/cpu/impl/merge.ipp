// SPDX-License-Identifier: MIT
// Merges of attention over pieces of the keys, for weft::compiled.
#pragma once

#include <weft/device/cpu/merge.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

template void merge_attention<float>(const native_call&);
template void merge_attention<double>(const native_call&);
template void add_positions<float>(const native_call&);
template void add_positions<double>(const native_call&);

}  // namespace WEFT_ISA
}  // namespace weft::cpu
