// SPDX-License-Identifier: MIT
// The entries of a tape and the backward pass through them, which do not depend on the types of expressions.
//
// The backward pass can be divided into two parts: the first computes the gradients of inputs, and the second
// those of parameters, from values that the first part saves. Stages of a pipeline compute the second part
// when they would otherwise wait (zero bubble).
#pragma once

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

/// The entries of a tape and the backward pass through them, independent of program options. A template, so
/// that programs without a tape do not compile it.
template <class = void>
class basic_tape_entries {
 public:
  explicit basic_tape_entries(context& c) : context_(&c) {}
  /// The entries that it still holds are lost: other tapes refuse their values.
  ~basic_tape_entries() {
    for (const entry& n : entries_) n.result->on_tape = tape_status::lost;
  }
  basic_tape_entries(const basic_tape_entries&) = delete;
  basic_tape_entries& operator=(const basic_tape_entries&) = delete;

  /// Adds the derivative of `y`, times `seed` if `y` is not a scalar, to the gradients of all parameters and
  /// variables that `y` depends on, and removes from the tape what the pass has run through. Values that it
  /// has not reached, such as a detached one, stay with what they saved until the tape ends, or until a later
  /// pass finds that the program holds no handle of them; they must not be computed from what was removed, or
  /// by messages between ranks. A gradient that another tape has left in `y` can be passed as the seed,
  /// lower.backward(h, h.grad()); otherwise it is not used. Throws usage_error if `y` is not a result of this
  /// tape, or depends on no parameter or variable.
  template <class T, class Extents>
  void backward(const variable<T, Extents>& y) {
    static_assert(Extents::order == 0,
                  "weft: backward: a value that is not a scalar needs a seed: backward(y, seed)");
    const double cotangent = context_->loss_scale * loss_weight_of(*y.state());
    backward(y, full<T>(extents<>{}, static_cast<T>(cotangent), context_->where()));
    if (!reaches_leaf_ && !in_parts_ && !context_->hooks()) refuse_constant(*y.state());
  }
  /// A seed is used as it is: for a loss that is scaled or weighted, it must already include
  /// context::loss_scale and loss_weight, which gradients include until the step.
  template <class T, class Extents, class SeedExtents>
  void backward(const variable<T, Extents>& y, const tensor<T, SeedExtents>& seed) {
    if (!(seed.extents() == y.extents()))
      refuse<shape_error>(
          {"weft: backward: a seed of shape ", seed.extents(), " for a value of shape ", y.extents()});
    run_backward(y.state(), seed.state());
  }
  /// The same for tensors whose types are known only at run time. Throws value_error if their types differ. A
  /// null seed means that nothing depends on `y`: the pass then adds nothing to gradients, and only completes
  /// those that its leaves have.
  void backward(const std::shared_ptr<tensor_state>& y, const std::shared_ptr<tensor_state>& seed);

  /// Compile-time errors for expressions that have no backward pass.
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
  /// Forgets all entries. From then on, backward passes treat their values as constants.
  void clear() {
    require_idle("clear");
    entries_.clear();
    later_.clear();
    identity_.reset();
  }

  /// The second part of the backward pass of a tape in parts: adds the gradients of parameters. Throws
  /// usage_error unless the first part has run.
  void backward_weights();

  /// Records `value`, which was computed from `operands` without a program, for example by a message to
  /// another rank. The backward pass calls `f` once, with the cotangent of `value` (null if nothing depends
  /// on `value`), and then destroys `f`. `f` returns the cotangents of the operands as a tensor_list, which
  /// may contain null and must not share its tensors with other code. Throws usage_error if a tape has
  /// already recorded `value`, or if no gradient can reach what an operand was computed from, because a
  /// backward pass has consumed it. Functions of tensors are better written as ops (docs/adding_an_op.md).
  template <class F>
  void remember(const std::shared_ptr<tensor_state>& value, tensor_list operands, F f) {
    const context::use own(*context_);
    require_idle("remember");
    if (value->on_tape == tape_status::recorded)
      refuse<usage_error>({"weft: a tape already holds the value of shape ", value->extents, ""});
    if (recording_)
      for (const auto& operand : operands) require_entry(*operand);
    value->on_tape = recording_ ? tape_status::recorded : tape_status::not_recording;
    if (!recording_) return;
    entry n;
    n.result = value;
    n.loss_weight = context_->loss_weight;
    n.leaves = std::move(operands);
    n.function = make_recycled<runtime::backward_function_of<F>>(std::move(f));
    entries_.push_back(std::move(n));
  }

