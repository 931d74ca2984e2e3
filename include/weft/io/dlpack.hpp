// SPDX-License-Identifier: MIT
// DLPack: tensors of other libraries in the same process, by C structs that PyTorch, NumPy, JAX and others
// make and read.
//
//   at::Tensor y = at::fromDLPack(reinterpret_cast<DLManagedTensor*>(io::to_dlpack(x)));   // LibTorch
//   auto z = io::from_dlpack<float, extents<dyn, 3>>(
//       reinterpret_cast<io::dlpack_tensor*>(at::toDLPack(y)));
//
// The structs have the layout of dlpack.h, of DLManagedTensor and, from version 1.0,
// DLManagedTensorVersioned.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>

#include <weft/tensor/tensor.hpp>

namespace weft::io {

/// DLDevice; type 1 is the CPU.
struct dlpack_device {
  std::int32_t type = 1, number = 0;
};
/// DLDataType.
struct dlpack_dtype {
  std::uint8_t code = 0, bits = 0;
  std::uint16_t lanes = 1;
};
/// DLTensor. Strides count elements; null: row-major without gaps.
struct dlpack_array {
  void* data = nullptr;
  dlpack_device device{};
  std::int32_t order = 0;
  dlpack_dtype type{};
  std::int64_t *extents = nullptr, *strides = nullptr;
  std::uint64_t byte_offset = 0;
};
/// DLManagedTensor. Who has read the elements calls deleter(this), once.
struct dlpack_tensor {
  dlpack_array array{};
  void* context = nullptr;
  void (*deleter)(dlpack_tensor*) = nullptr;
};
/// DLManagedTensorVersioned.
struct dlpack_versioned_tensor {
  std::uint32_t major = 1, minor = 0;
  void* context = nullptr;
  void (*deleter)(dlpack_versioned_tensor*) = nullptr;
  std::uint64_t flags = 0;
  dlpack_array array{};
};

/// Either of the two.
template <class T>
concept dlpack_managed = std::same_as<T, dlpack_tensor> || std::same_as<T, dlpack_versioned_tensor>;

namespace detail {
dlpack_dtype dlpack_dtype_of(dtype t);

/// A tensor that others read, and what describes it.
template <dlpack_managed Managed>
struct dlpack_export {
  Managed managed{};
  std::shared_ptr<tensor_state> of;
  std::int64_t extents[max_order], strides[max_order];
};
/// Sets all but the elements.
void describe(const tensor_state& t, dlpack_array& array, std::int64_t* extents, std::int64_t* strides);

/// Throws value_error for a version of the structs that is not known.
[[gnu::cold]] void check_version(std::uint32_t major);
/// A copy of an array of dtype `type` on `where`.
std::shared_ptr<tensor_state> copy_of(const dlpack_array& array, dtype type, const device& where);
}  // namespace detail

/// The elements of `t` for another library, without a copy: they stay until it calls the deleter. Counts as a
/// change of `t` in place, as whoever reads them may also write; complete writing before the next expression
/// of `t`. Throws device_error if the elements are not on the host, value_error if they are sharded or not
/// there.
template <dlpack_managed Managed = dlpack_tensor, element T, class E, bool G>
Managed* to_dlpack(tensor<T, E, G> t) {
  auto all = std::make_unique<detail::dlpack_export<Managed>>();
  all->managed.array.data = t.mutable_data();
  all->of = t.state();
  detail::describe(*all->of, all->managed.array, all->extents, all->strides);
  all->managed.context = all.get();
  all->managed.deleter = [](Managed* m) { delete static_cast<detail::dlpack_export<Managed>*>(m->context); };
  return &all.release()->managed;
}

/// A copy on `where` of the tensor of another library, in any order of its elements; calls its deleter.
/// Throws value_error, and does not call it, for another element type than T, more than 6 dims, a device that
/// is not the CPU, a bool other than 0 and 1, or a version that is not 1; shape_error if `Extents` cannot be
/// its shape.
template <element T, class Extents, dlpack_managed Managed>
tensor<T, Extents> from_dlpack(Managed* from, const device& where = default_device()) {
  if constexpr (std::same_as<Managed, dlpack_versioned_tensor>) detail::check_version(from->major);
  const tensor<T, Extents> t(detail::copy_of(from->array, dtype_of<T>, where));
  if (from->deleter) from->deleter(from);
  return t;
}

}  // namespace weft::io

#ifndef WEFT_COMPILED
#include <weft/io/impl/dlpack.ipp>
#endif
