// SPDX-License-Identifier: MIT
// Callbacks of a parallel strategy around the programs of a context: they gather the parameters that programs
// read, reduce the gradients that programs complete, and progress messages between steps of programs.
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

/// The pass in which a program is executed. The backward program that follows reads the recomputed values.
enum class pass : unsigned char { forward, recompute, backward };

/// Identity of a tape, from the first statement that it remembers until it is empty again.
using tape_identity = std::shared_ptr<const void>;

/// Why a program is executed: the pass, and the tape that remembers its entries, null if none does.
struct purpose {
  pass during = pass::forward;
  const tape_identity* tape = nullptr;
};

/// The experts that rows [batch, positions, ...] choose.
struct row_choices {
  index_t per_row = 0;
  std::vector<std::int64_t> chosen;  // row by row, the same number for each
  std::vector<index_t> here;         // for each row its number on this rank; -1 if it is on another one
};

/// Interface of a parallel strategy; context::hooks holds at most one.
class execution_hooks {
 public:
  using operands = const recycled_vector<std::shared_ptr<tensor_state>>&;
  using uses = const recycled_vector<tensor_state*>&;

  virtual ~execution_hooks() = default;

  /// A program is about to read these tensors, null for tensors that it does not read.
  virtual void before_program(operands, const purpose&) = 0;
  virtual void after_program(operands, const purpose&) = 0;

  // Several tapes may hold entries at the same time: programs of others may run before the backward pass of
  // one, and whole passes of others may run during it, from a gradient hook.

  /// A backward pass begins, and will add one cotangent to each of these tensors; a tensor can occur several
  /// times.
  virtual void before_backward(uses) = 0;
  /// One more cotangent has been added to each of these, or will never be.
  virtual void after_entry(uses) = 0;
  /// Whether other passes complete the gradient of a tensor; its hooks are called only after them.
  virtual bool withholds(const tensor_state&) const = 0;
  /// All cotangents of the pass have been added.
  virtual void after_backward(const tape_identity&) = 0;
  /// The pass that began last has ended, successfully or not.
  virtual void end_backward() noexcept = 0;

  /// Makes progress on pending messages, without waiting.
  virtual void poll() = 0;

  /// Starts the collective `op` of a program (placement/collective.hpp, op/positions.hpp), whose result is
  /// value `result`, or a slice of it. `in` is contiguous. Both must live until wait_for or abandon.
  virtual void exchange(std::string_view op, const attributes& at, const strided& in, const strided& out,
                        int result) = 0;
  /// Waits for all collectives whose result is value `result`; throws the error of one that failed.
  virtual void wait_for(int result) = 0;
  /// Waits for the collectives that are still in progress, ignoring errors. Called at the end of each
  /// program; only a failed program leaves any.
  virtual void abandon() noexcept = 0;
  /// Returns `value`, which this rank has in one placement, in the placement `to`. Collective among the ranks
  /// that divide layers.
  virtual std::shared_ptr<tensor_state> placed(const std::shared_ptr<tensor_state>& value,
                                               const placement& to) = 0;

  /// Executes attention over the positions of several ranks (placement/context_graph.hpp), or its derivative;
  /// returns false if this rank has all positions.
  virtual bool attend(std::string_view op, const native_operands&) = 0;

  /// Extends `rows`, the rows of this rank's `operand` [batch, positions, ..., features], by the rows of all
  /// ranks that divide positions, in the order in which a single rank would have them. Collective among these
  /// ranks.
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
