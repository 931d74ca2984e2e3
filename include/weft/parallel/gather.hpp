// SPDX-License-Identifier: MIT
// Bringing parameters whose rows are on other ranks to the programs that read them.
//
// A unit that is read is gathered as one message. What was read after it the last time is gathered
// ahead; the order is remembered from one backward pass to the next.
#pragma once

#include <optional>

#include <weft/parallel/groups.hpp>
#include <weft/parallel/unit.hpp>
#include <weft/run/execution_hooks.hpp>

namespace weft::parallel {

class parameter_gatherer {
 public:
  parameter_gatherer(std::vector<unit>& units, const rank_groups& groups, const parallel_options& o,
                     const device& where)
      : units_(units),
        groups_(groups),
        where_(where),
        messages_(message_device(where)),
        ahead_(o.prefetch),
        apart_(o.divide == sharding::parameters),
        type_(o.param_dtype) {
    check_message_type("param_dtype", type_);
    if (type_ != dtype::f32 && !apart_)
      throw usage_error(
          "weft: bind: param_dtype needs a strategy that divides parameters: elsewhere what is sent is what "
          "is trained");
    for (const unit& u : units) states_.push_back({std::vector<bool>(u.members.size(), true), {}});
  }
  parameter_gatherer(const parameter_gatherer&) = delete;
  parameter_gatherer& operator=(const parameter_gatherer&) = delete;
  ~parameter_gatherer() {
    for (int u : coming_) at(u).coming->gather.finish();
    for (unit& u : units_)
      for (member& m : u.members) m.whole->arrive = nullptr;
  }

  /// Waits until these members of a unit are whole.
  void unshard(int u, const std::vector<int>& read) {
    if (at(u).coming) arrive(u);
    const std::vector<int> missing = absent(u, read);
    if (missing.empty()) return;
    start(u, missing);
    arrive(u);
  }

  /// A program reads these: starts what came next the last time.
  void prefetch(int u, run::pass during, const std::vector<int>& read) {
    const event now{u, during, read};
    const bool as_before = position_ < trace_.size() && trace_[position_] == now;
    if (!as_before) {
      trace_.resize(position_, now);
      trace_.push_back(now);
    }
    ++position_;
    if (!apart_) return;
    int started = 0;
    for (std::size_t next = position_; next < trace_.size() && started < ahead_; ++next) {
      const event& e = trace_[next];
      if (units_[static_cast<std::size_t>(e.unit)].stays) continue;
      if (e.unit == u) return;  // it is in use until then
      if (!at(e.unit).coming)
        if (const std::vector<int> missing = absent(e.unit, e.read); !missing.empty()) start(e.unit, missing);
      ++started;
    }
  }
  /// What is read from now on follows nothing.
  void forget_order() { position_ = 0; }

  /// Frees gathered elements; the local rows stay.
  void reshard(int u) {
    if (!apart_ || groups_.parts() == 1) return;
    for (std::size_t m = 0; m < at(u).present.size(); ++m) {
      if (!at(u).present[m]) continue;
      units_[static_cast<std::size_t>(u)].members[m].whole->memory = {};
      at(u).present[m] = false;
    }
  }

  /// The local rows have changed: what is gathered is old. Where all ranks keep all parameters, new
  /// ones are on their way from now on.
  void invalidate() {
    if (groups_.parts() == 1) return;
    for (int u = static_cast<int>(units_.size()); u-- > 0;) {  // in the order in which forward reads them
      unit& of = units_[static_cast<std::size_t>(u)];
      if (at(u).coming) arrive(u);
      for (const member& m : of.members) ++m.whole->version;
      reshard(u);
      if (apart_) continue;
      at(u).present.assign(of.members.size(), false);
      start(u, of.everything);
      for (member& m : of.members) m.whole->arrive = [this, u] { arrive(u); };
    }
  }

  void poll() {
    for (int u : coming_) at(u).coming->gather.is_completed();
  }

 private:
  /// Elements on their way.
  struct arrival {
    work gather;
    message_layout layout;
    state_ptr own, message;
    std::vector<int> chosen;
  };
  struct state {
    std::vector<bool> present;  // whose elements are in the memory of the whole
    std::optional<arrival> coming;
  };
  /// Members that a program reads, as something that may come again.
  struct event {
    int unit;
    run::pass during;
    std::vector<int> read;
    bool operator==(const event&) const = default;
  };

  state& at(int u) { return states_[static_cast<std::size_t>(u)]; }

  std::vector<int> absent(int u, const std::vector<int>& of) {
    std::vector<int> missing;
    for (int m : of)
      if (!at(u).present[static_cast<std::size_t>(m)]) missing.push_back(m);
    return missing;
  }

  void start(int u, const std::vector<int>& chosen) {
    unit& of = units_[static_cast<std::size_t>(u)];
    message_layout layout(of.members, chosen, groups_.parts());
    const std::span<const piece> mine = layout.part(groups_.part());
    state_ptr own = flat(messages_, layout.counts[static_cast<std::size_t>(groups_.part())]);
    for (const piece& p : mine)
      copy_rows(own, p.in_message - mine[0].in_message, of.at(p.member).local, 0, p.count);
    own = in_type(type_, own);
    const state_ptr message = flat(messages_, layout.count, type_);
    const rank_counts counts = layout.counts;
    at(u).coming.emplace(arrival{{}, std::move(layout), own, message, chosen});
    coming_.push_back(u);
    at(u).coming->gather = groups_.shards().all_gather(elements_of(*own), elements_of(*message), counts,
                                                       groups_.labelled(of.name));
  }

  void arrive(int u) {
    unit& of = units_[static_cast<std::size_t>(u)];
    const arrival a = std::move(*at(u).coming);
    at(u).coming.reset();
    std::erase(coming_, u);
    for (member& m : of.members) m.whole->arrive = nullptr;
    a.gather.wait();
    const state_ptr message = in_type(dtype::f32, a.message);
    for (int m : a.chosen) {
      tensor_state& whole = *of.at(m).whole;
      if (apart_) whole.memory = where_.allocate(whole.bytes());
      at(u).present[static_cast<std::size_t>(m)] = true;
    }
    for (int p = 0; p < groups_.parts(); ++p) {
      if (p == groups_.part() && !apart_) continue;  // the rows of this rank are in place
      for (const piece& e : a.layout.part(p))
        copy_rows(of.at(e.member).whole, e.at, message, e.in_message, e.count);
    }
  }

  std::vector<unit>& units_;
  const rank_groups& groups_;
  device where_, messages_;
  int ahead_;
  bool apart_;  // gathered elements are in memory of their own
  dtype type_;  // of messages
  std::vector<state> states_;
  std::vector<int> coming_;
  std::vector<event> trace_;  // since the last backward pass, and what followed the last time
  std::size_t position_ = 0;
};

}  // namespace weft::parallel
