// SPDX-License-Identifier: MIT
// within 12: weft: parameter_groups: adjust must take a parameter's name and settings of the optimizer's type, which
#include <weft/weft.hpp>
using namespace weft;
parameter_groups optimizer{sgd{}, [](const std::string&, sgd of) { of.lr = 0; }};
