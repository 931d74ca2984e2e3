// SPDX-License-Identifier: MIT
// The entries of a tape and the backward pass through them, which do not depend on the types of expressions.
//
// The backward pass can be divided: its first part computes the gradients of inputs, the second one those of
// parameters, from values that the first one saves. Stages of a pipeline compute the second part while they
// would wait (zero bubble).
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include <weft/run/add.hpp>
#include <weft/run/eval.hpp>
#include <weft/tensor/create.hpp>

namespace weft {

namespace runtime {
/// The backward pass of an entry that was not computed by a program.
struct backward_function {
  virtual ~backward_function() = default;
  virtual tensor_list call(const std::shared_ptr<tensor_state>& cotangent) = 0;
};
template <class F>
struct backward_function_of final : backward_function {
  F f;
  explicit backward_function_of(F g) : f(std::move(g)) {}
  tensor_list call(const std::shared_ptr<tensor_state>& cotangent) override { return f(cotangent); }
};
}  // namespace runtime

/// The entries of a tape and the backward pass through them, independent of program options. It is a template
/// so that programs without a tape do not compile it.
template <class = void>
class basic_tape_entries {
 public:
  explicit basic_tape_entries(context& c) : context_(&c) {}
  basic_tape_entries(const basic_tape_entries&) = delete;
  basic_tape_entries& operator=(const basic_tape_entries&) = delete;

  /// Adds the derivative of `y`, times `seed` if `y` is not a scalar, to the gradients of all parameters and
  /// variables that `y` depends on, and clears the tape. Throws usage_error if `y` is not a result of this
  /// tape.
  template <class T, class Extents>
  void backward(const variable<T, Extents>& y) {
    static_assert(Extents::order == 0,
                  "weft: backward: a value that is not a scalar needs a seed: backward(y, seed)");
    backward(y, full<T>(extents<>{}, static_cast<T>(context_->loss_scale * context_->loss_weight),
                        context_->where()));
  }
  template <class T, class Extents, class SeedExtents>
  void backward(const variable<T, Extents>& y, const tensor<T, SeedExtents>& seed) {
    if (!(seed.extents() == y.extents()))
      refuse<shape_error>(
          {"weft: backward: a seed of shape ", seed.extents(), " for a value of shape ", y.extents()});
    run_backward(y.state(), seed.state());
  }
  /// The same for tensors whose types are known only at run time. Throws value_error if their types differ.
  void backward(const std::shared_ptr<tensor_state>& y, const std::shared_ptr<tensor_state>& seed) {
    if (seed->type != y->type || !(seed->whole() == y->whole()))
      runtime::detail::refuse_spec("backward", *y, *seed, y->type);
    run_backward(y, seed);
  }

  /// Reports expressions for which no backward pass exists.
  template <expression E, class... Seed>
  void backward([[maybe_unused]] const E& y, [[maybe_unused]] const Seed&... seed) {
    if constexpr (!requires { E::is_leaf; })
      static_assert(weft::detail::unsupported<E>,
                    "weft: backward: this expression is not computed yet: auto y = tape.eval(expression); "
                    "tape.backward(y)");
    else if constexpr (!E::requires_grad)
      static_assert(weft::detail::unsupported<E>,
                    "weft: backward: this tensor is not tracked: it must be the result of tape.eval(...), "
                    "not of eval(...)");
    else if constexpr (E::role == leaf_role::parameter)
      backward(static_cast<const variable<typename E::value_type, typename E::extents_type>&>(y), seed...);
    else
      static_assert(weft::detail::unsupported<E, Seed...>,
                    "weft: backward: the seed must be one tensor of the value's element type");
  }

  /// The context in which programs are executed.
  context& run_context() const { return *context_; }

  /// Whether expressions are recorded; see `no_grad`.
  bool recording() const { return recording_; }
  void record(bool on) { recording_ = on; }

  std::size_t size() const { return entries_.size() + later_.size(); }
  void clear() {
    entries_.clear();
    later_.clear();
    identity_.reset();
  }

  /// The second part of the backward pass of a tape in parts: adds the gradients of parameters. Throws
  /// usage_error unless the first part has run.
  void backward_weights() {
    const context::use own(*context_);
    if (later_.empty())
      throw usage_error(
          "weft: backward_weights: the backward pass of the inputs has not run, or the tape is not "
          "one in parts");
    runtime::execution_hooks* const hooks = context_->hooks();
    if (hooks) announce(*hooks, later_);
    for (entry& n : std::exchange(later_, {})) {
      if (n.function) accumulate_all(n, n.saved);
      else if (!n.saved.empty()) check_versions(n), run_program(n, *n.weight);
      if (hooks) complete(*hooks, n);
    }
    finish(hooks);
  }

