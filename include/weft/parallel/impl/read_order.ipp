// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/read_order.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/parallel/read_order.hpp>

namespace weft {
namespace parallel {

WEFT_DEFINE std::span<const read_event> read_order::follow(const runtime::purpose& why, read_event now) {
  progress& c = progress_of(why.tape);
  if (!c.ahead || c.position >= c.ahead->size() || (*c.ahead)[c.position] != now) {
    c.ahead = order_from(now);
    c.position = 0;
  }
  if (why.tape) c.events.push_back(std::move(now));  // events without a tape would accumulate without end
  if (!c.ahead) return {};
  return std::span(*c.ahead).subspan(++c.position);
}

WEFT_DEFINE bool read_order::held(int unit) const {
  return std::any_of(tapes_.begin(), tapes_.end(), [&](const progress& c) { return c.holds(unit); });
}

WEFT_DEFINE void read_order::finish(const runtime::tape_identity& tape) {
  for (progress& c : tapes_) {
    if (!tape || c.tape.lock() != tape || c.events.empty()) continue;
    if (order* known = order_from(c.events.front())) *known = std::move(c.events);
    else orders_.push_back(std::make_unique<order>(std::move(c.events)));
  }
  std::erase_if(tapes_, [&](const progress& c) { return c.tape.expired() || c.tape.lock() == tape; });
}

WEFT_DEFINE read_order::progress& read_order::progress_of(const runtime::tape_identity* tape) {
  for (progress& c : tapes_)
    if (tape ? c.tape.lock() == *tape : c.tape.expired()) return c;
  tapes_.push_back({tape ? *tape : runtime::tape_identity(), {}, nullptr, 0, {}});
  return tapes_.back();
}

}  // namespace parallel
}  // namespace weft
