// SPDX-License-Identifier: MIT
// Definitions of <weft/device/counting.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/device/counting.hpp>

namespace weft {

WEFT_DEFINE void* counting_backend::allocate(std::size_t bytes) {
  const std::uintptr_t address = next_;
  next_ += (bytes + 63) / 64 * 64;
  return reinterpret_cast<void*>(address);
}

WEFT_DEFINE void counting_backend::launch(const kernel_call& call) {
  for (int i = 0; i < call.args.arguments; ++i)
    touch(4, {call.args.extent, static_cast<std::size_t>(call.args.order)}, call.args.stride[i]);
}

WEFT_DEFINE void counting_backend::multiply(const native_code&, const strided& a, const strided& b,
                                            const strided& c) {
  work_.operations += 2 * static_cast<double>(c.size()) * static_cast<double>(a.extents.last());
  for (const strided* t : {&a, &b, &c}) touch(*t);
  if (c.adds) touch(c);
}

WEFT_DEFINE void counting_backend::call_native(const char*, const native_code&,
                                               const native_operands& operands) {
  for (const strided& t : operands.in) touch(t);
  for (const strided& t : operands.out)
    if (!t.adds) touch(t);
    else
      for (const strided& x : operands.in) touch(x);  // as many elements as are added
}

WEFT_DEFINE void counting_backend::touch(double bytes, std::span<const index_t> extents,
                                         const index_t* stride) {
  for (std::size_t d = 0; d < extents.size(); ++d)
    if (stride[d] != 0) bytes *= static_cast<double>(extents[d]);
  work_.bytes += bytes;
}

WEFT_DEFINE void counting_backend::touch(const strided& t) {
  touch(static_cast<double>(size_of(t.type)), {t.extents.extent, static_cast<std::size_t>(t.extents.order)},
        t.stride);
}

}  // namespace weft
