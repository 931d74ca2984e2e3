// SPDX-License-Identifier: MIT
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "skip.hpp"

namespace {
int left_out = 0;
}

void weft::test::skip(const std::string& why) {
  if (std::getenv("WEFT_TEST_DEVICE")) FAIL_CHECK(why);
  ++left_out;
  MESSAGE("skipped: ", why);
}

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const int failed = context.run();
  return failed || context.shouldExit() || left_out == 0 ? failed : weft::test::skipped;
}
