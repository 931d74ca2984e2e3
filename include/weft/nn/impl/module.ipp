// SPDX-License-Identifier: MIT
// Definitions of <weft/nn/module.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/nn/module.hpp>

namespace weft {
namespace detail {

[[gnu::noinline]] WEFT_DEFINE std::shared_ptr<tensor_state> parameter_state(const shape& extents, dtype type,
                                                                            const initializer& init,
                                                                            const device& where) {
  auto p = make_recycled<tensor_state>(
      where, extents, type,
      where.defers_parameters() ? buffer() : where.allocate(bytes_of(extents, type), "parameter"));
  p->init = init;
  return p;
}

WEFT_DEFINE void name_memory(const state_dict_t& all) {
  for (auto named = all.rbegin(); named != all.rend(); ++named)
    if (named->second) named->second->memory.set_name(named->first);
}

#ifdef WEFT_COMPILED
template void draw_elements<float>(const initializer&, const device&, void*, index_t, index_t);
template void draw_elements<double>(const initializer&, const device&, void*, index_t, index_t);
template void draw_elements<bfloat16>(const initializer&, const device&, void*, index_t, index_t);
template void draw_elements<float16>(const initializer&, const device&, void*, index_t, index_t);
#endif

}  // namespace detail
}  // namespace weft
