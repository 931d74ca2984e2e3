// SPDX-License-Identifier: MIT
// within 16: this statement writes out its operands hundreds of times over
// within 16: auto y = shared(x + f(x));
#include <weft/weft.hpp>
using namespace weft;
struct block {
  linear<4, 4> f, g;
  auto operator()(expression auto x) const {
    auto y = x + relu(f(x));
    return y + tanh(g(y));
  }
};
template <int N>
auto deep(const block& b, expression auto x) {
  if constexpr (N == 0) return x;
  else return deep<N - 1>(b, b(x));
}
void f(const block& b, tensor<float, extents<dyn, 4>> x) {
  tape steps;
  steps.backward(steps.eval(mean(deep<3>(b, x))));
}
