// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/step_graph.hpp>.
#pragma once

#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <weft/base/config.hpp>
#include <weft/parallel/step_graph.hpp>

namespace weft {
namespace parallel {
namespace detail {

/// While it exists, tensors refer to the memory of their copies.
class exchanged_memory {
 public:
  void add(tensor_state& t, tensor_state& copy) {
    std::swap(t.memory, copy.memory);
    pairs_.emplace_back(&t, &copy);
  }
  exchanged_memory() = default;
  exchanged_memory(const exchanged_memory&) = delete;
  exchanged_memory& operator=(const exchanged_memory&) = delete;
  ~exchanged_memory() {
    for (const auto& [t, copy] : pairs_) std::swap(t->memory, copy->memory);
  }

 private:
  std::vector<std::pair<tensor_state*, tensor_state*>> pairs_;
};

class open_pool {
 public:
  explicit open_pool(caching_allocator::private_pool& p) : pool_(p) { p.open(); }
  open_pool(const open_pool&) = delete;
  open_pool& operator=(const open_pool&) = delete;
  ~open_pool() { pool_.close(); }

 private:
  caching_allocator::private_pool& pool_;
};

/// Ends the recording if an error leaves the scope.
class recording_scope {
 public:
  recording_scope(context& c, std::vector<context::random_state>& draws) : context_(c) {
    c.engine().begin_recording();
    c.number_draws(&draws);
  }
  recording_scope(const recording_scope&) = delete;
  recording_scope& operator=(const recording_scope&) = delete;
  ~recording_scope() {
    context_.number_draws(nullptr);
    if (!ended_) context_.engine().abandon_recording();
  }
  std::unique_ptr<recorded_work> end() {
    ended_ = true;
    return context_.engine().end_recording();
  }

 private:
  context& context_;
  bool ended_ = false;
};

}  // namespace detail

WEFT_DEFINE tensor_list described_operands(const runtime::operands& read, step_form& form) {
  tensor_list each;
  std::unordered_map<const tensor_state*, std::size_t> numbers;
  const std::unordered_set<const void*> fixed(form.memory.begin(), form.memory.end());
  for (const auto& leaf : read.leaves) {
    const auto [known, is_new] = numbers.try_emplace(leaf.get(), each.size());
    form.operands.push_back(known->second);
    if (!is_new) continue;
    each.push_back(leaf);
    form.tensors.push_back({leaf->type, leaf->extents});
    form.memory.push_back(fixed.contains(leaf->memory.data()) ? leaf->memory.data() : nullptr);
  }
  for (const any_number& x : read.numbers) form.numbers.push_back(x.bits);
  for (const index_t size : read.sizes) form.numbers.push_back(size);
  for (const any_number& x : read.held->numbers) form.numbers.push_back(x.bits);
  return each;
}

WEFT_DEFINE void require_unchanged(const runtime::module_contents& before,
                                   const runtime::module_contents& after) {
  if (before.numbers == after.numbers && before.versions == after.versions) return;
  throw value_error(
      "weft: step: the loss of a micro-batch changes what blocks of an earlier loss hold, but all losses are "
      "built before the first is evaluated (.graph = true)");
}

WEFT_DEFINE step_graph::step_graph(context& c, step_form form, const tensor_list& read)
    : context_(c), form_(std::move(form)), where_(c.where()), pool_(where_.memory()) {
  const void* const* memory = form_.memory.data() + (form_.memory.size() - read.size());
  for (const auto& t : read)
    inputs_.push_back(*memory++ ? nullptr : make_state(where_, t->extents, t->type));
}

WEFT_DEFINE const step_graph::values& step_graph::warm_up(const tensor_list& parameters,
                                                          const std::function<values()>& compute) {
  const detail::open_pool open(pool_);
  values_ = {};
  gradients_.clear();
  values_ = compute();
  for (const auto& p : parameters) gradients_.push_back(p->grad);
  warm_ = true;
  return values_;
}

WEFT_DEFINE void step_graph::record(std::span<const context::random_state> begins, const tensor_list& read,
                                    const tensor_list& parameters, const std::function<values()>& compute) {
  std::vector<context::random_state> draws;
  detail::exchanged_memory in_copies;
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    if (inputs_[i]) in_copies.add(*read[i], *inputs_[i]);
  const detail::open_pool open(pool_);
  values_ = {};  // results of the previous step, whose memory is needed again
  gradients_.clear();
  try {
    detail::recording_scope recording(context_, draws);
    values_ = compute();
    for (const auto& p : parameters) gradients_.push_back(std::exchange(p->grad, nullptr));
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      if (inputs_[i] && read[i]->grad)
        refuse<usage_error>({"weft: step: a step in which an operand of shape ", read[i]->extents,
                             " that is not a parameter gets a gradient cannot be recorded (.graph = true)"});
    arena_ = context_.arena_memory();
    work_ = recording.end();
  } catch (...) {
    for (const tensor_list* all : {&parameters, &read})
      for (const auto& t : *all) t->grad.reset();
    values_ = {};
    throw;
  }
  programs_ = context_.randomness().programs - begins.back().programs;
  draws_.clear();
  for (const context::random_state& d : draws) {
    std::size_t j = 0;
    while (j + 1 < begins.size() && begins[j].step != d.step) ++j;
    draws_.push_back({j, d.programs - begins[j].programs});
  }
}

WEFT_DEFINE const step_graph::values& step_graph::replay(std::span<const context::random_state> begins,
                                                         const tensor_list& read,
                                                         const tensor_list& parameters) {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (!inputs_[i]) continue;
    if (!(read[i]->where == where_)) runtime::detail::refuse_device("operand", i, *read[i], where_);
    copy_elements(context_.engine(), read[i]->type, inputs_[i]->memory.data(), read[i]->memory.data(),
                  read[i]->extents.size());
  }
  recycled_vector<std::uint64_t> keys;
  for (const draw& d : draws_) {
    const context::random_state& begin = begins[d.micro_batch];
    keys.push_back(context::random_key(begin, begin.programs + d.program));
  }
  work_->replay(keys);
  context::random_state end = begins.back();
  end.programs += programs_;
  context_.set_randomness(end);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    parameters[i]->grad = gradients_[i] ? alias_of(*gradients_[i]) : nullptr;
  return values_;
}

WEFT_DEFINE step_graph* step_graphs::find(const step_form& form) {
  for (const auto& g : all_)
    if (g->form() == form) return g.get();
  return nullptr;
}

WEFT_DEFINE step_graph& step_graphs::add(std::unique_ptr<step_graph> g) {
  const auto is_unrecorded = [](const auto& one) { return !one->is_recorded(); };
  auto oldest = all_.size() == most ? all_.begin() : all_.end();
  if (std::count_if(all_.begin(), all_.end(), is_unrecorded) == most_unrecorded)
    oldest = std::find_if(all_.begin(), all_.end(), is_unrecorded);
  if (oldest != all_.end()) all_.erase(oldest);
  return *all_.emplace_back(std::move(g));
}

}  // namespace parallel
}  // namespace weft
