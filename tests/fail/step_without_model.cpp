// SPDX-License-Identifier: MIT
// within 12: weft: optimizer: step takes the model: optimizer.step(model)
#include <weft/weft.hpp>
using namespace weft;
void f(adamw& optimizer) { optimizer.step(); }
