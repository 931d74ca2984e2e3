// SPDX-License-Identifier: MIT
// Observation of a value inside a graph.
//
//   auto h = relu(tap(matmul(x, w), "before relu"));     // each run prints shape, range and mean
//
// By default the value's statistics are printed; context::on_tap installs another handler.
#pragma once

#include <weft/device/native.hpp>
#include <weft/op/movement.hpp>

namespace weft::op {

/// The operand unchanged; v0 is the address of the name, which must outlive the expression.
struct tap : rule<1> {
  static constexpr unsigned extents = 0b1;  // the address of the name, given at run time
  static constexpr auto kind = op_kind::native;
  static constexpr auto name = "tap";
  static constexpr auto divides = "A -> A";
  static constexpr native_code code{};  // executed by the engine: run/specialization.hpp
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, operands[0]};
  }
  static constexpr auto vjp(auto g, auto, auto) { return g; }
};

}  // namespace weft::op

namespace weft {

/// `x` unchanged. Whenever it is computed, including its recomputation in the backward pass, its value is
/// passed to the context's tap handler under `name`, a string that must outlive the expression. The gradient
/// passes through unchanged.
template <expression X>
auto tap(X x, const char* name) {
  const index_t address[] = {reinterpret_cast<index_t>(name)};
  return detail::apply_sized<op::tap, attr<dyn>>(address, std::move(x));
}

}  // namespace weft
