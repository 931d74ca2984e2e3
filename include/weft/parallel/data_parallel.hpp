// SPDX-License-Identifier: MIT
// Data parallelism and its sharded forms: what happens to parameters and gradients around the
// programs of a context.
//
// Before a program reads a parameter that is elsewhere, its unit is gathered; the unit that came
// next the last time is already on its way. When backward has completed the gradients of a unit,
// their reduction starts, and goes on between the steps of the programs that follow.
#pragma once

#include <deque>
#include <optional>

#include <weft/comm/self.hpp>
#include <weft/parallel/gradient_sum.hpp>
#include <weft/parallel/unit.hpp>
#include <weft/run/parameter_service.hpp>

namespace weft::parallel {

/// Copies parameter elements, counted from `at` in each.
inline void copy_rows(backend& device, const state_ptr& to, index_t to_at, const state_ptr& from, index_t from_at, index_t count) {
  const auto size = size_of(to->type);
  copy_elements(device, to->type, static_cast<char*>(to->memory.data()) + to_at * size,
                static_cast<const char*>(from->memory.data()) + from_at * size, count);
}

class data_parallel_service : public run::parameter_service {
 public:
  /// Takes the parameters as they are on rank 0. Collective.
  data_parallel_service(const state_dict_t& parameters, communicator& ranks, const parallel_options& o, const device& where)
      : options_(o), ranks_(&ranks), where_(where) {
    form_groups();
    for (const auto& chosen : divided_into_units(parameters, o)) add_unit(parameters, chosen);
    for (const auto& [name, p] : parameters) {
      check(name, *p);
      if (ranks.size() > 1)
        ranks.broadcast(elements(p->memory.data(), p->extents.size(), p->type), 0, labelled(name, true)).wait();
    }
    for (unit& u : units_) divide(u);
  }
  data_parallel_service(const data_parallel_service&) = delete;
  data_parallel_service& operator=(const data_parallel_service&) = delete;
  ~data_parallel_service() override {
    for (unit& u : units_)
      for (member& m : u.members) m.whole->arrive = nullptr;
  }

  void before_program(operands leaves, run::pass during) override {
    for (const auto& [u, read] : by_unit(leaves)) {
      bring(unit_at(u), read);
      foresee({u, during, read});
    }
  }
  void after_program(operands leaves, run::pass during) override {
    if (options_.divide != sharding::parameters) return;
    if (during == run::pass::recompute || (during == run::pass::forward && !options_.reshard_after_forward)) return;
    for (const auto& [u, read] : by_unit(leaves)) {
      unit& of = unit_at(u);
      if (!of.stays) give_back(of, of.everything);
    }
  }

  void before_backward(std::unordered_map<tensor_state*, int> uses) override {
    uses_ = std::move(uses);
    for (unit& u : units_) {
      u.waiting = 0;
      for (const member& m : u.members) u.waiting += uses_.contains(m.whole.get());
    }
  }
  void after_entry(std::span<tensor_state* const> leaves) override {
    for (tensor_state* leaf : leaves) {
      const auto place = places_.find(leaf);
      if (place == places_.end() || --uses_[leaf] > 0) continue;
      unit& u = unit_at(place->second.unit);
      complete(member_at(u, place->second.member));
      if (--u.waiting == 0) reduce(u);
    }
  }
  void after_backward() override {
    at_ = 0;
    if (options_.divide != sharding::parameters) return;
    for (unit& u : units_) give_back(u, u.everything);
  }

  void poll() override {
    for (unit* u : coming_) u->arrival->gather.is_completed();
    while (!reductions_.empty() && reductions_.front().under_way.is_completed()) advance();
  }

  /// Whether the backward passes to come are the last of their step: what is reduced once a step
  /// is reduced then.
  void synchronize(bool on) { synchronizes_ = on; }
  bool synchronizes() const { return synchronizes_; }

