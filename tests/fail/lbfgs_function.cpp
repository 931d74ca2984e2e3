// SPDX-License-Identifier: MIT
// within 12: weft: lbfgs: the function must compute gradients and return the loss as a number
#include <weft/optim/lbfgs.hpp>
#include <weft/weft.hpp>
using namespace weft;
void f(linear<2, 2>& model, lbfgs& optimizer) {
  optimizer.step(model, [&] { return mean(model(ones<float>(extents<1, 2>{}))); });
}