  /// Records `value`, which was computed from `operands` without a program, for example by a message to
  /// another rank. The backward pass calls `f` once, with the cotangent of `value`, which is null if nothing
  /// depends on `value`, and then destroys it. `f` returns the cotangents of the operands as a tensor_list;
  /// it may contain null, and must not share its tensors with other code. Throws usage_error if a tape has
  /// recorded `value` already. Functions of tensors are better written as ops (docs/adding_an_op.md).
  template <class F>
  void remember(const std::shared_ptr<tensor_state>& value, tensor_list operands, F f) {
    const context::use own(*context_);
    if (value->on_tape == tape_status::recorded)
      refuse<usage_error>({"weft: a tape holds the value of shape ", value->extents, " already"});
    value->on_tape = recording_ ? tape_status::recorded : tape_status::not_recording;
    if (!recording_) return;
    entry n;
    n.result = value;
    n.leaves = std::move(operands);
    n.function = make_recycled<runtime::backward_function_of<F>>(std::move(f));
    entries_.push_back(std::move(n));
  }

 protected:
  /// Executes `forward` and records how to execute `backward`; of a backward pass in parts, that is the first
  /// part and `weight` the second. All outlive the tape.
  std::shared_ptr<tensor_state> run_forward(const runtime::executable& forward,
                                            const runtime::executable& backward, runtime::operands o,
                                            const runtime::executable* weight = nullptr) {
    const context::use own(*context_);
    entry n;
    n.symbols = runtime::resolve_symbols(forward.plan, o.leaves, o.sizes, context_->layer_rank());
    runtime::place_operands(*context_, forward.plan, n.symbols, o.leaves,
                            [&](const auto& leaf, const placement& to) { return placed(leaf, to); });
    n.randomness = context_->randomness();
    tensor_list outputs;
    runtime::execute(*context_, forward, o.leaves, o.numbers, n.symbols, outputs,
                     why(runtime::pass::forward));
    runtime::note_division(*context_, forward.plan, n.symbols, *outputs[0]);
    outputs[0]->on_tape = recording_ ? tape_status::recorded : tape_status::not_recording;
    if (!recording_) return outputs[0];
    n.forward = &forward;
    n.backward = &backward;
    n.weight = weight;
    n.numbers = std::move(o.numbers);
    n.result = outputs[0];
    n.recomputes =
        entries_.size() < static_cast<std::size_t>(context_->recompute_programs) && outputs.size() > 1;
    if (!n.recomputes) n.saved.assign(outputs.begin() + 1, outputs.end());
    n.leaves = std::move(o.leaves);
    keep_what_is_read(n);
    entries_.push_back(std::move(n));
    return outputs[0];
  }

  /// `value` in another placement, as an entry whose backward pass is the placement that it has.
  std::shared_ptr<tensor_state> placed(const std::shared_ptr<tensor_state>& value, const placement& to) {
    const std::shared_ptr<tensor_state> result = runtime::placed(*context_, value, to);
    if (result == value) return value;
    remember(result, {value}, [c = context_, from = value->where_in_layer()](const auto& cotangent) {
      return tensor_list{cotangent ? runtime::placed(*c, cotangent, from) : nullptr};
    });
    return result;
  }

  /// Sums over slices of rows: a value and, if this tape records, the gradients of `leaves` for `cotangent`.
  struct slice_sums {
    double cotangent;
    std::shared_ptr<tensor_state> seed;  // contains `cotangent`
    std::shared_ptr<tensor_state> value{};
    tensor_list leaves{}, gradients{};  // the first of each has all rows
  };