  /// Waits until all gradients are reduced, and hands them to the local parameters.
  void deliver_gradients() {
    for (unit& u : units_)
      if (!options_.reduces_each() && !u.sum.empty()) start_reduction(u, u.sum.take(*where_));
    while (!reductions_.empty()) {
      reductions_.front().under_way.wait();
      advance();
    }
    for (unit& u : units_) {
      if (options_.reduces_each()) u.reduced = u.sum.take(*where_);
      if (u.reduced) set_gradients(u);
    }
  }

  /// The local parameters have changed: what others hold of them is old.
  void parameters_changed() {
    at_ = 0;
    for (unit& u : units_) u.reduced.reset();
    if (parts_ == 1) return;
    for (std::size_t i = units_.size(); i-- > 0;) {  // in the order in which forward needs them
      unit& u = units_[i];
      if (u.arrival) arrive(u);
      for (const member& m : u.members) ++m.whole->version;
      give_back(u, u.everything);
      if (options_.divide != sharding::parameters) {
        u.present.assign(u.members.size(), false);
        start_gather(u, u.everything);
        for (member& m : u.members) m.whole->arrive = [this, &u] { arrive(u); };
      }
    }
  }

  /// The parameters that this rank updates, in the order of the model.
  state_dict_t local() const {
    state_dict_t all(order_.size());
    for (const unit& u : units_)
      for (std::size_t i = 0; i < u.members.size(); ++i)
        all[static_cast<std::size_t>(u.numbers[i])] = {u.members[i].name, u.members[i].local};
    return all;
  }
  /// Copies of whole tensors of which each rank holds the rows `local`, which are of parameter
  /// `name`. Collective.
  state_ptr whole_of(const std::string& name, const state_ptr& local) {
    const member& m = member_named(name);
    auto copy = std::make_shared<tensor_state>(where_, m.whole->extents, local->type);
    if (parts_ == 1) {
      copy_rows(*where_, copy, 0, local, 0, local->extents.size());
      return copy;
    }
    rank_counts counts;
    for (int p = 0; p < parts_; ++p) counts.push_back(m.size(p, parts_));
    shards_->all_gather(const_elements(local->memory.data(), local->extents.size(), local->type),
                        elements(copy->memory.data(), copy->extents.size(), copy->type), counts, labelled(name, true)).wait();
    return copy;
  }
  /// The first row of parameter `name` that this rank holds, and the shape of the whole.
  std::pair<index_t, shape> place_of(const std::string& name) const {
    const member& m = member_named(name);
    return {m.row_size() ? m.begin(part_, parts_) / m.row_size() : 0, m.shape_of_rows(m.rows())};
  }

  /// The ranks among which a copy of the parameters is divided.
  communicator& shards() const { return *shards_; }
  int part() const { return part_; }
  int parts() const { return parts_; }
  /// Whether this rank's part is nobody else's, or it is the first of those who hold it.
  bool first_replica() const { return replicas_->rank() == 0; }

  /// What this rank has sent for the strategy and through the communicator it was given.
  traffic sent() const {
    traffic t = ranks_->sent();
    if (shards_.get() != ranks_) t += shards_->sent();
    if (replicas_.get() != ranks_) t += replicas_->sent();
    return t;
  }
  /// How long this rank has waited for messages, in milliseconds.
  double exposed_ms() const {
    double t = ranks_->waited_ms();
    if (shards_.get() != ranks_) t += shards_->waited_ms();
    if (replicas_.get() != ranks_) t += replicas_->waited_ms();
    return t;
  }

  index_t parameter_bytes() const {
    index_t n = 0;
    for (const unit& u : units_)
      for (const member& m : u.members)
        n += static_cast<index_t>(options_.divide == sharding::parameters ? m.local->bytes() : m.whole->bytes());
    return n;
  }
  /// Of the gradients that are kept until the step.
  index_t gradient_bytes() const {
    index_t n = 0;
    for (const unit& u : units_)
      n += 4 * (options_.reduces_each() ? u.message.counts[own_part()] : u.message.count);
    return n;
  }

