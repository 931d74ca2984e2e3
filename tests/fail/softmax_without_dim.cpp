// SPDX-License-Identifier: MIT
// within 12: weft: softmax, log_softmax, normalize: attr<dim> must name a dim of the operand
#include <weft/weft.hpp>
using namespace weft;
auto f() { return eval(apply<op::softmax>(zeros<float>(extents<3, 4>{}))); }
