// SPDX-License-Identifier: MIT
// Looking at a value inside a graph without changing it.
//
//   auto h = relu(tap(matmul(x, w), "before relu"));     // each run prints shape, range and mean
//
// The context decides what happens with the value: context::on_tap captures instead of printing.
#pragma once

#include <weft/device/native.hpp>
#include <weft/op/movement.hpp>

namespace weft::op {

/// The operand; v0 is the address of the name, which must live as long as the expression.
struct tap : rule<1> {
  static constexpr unsigned extents = 0b1;  // the address of the name, given at run time
  static constexpr auto kind = op_kind::native;
  static constexpr auto name = "tap";
  static constexpr native_code code{};  // the engine's own: run/specialization.hpp
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, operands[0]};
  }
  static constexpr auto vjp(auto g, auto, auto) { return g; }
};

}  // namespace weft::op

namespace weft {

/// `x`, shown to the context under `name`, a string literal, whenever it is computed.
template <expression X>
auto tap(X x, const char* name) {
  const index_t address[] = {reinterpret_cast<index_t>(name)};
  return detail::apply_sized<op::tap, attr<dyn>>(address, std::move(x));
}

}  // namespace weft
