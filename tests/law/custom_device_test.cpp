// SPDX-License-Identifier: MIT
// [contract]
// The contract of devices, for the custom device of the examples.
#include "../../examples/custom_device.hpp"

#define WEFT_TEST_KIND worker
#include "device_test.cpp"
// [/contract]
