// SPDX-License-Identifier: MIT
// Definitions of <weft/io/dlpack.hpp>.
#pragma once

#include <algorithm>
#include <vector>

#include <weft/base/config.hpp>
#include <weft/io/dlpack.hpp>
#include <weft/io/elements.hpp>

namespace weft {
namespace io {
namespace detail {

WEFT_DEFINE dlpack_dtype dlpack_dtype_of(dtype t) {
  constexpr std::uint8_t integer = 0, unsigned_integer = 1, floating = 2, bfloat = 4, boolean = 6;
  const std::uint8_t code = t == dtype::boolean ? boolean
                            : t == dtype::bf16  ? bfloat
                            : t == dtype::u8    ? unsigned_integer
                            : is_floating(t)    ? floating
                                                : integer;
  return {code, static_cast<std::uint8_t>(8 * size_of(t)), 1};
}

WEFT_DEFINE void describe(const tensor_state& t, dlpack_array& array, std::int64_t* extents,
                          std::int64_t* strides) {
  const element_strides rows = row_major(t.extents);
  std::copy_n(t.extents.extent, max_order, extents);
  std::copy_n(rows.of, max_order, strides);
  array.order = t.extents.order;
  array.type = dlpack_dtype_of(t.type);
  array.extents = extents;
  array.strides = strides;
}

WEFT_DEFINE void check_version(std::uint32_t major) {
  if (major != 1)
    refuse<value_error>({"weft: from_dlpack: DLPack version ", major, " is not supported; version 1 is"});
}

WEFT_DEFINE std::shared_ptr<tensor_state> copy_of(const dlpack_array& array, dtype type,
                                                  const device& where) {
  constexpr std::int32_t cpu = 1, cuda_host = 3, rocm_host = 11;
  if (array.device.type != cpu && array.device.type != cuda_host && array.device.type != rocm_host)
    refuse<value_error>({"weft: from_dlpack: the elements are on a device of DLPack type ", array.device.type,
                         ": copy them to the CPU first"});
  const dlpack_dtype expected = dlpack_dtype_of(type), is = array.type;
  if (is.code != expected.code || is.bits != expected.bits || is.lanes != 1)
    refuse<value_error>({"weft: from_dlpack: the elements have DLPack type code ", int{is.code}, " with ",
                         int{is.bits}, " bits and ", int{is.lanes}, " lanes, but ", name_of(type),
                         " has type code ", int{expected.code}, " with ", int{expected.bits}, " bits"});
  if (array.order < 0 || array.order > max_order)
    refuse<value_error>(
        {"weft: from_dlpack: the array has ", array.order, " dims, but a tensor has at most ", max_order});
  shape extents{array.order, {}};
  for (int d = 0; d < array.order; ++d) {
    extents[d] = array.extents[d];
    if (extents[d] < 0) refuse<value_error>({"weft: from_dlpack: dim ", d, " has extent ", extents[d]});
  }
  const auto t = make_state(where, extents, type);
  if (extents.size() == 0) return t;
  element_strides strides = row_major(extents);
  if (array.strides) std::copy_n(array.strides, array.order, strides.of);
  std::vector<char> elements(t->bytes());
  copy_row_major(static_cast<const char*>(array.data) + array.byte_offset, extents, strides, size_of(type),
                 elements.data());
  if (type == dtype::boolean &&
      std::any_of(elements.begin(), elements.end(), [](char c) { return c != 0 && c != 1; }))
    throw value_error("weft: from_dlpack: a bool element is neither 0 nor 1");
  where->upload(t->memory.data(), elements.data(), elements.size());
  return t;
}

}  // namespace detail
}  // namespace io
}  // namespace weft
