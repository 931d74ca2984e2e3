// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/data_parallel.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/parallel/data_parallel.hpp>

namespace weft {
namespace parallel {

WEFT_DEFINE data_parallel_hooks::data_parallel_hooks(const state_dict_t& parameters, state_dict_t buffers,
                                                     communicator& ranks, const parallel_options& o,
                                                     const device& where,
                                                     std::shared_ptr<communicator> owners,
                                                     const std::vector<int>& chunks,
                                                     const expert_division& experts)
    : options_(o),
      where_(where),
      messages_(message_device(where, &ranks)),
      groups_(ranks, o, std::move(owners)),
      units_(divided_units(parameters, experts, chunks)),
      buffers_(std::move(buffers)),
      gatherer_(units_, groups_, o, where),
      reducer_(units_, groups_, o, where) {
  state_dict_t shared = buffers_;
  for (const auto& [name, p] : parameters) {
    check(name, *p);
    if (experts.owner_of(*p) == every_rank) shared.emplace_back(name, p);
  }
  begin_as_first(groups_.data(), groups_.labelled("", true), where_, shared);
  groups_.divide_experts(experts.among, experts.shards, experts.replicas);
  if (o.offload_parameters && (o.divide != sharding::parameters || groups_.parts() == 1 ||
                               (experts.shards && experts.shards->size() == 1)))
    throw usage_error("weft: bind: parameters can be offloaded only where several ranks shard them");
  for (const unit& u : units_)
    for (const member& m : u.members)
      if (u.parts() > 1 && m.whole->runs > 0) weft::detail::refuse_second_run(m.name);
  for (const unit& u : units_)
    for (const member& m : u.members) own_.add(m.whole, u.parts() > 1 && !apart(u));
  for (std::size_t u = 0; u < units_.size(); ++u) {
    for (std::size_t m = 0; m < units_[u].members.size(); ++m) {
      if (!apart(units_[u])) weft::detail::materialize_state<float>(*units_[u].members[m].whole);
      places_[units_[u].members[m].whole.get()] = {static_cast<int>(u), static_cast<int>(m)};
    }
    divide(units_[u]);
    if (o.offload_parameters) offload(units_[u], *o.offload_parameters);
    gatherer_.reshard(static_cast<int>(u));
  }
}

WEFT_DEFINE std::vector<unit> data_parallel_hooks::divided_units(const state_dict_t& parameters,
                                                                 const expert_division& experts,
                                                                 const std::vector<int>& chunks) const {
  std::vector<unit> all;
  for (const bool of_experts : {false, true}) {
    state_dict_t chosen;
    std::vector<int> numbers, chosen_chunks;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if ((experts.owner_of(*parameters[i].second) != every_rank) != of_experts) continue;
      chosen.push_back(parameters[i]);
      numbers.push_back(static_cast<int>(i));
      if (!chunks.empty()) chosen_chunks.push_back(chunks[i]);
    }
    if (chosen.empty()) continue;
    communicator& shards = of_experts ? *experts.shards : groups_.shards();
    communicator& replicas = of_experts ? *experts.replicas : groups_.replicas();
    for (unit& u : units_of(chosen, options_, shards, replicas, chosen_chunks)) {
      for (member& m : u.members) m.number = numbers[static_cast<std::size_t>(m.number)];
      all.push_back(std::move(u));
    }
  }
  return all;
}

WEFT_DEFINE void data_parallel_hooks::before_program(operands leaves, const runtime::purpose& why) {
  for (const auto& [u, read] : by_unit(leaves)) {
    gatherer_.unshard(u, read);
    gatherer_.prefetch(u, why, read);
  }
}

WEFT_DEFINE void data_parallel_hooks::after_program(operands leaves, const runtime::purpose& why) {
  if (options_.divide != sharding::parameters) return;
  for (const auto& [u, read] : by_unit(leaves)) gatherer_.release(u, why);
}

WEFT_DEFINE void data_parallel_hooks::before_backward(uses all) {
  if (delivered_)
    throw value_error(
        "weft: backward: the gradients of this step have been reduced already; take the step first");
  for (tensor_state* leaf : all)
    if (const auto found = places_.find(leaf); found != places_.end())
      require_no_other_run(unit_at(found->second.unit).at(found->second.member));
  backward_pass& pass = passes_.emplace_back();
  pass.uses.reserve(all.size());
  for (tensor_state* leaf : all) ++pass.uses[leaf];
  for (const unit& u : units_) {
    const auto completed = [&](const member& m) {
      return pass.uses.contains(m.whole.get()) && !withholds(*m.whole);
    };
    pass.waiting.push_back(static_cast<int>(std::count_if(u.members.begin(), u.members.end(), completed)));
  }
  const std::size_t at = passes_.size() - 1;  // a hook may append another
  for (const state_ptr& p : std::exchange(found_, {})) {
    if (!p->grad || passes_[at].uses.contains(p.get())) continue;
    run_gradient_hooks(*p, p->grad);
    const int u = places_.at(p.get()).unit;
    if (passes_[at].waiting[static_cast<std::size_t>(u)] == 0) take(u);
  }
}

WEFT_DEFINE void data_parallel_hooks::after_entry(uses leaves) {
  const std::size_t pass = passes_.size() - 1;  // a hook may append another
  for (tensor_state* leaf : leaves) {
    const auto found = places_.find(leaf);
    if (found == places_.end() || --passes_[pass].uses[leaf] > 0 || withholds(*leaf)) continue;
    if (leaf->grad) run_gradient_hooks(*leaf, leaf->grad);
    const int u = found->second.unit;
    if (--passes_[pass].waiting[static_cast<std::size_t>(u)] == 0) take(u);
  }
}

WEFT_DEFINE void data_parallel_hooks::exchange(std::string_view op, const attributes& at, const strided& in,
                                               const strided& out, int result) {
  context_service* const all = groups_.context();
  if (all && all->exchange(where_, op, at, in, out, groups_.labelled(""))) return;
  collectives_.add(result, start_collective(*where_, groups_, op, at, in, out));
}

WEFT_DEFINE bool data_parallel_hooks::attend(std::string_view op, const native_operands& o) {
  context_service* const all = groups_.context();
  return all && all->attend(where_, op, o, groups_.labelled(""));
}

WEFT_DEFINE void data_parallel_hooks::gather_choices(runtime::row_choices& rows,
                                                     const shape& operand) {
  if (context_service* const all = groups_.context())
    all->gather_choices(where_, rows, operand, groups_.labelled("experts chosen"));
}

WEFT_DEFINE void data_parallel_hooks::divide_layers(std::shared_ptr<communicator> among) {
  groups_.divide_layers(std::move(among));
  for (const auto& [name, p] : local())
    if (p->where_in_layer().is_shared()) groups_.share_units(units_of(*p->divided));
}

WEFT_DEFINE void data_parallel_hooks::deliver_gradients() {
  if (delivered_) return;
  for (const unit& u : units_)
    for (const member& m : u.members)
      if (is_left(m)) require_no_other_run(m);
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const auto& members = units_[u].members;
    if (std::any_of(members.begin(), members.end(), [&](const member& m) { return is_left(m); }))
      take(static_cast<int>(u));
  }
  reducer_.deliver();
  delivered_ = true;
  add_shared();
}

