// SPDX-License-Identifier: MIT
// Figures of whole sequences, where ranks divide the positions of sequences among each other.
//
//   auto valid = sum_over_positions(sum(mask));     // the same on every rank along axis cp
#pragma once

#include <weft/device/native.hpp>
#include <weft/op/movement.hpp>

namespace weft::op {

/// The sum over the ranks that divide the positions of sequences (axis cp), executed by the hooks of the
/// strategy; the operand where nothing is divided. No cotangent flows through it.
struct sum_over_positions : rule<1> {
  static constexpr auto kind = op_kind::native;
  static constexpr auto name = "sum_over_positions";
  static constexpr auto divides = "A -> A";
  static constexpr native_code code{.messages = exchange::in_place};
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, operands[0]};
  }
  static constexpr auto vjp(auto g, auto, auto) { return no_gradient(g); }
};

}  // namespace weft::op

namespace weft {

/// `x`, summed over the ranks along axis cp, on each of them; without that axis `x`. For statistics of a loss
/// that are about whole sequences: each rank adds up its own positions, and this adds up those of all. A
/// constant in derivatives. Sends x.size() elements; all ranks along cp must evaluate it.
template <expression X>
auto sum_over_positions(X x) {
  return apply<op::sum_over_positions>(std::move(x));
}

}  // namespace weft
