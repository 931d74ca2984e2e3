// SPDX-License-Identifier: MIT
// Makes tests that a machine cannot run visible: the program says so and ends with exit code 77, which CTest
// reports as skipped. With WEFT_TEST_DEVICE=opencl, a missing device is a failure.
#pragma once

#include <string>

namespace weft::test {

/// Records that a test that needs `what` is left out, and why; fails the test case if WEFT_TEST_DEVICE is
/// `what`.
void skip(const std::string& what, const std::string& why);

/// The exit code of a program that left out a test and in which no test failed.
inline constexpr int skipped = 77;

}  // namespace weft::test