WEFT_DEFINE bool data_parallel_hooks::has_other_gradients() const {
  return !delivered_ && std::any_of(units_.begin(), units_.end(), [&](const unit& u) {
    return std::any_of(u.members.begin(), u.members.end(), [&](const member& m) { return is_left(m); });
  });
}

WEFT_DEFINE void data_parallel_hooks::require_no_other_run(const member& m) {
  if (m.whole->gradient_in_run && !m.seen)
    refuse<usage_error>({"weft: backward: parameter ", m.name,
                         " has gradients in another run that trains it: take the step of that run first, or "
                         "bind models that share parameters as members of one struct"});
}

WEFT_DEFINE void data_parallel_hooks::drop_gradients() {
  reducer_.drop();
  for (unit& u : units_)
    for (member& m : u.members) {
      m.whole->grad.reset();
      m.local->grad.reset();
    }
  forget_delivered();
  gatherer_.release_unused();
}

WEFT_DEFINE void data_parallel_hooks::add_shared() {
  for (const auto& [name, p] : local()) {
    if (!p->where_in_layer().is_shared() || !p->grad || p->grad->extents.size() == 0) continue;
    communicator* const same = groups_.sharing(units_of(*p->divided));
    if (same)
      replace({{name, p->grad}}, [&](elements e, const std::string& label) {
        return same->all_reduce(e, reduction::sum, groups_.labelled(label));
      });
  }
}

