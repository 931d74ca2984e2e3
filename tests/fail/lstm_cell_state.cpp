// SPDX-License-Identifier: MIT
// within 12: weft: lstm_cell: for an input [..., In], the state must be [2, ..., Hidden], as stack<0>(h, c)
#include <weft/weft.hpp>
using namespace weft;
lstm_cell<2, 3> cell;

auto f(tensor<float, extents<dyn, 2>> x, tensor<float, extents<dyn, 3>> h) { return cell(x, h); }
