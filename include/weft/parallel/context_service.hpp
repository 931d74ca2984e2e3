// SPDX-License-Identifier: MIT
// The operations that a strategy executes for programs when ranks divide positions among themselves.
#pragma once

#include <string_view>

#include <weft/comm/communicator.hpp>
#include <weft/device/device.hpp>
#include <weft/device/native.hpp>
#include <weft/run/execution_hooks.hpp>

namespace weft::parallel {

/// Executes the ops that read positions of other ranks. For attention (placement/context_graph.hpp), a
/// strategy implements one of the functions attend and exchange.
class context_service {
 public:
  virtual ~context_service() = default;

  /// The ranks that divide the positions of one sequence.
  virtual communicator& ranks() const = 0;
  /// Executes op::context_attention, or its derivative; false if this rank has all positions. Messages have
  /// the step and time-out of `o`. Collective.
  virtual bool attend(const device&, std::string_view /*op*/, const native_operands&, const comm_options&) {
    return false;
  }
  /// Executes an exchange of positions for heads, or its inverse; false for other ops. Collective.
  virtual bool exchange(const device&, std::string_view /*op*/, const attributes&, const strided& /*in*/,
                        const strided& /*out*/, const comm_options&) {
    return false;
  }
  /// See execution_hooks.
  virtual void gather_choices(const device&, runtime::row_choices& rows, const shape& operand,
                              const comm_options&) = 0;
};

}  // namespace weft::parallel
