// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/gather.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/parallel/gather.hpp>

namespace weft {
namespace parallel {

WEFT_DEFINE parameter_gatherer::parameter_gatherer(std::vector<unit>& units, const rank_groups& groups,
                                                   const parallel_options& o, const device& where)
    : units_(units),
      groups_(groups),
      where_(where),
      messages_(message_device(where, &groups.shards())),
      ahead_(o.prefetch),
      apart_(o.divide == sharding::parameters),
      keeps_(!o.reshard_after_forward),
      type_(o.param_dtype) {
  check_message_type("param_dtype", type_);
  if (type_ != dtype::f32 && !apart_)
    throw usage_error(
        "weft: bind: param_dtype needs a strategy that shards parameters: other strategies send the trained "
        "parameters themselves");
  for (const unit& u : units) states_.push_back({std::vector<bool>(u.members.size(), true), {}});
}

WEFT_DEFINE parameter_gatherer::~parameter_gatherer() {
  if (apart_) {
    for (int u : coming_) at(u).coming->gather.finish();
    return;
  }
  while (!coming_.empty()) {  // the rows that other ranks have updated
    unit& of = units_[static_cast<std::size_t>(coming_.front())];
    try {
      arrive(coming_.front());
    } catch (...) {
      for (member& m : of.members)
        m.whole->arrive = [name = m.name] {
          refuse<comm_error>({"weft: parameter ", name,
                              " is out of date: communication failed before the rows that other ranks have "
                              "updated arrived"});
        };
    }
  }
}

WEFT_DEFINE void parameter_gatherer::unshard(int u, const std::vector<int>& read) {
  if (at(u).coming) arrive(u);
  const std::vector<int> missing = absent(u, read);
  if (missing.empty()) return;
  start(u, missing);
  arrive(u);
}

WEFT_DEFINE void parameter_gatherer::prefetch(int u, const runtime::purpose& why,
                                              const std::vector<int>& read) {
  if (!apart_) return;
  int started = 0;
  for (const read_event& e : order_.follow(why, {u, why.during, read})) {
    if (started == ahead_) return;
    const unit &next = units_[static_cast<std::size_t>(e.unit)], &now = units_[static_cast<std::size_t>(u)];
    // Ranks with different experts read different units of experts, so each group of ranks has its own order.
    if (next.stays || next.shards != now.shards) continue;
    if (e.unit == u) return;  // the unit is in use until then
    if (!at(e.unit).coming)
      if (const std::vector<int> missing = absent(e.unit, e.members); !missing.empty())
        start(e.unit, missing);
    ++started;
  }
}

WEFT_DEFINE void parameter_gatherer::release(int u, const runtime::purpose& why) {
  if (!apart_ || why.during == runtime::pass::recompute) return;
  const bool again = units_[static_cast<std::size_t>(u)].stays;
  if (again || (keeps_ && why.during == runtime::pass::forward)) order_.hold(why, u);
  else order_.let_go(why, u);
  if (!order_.held(u)) reshard(u);
}

WEFT_DEFINE void parameter_gatherer::finish(const runtime::tape_identity& tape) {
  order_.finish(tape);
  release_unused();
}

WEFT_DEFINE void parameter_gatherer::release_unused() {
  for (int u = 0; u < static_cast<int>(units_.size()); ++u)
    if (!order_.held(u)) reshard(u);
}

WEFT_DEFINE void parameter_gatherer::reshard(int u) {
  if (!apart_ || units_[static_cast<std::size_t>(u)].parts() == 1) return;
  for (std::size_t m = 0; m < at(u).present.size(); ++m) {
    if (!at(u).present[m]) continue;
    tensor_state& whole = *units_[static_cast<std::size_t>(u)].members[m].whole;
    whole.memory = {};
    whole.is_gathered = false;
    at(u).present[m] = false;
  }
}

WEFT_DEFINE void parameter_gatherer::invalidate() {
  if (groups_.parts() == 1) return;
  order_.forget_tapes();
  for (int u = static_cast<int>(units_.size()); u-- > 0;) {  // in the order of the forward pass
    unit& of = units_[static_cast<std::size_t>(u)];
    if (of.parts() == 1) continue;
    if (at(u).coming) arrive(u);
    for (const member& m : of.members) ++m.whole->version();
    reshard(u);
    if (apart_) continue;
    at(u).present.assign(of.members.size(), false);
    start(u, of.everything);
    for (member& m : of.members) m.whole->arrive = [this, u] { arrive(u); };
  }
}

WEFT_DEFINE std::vector<int> parameter_gatherer::absent(int u, const std::vector<int>& of) {
  std::vector<int> missing;
  for (int m : of)
    if (!at(u).present[static_cast<std::size_t>(m)]) missing.push_back(m);
  return missing;
}

WEFT_DEFINE void parameter_gatherer::start(int u, const std::vector<int>& chosen) {
  unit& of = units_[static_cast<std::size_t>(u)];
  message_layout layout(of.members, chosen, of.parts());
  const std::span<const piece> mine = layout.part(of.part());
  state_ptr own = flat(messages_, layout.counts[static_cast<std::size_t>(of.part())]);
  std::vector<row_copy> copies;
  for (const piece& p : mine)
    copies.push_back({*own, p.in_message - mine[0].in_message, *of.at(p.member).local, 0, p.count});
  copy_rows(copies);
  own = in_type(type_, own);
  const state_ptr message = flat(messages_, layout.count, type_);
  const rank_counts counts = layout.counts;
  at(u).coming.emplace(arrival{{}, std::move(layout), own, message, chosen});
  coming_.push_back(u);
  at(u).coming->gather =
      of.shards->all_gather(elements_of(*own), elements_of(*message), counts, groups_.labelled(of.name));
}

WEFT_DEFINE void parameter_gatherer::arrive(int u) {
  unit& of = units_[static_cast<std::size_t>(u)];
  const arrival a = std::move(*at(u).coming);
  at(u).coming.reset();
  std::erase(coming_, u);
  for (member& m : of.members) m.whole->arrive = nullptr;
  a.gather.wait();
  const state_ptr message = in_type(dtype::f32, a.message);
  for (int m : a.chosen) {
    tensor_state& whole = *of.at(m).whole;
    if (apart_) whole.memory = where_.allocate(whole.bytes(), "gathered parameter");
    whole.is_gathered = apart_;
    at(u).present[static_cast<std::size_t>(m)] = true;
  }
  std::vector<row_copy> copies;
  for (const piece& p : a.layout.by_member()) {
    member& m = of.at(p.member);
    if (!apart_ && p.at == m.begin(of.part(), of.parts())) continue;  // the rows of this rank are in place
    copies.push_back({*m.whole, p.at, *message, p.in_message, p.count});
  }
  copy_rows(copies);
}

}  // namespace parallel
}  // namespace weft
