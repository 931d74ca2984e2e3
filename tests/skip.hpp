// SPDX-License-Identifier: MIT
// Tests that a machine cannot run are seen: the program says so and ends with exit code 77, which CTest
// reports as skipped. WEFT_TEST_DEVICE=opencl makes a missing device a failure.
#pragma once

#include <string>

namespace weft::test {

/// Notes that what needs `what` is left out, and why; fails the test case if WEFT_TEST_DEVICE is `what`.
void skip(const std::string& what, const std::string& why);

/// The exit code of a program that left something out and in which nothing failed.
inline constexpr int skipped = 77;

}  // namespace weft::test
