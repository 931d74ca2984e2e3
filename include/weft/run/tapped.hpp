// SPDX-License-Identifier: MIT
// The value that a `tap` passes to its handler.
#pragma once

#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <weft/shape/shape.hpp>

namespace weft {

/// A value observed by `tap`: name, dtype, shape, elements.
struct tapped {
  const char* name;
  dtype type;
  shape extents;
  const void* elements;  // on the host, row-major; valid during the call

  /// A copy of the elements as f64.
  [[gnu::cold]] std::vector<double> to_vector() const {
    std::vector<double> v(static_cast<std::size_t>(extents.size()));
    for (std::size_t i = 0; i < v.size(); ++i)
      v[i] = visit_type(type,
                        [&]<class T>(T) { return static_cast<double>(static_cast<const T*>(elements)[i]); });
    return v;
  }
};

/// A function that receives the values of `tap`; see context::on_tap.
using tap_handler = std::function<void(const tapped&)>;

/// Prints one line to stderr: name, dtype, shape, minimum, maximum and mean of the finite elements, and how
/// many are not finite.
[[gnu::cold]] inline void print_tapped(const tapped& t) {
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
  std::fprintf(stderr, "%s: %s %s  min %g  max %g  mean %g  not finite %zu\n", t.name, name_of(t.type),
               to_string(t.extents).c_str(), low, high, sum / static_cast<double>(v.size() - odd), odd);
}

}  // namespace weft
