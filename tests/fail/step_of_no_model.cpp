// SPDX-License-Identifier: MIT
// within 12: optimizer: this type has no parameter: pass the model
#include <weft/weft.hpp>
using namespace weft;
void f(sgd& optimizer) { optimizer.step(optimizer.lr); }
