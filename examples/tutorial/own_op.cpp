// SPDX-License-Identifier: MIT
// Chapter 8 of the tutorial, docs/tutorial/own_op.md: ops of one's own.
#include <iostream>

#include <weft/weft.hpp>

#include "../section.hpp"
using namespace weft;

// [formula]
struct squash : op::elementwise<1> {                     // one operand
  static constexpr auto name = "squash";
  static constexpr auto value(auto x) { return x / (1 + abs(x)); }
};
auto apply_squash(expression auto x) { return apply<squash>(x); }
// [/formula]

// [rule]
struct squash_by_rule : op::elementwise<1> {
  static constexpr auto name = "squash_by_rule";
  static constexpr auto value(auto x) { return x / (1 + abs(x)); }
  static constexpr auto vjp(auto g, auto, auto x) { return g / square(1 + abs(x)); }
};
// [/rule]

// [two]
/// x y / (x + y), element by element; operands broadcast.
struct harmonic : op::elementwise<2> {
  static constexpr auto name = "harmonic";
  static constexpr auto value(auto x, auto y) { return x * y / (x + y); }
  static constexpr auto vjp(auto g, auto, auto x, auto y) {
    return std::array{g * square(y / (x + y)), g * square(x / (x + y))};
  }
};
// [/two]

// [native]
/// Running sums of a vector, from the left or from the right. They need a loop, so this is not a formula.
template <bool Backwards>
struct running_sum : op::rule<1> {
  static constexpr auto kind = op::op_kind::native;
  static constexpr auto name = Backwards ? "running_sum_from_right" : "running_sum";
  static void on_cpu(const native_call& call) {
    const strided& x = call.in[0];
    float sum = 0;
    for (index_t n = 0; n < x.size(); ++n) {
      const index_t i = Backwards ? x.size() - 1 - n : n;
      call.out[0].data<float>()[i] = sum += x.data<const float>()[i * x.stride[0]];
    }
  }
  static constexpr native_code code{&on_cpu};
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {operands[0].extents.order == 1, operands[0], operands[0].type == dtype::f32};
  }
  static constexpr auto vjp(auto g, auto, auto) { return apply<running_sum<!Backwards>>(g); }
};
// [/native]

int main() {
  section("formula");
  // [use_formula]
  auto x = from(extents<4>{}, std::vector<float>{-2, -0.5, 0.5, 2});
  std::cout << eval(apply_squash(x)) << '\n';
  // [/use_formula]

  section("check");
  // [check]
  variable<double, extents<4>> z(from(extents<4>{}, std::vector<double>{-2, -0.5, 0.5, 2}));
  auto y = full<double>(extents<4>{}, 3.0);
  std::cout << std::boolalpha << gradcheck([&] { return sum(apply_squash(z) * z); }, z) << ' '
            << gradcheck([&] { return sum(apply<squash_by_rule>(z) * z); }, z) << ' '
            << gradcheck([&] { return sum(apply<harmonic>(z, y)); }, z) << '\n';
  // [/check]

  section("native");
  // [use_native]
  variable<float, extents<4>> v(from(extents<4>{}, std::vector<float>{1, 2, 3, 4}));
  tape steps;
  auto sums = steps.eval(apply<running_sum<false>>(v));
  steps.backward(steps.eval(sum(sums)));
  std::cout << sums << '\n' << v.grad() << '\n';
  // [/use_native]
}
