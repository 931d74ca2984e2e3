// SPDX-License-Identifier: MIT
// Instantiates the steps of sgd for parameters of all types, for weft::compiled.
#pragma once

#include <weft/optim/optimizer.hpp>

namespace weft {

template void sgd::update(const parameter_update<float>&) const;
template void sgd::update(const parameter_update<double>&) const;
template void sgd::update(const parameter_update<bfloat16>&) const;
template void sgd::update(const parameter_update<float16>&) const;

}  // namespace weft
