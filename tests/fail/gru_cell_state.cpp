// SPDX-License-Identifier: MIT
// within 12: weft: gru_cell: for an input [..., In], the state must be [..., Hidden]
#include <weft/weft.hpp>
using namespace weft;
gru_cell<2, 3> cell;

auto f(tensor<float, extents<dyn, 2>> x, tensor<float, extents<3>> h) { return cell(x, h); }
