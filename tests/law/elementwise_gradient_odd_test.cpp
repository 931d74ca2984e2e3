// SPDX-License-Identifier: MIT
#include "elementwise_gradient.hpp"

TEST_CASE("every element-wise op of odd number: gradient and second derivative") { check_ops<1>(); }
