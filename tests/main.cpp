// SPDX-License-Identifier: MIT
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>

#include "skip.hpp"

namespace {
int left_out = 0;
}

void weft::test::skip(const std::string& what, const std::string& why) {
  const char* const needed = std::getenv("WEFT_TEST_DEVICE");
  if (needed && needed == what) FAIL_CHECK(why);
  ++left_out;
  MESSAGE("skipped without ", what, ": ", why);
}

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const int failed = context.run();
  return failed || context.shouldExit() || left_out == 0 ? failed : weft::test::skipped;
}
