// SPDX-License-Identifier: MIT
// Checks of the settings of optimizers and schedules, with PyTorch's bounds.
//
//   detail::require_fields("sgd", {{"lr", lr}, {"momentum", momentum}});      // each 0 or more, not NaN
#pragma once

#include <initializer_list>
#include <string>

#include <weft/base/error.hpp>

namespace weft::detail {

[[noreturn, gnu::cold]] inline void refuse_field(const char* who, const char* field, double value,
                                                 const char* what) {
  refuse<value_error>({"weft: ", who, ": ", field, " is ", value, ", expected ", what});
}

struct named_number {
  const char* name;
  double value;
};
/// Throws value_error, naming the field, for a number that is negative or NaN.
inline void require_fields(const char* who, std::initializer_list<named_number> fields) {
  for (const named_number& f : fields)
    if (!(f.value >= 0)) refuse_field(who, f.name, f.value, "0 or more");
}
/// The same for numbers that must also be below 1.
inline void require_fractions(const char* who, std::initializer_list<named_number> fields) {
  for (const named_number& f : fields)
    if (!(f.value >= 0 && f.value < 1)) refuse_field(who, f.name, f.value, "a value in [0, 1)");
}

}  // namespace weft::detail
