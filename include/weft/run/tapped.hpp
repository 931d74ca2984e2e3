// SPDX-License-Identifier: MIT
// The value that a `tap` passes to its handler.
#pragma once

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
  [[gnu::cold]] std::vector<double> to_vector() const;
};

/// A function that receives the values of `tap`; see context::on_tap.
using tap_handler = std::function<void(const tapped&)>;

/// Prints one line to stderr: name, dtype, shape; minimum, maximum and mean of the finite elements; and how
/// many are not finite.
[[gnu::cold]] void print_tapped(const tapped& t);

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/run/impl/tapped.ipp>
#endif