  /// Executes the forward and backward pass of a slice, which starts at element `first` of all rows. No
  /// activations are saved.
  void run_slice(slice_sums& sums, const runtime::executable& forward, const runtime::executable& backward,
                 const runtime::operands& o, const std::shared_ptr<tensor_state>& slice, index_t first) {
    const context::use own(*context_);
    const runtime::symbol_values symbols =
        runtime::resolve_symbols(forward.plan, o.leaves, o.sizes, context_->layer_rank());
    tensor_list outputs, gradients;
    runtime::execute(*context_, forward, o.leaves, o.numbers, symbols, outputs,
                     why(recording_ ? runtime::pass::recompute : runtime::pass::forward));
    add_to(sums.value, outputs[0]);
    if (!recording_) return;
    tensor_list operands = o.leaves;
    operands.insert(operands.end(), outputs.begin() + 1, outputs.end());
    operands.push_back(sums.seed);
    const auto sum_of = [&](std::size_t i) -> std::shared_ptr<tensor_state>& {
      auto known = std::find(sums.leaves.begin() + 1, sums.leaves.end(), o.leaves[i]);
      if (known == sums.leaves.end()) {
        known = sums.leaves.insert(known, o.leaves[i]);
        sums.gradients.emplace_back();
      }
      return sums.gradients[static_cast<std::size_t>(known - sums.leaves.begin())];
    };
    tensor_list known(o.leaves.size());
    std::shared_ptr<tensor_state> of_slice;
    gradients.resize(backward.plan.outputs.size());
    for (std::size_t i = 0; i < o.leaves.size(); ++i) {
      if (backward.plan.outputs[i] < 0) continue;
      if (o.leaves[i] != slice) known[i] = sum_of(i);
      else if (!of_slice) gradients[i] = of_slice = part_of(*sums.gradients[0], first, slice->extents);
    }
    runtime::execute(*context_, backward, operands, o.numbers, symbols, gradients,
                     why(runtime::pass::forward), known);
    forget_added(gradients, known);
    for (std::size_t i = 0; i < o.leaves.size(); ++i)
      if (gradients[i] && gradients[i] != of_slice)
        add_to(o.leaves[i] == slice ? of_slice : sum_of(i), gradients[i]);
  }

  /// Records a result whose gradients have been computed already, if this tape records.
  void remember(slice_sums& sums) {
    remember(sums.value, std::move(sums.leaves),
             [c = context_, gradients = std::move(sums.gradients),
              of = sums.cotangent](const std::shared_ptr<tensor_state>& cotangent) mutable {
               for (auto& g : gradients)
                 if (cotangent) runtime::scale(c->engine(), *g, *cotangent, 1 / of);
                 else g.reset();
               return std::move(gradients);
             });
  }

  /// Divides backward passes into parts.
  void divide_backward() { in_parts_ = true; }

 private:
  struct entry {
    const runtime::executable *forward = nullptr, *backward = nullptr, *weight = nullptr;
    context::random_state randomness;  // of the forward pass
    runtime::symbol_values symbols;
    recycled_vector<any_number> numbers;
    tensor_list leaves;                       // operands
    recycled_vector<std::uint64_t> versions;  // of the operands, when the forward pass read them
    recycled_vector<char> read;               // whether the backward pass reads an operand
    tensor_list saved;                        // that the backward pass reads, or its second part
    std::shared_ptr<tensor_state> result;
    bool recomputes = false;
    std::shared_ptr<runtime::backward_function> function;  // instead of programs
    bool is_second = false;  // whether the first part of the backward pass has run
  };

  /// Records which operands the backward pass reads, and their versions: other operands may be changed.
  static void keep_what_is_read(entry& n) {
    n.read.assign(n.leaves.size(), n.recomputes);
    const runtime::executable* const parts[] = {n.backward, n.weight};
    for (const runtime::executable* part : parts) {
      if (!part) continue;
      for (const lower::value_entry& v : part->plan.values)
        if (v.where == lower::storage::leaf && static_cast<std::size_t>(v.source) < n.leaves.size())
          n.read[static_cast<std::size_t>(v.source)] = true;
    }
    n.versions.reserve(n.leaves.size());
    for (const auto& leaf : n.leaves) n.versions.push_back(leaf->version);
  }

  /// The reason for executing a program, for the hooks of the context.
  runtime::purpose why(runtime::pass during) {
    if (!context_->hooks() || (during == runtime::pass::forward && !recording_)) return {during, nullptr};
    if (!identity_) identity_ = make_recycled<char>();
    return {during, &identity_};
  }

  [[noreturn, gnu::cold]] static void refuse_backward(const tensor_state& y) {
    const char* why = "no tape computed it: evaluate it with steps.eval(...) and keep what that returns";
    if (y.on_tape == tape_status::not_recording) why = "it was computed while no_grad was in effect";
    if (y.on_tape == tape_status::recorded) why = "another tape recorded it, or this one has been cleared";
    if (y.on_tape == tape_status::consumed)
      why =
          "backward has already run through it, and a tape is empty afterwards: evaluate it again, or add up "
          "several "
          "losses and go back once";
    refuse<usage_error>(
        {"weft: backward: this tape does not hold the value of shape ", y.extents, ": ", why});
  }