WEFT_DEFINE void data_parallel_hooks::broadcast_buffers(int from) {
  if (groups_.data().size() == 1) return;
  replace(buffers_, [&](elements e, const std::string& name) {
    return groups_.data().broadcast(e, from, groups_.labelled(name));
  });
}

WEFT_DEFINE void data_parallel_hooks::average_parameters() {
  std::vector<std::int32_t> moved;
  for (const unit& u : units_)
    for (const member& m : u.members) moved.push_back(m.moved);
  groups_.data().all_reduce(moved, reduction::maximum, groups_.labelled("parameters moved", true)).wait();
  state_dict_t all;
  auto next = moved.begin();
  for (unit& u : units_)
    for (member& m : u.members) {
      m.moved = false;
      if (*next++) all.emplace_back(m.name, m.whole);
    }
  replace(all, [&](elements e, const std::string& name) {
    return groups_.data().all_reduce(e, reduction::average, groups_.labelled(name));
  });
}

WEFT_DEFINE void data_parallel_hooks::reload(bool equal) {
  for (unit& u : units_)
    for (member& m : u.members) m.moved = !equal;
  parameters_changed();
}

WEFT_DEFINE state_dict_t data_parallel_hooks::local() const {
  state_dict_t all(places_.size());
  for (const unit& u : units_)
    for (const member& m : u.members) all[static_cast<std::size_t>(m.number)] = {m.name, m.local};
  return all;
}

WEFT_DEFINE state_dict_t data_parallel_hooks::local_of_all_ranks() const {
  state_dict_t all;
  for (const unit& u : units_)
    for (const member& m : u.members)
      if (u.replicas == &groups_.replicas()) all.emplace_back(m.name, m.local);
  return all;
}

WEFT_DEFINE state_ptr data_parallel_hooks::whole_of(const std::string& name, const state_ptr& local) {
  const member_place at = place_of(units_, name);
  const unit& of = units_[static_cast<std::size_t>(at.unit)];
  const member& m = of.members[static_cast<std::size_t>(at.member)];
  if (local->extents.size() != m.local->extents.size())
    refuse<value_error>({"weft: a tensor of shape ", local->extents, " cannot be state of parameter ", name,
                         ", of which this rank has ", m.local->extents});
  auto copy = make_state(where_, m.whole->extents, local->type);
  if (of.parts() == 1) {
    copy_rows(copy, 0, local, 0, local->extents.size());
    return whole_layer(m, copy);
  }
  const state_ptr own = reachable(messages_, local), all = reachable(messages_, copy);
  rank_counts counts;
  for (int p = 0; p < of.parts(); ++p) counts.push_back(m.size(p, of.parts()));
  of.shards->all_gather(elements_of(*own), elements_of(*all), counts, groups_.labelled(name, true)).wait();
  if (all != copy) copy_rows(copy, 0, all, 0, copy->extents.size());
  return whole_layer(m, copy);
}

WEFT_DEFINE std::vector<held_tensor> data_parallel_hooks::held_tensors() const {
  std::vector<held_tensor> all(places_.size());
  for (const unit& u : units_)
    for (const member& m : u.members) {
      const shape rows = in_rows(m.local->extents);
      const index_t first = m.row_size() ? m.begin(u.part(), u.parts()) / m.row_size() : 0;
      const communicator* const layers = groups_.layers();
      all[static_cast<std::size_t>(m.number)] = {
          m.name,
          {m.whole->type, m.whole->whole()},
          boxes_of_part(in_rows(m.whole->whole()), m.whole->where_in_layer(), layers ? layers->size() : 1,
                        layers ? layers->rank() : 0, first, rows),
          m.local,
          u.replicas->rank() == 0 && is_first_in_layer(*m.whole),
          false};
    }
  for (const auto& [name, b] : buffers_)
    all.push_back({name,
                   {b->type, b->extents},
                   {whole_box(in_rows(b->extents))},
                   b,
                   groups_.data().rank() == 0 && is_first_in_layer(*b),
                   true});
  return all;
}

