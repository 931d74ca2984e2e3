// SPDX-License-Identifier: MIT
// What a parallel strategy does around the programs of a context: brings the parameters they read,
// takes the gradients they have completed, moves messages on between their steps.
#pragma once

#include <memory>

#include <weft/base/recycled.hpp>

namespace weft {

struct tensor_state;

namespace run {

/// In which pass a program is run. What is recomputed is read again by the backward program that follows.
enum class pass : unsigned char { forward, recompute, backward };

/// What tells tapes apart: of one tape from the first statement that it remembers until it is empty again.
using tape_identity = std::shared_ptr<const void>;

/// Why a program is run: in which pass, and for the entries of which tape; null where none remembers it.
struct purpose {
  pass during = pass::forward;
  const tape_identity* tape = nullptr;
};

class execution_hooks {
 public:
  using operands = const recycled_vector<std::shared_ptr<tensor_state>>&;
  using uses = const recycled_vector<tensor_state*>&;

  virtual ~execution_hooks() = default;

  /// A program is about to read these; null where it does not read one.
  virtual void before_program(operands, const purpose&) = 0;
  virtual void after_program(operands, const purpose&) = 0;

  // Several tapes may hold entries at once: programs of others may run before the backward pass of one, not
  // during it.

  /// Backward begins, and will add one cotangent to each of these, which may repeat.
  virtual void before_backward(uses) = 0;
  /// One more has been added to each of these, or never will be.
  virtual void after_entry(uses) = 0;
  virtual void after_backward(const tape_identity&) = 0;

  /// Moves on what is under way, without waiting.
  virtual void poll() = 0;
};

}  // namespace run
}  // namespace weft
