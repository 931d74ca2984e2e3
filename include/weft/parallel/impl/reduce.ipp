// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/reduce.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/parallel/reduce.hpp>

namespace weft {
namespace parallel {

WEFT_DEFINE gradient_reducer::gradient_reducer(std::vector<unit>& units, const rank_groups& groups,
                                               const parallel_options& o, const device& where)
    : units_(units),
      groups_(groups),
      where_(where),
      // A hook reads elements on the host; a rank that is alone sends nothing.
      messages_(groups.data().size() == 1 ? where : message_device(where, o.hook ? nullptr : &groups.data())),
      hook_(o.hook),
      type_(o.reduce_dtype),
      reduces_each_(o.reduces_each()),
      sends_(o.local_steps == 1) {
  if ((hook_ || !sends_) && o.divide != sharding::none)
    refuse<usage_error>({"weft: bind: ", (hook_ ? "a gradient hook needs" : "local steps need"),
                         " ranks that hold the whole model, not a sharded strategy"});
  if (!sends_ && (hook_ || type_ != dtype::f32))
    refuse<usage_error>({"weft: bind: ", (hook_ ? "a gradient hook" : "reduce_dtype"),
                         " says how gradients are sent, but ranks that take local steps send none"});
  if (hook_ && type_ != dtype::f32)
    throw usage_error(
        "weft: bind: reduce_dtype says how gradients are sent, but so does the hook: use one of them");
  check_message_type("reduce_dtype", type_);
  for (std::size_t u = 0; u < units.size(); ++u)
    states_.push_back({gradient_sum(o.deterministic), gradient_sum(o.deterministic), {}});
  for (std::size_t u = 0; u < units.size(); ++u) expected_.push_back(static_cast<int>(u));
}

WEFT_DEFINE void gradient_reducer::take(int u, bool last) {
  unit& of = units_[static_cast<std::size_t>(u)];
  const auto has_gradient = [](const member& m) { return m.whole->grad != nullptr; };
  if (std::none_of(of.members.begin(), of.members.end(), has_gradient)) return;
  while (reduces_each_ && under_way_.size() >= most_under_way) advance();
  const state_ptr message = flat(messages_, of.message.count);
  std::vector<row_copy> copies;
  for (const piece& p : of.message.by_member()) {
    const state_ptr& g = of.at(p.member).whole->grad;
    if (g) copies.push_back({*message, p.in_message, *g, p.at, p.count});
    else if (p.count)
      messages_->fill_zero(static_cast<float*>(message->memory.data()) + p.in_message,
                           static_cast<std::size_t>(p.count) * sizeof(float));
  }
  copy_rows(copies);
  for (member& m : of.members) {
    if (!m.whole->grad) continue;
    m.seen = m.whole->gradient_in_run = true;
    m.whole->grad.reset();
  }
  if (reduces_each_) {
    start(u, message);
    return;
  }
  at(u).unsent.add(*messages_, message);
  if (!last) return;
  at(u).is_ready = true;
  send_ready();
}

WEFT_DEFINE void gradient_reducer::send_ready() {
  for (; next_ < expected_.size() && at(expected_[next_]).is_ready; ++next_) {
    state& s = at(expected_[next_]);
    s.is_ready = false;
    s.was_sent = true;
    start(expected_[next_], s.unsent.take(*messages_));
  }
}

WEFT_DEFINE void gradient_reducer::send_rest() {
  const auto send = [&](int u) {
    if (at(u).unsent.empty()) return;
    at(u).is_ready = false;
    at(u).was_sent = true;
    start(u, at(u).unsent.take(*messages_));
  };
  for (; next_ < expected_.size(); ++next_) send(expected_[next_]);
  std::vector<int> sent;
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    send(u);
    if (std::exchange(at(u).was_sent, false)) sent.push_back(u);
  }
  if (!sent.empty()) expected_ = std::move(sent);
  next_ = 0;
}

WEFT_DEFINE void gradient_reducer::deliver() {
  send_rest();
  while (!under_way_.empty()) advance();
  for (int u = 0; u < static_cast<int>(units_.size()); ++u)
    if (const state_ptr reduced = at(u).reduced.take(*messages_)) set_gradients(u, reduced);
}

WEFT_DEFINE void gradient_reducer::drop() {
  while (!under_way_.empty()) advance();
  for (state& s : states_) {
    s.unsent.clear();
    s.reduced.clear();
    s.is_ready = s.was_sent = false;
  }
  next_ = 0;
  for (unit& u : units_)
    for (member& m : u.members) forget(m);
}

WEFT_DEFINE void gradient_reducer::forget(member& m) {
  if (std::exchange(m.seen, false)) m.whole->gradient_in_run = false;
  if (std::exchange(m.reduced, false)) m.whole->gradient_reduced = false;
}

WEFT_DEFINE gradient_reducer::~gradient_reducer() {
  for (const reduction_step& r : under_way_) r.message_in_flight.finish();
  for (unit& u : units_)
    for (member& m : u.members) forget(m);
}

WEFT_DEFINE index_t gradient_reducer::bytes() const {
  index_t n = 0;
  for (const unit& u : units_) n += size_of(dtype::f32) * (reduces_each_ ? u.own_count() : u.message.count);
  return n;
}

WEFT_DEFINE void gradient_reducer::start(int u, state_ptr message) {
  const unit& of = units_[static_cast<std::size_t>(u)];
  message = in_type(type_, message);
  under_way_.push_back({u, message, message, {}, {}});
  reduction_step& r = under_way_.back();
  if (of.parts() == 1) {
    // Messages of a hook start after those of the previous bucket, so that the order is the same on all
    // ranks.
    if (!hook_) r.message_in_flight = send_across(r).value_or(work{});
    return;
  }
  r.own = flat(messages_, of.own_count(), type_);
  r.message_in_flight = of.shards->reduce_scatter(elements_of(*message), elements_of(*r.own), reduction::sum,
                                                  of.message.counts, groups_.labelled(of.name));
}

WEFT_DEFINE next_message gradient_reducer::messages_across(const reduction_step& r) {
  const unit& of = units_[static_cast<std::size_t>(r.unit)];
  communicator& replicas = *of.replicas;
  if (replicas.size() == 1 || !sends_) return [] { return std::nullopt; };
  if (!hook_)
    return [own = r.own, &replicas, options = groups_.labelled(of.name),
            begun = false]() mutable -> std::optional<work> {
      if (std::exchange(begun, true)) return {};
      return replicas.all_reduce(elements_of(*own), reduction::sum, options);
    };
  const auto count = static_cast<std::size_t>(r.own->extents.size());
  gradient_bucket bucket{of.name,
                         {},
                         {static_cast<float*>(r.own->memory.data()), count},
                         &replicas,
                         groups_.labelled(of.name),
                         &at(r.unit).hook_memory};
  const auto nothing = std::make_shared<std::vector<float>>(messages_->computes() ? 0 : count);
  if (!messages_->computes()) bucket.gradient = *nothing;
  for (const piece& p : of.message.pieces)
    bucket.parts.push_back({of.members[static_cast<std::size_t>(p.member)].name,
                            of.members[static_cast<std::size_t>(p.member)].whole->extents, p.in_message});
  return [messages = hook_(bucket), nothing] { return messages(); };
}

WEFT_DEFINE void gradient_reducer::advance() {
  reduction_step& r = under_way_.front();
  r.message_in_flight.wait();
  if (auto message = send_across(r)) {
    r.message_in_flight = std::move(*message);
    return;
  }
  at(r.unit).reduced.add(*messages_, in_type(dtype::f32, r.own));
  under_way_.pop_front();
}

WEFT_DEFINE void gradient_reducer::set_gradients(int u, const state_ptr& reduced) {
  unit& of = units_[static_cast<std::size_t>(u)];
  const std::span<const piece> own = of.message.part(of.part());
  std::vector<row_copy> copies;
  for (const piece& p : own) {
    member& m = of.at(p.member);
    if (!m.seen) continue;
    forget(m);
    m.whole->gradient_reduced = m.reduced = m.moved = true;
    const index_t at = p.in_message - own[0].in_message;
    if (where_ == messages_) {
      m.local->grad = alias_of(*reduced);
      m.local->grad->memory = reduced->memory.part(static_cast<std::size_t>(at) * sizeof(float));
    } else {
      m.local->grad = flat(where_, p.count);
      copies.push_back({*m.local->grad, 0, *reduced, at, p.count});
    }
    m.local->grad->extents = m.local->extents;
  }
  copy_rows(copies);
}

}  // namespace parallel
}  // namespace weft