 private:
  struct arrival {
    work gather;
    message_layout layout;
    state_ptr own, message;
    std::vector<int> chosen;
  };
  struct unit {
    std::string name;
    std::vector<member> members;
    std::vector<int> numbers;     // of the members among all parameters
    std::vector<int> everything;  // 0, 1, ...: all members
    std::vector<bool> present;    // whose elements are in the memory of the whole
    message_layout message;
    gradient_sum sum;
    bool stays = false;           // between forward and backward
    int waiting = 0;              // members whose gradient is not complete
    std::optional<parallel::data_parallel_service::arrival> arrival;
    state_ptr reduced;
  };
  struct reduction_state {
    unit* of;
    state_ptr message, own;
    work under_way;
    bool across = false;  // the replicas are being added
  };
  struct place {
    int unit, member;
  };
  /// Members that a program reads, as something that may come again.
  struct event {
    int unit;
    run::pass during;
    std::vector<int> read;
    bool operator==(const event&) const = default;
  };

  void form_groups() {
    const int n = ranks_->size();
    const auto whole_group = std::shared_ptr<communicator>(std::shared_ptr<void>(), ranks_);
    const auto alone = std::make_shared<self_communicator>();
    int group = options_.divide == sharding::none ? 1 : options_.shard_ranks ? options_.shard_ranks : n;
    if (n % group)
      throw usage_error("weft: groups of " + std::to_string(group) + " ranks do not divide " + std::to_string(n) + " ranks");
    if (group == n) shards_ = whole_group;
    else if (group == 1) shards_ = alone;
    else shards_ = ranks_->axis(group, 1, labelled("shards", true));
    if (group == 1) replicas_ = whole_group;
    else if (group == n) replicas_ = alone;
    else replicas_ = ranks_->axis(n / group, group, labelled("replicas", true));
    parts_ = shards_->size();
    part_ = shards_->rank();
  }

  void add_unit(const state_dict_t& parameters, const std::vector<int>& chosen) {
    std::vector<member> members;
    std::vector<int> all;
    for (int i : chosen) {
      const auto& [name, p] = parameters[static_cast<std::size_t>(i)];
      places_[p.get()] = {static_cast<int>(units_.size()), static_cast<int>(members.size())};
      all.push_back(static_cast<int>(members.size()));
      members.push_back({name, p, p});
      order_.push_back(i);
    }
    const std::string name = options_.unit ? options_.unit(members[0].name) : block_of(members[0].name);
    const std::string label = name.empty() ? members.front().name + (members.size() > 1 ? " .. " + members.back().name : "") : name;
    message_layout message(members, all, parts_);
    units_.push_back({label, std::move(members), chosen, all, std::vector<bool>(all.size(), true), std::move(message),
                      gradient_sum(options_.deterministic), name.empty(), 0, {}, {}});
  }

  static void check(const std::string& name, const tensor_state& p) {
    if (p.type != dtype::f32)
      throw value_error("weft: bind: parameter " + name + " is " + name_of(p.type) + ", not f32");
    if (p.where->computes() && !p.where->host_accessible())
      throw device_error("weft: bind: parameter " + name + " lies on " + p.where->name() + ", whose memory ranks cannot reach yet");
  }

  /// Makes the local parameters: rows of the whole, or rows of their own.
  void divide(unit& u) {
    if (parts_ == 1) return;
    const bool apart = options_.divide == sharding::parameters;
    const state_ptr rows = apart ? flat(u.message.counts[own_part()]) : nullptr;
    const std::span<const piece> own = u.message.part(part_);
    for (const piece& p : own) {
      member& m = member_at(u, p.member);
      m.local = std::make_shared<tensor_state>(*m.whole);
      m.local->extents = m.shape_of_rows(m.row_size() ? p.count / m.row_size() : 0);
      if (apart) {
        const index_t at = p.in_message - own[0].in_message;
        m.local->memory = rows->memory.part(static_cast<std::size_t>(at * 4));
        copy_rows(*where_, m.local, 0, m.whole, p.at, p.count);
      } else {
        m.local->memory = m.whole->memory.part(static_cast<std::size_t>(p.at * 4));
      }
    }
    if (apart) give_back(u, u.everything);
  }

