// SPDX-License-Identifier: MIT
// within 12: the tensors of this class cannot be found: make it a plain struct
// within 12: derived_model
#include <weft/weft.hpp>
using namespace weft;
struct base_model {
  linear<4, 2> layer;
};
struct derived_model : base_model {
  linear<2, 2> head;
};
void f(derived_model& m) { zero_grad(m); }