 protected:
  /// Executes `forward` and records that `backward` is its backward pass; for a backward pass in parts,
  /// `backward` is the first part and `weight` the second. All three must outlive the tape.
  std::shared_ptr<tensor_state> run_forward(const runtime::executable& forward,
                                            const runtime::executable& backward, runtime::operands o,
                                            const runtime::executable* weight = nullptr);

  /// `value` in another placement, recorded as an entry whose backward pass returns to the original
  /// placement.
  std::shared_ptr<tensor_state> placed(const std::shared_ptr<tensor_state>& value, const placement& to);

  /// Sums over slices of rows: a value and, if this tape records, gradients for `cotangent`.
  struct slice_sums {
    double cotangent;
    std::shared_ptr<tensor_state> seed;  // includes `cotangent`
    std::shared_ptr<tensor_state> value{};
    std::shared_ptr<tensor_state> of_rows{};  // the gradient of all rows; null if it is not needed
    tensor_list leaves{}, gradients{};        // of what all slices read
  };

  /// Executes the forward and backward pass of a slice that starts at element `first` of all rows. No
  /// activations are saved.
  void run_slice(slice_sums& sums, const runtime::executable& forward, const runtime::executable& backward,
                 const runtime::operands& o, const std::shared_ptr<tensor_state>& slice, index_t first);

  /// Throws usage_error if a tape has recorded the operand but can no longer give gradients to what it was
  /// computed from.
  static void require_entry(const tensor_state& operand) {
    if (has_lost_entry(operand)) refuse_lost_entry(operand);
  }

