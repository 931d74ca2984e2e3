// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/tied_gradients.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/parallel/tied_gradients.hpp>

namespace weft {
namespace parallel {

WEFT_DEFINE tied_gradients::tied_gradients(std::vector<tied_parameter> all, std::vector<int> stage_of,
                                           communicator& stages, const device& where, int first_tag,
                                           bool deterministic)
    : all_(std::move(all)),
      stage_of_(std::move(stage_of)),
      stages_(&stages),
      where_(where),
      messages_(message_device(where, &stages)),
      first_tag_(first_tag),
      deterministic_(deterministic),
      sums_(all_.size()),
      handed_over_(all_.size()) {}

WEFT_DEFINE void tied_gradients::check(const pipeline::schedule& s) const {
  std::vector<pipeline::handing> handed;
  for (std::size_t t = 0; t < all_.size(); ++t)
    for (const int chunk : all_[t].chunks)
      if (const int after = neighbor(all_[t], chunk, 1, deterministic_ || !s.flush); after >= 0)
        handed.push_back({chunk, after, static_cast<int>(t)});
  const auto mistake = pipeline::check_handing(s, handed);
  if (!mistake) return;
  std::string names;
  for (const tied_parameter& p : all_)
    if (std::find(p.chunks.begin(), p.chunks.end(), mistake->chunk) != p.chunks.end())
      names += (names.empty() ? "" : ", ") + p.name;
  refuse<usage_error>({"weft: pipeline: the schedule cannot run where several chunks read ", names, ": ",
                       pipeline::to_text(*mistake)});
}

WEFT_DEFINE void tied_gradients::begin_step(const pipeline::schedule& s) {
  delivered_ = false;
  hands_each_ = deterministic_ || !s.flush;
  sums_.assign(all_.size(), 0);
  handed_over_.assign(all_.size(), 0);
  updates_before_.clear();
  for (const tied_parameter& p : all_)
    if (!s.flush) updates_before_.push_back(updates_before(s, p.chunks[0]));
}

WEFT_DEFINE tied_gradients::taken_over tied_gradients::before_backward(int chunk, int micro_batch,
                                                                       const comm_options& o) {
  taken_over all;
  for (std::size_t t = 0; t < all_.size(); ++t) {
    const tied_parameter& p = all_[t];
    const int after = neighbor(p, chunk, 1, hands_each_), before = neighbor(p, chunk, -1, hands_each_);
    if (after >= 0)
      add(*p.whole, on_this_stage(after) ? take(t, micro_batch)
                                         : receive(t, stage(after), *p.whole, handed(after, micro_batch, o)));
    if (!updates_before_.empty() && owns(t)) drop(t, of_forward(t, micro_batch));
    if (before >= 0) all.withheld.push_back(p.whole);
    else if (after >= 0) all.found.push_back(p.whole);
  }
  return all;
}

WEFT_DEFINE void tied_gradients::after_backward(int chunk, int micro_batch, const comm_options& o) {
  for (std::size_t t = 0; t < all_.size(); ++t) {
    const tied_parameter& p = all_[t];
    const int before = neighbor(p, chunk, -1, hands_each_);
    if (before < 0) continue;
    state_ptr g = std::exchange(p.whole->grad, nullptr);
    if (on_this_stage(before)) handed_.push_back({t, micro_batch, std::move(g)});
    else send(t, stage(before), g, handed(chunk, micro_batch, o));
  }
}

WEFT_DEFINE void tied_gradients::share(const state_dict_t& local, const comm_options& o) {
  for (std::size_t t = 0; t < all_.size(); ++t)
    if (const state_ptr own = rows(t, local); exchanges(t) && own && owns(t)) {
      collect(t, *own, o);
      ++sums_[t];
    }
}

WEFT_DEFINE void tied_gradients::deliver(const state_dict_t& local, const comm_options& o) {
  if (std::exchange(delivered_, true)) return;
  std::vector<state_ptr> own;
  for (std::size_t t = 0; t < all_.size(); ++t) {
    own.push_back(rows(t, local));
    if (exchanges(t) && own[t] && !owns(t) && !hands_each_) send(t, all_[t].stages[0], own[t]->grad, o);
  }
  for (std::size_t t = 0; t < all_.size(); ++t)
    if (exchanges(t) && own[t] && owns(t)) collect(t, *own[t], o);
  for (std::size_t t = 0; t < all_.size(); ++t)
    if (exchanges(t) && own[t] && !owns(t)) own[t]->grad = receive(t, all_[t].stages[0], *own[t], o);
  complete();
}

WEFT_DEFINE bool tied_gradients::owned_elsewhere(const std::string& name) const {
  for (std::size_t t = 0; t < all_.size(); ++t)
    if (all_[t].name == name) return !owns(t);
  return false;
}

WEFT_DEFINE std::vector<int> tied_gradients::updates_before(const pipeline::schedule& s, int chunk) {
  std::vector<int> counts(static_cast<std::size_t>(s.micro_batches) + 1, s.micro_batches);
  int updates = 0;
  for (const pipeline::step& e :
       s.steps[static_cast<std::size_t>(s.stage_of[static_cast<std::size_t>(chunk)])]) {
    if (e.chunk != chunk) continue;
    if (e.kind == pipeline::step_kind::forward) counts[static_cast<std::size_t>(e.micro_batch)] = updates;
    updates += pipeline::completes_gradients(e.kind);
  }
  return counts;
}

WEFT_DEFINE int tied_gradients::neighbor(const tied_parameter& p, int chunk, int direction, bool each) const {
  const auto count = static_cast<std::ptrdiff_t>(p.chunks.size());
  const auto at = std::find(p.chunks.begin(), p.chunks.end(), chunk) - p.chunks.begin();
  if (at == count) return -1;
  for (auto i = at + direction; i >= 0 && i < count; i += direction)
    if (const int other = p.chunks[static_cast<std::size_t>(i)]; each || stage(other) == stage(chunk))
      return other;
  return -1;
}

WEFT_DEFINE state_ptr tied_gradients::take(std::size_t t, int micro_batch) {
  for (auto h = handed_.begin(); h != handed_.end(); ++h) {
    if (h->parameter != t || h->micro_batch != micro_batch) continue;
    state_ptr g = std::move(h->gradient);
    handed_.erase(h);
    return g;
  }
  return nullptr;
}

WEFT_DEFINE comm_options tied_gradients::handed(int chunk, int micro_batch, comm_options o) {
  o.label = weft::detail::joined({" from chunk ", chunk, ", micro-batch ", micro_batch});
  return o;
}

WEFT_DEFINE void tied_gradients::send(std::size_t t, int to, const state_ptr& g, comm_options o) {
  static constexpr std::int32_t exists[] = {0, 1};
  const int number = owns(t) ? sums_[t] : handed_over_[t]++;
  o = labelled(t, std::move(o));
  const auto start = [&](const state_ptr& message, const_elements e, const comm_options& with) {
    sent_.push_back({t, number, message, work()});
    sent_.back().in_flight = stages_->send(e, to, tag(t), with);
  };
  start(nullptr, std::span(&exists[g != nullptr], 1), as_control(o));
  if (!g) return;
  const state_ptr message = reachable(messages_, g);
  start(message, elements_of(*message), o);
}

WEFT_DEFINE void tied_gradients::drop(std::size_t t, int number) {
  const auto below = [&](const sent& s) { return s.parameter == t && s.number < number; };
  for (const sent& s : sent_)
    if (below(s)) s.in_flight.wait();
  std::erase_if(sent_, below);
}

WEFT_DEFINE state_ptr tied_gradients::receive(std::size_t t, int from, const tensor_state& like,
                                              comm_options o) {
  o = labelled(t, std::move(o));
  std::int32_t exists = 1;  // the default if messages are only counted
  stages_->receive(std::span(&exists, 1), from, tag(t), as_control(o)).wait();
  if (!exists) return nullptr;
  const state_ptr message = make_state(messages_, like.extents, like.type);
  stages_->receive(elements_of(*message), from, tag(t), o).wait();
  if (messages_ == where_) return message;
  const state_ptr value = make_state(where_, like.extents, like.type);
  copy_rows(value, 0, message, 0, value->extents.size());
  return value;
}

WEFT_DEFINE void tied_gradients::collect(std::size_t t, tensor_state& own, const comm_options& o) {
  for (std::size_t s = all_[t].stages.size(); !hands_each_ && s-- > 1;)
    add(own, receive(t, all_[t].stages[s], own, o));
  for (std::size_t s = 1; s < all_[t].stages.size(); ++s) send(t, all_[t].stages[s], own.grad, o);
}

}  // namespace parallel
}  // namespace weft
