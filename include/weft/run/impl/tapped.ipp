// SPDX-License-Identifier: MIT
// Definitions of <weft/run/tapped.hpp>.
#pragma once

#include <cmath>
#include <cstdio>

#include <weft/base/config.hpp>
#include <weft/base/number.hpp>
#include <weft/run/tapped.hpp>

namespace weft {

WEFT_DEFINE std::vector<double> tapped::to_vector() const {
  std::vector<double> v(static_cast<std::size_t>(extents.size()));
  for (std::size_t i = 0; i < v.size(); ++i)
    v[i] =
        visit_type(type, [&]<class T>(T) { return static_cast<double>(static_cast<const T*>(elements)[i]); });
  return v;
}

WEFT_DEFINE void print_tapped(const tapped& t) {
  double low = INFINITY, high = -INFINITY, sum = 0;
  std::size_t odd = 0;
  const std::vector<double> v = t.to_vector();
  for (double x : v) {
    if (!std::isfinite(x)) {
      ++odd;
      continue;
    }
    low = x < low ? x : low;
    high = x > high ? x : high;
    sum += x;
  }
  using detail::general;
  std::fprintf(stderr, "%s: %s %s  min %s  max %s  mean %s  not finite %zu\n", t.name, name_of(t.type),
               to_string(t.extents).c_str(), general(low).c_str(), general(high).c_str(),
               general(sum / static_cast<double>(v.size() - odd)).c_str(), odd);
}

}  // namespace weft
