// SPDX-License-Identifier: MIT
// Callbacks of a parallel strategy around the programs of a context: to gather the parameters they read,
// reduce the gradients they complete, and progress messages between their steps.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include <weft/base/recycled.hpp>
#include <weft/device/native.hpp>
#include <weft/shape/placement.hpp>

namespace weft {

struct tensor_state;

namespace runtime {

/// In which pass a program is executed. Recomputed values are read by the backward program that follows.
enum class pass : unsigned char { forward, recompute, backward };

/// Identity of a tape, from the first statement that it remembers until it is empty again.
using tape_identity = std::shared_ptr<const void>;

/// Why a program is executed: the pass, and the tape that remembers its entries; null if none does.
struct purpose {
  pass during = pass::forward;
  const tape_identity* tape = nullptr;
};

/// The experts that rows [batch, positions, ...] choose.
struct row_choices {
  index_t per_row = 0;
  std::vector<std::int64_t> chosen;  // of one row after the other, as many of each
  std::vector<index_t> here;         // of each row its number on this rank; -1: it is on another one
};

/// Interface of such a strategy; context::hooks holds at most one.
class execution_hooks {
 public:
  using operands = const recycled_vector<std::shared_ptr<tensor_state>>&;
  using uses = const recycled_vector<tensor_state*>&;

  virtual ~execution_hooks() = default;

  /// A program is about to read these tensors; null where it does not read one.
  virtual void before_program(operands, const purpose&) = 0;
  virtual void after_program(operands, const purpose&) = 0;

  // Several tapes may hold entries at once: programs of others may run before the backward pass of one and,
  // from a gradient hook, whole passes of others during it.

  /// Backward begins, and will add one cotangent to each of these tensors, in which one can occur several
  /// times.
  virtual void before_backward(uses) = 0;
  /// One more cotangent has been added to each of these, or never will be.
  virtual void after_entry(uses) = 0;
  /// Whether other passes complete the gradient of a tensor, after which its hooks are called.
  virtual bool withholds(const tensor_state&) const = 0;
  /// All cotangents of the pass have been added.
  virtual void after_backward(const tape_identity&) = 0;
  /// The pass that began last is over, also if it has failed.
  virtual void end_backward() noexcept = 0;

  /// Makes progress on pending messages, without waiting.
  virtual void poll() = 0;

  /// Starts the collective `op` of a program (placement/collective.hpp, op/positions.hpp), whose result is
  /// value `result`, or a slice of it. `in` is contiguous. Both must live until wait_for or abandon.
  virtual void exchange(std::string_view op, const attributes& at, const strided& in, const strided& out,
                        int result) = 0;
  /// Waits for all collectives whose result is value `result`; throws their failure.
  virtual void wait_for(int result) = 0;
  /// Waits for the collectives that are still under way, ignoring errors. Called at the end of each program;
  /// only one that has failed leaves any.
  virtual void abandon() noexcept = 0;
  /// `value`, which this rank has in one placement, in another one. Collective among the ranks that divide
  /// layers.
  virtual std::shared_ptr<tensor_state> placed(const std::shared_ptr<tensor_state>& value,
                                               const placement& to) = 0;

  /// Executes attention over the positions of several ranks (placement/context_graph.hpp), or its derivative;
  /// false if this rank has all of them.
  virtual bool attend(std::string_view op, const native_operands&) = 0;

  /// Extends `rows`, those of this rank's `operand` [batch, positions, ..., features], by the rows of all
  /// ranks that divide positions, in the order in which one rank has them. Collective among these ranks.
  virtual void gather_choices(row_choices& rows, const shape& operand) = 0;
};

/// Calls end_backward() at the end of a pass that has begun.
class backward_scope {
 public:
  explicit backward_scope(execution_hooks* of) : of_(of) {}
  backward_scope(const backward_scope&) = delete;
  backward_scope& operator=(const backward_scope&) = delete;
  ~backward_scope() {
    if (of_) of_->end_backward();
  }

 private:
  execution_hooks* of_;
};

}  // namespace runtime
}  // namespace weft
