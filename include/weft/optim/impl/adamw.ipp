// SPDX-License-Identifier: MIT
// Steps of adamw for parameters of all types, for weft::compiled.
#pragma once

#include <weft/optim/optimizer.hpp>

namespace weft {

template void adamw::update(const parameter_update<float>&) const;
template void adamw::update(const parameter_update<double>&) const;
template void adamw::update(const parameter_update<bfloat16>&) const;
template void adamw::update(const parameter_update<float16>&) const;

}  // namespace weft
