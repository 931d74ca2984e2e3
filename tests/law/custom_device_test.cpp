// SPDX-License-Identifier: MIT
// [contract]
// The contract of devices, for the device of one's own among the examples.
#include "../../examples/custom_device.hpp"

#define WEFT_TEST_KIND worker
#include "device_test.cpp"
// [/contract]

// The addresses of this device are not those of its memory: the leak checker does not find what is kept for
// reuse.
extern "C" const char* __lsan_default_suppressions() { return "leak:worker_backend::allocate"; }
