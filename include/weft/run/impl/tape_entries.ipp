// SPDX-License-Identifier: MIT
// Definitions of <weft/run/tape_entries.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/record_function.hpp>
#include <weft/run/tape_entries.hpp>

namespace weft {

template <class Unused>
void basic_tape_entries<Unused>::backward(const std::shared_ptr<tensor_state>& y,
                                          const std::shared_ptr<tensor_state>& seed) {
  if (seed && (seed->type != y->type || !(seed->whole() == y->whole())))
    runtime::detail::refuse_spec("backward", *y, *seed, y->type);
  run_backward(y, seed);
}

template <class Unused>
void basic_tape_entries<Unused>::backward_weights() {
  const context::use own(*context_);
  require_idle("backward_weights");
  if (later_.empty())
    throw usage_error(
        "weft: backward_weights: the backward pass of the inputs has not run, or the tape does not split its "
        "backward pass");
  go_back([&] { execute_later(); });
}

template <class Unused>
void basic_tape_entries<Unused>::execute_later() {
  runtime::execution_hooks* const hooks = context_->hooks();
  require_open_gradients(later_);
  if (hooks) announce(*hooks, later_);
  const runtime::backward_scope pass(hooks);
  for (entry& n : std::exchange(later_, {})) {
    if (n.function) accumulate_all(n, n.saved);
    else if (!n.saved.empty()) check_versions(n), run_program(n, *n.weight);
    if (hooks) complete(*hooks, n);
  }
  finish(hooks);
}

template <class Unused>
std::shared_ptr<tensor_state> basic_tape_entries<Unused>::run_forward(const runtime::executable& forward,
                                                                      const runtime::executable& backward,
                                                                      runtime::operands o,
                                                                      const runtime::executable* weight) {
  const record_function range("forward");
  const context::use own(*context_);
  if (recording_) require_operands(backward, o.leaves);
  entry n;
  n.symbols = runtime::resolve_symbols(forward.plan, o.leaves, o.sizes, context_->layer_rank());
  runtime::place_operands(*context_, forward.plan, n.symbols, o.leaves,
                          [&](const auto& leaf, const placement& to) { return placed(leaf, to); });
  n.randomness = context_->randomness();
  tensor_list outputs;
  runtime::execute(*context_, forward, o.leaves, o.numbers, n.symbols, outputs, why(runtime::pass::forward));
  runtime::note_division(*context_, forward.plan, n.symbols, *outputs[0]);
  outputs[0]->on_tape = recording_ ? tape_status::recorded : tape_status::not_recording;
  if (!recording_) return outputs[0];
  n.forward = &forward;
  n.backward = &backward;
  n.weight = weight;
  n.numbers = std::move(o.numbers);
  n.result = outputs[0];
  n.loss_weight = context_->loss_weight;
  n.recomputes =
      entries_.size() < static_cast<std::size_t>(context_->recompute_programs) && outputs.size() > 1;
  if (!n.recomputes) n.saved.assign(outputs.begin() + 1, outputs.end());
  n.leaves = std::move(o.leaves);
  keep_what_is_read(n);
  entries_.push_back(std::move(n));
  return outputs[0];
}

template <class Unused>
void basic_tape_entries<Unused>::require_operands(const runtime::executable& backward,
                                                  const tensor_list& leaves) const {
  require_idle("eval");
  for (std::size_t i = 0; i < leaves.size(); ++i)
    if (leaves[i] && backward.plan.outputs[i] >= 0) require_entry(*leaves[i]);
}

template <class Unused>
std::shared_ptr<tensor_state> basic_tape_entries<Unused>::placed(const std::shared_ptr<tensor_state>& value,
                                                                 const placement& to) {
  const std::shared_ptr<tensor_state> result = runtime::placed(*context_, value, to);
  if (result == value || has_lost_entry(*value)) return result;  // such a value is a constant of its reader
  remember(result, {value}, [c = context_, from = value->where_in_layer()](const auto& cotangent) {
    return tensor_list{cotangent ? runtime::placed(*c, cotangent, from) : nullptr};
  });
  return result;
}

template <class Unused>
void basic_tape_entries<Unused>::run_slice(slice_sums& sums, const runtime::executable& forward,
                                           const runtime::executable& backward, const runtime::operands& o,
                                           const std::shared_ptr<tensor_state>& slice, index_t first) {
  const record_function range("forward");
  const context::use own(*context_);
  if (recording_) require_operands(backward, o.leaves);
  const runtime::symbol_values symbols =
      runtime::resolve_symbols(forward.plan, o.leaves, o.sizes, context_->layer_rank());
  tensor_list outputs, gradients;
  runtime::execute(*context_, forward, read_by(forward, o.leaves), o.numbers, symbols, outputs,
                   why(recording_ ? runtime::pass::recompute : runtime::pass::forward));
  add_to(sums.value, outputs[0]);
  if (!recording_) return;
  tensor_list operands = o.leaves;
  operands.append(outputs.begin() + 1, outputs.end());
  operands.push_back(sums.seed);
  const auto sum_of = [&](std::size_t i) -> std::shared_ptr<tensor_state>& {
    auto known = std::find(sums.leaves.begin(), sums.leaves.end(), o.leaves[i]);
    if (known == sums.leaves.end()) {
      sums.leaves.push_back(o.leaves[i]);
      sums.gradients.push_back(nullptr);
      known = &sums.leaves.back();
    }
    return sums.gradients[static_cast<std::size_t>(known - sums.leaves.begin())];
  };
  tensor_list known(o.leaves.size());
  std::shared_ptr<tensor_state> of_slice;
  gradients.resize(backward.plan.outputs.size());
  for (std::size_t i = 0; i < o.leaves.size(); ++i) {
    if (backward.plan.outputs[i] < 0) continue;
    if (o.leaves[i] != slice) known[i] = sum_of(i);
    else if (!of_slice) gradients[i] = of_slice = part_of(*sums.of_rows, first, slice->extents);
  }
  runtime::execute(*context_, backward, read_by(backward, std::move(operands)), o.numbers, symbols, gradients,
                   why(runtime::pass::forward), known);
  forget_added(gradients, known);
  for (std::size_t i = 0; i < o.leaves.size(); ++i)
    if (gradients[i] && gradients[i] != of_slice)
      add_to(o.leaves[i] == slice ? of_slice : sum_of(i), gradients[i]);
}

template <class Unused>
void basic_tape_entries<Unused>::remember(slice_sums& sums) {
  remember(sums.value, std::move(sums.leaves),
           [c = context_, gradients = std::move(sums.gradients),
            of = sums.cotangent](const std::shared_ptr<tensor_state>& cotangent) mutable {
             for (auto& g : gradients)
               if (cotangent) runtime::scale(c->engine(), *g, *cotangent, 1 / of);
               else g.reset();
             return std::move(gradients);
           });
}

template <class Unused>
tensor_list basic_tape_entries<Unused>::read_by(const runtime::executable& p, tensor_list leaves) {
  recycled_vector<char> read(leaves.size(), false);
  for (const lower::value_entry& v : p.plan.values)
    if (v.where == lower::storage::leaf) read[static_cast<std::size_t>(v.source)] = true;
  for (std::size_t i = 0; i < leaves.size(); ++i)
    if (!read[i]) leaves[i].reset();
  return leaves;
}

template <class Unused>
void basic_tape_entries<Unused>::keep_what_is_read(entry& n) {
  n.read = recycled_vector<char>(n.leaves.size(), n.recomputes);
  const runtime::executable* const parts[] = {n.backward, n.weight};
  for (const runtime::executable* part : parts) {
    if (!part) continue;
    for (const lower::value_entry& v : part->plan.values)
      if (v.where == lower::storage::leaf && static_cast<std::size_t>(v.source) < n.leaves.size())
        n.read[static_cast<std::size_t>(v.source)] = true;
  }
  n.versions.reserve(n.leaves.size());
  for (const auto& leaf : n.leaves) n.versions.push_back(leaf->version());
}

template <class Unused>
runtime::purpose basic_tape_entries<Unused>::why(runtime::pass during) {
  if (!context_->hooks() || (during == runtime::pass::forward && !recording_)) return {during, nullptr};
  if (!identity_) identity_ = make_recycled<char>();
  return {during, &identity_};
}

template <class Unused>
void basic_tape_entries<Unused>::refuse_constant(const tensor_state& y) {
  refuse<usage_error>(
      {"weft: backward: the value of shape ", y.extents,
       " was computed from no parameter and no variable, so there is no gradient: to get that of a tensor, "
       "make it a variable<T, extents<...>>; detach(x), comparisons, floor and positions have none"});
}

template <class Unused>
void basic_tape_entries<Unused>::refuse_backward(const tensor_state& y) {
  const char* why = "no tape computed it: evaluate it with steps.eval(...) and use what that returns";
  if (y.on_tape == tape_status::not_recording) why = "it was computed while no_grad was in effect";
  if (y.on_tape == tape_status::recorded) why = "another tape recorded it, or this one has been cleared";
  if (y.on_tape == tape_status::lost) why = "the tape that recorded it has ended";
  if (y.on_tape == tape_status::copied) why = "it is a copy, by to(device), of what a tape recorded";
  if (y.on_tape == tape_status::consumed)
    why =
        "backward has already run through it, or through what it was computed from, which is then no longer "
        "on the tape: evaluate it again, or add up several losses and call backward once";
  refuse<usage_error>({"weft: backward: this tape does not hold the value of shape ", y.extents, ": ", why});
}

template <class Unused>
void basic_tape_entries<Unused>::refuse_lost_entry(const tensor_state& operand) {
  const char* why =
      " was recorded by a tape whose backward pass has already run through it, or through what it was "
      "computed from";
  const char* cure = "evaluate it again, or call backward once for everything that reads it";
  if (operand.on_tape == tape_status::lost) {
    why = " was recorded by a tape that has ended";
    cure = "use one tape";
  } else if (operand.on_tape == tape_status::copied) {
    why = " is a copy, by to(device), of what a tape recorded";
    cure = "a tape computes on one device";
  }
  refuse<usage_error>({"weft: eval: an operand of shape ", operand.extents, why,
                       ", so that no gradient can reach what it was computed from: ", cure,
                       "; detach(y), or eval without a tape, treats it as a constant"});
}

template <class Unused>
void basic_tape_entries<Unused>::refuse_nested(const char* what) {
  refuse<usage_error>({"weft: ", what,
                       ": this tape is in a backward pass, as in a gradient hook: use another "
                       "tape there"});
}

template <class Unused>
void basic_tape_entries<Unused>::run_backward(const std::shared_ptr<tensor_state>& y,
                                              const std::shared_ptr<tensor_state>& seed) {
  const context::use own(*context_);
  require_idle("backward");
  bool is_here = false;
  for (std::size_t n = entries_.size(); !is_here && n > 0; --n) is_here = entries_[n - 1].result == y;
  if (!is_here) refuse_backward(*y);
  if (seed && !(seed->where == context_->where()))
    runtime::detail::refuse_device("backward: seed", 0, *seed, context_->where());
  context_->begin_backward();
  for (const entry& n : entries_) n.result->grad.reset();  // gradients from other tapes count only as a seed
  std::shared_ptr<tensor_state> first =
      seed ? runtime::placed(*context_, seed, y->where_in_layer()) : nullptr;
  if (first && first == seed && !y->gradient_hooks.empty()) {  // hooks may change it
    const index_t count = seed->extents.size();
    first = make_state(seed->where, seed->extents, seed->type);
    copy_elements(context_->engine(), seed->type, first->memory.data(), seed->memory.data(), count);
  }
  reaches_leaf_ = false;
  go_back([&] {
    if (first) accumulate(y, first);
    execute_backward(*y);
  });
}

template <class Unused>
template <class Pass>
void basic_tape_entries<Unused>::go_back(Pass pass) {
  goes_back_ = true;
  try {
    pass();
  } catch (...) {
    goes_back_ = false;
    abandon_backward();
    throw;
  }
  goes_back_ = false;
}

template <class Unused>
void basic_tape_entries<Unused>::abandon_backward() {
  for (const entry& n : entries_) {
    n.result->grad.reset();
    n.result->on_tape = tape_status::consumed;
  }
  hooked_.clear();
  clear();
}

template <class Unused>
void basic_tape_entries<Unused>::execute_backward(const tensor_state& y) {
  runtime::execution_hooks* const hooks = context_->hooks();
  require_open_gradients(entries_);
  if (hooks) announce(*hooks, entries_);
  const runtime::backward_scope pass(hooks);
  recycled_vector<entry> unreached;
  while (!entries_.empty()) {
    entry n = std::move(entries_.back());
    entries_.pop_back();
    const std::shared_ptr<tensor_state> cotangent = std::move(n.result->grad);
    n.result->grad.reset();
    n.result->on_tape = tape_status::consumed;
    if (cotangent) run_gradient_hooks(*n.result, cotangent);
    if (n.function) run_function(n, cotangent);
    else if (cotangent) run_programs(n, cotangent);
    else if (in_parts_) n.saved.clear();
    if (hooks) complete(*hooks, n);
    if (in_parts_) keep_for_second_part(std::move(n));
    else if (!cotangent && !n.function && n.result.get() != &y) unreached.push_back(std::move(n));
  }
  keep_unreached(std::move(unreached));
  finish(hooks);
}

template <class Unused>
void basic_tape_entries<Unused>::keep_unreached(recycled_vector<entry> last_first) {
  for (std::size_t i = last_first.size(); i-- > 0;) {
    const entry& n = last_first[i];
    bool is_intact = true;
    for (std::size_t k = 0; k < n.leaves.size(); ++k)
      is_intact = is_intact && !(computes(n, k) && has_lost_entry(*n.leaves[k]));
    if (is_intact) n.result->on_tape = tape_status::recorded;
  }
  for (entry& e : last_first) {
    entry n = std::move(e);  // destroyed before the entries whose results it reads
    const auto own = 1 + std::count(n.saved.begin(), n.saved.end(), n.result);
    if (n.result->on_tape == tape_status::recorded && n.result.use_count() > own)
      entries_.push_back(std::move(n));
    else n.result->on_tape = tape_status::consumed;
  }
  std::reverse(entries_.begin(), entries_.end());
}

template <class Unused>
void basic_tape_entries<Unused>::finish(runtime::execution_hooks* hooks) {
  for (const auto& leaf : std::exchange(hooked_, {}))
    if (leaf->grad && !(hooks && hooks->withholds(*leaf))) run_gradient_hooks(*leaf, leaf->grad);
  if (hooks) hooks->after_backward(identity_);
  identity_.reset();
}

template <class Unused>
void basic_tape_entries<Unused>::keep_for_second_part(entry n) {
  n.is_second = true;
  n.result.reset();
  if (!n.function) {
    recycled_vector<char> read(n.leaves.size() + n.saved.size(), false);
    if (!n.saved.empty())  // there was a cotangent
      for (const lower::value_entry& v : n.weight->plan.values)
        if (v.where == lower::storage::leaf) read[static_cast<std::size_t>(v.source)] = true;
    for (std::size_t i = 0; i < n.leaves.size(); ++i) {
      n.read[i] = read[i];
      if (!read[i] && n.weight->plan.outputs[i] < 0) n.leaves[i].reset();
    }
    for (std::size_t i = 0; i < n.saved.size(); ++i)
      if (!read[n.leaves.size() + i]) n.saved[i].reset();
  }
  later_.push_back(std::move(n));
}

template <class Unused>
bool basic_tape_entries<Unused>::computes(const entry& n, std::size_t i) const {
  if (!n.function) return (n.is_second ? n.weight : n.backward)->plan.outputs[i] >= 0;
  const bool is_input = n.leaves[i]->on_tape == tape_status::recorded;
  return !in_parts_ || is_input != n.is_second;
}

template <class Unused>
void basic_tape_entries<Unused>::append_gradients(const entry& n, recycled_vector<tensor_state*>& to) const {
  for (std::size_t i = 0; i < n.leaves.size(); ++i)
    if (computes(n, i)) to.push_back(n.leaves[i].get());
}

template <class Unused>
void basic_tape_entries<Unused>::announce(runtime::execution_hooks& hooks,
                                          const recycled_vector<entry>& entries) const {
  recycled_vector<tensor_state*> uses;
  for (const entry& n : entries) append_gradients(n, uses);
  hooks.before_backward(uses);
}

template <class Unused>
void basic_tape_entries<Unused>::require_open_gradients(const recycled_vector<entry>& entries) const {
  for (const entry& n : entries)
    for (std::size_t i = 0; i < n.leaves.size(); ++i)
      if (computes(n, i) && n.leaves[i]->gradient_reduced)
        refuse<value_error>({"weft: backward: the gradient of a parameter of shape ", n.leaves[i]->whole(),
                             " has been reduced over ranks for the next step of a run: take the step first, "
                             "or drop the gradient with run.zero_grad()"});
}

template <class Unused>
void basic_tape_entries<Unused>::run_function(entry& n, const std::shared_ptr<tensor_state>& cotangent) {
  tensor_list gradients = n.function->call(cotangent);
  if (gradients.size() != n.leaves.size())
    refuse<usage_error>({"weft: backward: a function returned ", gradients.size(), " cotangents for ",
                         n.leaves.size(), " operands"});
  accumulate_all(n, gradients);
  n.saved = std::move(gradients);
}

template <class Unused>
void basic_tape_entries<Unused>::accumulate_all(const entry& n, tensor_list& gradients) {
  for (std::size_t i = 0; i < n.leaves.size(); ++i) {
    if (!gradients[i] || !computes(n, i)) continue;
    const std::shared_ptr<tensor_state> g = std::move(gradients[i]);
    if (g->type != n.leaves[i]->type || !(g->extents == n.leaves[i]->extents))
      runtime::detail::refuse_spec("backward", *n.leaves[i], *g, n.leaves[i]->type);
    accumulate(n.leaves[i], g);
  }
}

template <class Unused>
void basic_tape_entries<Unused>::run_programs(entry& n, const std::shared_ptr<tensor_state>& cotangent) {
  check_versions(n);
  if (n.recomputes) recompute(n);
  n.saved.push_back(cotangent);
  run_program(n, *n.backward);
}

template <class Unused>
void basic_tape_entries<Unused>::check_versions(const entry& n) {
  for (std::size_t i = 0; i < n.leaves.size(); ++i)
    if (n.read[i] && n.leaves[i]->version() != n.versions[i])
      refuse<value_error>({"weft: backward: operand ", i, " of shape ", n.leaves[i]->extents,
                           " was changed in place after forward read it"});
}

template <class Unused>
void basic_tape_entries<Unused>::run_program(entry& n, const runtime::executable& p) {
  const record_function range("backward");
  const std::size_t count = n.leaves.size();
  tensor_list leaves(count);
  for (std::size_t i = 0; i < count; ++i)
    if (n.read[i]) leaves[i] = n.leaves[i];
  leaves.append(n.saved.begin(), n.saved.end());
  tensor_list gradients, sums(count);
  for (std::size_t i = 0; i < count; ++i)
    if (p.plan.outputs[i] >= 0 && !has_shared_gradient(*n.leaves[i])) sums[i] = n.leaves[i]->grad;
  runtime::execute(*context_, p, leaves, n.numbers, n.symbols, gradients, why(runtime::pass::backward), sums);
  for (std::size_t i = 0; i < count; ++i)
    if (gradients[i]) note_gradient(n.leaves[i]);
  forget_added(gradients, sums);
  for (std::size_t i = 0; i < count; ++i)
    if (gradients[i]) accumulate(n.leaves[i], gradients[i]);
  n.saved.append(gradients.begin() + count, gradients.end());
}

template <class Unused>
void basic_tape_entries<Unused>::recompute(entry& n) {
  const record_function range("recompute");
  const context::randomness_scope as_before(*context_, n.randomness);
  tensor_list outputs;
  runtime::execute(*context_, *n.forward, n.leaves, n.numbers, n.symbols, outputs,
                   why(runtime::pass::recompute));
  n.saved.assign(outputs.begin() + 1, outputs.end());
}

template <class Unused>
void basic_tape_entries<Unused>::forget_added(tensor_list& gradients, tensor_list& sums) {
  for (std::size_t i = 0; i < sums.size(); ++i)
    if (gradients[i] == sums[i]) gradients[i].reset();
  sums.clear();
}

template <class Unused>
void basic_tape_entries<Unused>::note_gradient(const std::shared_ptr<tensor_state>& to) {
  // A value that this tape computed is found quickly: it is usually the result of the entry before.
  for (std::size_t n = entries_.size(); !reaches_leaf_; --n) {
    if (n == 0) reaches_leaf_ = true;
    else if (entries_[n - 1].result == to) break;
  }
  if (!to->gradient_hooks.empty() && std::find(hooked_.begin(), hooked_.end(), to) == hooked_.end())
    hooked_.push_back(to);
}

template <class Unused>
void basic_tape_entries<Unused>::accumulate(const std::shared_ptr<tensor_state>& to,
                                            const std::shared_ptr<tensor_state>& g) {
  note_gradient(to);
  if (!to->grad) {
    to->grad = alias_of(*g);
    g->memory.describe("gradient", to->memory);
    to->grad->divided = to->is_part_of_layer() ? to->divided : nullptr;
    to->grad->positions = to->positions;
    return;
  }
  auto sum = has_shared_gradient(*to) ? make_state(to->where, to->extents, to->type) : to->grad;
  runtime::add(context_->engine(), *to->grad, *g, *sum);
  sum->divided = to->grad->divided;
  sum->positions = to->positions;
  to->grad = std::move(sum);
}

#ifdef WEFT_COMPILED
template class basic_tape_entries<void>;
#endif

}  // namespace weft
