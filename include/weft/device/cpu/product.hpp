// SPDX-License-Identifier: MIT
// Batched matrix products on the CPU as native code, instantiated only in programs that contain a matmul.
#pragma once

#include <weft/device/cpu/gemm.hpp>
#include <weft/device/native.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

namespace detail {
/// Products of all indices of the dims before the last two that have the same left operand, as one product,
/// whose right operand has the columns of all: panels and vectors would not be full of the few columns of
/// each.
class joined_columns {
 public:
  /// Whether it is faster, and each element computed as it is alone.
  template <class T>
  static bool is_worthwhile(const gemm_size& size, const strided& a, const strided& b, const strided& c) {
    using B = blocking<typename packing<T>::type>;
    constexpr index_t lanes = B::lanes, deep = 64;
#if WEFT_HAS_TILES
    if (std::is_same_v<T, bfloat16> && tiles_permitted()) return false;
#endif
    const int dims = c.extents.order - 2;
    int order = b.merged ? b.merged->columns.order : 1;
    for (int d = 0; d < dims; ++d) order += c.extents[d] > 1;
    // Vectors that one product computes, a single one at less than full speed; what it costs to pack columns
    // that are not beside each other, and to store sums in pieces. Measured on Zen 5.
    const index_t vectors = quotient_up(size.n, lanes);
    const double computed = static_cast<double>(lanes * vectors + (vectors == 1 ? lanes / 4 : 0)),
                 packing_cost = b.merged ? 0.02 : 0.04 + 12 / static_cast<double>(size.m);
    bool same = size.n > 1 && computed > static_cast<double>(size.n) * (1 + packing_cost) && size.k >= deep &&
                size.m > B::tile_rows && !c.adds && order <= max_order && b.stride[dims + 1] == 1;
    index_t stride = size.m * size.n;
    for (int d = dims; d-- > 0; stride *= c.extents[d])
      same = same && (c.extents[d] == 1 || (c.stride[d] == stride && a.stride[d] == 0));
    return same && c.stride[dims] == size.n;
  }

  explicit joined_columns(const strided& b) : of_all_(b) {
    const int dims = b.extents.order - 2;
    index_t columns = b.extents[dims + 1];
    for (int d = 0; d < dims; ++d) {
      dims_.columns.add_inner(b.extents[d], b.stride[d]);
      columns *= b.extents[d];
    }
    const auto add = [&](merged_dims::side& side, const merged_dims::side* own, int dim) {
      if (!own) return side.add_inner(b.extents[dim], b.stride[dim]);
      for (int d = 0; d < own->order; ++d) side.add_inner(own->extent[d], own->stride[d]);
    };
    add(dims_.rows, b.merged ? &b.merged->rows : nullptr, dims);
    add(dims_.columns, b.merged ? &b.merged->columns : nullptr, dims + 1);
    of_all_.extents = {2, {b.extents[dims], columns}};
    of_all_.stride[0] = columns;
    of_all_.stride[1] = 1;
    of_all_.merged = &dims_;
  }
  joined_columns(const joined_columns&) = delete;
  joined_columns& operator=(const joined_columns&) = delete;

  const strided& of_all() const { return of_all_; }

 private:
  merged_dims dims_;
  strided of_all_;
};

template <class T, class Out>
void products_of(const native_call& call, const gemm_size& size, index_t batches, const strided& b,
                 index_t piece) {
  const strided &a = call.in[0], &c = call.out[0];
  const int dims = c.extents.order - 2;
  static thread_local scratch_memory memory;
  const merged_operands operands(a, b, memory);
  multiply_each<T, Out>(
      size, batches,
      [&](index_t n) {
        const auto offset = [&](const strided& t) { return element_offset(c.extents, t.stride, 0, dims, n); };
        return operands_of_product<T, Out>{
            operands.of(0, a, a.data<const T>() + offset(a)),
            operands.of(1, b, b.data<const T>() + (batches > 1 ? offset(b) : 0)),
            {c.data<Out>() + offset(c), c.stride[dims], c.adds, piece, size.m * piece}};
      },
      call.threads);
}

template <class T, class Out>
void product_of(const native_call& call) {
  const strided &a = call.in[0], &b = call.in[1], &c = call.out[0];
  const int dims = c.extents.order - 2;
  const gemm_size size{c.extents[dims], c.extents[dims + 1], a.extents.last()};
  index_t batches = 1;
  for (int d = 0; d < dims; ++d) batches *= c.extents[d];
  if (batches <= 1 || !joined_columns::is_worthwhile<T>(size, a, b, c))
    return products_of<T, Out>(call, size, batches, b, 0);
  const joined_columns joined(b);
  products_of<T, Out>(call, {size.m, batches * size.n, size.k}, 1, joined.of_all(), size.n);
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
