// SPDX-License-Identifier: MIT
// DLPack: exchange of tensors with other libraries in the same process, through C structs that PyTorch,
// NumPy, JAX and others produce and consume.
//
//   at::Tensor y = at::fromDLPack(reinterpret_cast<DLManagedTensor*>(io::to_dlpack(x)));   // LibTorch
//   auto z = io::from_dlpack<float, extents<dyn, 3>>(
//       reinterpret_cast<io::dlpack_tensor*>(at::toDLPack(y)));
//
// The structs have the layouts of DLManagedTensor and, from version 1.0, DLManagedTensorVersioned in
// dlpack.h.
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
/// DLManagedTensor. The consumer calls deleter(this) once, when it no longer needs the elements.
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

/// A tensor read by another library, and its description.
template <dlpack_managed Managed>
struct dlpack_export {
  Managed managed{};
  std::shared_ptr<tensor_state> of;
  std::int64_t extents[max_order], strides[max_order];
};
/// Sets everything except the data pointer.
void describe(const tensor_state& t, dlpack_array& array, std::int64_t* extents, std::int64_t* strides);

/// Throws value_error for an unknown version of the structs.
[[gnu::cold]] void check_version(std::uint32_t major);
/// A copy of an array of dtype `type` on `where`.
std::shared_ptr<tensor_state> copy_of(const dlpack_array& array, dtype type, const device& where);
}  // namespace detail

/// The elements of `t` for another library, without a copy; they stay alive until it calls the deleter.
/// Counts as an in-place change of `t`, because the library may also write; it must complete writes before
/// the next expression of `t`. Throws device_error if the elements are not on the host, value_error if they
/// are sharded or do not exist.
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

/// A copy on `where` of another library's tensor, with any strides; calls its deleter. Throws, without
/// calling the deleter, value_error for an element type other than T, more than 6 dims, memory that is
/// neither the CPU's nor pinned host memory of CUDA or ROCm, a bool other than 0 and 1, or a version other
/// than 1; shape_error if its shape does not match `Extents`.
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
