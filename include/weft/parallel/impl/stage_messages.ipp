// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/stage_messages.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/parallel/stage_messages.hpp>

namespace weft {
namespace parallel {

WEFT_DEFINE stage_messages::~stage_messages() {
  for (const auto* some : {&sent_, &coming_})
    for (const message& m : *some) m.in_flight.finish();
}

WEFT_DEFINE void stage_messages::send(const pipeline::schedule& s, const pipeline::step& e,
                                      const state_ptr& value, comm_options o) {
  if (e.kind == pipeline::step_kind::send_gradient)
    drop([](const message& m) { return m.kind == pipeline::step_kind::send_gradient; });
  message& m = append(sent_, e, reachable(messages_, value));
  m.in_flight = stages_->send(elements_of(*m.value), pipeline::detail::peer_stage(s, e), tag(e),
                              labelled(e, std::move(o)));
}

WEFT_DEFINE void stage_messages::receive(const pipeline::schedule& s, const pipeline::step& e,
                                         const tensor_state& like, comm_options o) {
  if (has(e)) return;
  message& m = append(coming_, e, state_like(like, messages_));
  m.in_flight = stages_->receive(elements_of(*m.value), pipeline::detail::peer_stage(s, e), tag(e),
                                 labelled(e, std::move(o)));
}

WEFT_DEFINE state_ptr stage_messages::take(const pipeline::step& e) {
  state_ptr received;
  if (const auto found = find(e); found != coming_.end()) {
    const message m = std::move(*found);
    coming_.erase(found);
    m.in_flight.wait();
    received = m.value;
  }
  if (e.kind == pipeline::step_kind::receive_gradient)  // computed from this activation
    drop([&](const message& of) {
      return of.is({pipeline::step_kind::send_activation, e.chunk, e.micro_batch});
    });
  if (!received || where_ == messages_ || where_->holds_messages()) return received;
  const state_ptr value = state_like(*received, where_);
  copy_rows(value, 0, received, 0, value->extents.size());
  return value;
}

WEFT_DEFINE int stage_messages::tag(const pipeline::step& e) {
  const int lower = std::min(e.chunk, pipeline::detail::peer_chunk(e));
  const bool up =
      e.kind == pipeline::step_kind::send_activation || e.kind == pipeline::step_kind::receive_activation;
  return 2 * lower + (up ? 0 : 1);
}

WEFT_DEFINE comm_options stage_messages::labelled(const pipeline::step& e, comm_options o) {
  const bool up = tag(e) % 2 == 0;
  o.label = weft::detail::joined({up ? "activation" : "gradient", " of chunk ",
                                  std::min(e.chunk, pipeline::detail::peer_chunk(e)), ", micro-batch ",
                                  e.micro_batch});
  return o;
}

}  // namespace parallel
}  // namespace weft