  void run_backward(const std::shared_ptr<tensor_state>& y, const std::shared_ptr<tensor_state>& seed) {
    const context::use own(*context_);
    const auto is_y = [&](const entry& n) { return n.result == y; };
    if (std::find_if(entries_.rbegin(), entries_.rend(), is_y) == entries_.rend()) refuse_backward(*y);
    context_->begin_backward();
    accumulate(y, runtime::placed(*context_, seed, y->where_in_layer()));
    runtime::execution_hooks* const hooks = context_->hooks();
    if (hooks) announce(*hooks, entries_);
    while (!entries_.empty()) {
      entry n = std::move(entries_.back());
      entries_.pop_back();
      const std::shared_ptr<tensor_state> cotangent = std::move(n.result->grad);
      n.result->grad.reset();
      n.result->on_tape = tape_status::consumed;
      if (cotangent) run_hooks(*n.result, cotangent);
      if (n.function) run_function(n, cotangent);
      else if (cotangent) run_programs(n, cotangent);
      else n.saved.clear();
      if (hooks) complete(*hooks, n);
      if (in_parts_) keep_for_second_part(std::move(n));
    }
    finish(hooks);
  }
  /// The end of a backward pass, or of a part of one.
  void finish(runtime::execution_hooks* hooks) {
    for (const auto& leaf : std::exchange(hooked_, {}))
      if (leaf->grad) run_hooks(*leaf, leaf->grad);
    if (hooks) hooks->after_backward(identity_);
    identity_.reset();
  }

