// SPDX-License-Identifier: MIT
// What a parallel strategy does around the programs of a context: brings the parameters they read,
// takes the gradients they have completed, moves messages on between their steps.
#pragma once

#include <memory>

#include <weft/base/recycled.hpp>

namespace weft {

struct tensor_state;

namespace run {

/// Why a program is run. What is recomputed is read again by the backward program that follows.
enum class pass : unsigned char { forward, recompute, backward };

class execution_hooks {
 public:
  using operands = const recycled_vector<std::shared_ptr<tensor_state>>&;
  using uses = const recycled_vector<tensor_state*>&;

  virtual ~execution_hooks() = default;

  /// A program is about to read these; null where it does not read one.
  virtual void before_program(operands, pass) = 0;
  virtual void after_program(operands, pass) = 0;

  /// Backward begins, and will add one cotangent to each of these, which may repeat.
  virtual void before_backward(uses) = 0;
  /// One more has been added to each of these, or never will be.
  virtual void after_entry(uses) = 0;
  virtual void after_backward() = 0;

  /// Moves on what is under way, without waiting.
  virtual void poll() = 0;
};

}  // namespace run
}  // namespace weft
