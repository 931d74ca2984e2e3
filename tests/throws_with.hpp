// SPDX-License-Identifier: MIT
// Checks of the messages of exceptions.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace weft::test {

/// Whether `f` throws a T whose message contains all of `words`.
template <class T, class F>
bool throws_with(const F& f, const std::vector<std::string>& words) {
  try {
    f();
  } catch (const T& e) {
    for (const std::string& w : words)
      if (std::string(e.what()).find(w) == std::string::npos) {
        MESSAGE(std::string(e.what()) << " lacks " << w);
        return false;
      }
    return true;
  }
  return false;
}

}  // namespace weft::test
