// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/products.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/base/error.hpp>
#include <weft/gpu/products.hpp>
#include <weft/lower/text.hpp>

namespace weft {
namespace gpu {

WEFT_DEFINE index_t product_tiles::bytes(dtype type) const {
  return 2 * depth * (tile + 1) * std::max<index_t>(size_of(type), 4);
}

WEFT_DEFINE product_tiles product_tiles::choose(index_t m, index_t n, index_t batch, dtype type,
                                                const group_limits& limits) {
  constexpr product_tiles choices[] = {{128, 8}, {64, 8}, {32, 4}, {16, 4}};
  constexpr index_t enough = 128;  // tiles: about one per multiprocessor of a large GPU
  for (const product_tiles& by : choices) {
    const bool fits = by.threads() <= limits.threads && by.bytes(type) <= limits.memory;
    const bool gains = by.tile <= 32 || (limits.memory_is_own && by.count(m, n) * batch >= enough);
    if (fits && gains) return by;
  }
  return choices[3];
}

WEFT_DEFINE std::string product_tiles::source(const strided& a, const strided& c) const {
  using namespace lower::detail;
  return weft::detail::joined(
      {"#define T ", register_name(a.type), "\n#define OPERAND ", memory_name(a.type), "\n#define RESULT ",
       memory_name(c.type), "\n#define LOADED(x) ", loaded(a.type, "x"), "\n#define STORE(to, x) to = ",
       stored(c.type, c.adds ? "(" + loaded(c.type, "to") + " + (x))" : "(x)"), "\n#define TILE ", tile,
       "\n#define ITEM ", item, "\n#define DEPTH ", depth, product_text});
}

}  // namespace gpu
}  // namespace weft