  /// Keeps what the second part of a backward pass reads, and frees the rest.
  void keep_for_second_part(entry n) {
    n.is_second = true;
    n.result.reset();
    if (!n.function) {
      recycled_vector<char> read(n.leaves.size() + n.saved.size(), false);
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

  /// Whether this part of the backward pass computes the gradient of operand `i` of an entry.
  bool computes(const entry& n, std::size_t i) const {
    if (!n.function) return (n.is_second ? n.weight : n.backward)->plan.outputs[i] >= 0;
    const bool is_input = n.leaves[i]->on_tape == tape_status::recorded;
    return !in_parts_ || is_input != n.is_second;
  }
  /// Appends the operands for which this part of the backward pass computes cotangents.
  void append_gradients(const entry& n, recycled_vector<tensor_state*>& to) const {
    for (std::size_t i = 0; i < n.leaves.size(); ++i)
      if (computes(n, i)) to.push_back(n.leaves[i].get());
  }
  void announce(runtime::execution_hooks& hooks, const recycled_vector<entry>& entries) const {
    recycled_vector<tensor_state*> uses;
    for (const entry& n : entries) append_gradients(n, uses);
    hooks.before_backward(uses);
  }
  void complete(runtime::execution_hooks& hooks, const entry& n) const {
    recycled_vector<tensor_state*> done;
    append_gradients(n, done);
    hooks.after_entry(done);
  }

  static void run_hooks(const tensor_state& of, const std::shared_ptr<tensor_state>& gradient) {
    for (const auto& hook : of.gradient_hooks) hook(gradient);
  }

  void run_function(entry& n, const std::shared_ptr<tensor_state>& cotangent) {
    tensor_list gradients = n.function->call(cotangent);
    if (gradients.size() != n.leaves.size())
      refuse<usage_error>({"weft: backward: a function gives ", gradients.size(), " cotangents for ",
                           n.leaves.size(), " operands"});
    accumulate_all(n, gradients);
    n.saved = std::move(gradients);
  }
  /// Adds those of `gradients` that this part of the backward pass computes, and resets them.
  void accumulate_all(const entry& n, tensor_list& gradients) {
    for (std::size_t i = 0; i < n.leaves.size(); ++i) {
      if (!gradients[i] || !computes(n, i)) continue;
      const std::shared_ptr<tensor_state> g = std::move(gradients[i]);
      if (g->type != n.leaves[i]->type || !(g->extents == n.leaves[i]->extents))
        runtime::detail::refuse_spec("backward", *n.leaves[i], *g, n.leaves[i]->type);
      accumulate(n.leaves[i], g);
    }
  }

  void run_programs(entry& n, const std::shared_ptr<tensor_state>& cotangent) {
    check_versions(n);
    if (n.recomputes) recompute(n);
    n.saved.push_back(cotangent);
    run_program(n, *n.backward);
  }
  static void check_versions(const entry& n) {
    for (std::size_t i = 0; i < n.leaves.size(); ++i)
      if (n.read[i] && n.leaves[i]->version != n.versions[i])
        refuse<value_error>({"weft: backward: operand ", i, " of shape ", n.leaves[i]->extents,
                             " was changed in place after forward read it"});
  }
  /// Executes a backward program, whose leaves are the operands and what has been saved, and adds the
  /// cotangents that it returns; its further outputs are saved.
  void run_program(entry& n, const runtime::executable& p) {
    const std::size_t count = n.leaves.size();
    tensor_list leaves(count);
    for (std::size_t i = 0; i < count; ++i)
      if (n.read[i]) leaves[i] = n.leaves[i];
    leaves.insert(leaves.end(), n.saved.begin(), n.saved.end());
    tensor_list gradients, sums(count);
    for (std::size_t i = 0; i < count; ++i)
      if (p.plan.outputs[i] >= 0 && !has_shared_gradient(*n.leaves[i])) sums[i] = n.leaves[i]->grad;
    runtime::execute(*context_, p, leaves, n.numbers, n.symbols, gradients, why(runtime::pass::backward),
                     sums);
    for (std::size_t i = 0; i < count; ++i)
      if (gradients[i]) expect_hooks(n.leaves[i]);
    forget_added(gradients, sums);
    for (std::size_t i = 0; i < count; ++i)
      if (gradients[i]) accumulate(n.leaves[i], gradients[i]);
    n.saved.insert(n.saved.end(), gradients.begin() + static_cast<std::ptrdiff_t>(count), gradients.end());
  }

  /// Recomputes the values that the backward pass reads.
  void recompute(entry& n) {
    const context::random_state now = context_->randomness();
    context_->set_randomness(n.randomness);
    tensor_list outputs;
    runtime::execute(*context_, *n.forward, n.leaves, n.numbers, n.symbols, outputs,
                     why(runtime::pass::recompute));
    context_->set_randomness(now);
    n.saved.assign(outputs.begin() + 1, outputs.end());
  }

  /// Removes those `gradients` that the program has added to a sum.
  static void forget_added(tensor_list& gradients, tensor_list& sums) {
    for (std::size_t i = 0; i < sums.size(); ++i)
      if (gradients[i] == sums[i]) gradients[i].reset();
    sums.clear();
  }

  /// sum += g; `sum` may be null.
  void add_to(std::shared_ptr<tensor_state>& sum, const std::shared_ptr<tensor_state>& g) {
    if (sum) runtime::add(context_->engine(), *sum, *g, *sum);
    else sum = g;
  }

  /// Whether other code holds the gradient of `t` and may rely on its value.
  static bool has_shared_gradient(const tensor_state& t) {
    return t.grad && (t.grad.use_count() > 1 || t.grad->memory.use_count() > 1);
  }

  void expect_hooks(const std::shared_ptr<tensor_state>& to) {
    if (!to->gradient_hooks.empty() && std::find(hooked_.begin(), hooked_.end(), to) == hooked_.end())
      hooked_.push_back(to);
  }

  /// grad += g; grad may be null. The first gradient is taken over without a copy, since no other code holds
  /// the output of a backward program. Adds in place unless other code holds grad.
  void accumulate(const std::shared_ptr<tensor_state>& to, const std::shared_ptr<tensor_state>& g) {
    expect_hooks(to);
    if (!to->grad) {
      to->grad = alias_of(*g);
      to->grad->divided = to->is_part_of_layer() ? to->divided : nullptr;
      return;
    }
    auto sum = has_shared_gradient(*to) ? make_state(to->where, to->extents, to->type) : to->grad;
    runtime::add(context_->engine(), *to->grad, *g, *sum);
    sum->divided = to->grad->divided;
    to->grad = std::move(sum);
  }

  context* context_;
  recycled_vector<entry> entries_;
  recycled_vector<entry> later_;  // whose backward pass has run in part
  runtime::tape_identity identity_;
  tensor_list hooked_;  // tensors with hooks found during this backward pass
  bool recording_ = true;
  bool in_parts_ = false;
};

/// The part of tapes that does not depend on program options.
using tape_entries = basic_tape_entries<>;

}  // namespace weft