  std::size_t own_part() const { return static_cast<std::size_t>(part_); }
  unit& unit_at(int u) { return units_[static_cast<std::size_t>(u)]; }
  static member& member_at(unit& u, int m) { return u.members[static_cast<std::size_t>(m)]; }
  state_ptr flat(index_t count) const { return std::make_shared<tensor_state>(where_, shape{1, {count}}, dtype::f32); }
  comm_options labelled(const std::string& label, bool control = false) const { return {label, options_.timeout, control}; }

  /// The units that own some of these operands, with the members among them.
  std::vector<std::pair<int, std::vector<int>>> by_unit(operands leaves) {
    std::vector<std::pair<int, std::vector<int>>> result;
    if (parts_ == 1) return result;
    for (const state_ptr& leaf : leaves) {
      const auto found = leaf ? places_.find(leaf.get()) : places_.end();
      if (found == places_.end()) continue;
      const auto [u, m] = found->second;
      auto entry = std::find_if(result.begin(), result.end(), [u = u](const auto& r) { return r.first == u; });
      if (entry == result.end()) entry = result.insert(result.end(), {u, {}});
      auto& members = entry->second;
      const auto at = std::lower_bound(members.begin(), members.end(), m);
      if (at == members.end() || *at != m) members.insert(at, m);
    }
    for (auto& [u, members] : result)  // what stays is brought as a whole
      if (unit_at(u).stays) members = unit_at(u).everything;
    return result;
  }

  static std::vector<int> absent(const unit& u, const std::vector<int>& of) {
    std::vector<int> missing;
    for (int m : of)
      if (!u.present[static_cast<std::size_t>(m)]) missing.push_back(m);
    return missing;
  }

  void bring(unit& u, const std::vector<int>& read) {
    if (u.arrival) arrive(u);
    const std::vector<int> missing = absent(u, read);
    if (missing.empty()) return;
    start_gather(u, missing);
    arrive(u);
  }

  void start_gather(unit& u, const std::vector<int>& chosen) {
    message_layout l(u.members, chosen, parts_);
    const std::span<const piece> mine = l.part(part_);
    const state_ptr own = flat(l.counts[own_part()]), message = flat(l.count);
    for (const piece& p : mine)
      copy_rows(*where_, own, p.in_message - mine[0].in_message, member_at(u, p.member).local, 0, p.count);
    const rank_counts counts = l.counts;
    u.arrival.emplace(arrival{{}, std::move(l), own, message, chosen});
    coming_.push_back(&u);
    u.arrival->gather = shards_->all_gather(const_elements(own->memory.data(), own->extents.size(), dtype::f32),
                                            elements(message->memory.data(), message->extents.size(), dtype::f32), counts,
                                            labelled(u.name));
  }

  void arrive(unit& u) {
    const arrival a = std::move(*u.arrival);
    u.arrival.reset();
    std::erase(coming_, &u);
    for (member& m : u.members) m.whole->arrive = nullptr;
    a.gather.wait();
    const bool apart = options_.divide == sharding::parameters;
    for (int m : a.chosen) {
      tensor_state& whole = *member_at(u, m).whole;
      if (apart) whole.memory = where_.allocate(whole.bytes());
      u.present[static_cast<std::size_t>(m)] = true;
    }
    for (int p = 0; p < parts_; ++p) {
      if (p == part_ && !apart) continue;  // the rows of this rank are in place
      for (const piece& e : a.layout.part(p))
        copy_rows(*where_, member_at(u, e.member).whole, e.at, a.message, e.in_message, e.count);
    }
  }

  /// Frees gathered elements; the local rows stay.
  void give_back(unit& u, const std::vector<int>& members) {
    if (options_.divide != sharding::parameters || parts_ == 1) return;
    for (int m : members) {
      if (!u.present[static_cast<std::size_t>(m)]) continue;
      member_at(u, m).whole->memory = {};
      u.present[static_cast<std::size_t>(m)] = false;
    }
  }

