// SPDX-License-Identifier: MIT
// Batched matrix products on the CPU as native code, instantiated only in programs that contain a matmul.
#pragma once

#include <weft/device/cpu/gemm.hpp>
#include <weft/device/native.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

namespace detail {
template <class T, class Out>
void product_of(const native_call& call) {
  const strided &a = call.in[0], &b = call.in[1], &c = call.out[0];
  const int dims = c.extents.order - 2;
  const gemm_size size{c.extents[dims], c.extents[dims + 1], a.extents.last()};
  index_t batches = 1;
  for (int d = 0; d < dims; ++d) batches *= c.extents[d];
  multiply_each<T, Out>(size, batches, [&](index_t n) {
    const auto offset = [&](const strided& t) { return element_offset(c.extents, t.stride, 0, dims, n); };
    return operands_of_product<T, Out>{{a.data<T>() + offset(a), a.stride[dims], a.stride[dims + 1]},
                                       {b.data<T>() + offset(b), b.stride[dims], b.stride[dims + 1]},
                                       {c.data<Out>() + offset(c), c.stride[dims], c.adds}};
  }, call.threads);
}
}  // namespace detail

/// in: a [batch..., m, k], b [batch..., k, n]; out: [batch..., m, n], of their type or f32. Supports `adds`.
template <class T>
void product(const native_call& call) {
  if constexpr (is_storage_type<T>)
    if (call.out[0].type == dtype::f32) return detail::product_of<T, float>(call);
  detail::product_of<T, T>(call);
}

#ifdef WEFT_COMPILED
extern template void product<float>(const native_call&);
extern template void product<double>(const native_call&);
extern template void product<bfloat16>(const native_call&);
extern template void product<float16>(const native_call&);
#endif

}  // namespace WEFT_ISA
}  // namespace weft::cpu
