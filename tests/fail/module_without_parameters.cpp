// SPDX-License-Identifier: MIT
// within 12: optimizer: this type has no parameter: pass the model
// within 12: activation
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
struct activation {
  auto operator()(expression auto x) const { return relu(x); }
};
void f(activation& m, adamw& optimizer) { optimizer.step(m); }
