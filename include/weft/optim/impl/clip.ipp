// SPDX-License-Identifier: MIT
// Instantiates norms and scaling of gradients of all types, for weft::compiled.
#pragma once

#include <weft/optim/clip.hpp>

namespace weft::detail {

template double sum_of_squares<float>(state_ref gradient, context& c);
template double sum_of_squares<double>(state_ref gradient, context& c);
template double sum_of_squares<bfloat16>(state_ref gradient, context& c);
template double sum_of_squares<float16>(state_ref gradient, context& c);
template void scale_gradient<float>(state_ref gradient, double factor, context& c);
template void scale_gradient<double>(state_ref gradient, double factor, context& c);
template void scale_gradient<bfloat16>(state_ref gradient, double factor, context& c);
template void scale_gradient<float16>(state_ref gradient, double factor, context& c);

}  // namespace weft::detail
