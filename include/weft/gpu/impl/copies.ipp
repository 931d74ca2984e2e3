// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/copies.hpp>.
#pragma once

#include <algorithm>
#include <cstdint>

#include <weft/base/config.hpp>
#include <weft/base/error.hpp>
#include <weft/gpu/copies.hpp>

namespace weft {
namespace gpu {

WEFT_DEFINE copy_form::copy_form(const strided& a, const strided& b, index_t most) : unit(size_of(b.type)) {
  for (int d = 0; d < b.extents.order; ++d) {
    const index_t n = b.extents[d];
    if (n == 1) continue;
    const int last = order - 1;
    if (last >= 0 && from[last] == n * a.stride[d] && to[last] == n * b.stride[d]) {
      extent[last] *= n;
      from[last] = a.stride[d];
      to[last] = b.stride[d];
      continue;
    }
    extent[order] = n;
    from[order] = a.stride[d];
    to[order++] = b.stride[d];
  }
  if (order == 0) {
    extent[0] = from[0] = to[0] = 1;
    order = 1;
  }
  const int last = order - 1;
  const auto divides = [&](index_t times) {
    const auto bytes = static_cast<std::uintptr_t>(unit * times);
    bool all = extent[last] % times == 0 && reinterpret_cast<std::uintptr_t>(a.pointer) % bytes == 0 &&
               reinterpret_cast<std::uintptr_t>(b.pointer) % bytes == 0;
    for (int d = 0; d < last; ++d) all = all && from[d] % times == 0 && to[d] % times == 0;
    return all;
  };
  if (from[last] == 1 && to[last] == 1) {
    index_t times = most / unit;
    while (times > 1 && !divides(times)) times /= 2;
    extent[last] /= times;
    for (int d = 0; d < last; ++d) {
      from[d] /= times;
      to[d] /= times;
    }
    unit *= times;
  }
  narrow = size() <= index_t{1} << 30;  // a loop that ends there steps slightly beyond
}

WEFT_DEFINE void copy_text_form::add(const copy_form& copy) {
  unit = std::min(unit, copy.unit);
  order = std::max(order, copy.order);
  narrow = narrow && copy.narrow;
}

WEFT_DEFINE std::string copy_text_form::key() const {
  return weft::detail::joined({unit, " ", order, narrow ? " narrow" : ""});
}

WEFT_DEFINE std::string copy_text_form::source(const char* text) const {
  const char* const type = unit == 1   ? "uchar"
                           : unit == 2 ? "ushort"
                           : unit == 4 ? "uint"
                           : unit == 8 ? "ulong"
                                       : "uint4";
  return weft::detail::joined({"#define T ", type, "\n#define ORDER ", order, "\n#define POSITION ",
                               narrow ? "uint" : "long", "\n#define MOST_COPIES ", most_copies, copy_words,
                               text});
}

}  // namespace gpu
}  // namespace weft
