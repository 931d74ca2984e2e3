// SPDX-License-Identifier: MIT
// Batched matrix products on the CPU as native code, instantiated only in programs that contain a matmul.
#pragma once

#include <weft/device/cpu/gemm.hpp>
#include <weft/device/native.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

namespace detail {
/// Whether the products for all indices of the dims before the last two, which share their left operand, are
/// computed as one product, whose right operand has the columns of all of them. They are if the few columns
/// of each would not fill vectors, and if each element is computed as in the separate product.
template <class T>
bool can_join(const gemm_size& size, const strided& a, const strided& b, const strided& c) {
  using B = blocking<typename packing<T>::type>;
  constexpr index_t lanes = B::lanes, deep = 64;
#if WEFT_HAS_TILES
  if (std::is_same_v<T, bfloat16> && tiles_permitted()) return false;
#endif
  const int dims = c.extents.order - 2;
  // The vectors that one product computes, where a single one runs below full speed; and the cost of packing
  // columns that are not adjacent and of storing sums in pieces. Measured on Zen 5.
  const index_t vectors = quotient_up(size.n, lanes);
  const double computed = static_cast<double>(lanes * vectors + (vectors == 1 ? lanes / 4 : 0)),
               packing_cost = b.merged ? 0.02 : 0.04 + 12 / static_cast<double>(size.m);
  bool same = size.n > 1 && computed > static_cast<double>(size.n) * (1 + packing_cost) && size.k >= deep &&
              size.m > B::tile_rows && !c.adds && b.stride[dims + 1] == 1 && c.stride[dims] == size.n;
  int order = b.merged ? b.merged->columns.order : 1;
  index_t stride = size.m * size.n;
  for (int d = dims; d-- > 0; stride *= c.extents[d]) {
    if (c.extents[d] == 1) continue;
    same = same && c.stride[d] == stride && a.stride[d] == 0;
    ++order;
  }
  return same && order <= max_order;
}

template <class T, class Out>
void product_of(const native_call& call) {
  const strided &a = call.in[0], &b = call.in[1], &c = call.out[0];
  const int dims = c.extents.order - 2;
  gemm_size size{c.extents[dims], c.extents[dims + 1], a.extents.last()};
  index_t batches = 1;
  for (int d = 0; d < dims; ++d) batches *= c.extents[d];
  const index_t piece = batches > 1 && can_join<T>(size, a, b, c) ? size.n : 0;
  static thread_local scratch_memory memory[2];
  const merged_matrix left(a, false, memory[0]), right(b, piece > 0, memory[1]);
  if (piece > 0) {
    size.n *= batches;
    batches = 1;
  }
  multiply_each<T, Out>(
      size, batches,
      [&](index_t n) {
        const auto offset = [&](const strided& t) { return element_offset(c.extents, t.stride, 0, dims, n); };
        return operands_of_product<T, Out>{
            left.at(a.data<const T>() + offset(a), a),
            right.at(b.data<const T>() + offset(b), b),
            {c.data<Out>() + offset(c), c.stride[dims], c.adds, piece, size.m * piece}};
      },
      call.threads);
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
