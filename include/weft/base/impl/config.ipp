// SPDX-License-Identifier: MIT
// What weft::compiled was built with.
#pragma once

#include <weft/base/config.hpp>

namespace weft::detail {
inline namespace WEFT_ISA {

template <int Major, int Minor, int Patch, class... Components>
const char compiled_library<Major, Minor, Patch, Components...>::here = 0;

template struct compiled_library<WEFT_VERSION_MAJOR, WEFT_VERSION_MINOR, WEFT_VERSION_PATCH,
                                 with_tbb<WEFT_WITH_TBB>, with_opencl<WEFT_WITH_OPENCL>,
                                 with_cuda<WEFT_WITH_CUDA>, with_nccl<WEFT_WITH_NCCL>>;

}  // namespace WEFT_ISA
}  // namespace weft::detail