  /// Records a result whose gradients have already been computed, if this tape records.
  void remember(slice_sums& sums);

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
    tensor_list saved;                        // read by the backward pass, or by its second part
    std::shared_ptr<tensor_state> result;
    double loss_weight = 1;  // of the context, at the time of evaluation
    bool recomputes = false;
    std::shared_ptr<runtime::backward_function> function;  // instead of programs
    bool is_second = false;  // whether the first part of the backward pass has run
  };

  /// The weight of the loss `y`.
  double loss_weight_of(const tensor_state& y) const {
    for (std::size_t n = entries_.size(); n > 0; --n)
      if (entries_[n - 1].result.get() == &y) return entries_[n - 1].loss_weight;
    return context_->loss_weight;
  }

  /// The tensors among `leaves` that a program reads, with null for the others.
  static tensor_list read_by(const runtime::executable& p, tensor_list leaves);

  /// Records which operands the backward pass reads, and their versions; other operands may be changed.
  static void keep_what_is_read(entry& n);

  /// The reason for executing a program, for the hooks of the context.
  runtime::purpose why(runtime::pass during);

  [[noreturn, gnu::cold]] static void refuse_backward(const tensor_state& y);
  [[noreturn, gnu::cold]] static void refuse_constant(const tensor_state& y);
  /// Whether a tape recorded the value but can no longer give gradients to what it was computed from.
  static bool has_lost_entry(const tensor_state& t) { return t.on_tape >= tape_status::consumed; }
  [[noreturn, gnu::cold]] static void refuse_lost_entry(const tensor_state& operand);
  /// Throws usage_error during a backward pass of this tape, and for operands of which `backward` computes
  /// gradients that cannot reach what they were computed from.
  void require_operands(const runtime::executable& backward, const tensor_list& leaves) const;
  /// Throws usage_error during a backward pass of this tape, for example in a gradient hook.
  void require_idle(const char* what) const {
    if (goes_back_) refuse_nested(what);
  }
  [[noreturn, gnu::cold]] static void refuse_nested(const char* what);

  void run_backward(const std::shared_ptr<tensor_state>& y, const std::shared_ptr<tensor_state>& seed);
  /// Calls `pass`, a backward pass or its second part; if it fails, drops what it has left on the tape.
  template <class Pass>
  void go_back(Pass pass);
  /// Executes all entries in reverse order. `y`: where the pass begins.
  void execute_backward(const tensor_state& y);
  /// Executes the second parts of the entries.
  void execute_later();
  /// Puts those of the entries, which a pass has not reached, back on the tape whose values other code holds
  /// and whose operands can still get gradients.
  void keep_unreached(recycled_vector<entry> last_first);
  /// Drops what a failed backward pass has left on the tape.
  void abandon_backward();
  /// The end of a backward pass, or of one of its parts.
  void finish(runtime::execution_hooks* hooks);

  /// Keeps what the second part of a backward pass reads, and frees the rest.
  void keep_for_second_part(entry n);

  /// Whether this part of the backward pass computes the gradient of operand `i` of an entry.
  bool computes(const entry& n, std::size_t i) const;
  /// Appends the operands for which this part of the backward pass computes cotangents.
  void append_gradients(const entry& n, recycled_vector<tensor_state*>& to) const;
  void announce(runtime::execution_hooks& hooks, const recycled_vector<entry>& entries) const;
  /// Throws value_error if a pass would add to a gradient that is complete.
  void require_open_gradients(const recycled_vector<entry>& entries) const;
  void complete(runtime::execution_hooks& hooks, const entry& n) const {
    recycled_vector<tensor_state*> done;
    append_gradients(n, done);
    hooks.after_entry(done);
  }

  void run_function(entry& n, const std::shared_ptr<tensor_state>& cotangent);
  /// Adds those of `gradients` that this part of the backward pass computes, and resets them.
  void accumulate_all(const entry& n, tensor_list& gradients);

  void run_programs(entry& n, const std::shared_ptr<tensor_state>& cotangent);
  static void check_versions(const entry& n);
  /// Executes a backward program, whose leaves are the operands and the saved values, and adds the cotangents
  /// that it returns; its further outputs are saved.
  void run_program(entry& n, const runtime::executable& p);

  /// Recomputes the values that the backward pass reads.
  void recompute(entry& n);

  /// Removes those of `gradients` that the program has added to a sum.
  static void forget_added(tensor_list& gradients, tensor_list& sums);

  /// sum += g; `sum` may be null.
  void add_to(std::shared_ptr<tensor_state>& sum, const std::shared_ptr<tensor_state>& g) {
    if (sum) runtime::add(context_->engine(), *sum, *g, *sum);
    else sum = g;
  }

  /// Whether other code holds the gradient of `t` and may rely on its value.
  static bool has_shared_gradient(const tensor_state& t) {
    return t.grad && (t.grad.use_count() > 1 || t.grad->memory.use_count() > 1);
  }

  /// Notes that `to` gets a gradient: whether it is a leaf, and that its hooks must be called after the pass.
  void note_gradient(const std::shared_ptr<tensor_state>& to);

  /// grad += g; grad may be null. The first gradient is taken over without a copy, since no other code holds
  /// the output of a backward program. Adds in place unless other code holds grad.
  void accumulate(const std::shared_ptr<tensor_state>& to, const std::shared_ptr<tensor_state>& g);

  context* context_;
  recycled_vector<entry> entries_;
  recycled_vector<entry> later_;  // whose backward pass has run its first part
  runtime::tape_identity identity_;
  tensor_list hooked_;  // tensors with hooks found in this backward pass
  bool recording_ = true;
  bool goes_back_ = false;
  bool reaches_leaf_ =
      false;  // whether the last backward pass gave a gradient to what this tape did not compute
  bool in_parts_ = false;
};

/// The part of tapes that does not depend on program options.
using tape_entries = basic_tape_entries<>;

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/run/impl/tape_entries.ipp>
#endif
