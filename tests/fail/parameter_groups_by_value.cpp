// SPDX-License-Identifier: MIT
// within 12: weft: parameter_groups: adjust takes the name of a parameter, and settings of the optimizer's type that
#include <weft/weft.hpp>
using namespace weft;
parameter_groups optimizer{sgd{}, [](const std::string&, sgd of) { of.lr = 0; }};
