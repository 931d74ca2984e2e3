// SPDX-License-Identifier: MIT
// within 8: weft: amsgrad: the settings must be those of adam or adamw: amsgrad{adamw{.lr = 1e-3}}
#include <weft/optim/amsgrad.hpp>
#include <weft/weft.hpp>
using namespace weft;

amsgrad optimizer{sgd{.lr = 0.1}};