  /// Starts what came next when the events of this pass were the same, and remembers their order.
  void foresee(event now) {
    const bool as_before = at_ < trace_.size() && trace_[at_] == now;
    if (!as_before) {
      trace_.resize(at_, now);
      trace_.push_back(now);
    }
    ++at_;
    if (options_.divide != sharding::parameters) return;
    int started = 0;
    for (std::size_t next = at_; next < trace_.size() && started < options_.prefetch; ++next) {
      unit& u = unit_at(trace_[next].unit);
      if (u.stays) continue;
      if (trace_[next].unit == now.unit) return;  // it is in use until then
      if (!u.arrival)
        if (const std::vector<int> missing = absent(u, trace_[next].read); !missing.empty()) start_gather(u, missing);
      ++started;
    }
  }

  static void complete(member& m) {
    if (!m.whole->grad) return;
    m.seen = true;
    for (const auto& hook : m.whole->gradient_hooks) hook(m.whole->grad);
  }

  void reduce(unit& u) {
    bool any = false;
    for (const member& m : u.members) any = any || m.whole->grad;
    if (!any) return;
    const state_ptr message = flat(u.message.count);
    for (const piece& p : u.message.pieces) {
      const state_ptr& g = member_at(u, p.member).whole->grad;
      if (g) copy_rows(*where_, message, p.in_message, g, p.at, p.count);
      else if (p.count) where_->fill_zero(static_cast<float*>(message->memory.data()) + p.in_message,
                                          static_cast<std::size_t>(p.count) * sizeof(float));
    }
    for (member& m : u.members) m.whole->grad.reset();
    if (options_.reduces_each()) {
      start_reduction(u, message);
      return;
    }
    u.sum.add(*where_, message);
    if (synchronizes_) start_reduction(u, u.sum.take(*where_));
  }

  void start_reduction(unit& u, state_ptr message) {
    reductions_.push_back({&u, message, message, {}});
    reduction_state& r = reductions_.back();
    if (parts_ == 1) {
      start_across(r);
      return;
    }
    r.own = flat(u.message.counts[own_part()]);
    r.under_way = shards_->reduce_scatter(const_elements(message->memory.data(), message->extents.size(), dtype::f32),
                                          elements(r.own->memory.data(), r.own->extents.size(), dtype::f32), reduction::sum,
                                          u.message.counts, labelled(u.name));
  }
  void start_across(reduction_state& r) {
    r.across = true;
    r.under_way = {};
    if (replicas_->size() > 1)
      r.under_way = replicas_->all_reduce(elements(r.own->memory.data(), r.own->extents.size(), dtype::f32), reduction::sum,
                                          labelled(r.of->name));
  }

  /// The first reduction has come to the end of its stage. In order, so that all ranks start the
  /// next stages in one order.
  void advance() {
    reduction_state& r = reductions_.front();
    r.under_way.wait();
    if (!r.across) {
      start_across(r);
      return;
    }
    if (options_.reduces_each()) r.of->sum.add(*where_, r.own);
    else r.of->reduced = r.own;
    reductions_.pop_front();
  }

  void set_gradients(unit& u) {
    const std::span<const piece> own = u.message.part(part_);
    for (const piece& p : own) {
      member& m = member_at(u, p.member);
      if (!std::exchange(m.seen, false)) continue;
      m.local->grad = std::make_shared<tensor_state>(*u.reduced);
      m.local->grad->extents = m.local->extents;
      m.local->grad->memory = u.reduced->memory.part(static_cast<std::size_t>((p.in_message - own[0].in_message) * 4));
    }
  }

  const member& member_named(const std::string& name) const {
    for (const unit& u : units_)
      for (const member& m : u.members)
        if (m.name == name) return m;
    throw value_error("weft: there is no parameter named " + name);
  }

  parallel_options options_;
  communicator* ranks_;
  device where_;
  std::shared_ptr<communicator> shards_, replicas_;
  int part_ = 0, parts_ = 1;
  std::deque<unit> units_;  // a deque: units are pointed to
  std::vector<int> order_;
  std::unordered_map<tensor_state*, place> places_;
  std::unordered_map<tensor_state*, int> uses_;
  std::vector<unit*> coming_;
  std::deque<reduction_state> reductions_;
  std::vector<event> trace_;  // since the last backward pass, and what followed the last time
  std::size_t at_ = 0;
  bool synchronizes_ = true;
};

}  // namespace weft::parallel
