// SPDX-License-Identifier: MIT
// The native ops of random numbers on the CPU.
#pragma once

#include <weft/device/cpu/executor.hpp>
#include <weft/device/native.hpp>
#include <weft/device/random.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

/// out: uniform in [0, 1) with 24 bits. Attribute 0 distinguishes this op from others of its program.
void uniform(const native_call& call);

namespace detail {
[[noreturn, gnu::cold]] void refuse_probability(double p, index_t position);
}  // namespace detail

/// in: p; out: the same. Throws value_error unless all elements are in [0, 1].
void checked_probability(const native_call& call);

}  // namespace WEFT_ISA
}  // namespace weft::cpu

#ifndef WEFT_COMPILED
#include <weft/device/cpu/impl/random.ipp>
#endif
