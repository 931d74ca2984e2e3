// SPDX-License-Identifier: MIT
// Definitions of <weft/tensor/create.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/tensor/create.hpp>

namespace weft {
namespace detail {

[[gnu::noinline]] WEFT_DEFINE std::shared_ptr<tensor_state> filled(dtype type, const shape& s,
                                                                   const device& where,
                                                                   void (*fill)(const void*, void*, index_t),
                                                                   const void* how) {
  auto t = make_state(where, s, type);
  if (!where->computes()) return t;
  const bool in_place = where->host_accessible();
  const std::unique_ptr<std::byte[]> host(in_place ? nullptr : new std::byte[t->bytes()]);
  void* const elements = in_place ? t->memory.data() : host.get();
  fill(how, elements, s.size());
  if (!in_place) where->upload(t->memory.data(), elements, t->bytes());
  return t;
}

}  // namespace detail
}  // namespace weft