WEFT_DEFINE index_t data_parallel_hooks::parameter_bytes() const {
  index_t n = 0;
  for (const unit& u : units_)
    for (const member& m : u.members)
      n +=
          static_cast<index_t>(options_.divide == sharding::parameters ? m.local->bytes() : m.whole->bytes());
  return n;
}

WEFT_DEFINE void data_parallel_hooks::check(const std::string& name, const tensor_state& p) {
  if (p.type != dtype::f32)
    refuse<value_error>({"weft: bind: parameter ", name, " is ", name_of(p.type),
                         ", not f32: bind needs f32 parameters, also for precision::bf16 and f16; train "
                         "others without bind"});
}

WEFT_DEFINE void data_parallel_hooks::take(int u) {
  tensor_list kept;
  for (const state_ptr& w : withheld_) kept.push_back(std::exchange(w->grad, nullptr));
  reducer_.take(u, synchronizes_);
  for (std::size_t i = 0; i < kept.size(); ++i) withheld_[i]->grad = std::move(kept[i]);
}

WEFT_DEFINE bool data_parallel_hooks::withholds(const tensor_state& t) const {
  return std::any_of(withheld_.begin(), withheld_.end(), [&](const state_ptr& w) { return w.get() == &t; });
}

WEFT_DEFINE state_ptr data_parallel_hooks::whole_layer(const member& m, const state_ptr& part) {
  return m.whole->is_part_of_layer() ? gathered(part, m.whole->whole(), m.whole->divided->where,
                                                *groups_.layers(), groups_.labelled(m.name, true))
                                     : part;
}

WEFT_DEFINE void data_parallel_hooks::divide(unit& u) {
  if (u.parts() == 1) return;
  const bool is_apart = apart(u);
  const state_ptr rows = is_apart ? flat(where_, u.own_count()) : nullptr;
  const std::span<const piece> own = u.message.part(u.part());
  for (const piece& p : own) {
    member& m = u.at(p.member);
    const bool is_deferred = m.whole->is_deferred();
    if (is_apart) weft::detail::no_longer_deferred(*m.whole);
    m.local = alias_of(*m.whole);
    const index_t row_count = m.row_size() ? p.count / m.row_size() : 0;
    if (row_count != m.rows()) {
      m.local->extents = in_rows(m.whole->extents);
      m.local->extents[0] = row_count;
    }
    const state_ptr& base = is_apart ? rows : m.whole;
    const index_t at = is_apart ? p.in_message - own[0].in_message : p.at;
    m.local->memory = base->memory.part(static_cast<std::size_t>(at) * sizeof(float));
    if (!is_apart) continue;
    if (is_deferred) weft::detail::draw_own<float>(*m.whole, where_, m.local->memory.data(), p.at, p.count);
    else copy_rows(m.local, 0, m.whole, p.at, p.count);
    if (!m.whole->divided)
      m.whole->divided = std::make_shared<division>(division{m.name, m.whole->extents, {}});
  }
}

WEFT_DEFINE void data_parallel_hooks::offload(unit& u, const device& home) {
  for (member& m : u.members) move_to(*m.local, home);
}

WEFT_DEFINE std::vector<std::pair<int, std::vector<int>>> data_parallel_hooks::by_unit(operands leaves) {
  std::vector<std::pair<int, std::vector<int>>> result;
  if (groups_.parts() == 1) return result;
  for (const state_ptr& leaf : leaves) {
    const auto found = leaf ? places_.find(leaf.get()) : places_.end();
    if (found == places_.end()) continue;
    const member_place at = found->second;
    if (unit_at(at.unit).parts() == 1) continue;
    auto entry =
        std::find_if(result.begin(), result.end(), [&](const auto& r) { return r.first == at.unit; });
    if (entry == result.end()) entry = result.insert(result.end(), {at.unit, {}});
    auto& members = entry->second;
    const auto where = std::lower_bound(members.begin(), members.end(), at.member);
    if (where == members.end() || *where != at.member) members.insert(where, at.member);
  }
  for (auto& [u, members] : result)
    if (unit_at(u).stays) members = unit_at(u).everything;
  return result;
}

}  // namespace parallel
}  // namespace weft
