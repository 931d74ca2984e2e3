// SPDX-License-Identifier: MIT
// docs/adding_an_op.md: a native op with kernel source for devices, and an op with attributes.
#include <iostream>

#include <weft/weft.hpp>

#include "../section.hpp"
using namespace weft;

// [text]
/// Cumulative sum of a vector.
struct running_sum : op::rule<1> {
  static constexpr auto kind = op::op_kind::native;
  static constexpr auto name = "running_sum";
  static void on_cpu(const native_call& call) {
    const strided& x = call.in[0];
    float sum = 0;
    for (index_t i = 0; i < x.size(); ++i)
      call.out[0].data<float>()[i] = sum += x.data<const float>()[i * x.stride[0]];
  }
  static constexpr native_code code{&on_cpu, R"(
      float sum = 0;
      for (long i = 0; i < in0_size; ++i) {
        sum += in0_load(i * in0_stride(0));
        out0_store(i, sum);
      })", [](const native_operands&) -> index_t { return 1; }};   // one work item
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {operands[0].extents.order == 1, operands[0], operands[0].type == dtype::f32};
  }
};
// [/text]

// [attributes]
/// x to an integer power, an attribute of the op: no loop at run time, no logarithm.
struct whole_power : op::composed<1> {
  static constexpr auto name = "whole_power";
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, operands[0]};
  }
  static constexpr auto value(const attributes& at, auto x) {
    auto y = x;
    for (index_t i = 1; i < at[0]; ++i) y = y * x;
    return y;
  }
};
template <index_t N>
auto power(expression auto x) {
  return apply<whole_power, attr<N>>(x);
}
// [/attributes]

int main() {
  section("attributes");
  // [use_attributes]
  variable<double, extents<3>> x(from(extents<3>{}, std::vector<double>{1, 2, 3}));
  std::cout << eval(power<3>(x)) << '\n'
            << std::boolalpha << gradcheck([&] { return sum(power<3>(x)); }, x) << '\n';
  // [/use_attributes]

  section("text");
  auto v = from(extents<4>{}, std::vector<float>{1, 2, 3, 4});
  std::cout << eval(apply<running_sum>(v)) << '\n';
}
