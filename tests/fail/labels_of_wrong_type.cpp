// SPDX-License-Identifier: MIT
// within 10: weft: cross_entropy: logits must be floating; labels must be integers, one for each row
// at most 40 lines
#include <weft/weft.hpp>
using namespace weft;
struct net {
  linear<4, 8> hidden;
  linear<8, 3> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};
void f(const net& m, tensor<float, extents<dyn, 4>> x, tensor<float, extents<dyn>> labels) {
  tape steps;
  auto loss = steps.eval(cross_entropy(m(x), labels));
  steps.backward(loss);
}
