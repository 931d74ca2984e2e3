// SPDX-License-Identifier: MIT
// What attention asks of the strategy where ranks divide positions among themselves.
#pragma once

#include <string_view>

#include <weft/comm/communicator.hpp>
#include <weft/device/device.hpp>
#include <weft/device/native.hpp>

namespace weft::parallel {

/// Executes attention over the positions of several ranks.
class context_service {
 public:
  virtual ~context_service() = default;

  /// The ranks that have the positions of one sequence.
  virtual communicator& ranks() const = 0;
  /// op::context_attention, or its derivative. Messages are labelled as `o` says. Collective.
  virtual void attend(const device& where, std::string_view op, const native_operands& operands,
                      const comm_options& o) = 0;
};

}  // namespace weft::parallel
