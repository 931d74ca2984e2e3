// SPDX-License-Identifier: MIT
// within 10: cross_entropy: labels must have the extents of the logits without the last dim
// within 10: extents<-1, 1>
// at most 40 lines
#include <weft/weft.hpp>
using namespace weft;
struct net {
  linear<4, 8> hidden;
  linear<8, 3> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};
void f(const net& m, tensor<float, extents<dyn, 4>> x, tensor<int, extents<dyn, 1>> labels) {
  tape steps;
  auto loss = steps.eval(cross_entropy(m(x), labels));
  steps.backward(loss);
}
