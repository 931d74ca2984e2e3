// SPDX-License-Identifier: MIT
// Instantiates the steps of adam and adamw for parameters of all types, for weft::compiled.
#pragma once

#include <weft/optim/optimizer.hpp>

namespace weft::detail {

template void adam_update<false>(const parameter_update<float>&, const adam_settings&);
template void adam_update<false>(const parameter_update<double>&, const adam_settings&);
template void adam_update<false>(const parameter_update<bfloat16>&, const adam_settings&);
template void adam_update<false>(const parameter_update<float16>&, const adam_settings&);

}  // namespace weft::detail
