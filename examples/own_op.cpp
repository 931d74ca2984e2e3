// SPDX-License-Identifier: MIT
// A custom op: a formula is enough for kernels, fusion and derivatives.
#include <cstdio>

#include <weft/weft.hpp>

struct squash : weft::op::elementwise<1> {
  static constexpr auto name = "squash";
  static constexpr auto value(auto x) { return x / (1 + abs(x)); }
};
template <weft::expression X>
auto apply_squash(X x) {
  return weft::apply<squash>(x);
}

int main() {
  using namespace weft;
  variable<double, extents<4>> x(from(extents<4>{}, std::vector<double>{-2, -0.5, 0.5, 2}));
  gradcheck([&] { return sum(apply_squash(x) * apply_squash(x)); }, x);
  for (double y : eval(apply_squash(x)).to_vector()) std::printf("%.4f ", y);
  std::printf("\n");
}
