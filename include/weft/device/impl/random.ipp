// SPDX-License-Identifier: MIT
// Random sequences of all types, for weft::compiled.
#pragma once

#include <weft/device/random.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

template void fill_uniform<float>(philox_key, index_t, index_t, float*);
template void fill_uniform<double>(philox_key, index_t, index_t, double*);
template void fill_normal<float>(philox_key, index_t, index_t, float*);
template void fill_normal<double>(philox_key, index_t, index_t, double*);

}  // namespace WEFT_ISA
}  // namespace weft::cpu
