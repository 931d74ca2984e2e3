// SPDX-License-Identifier: MIT
// The conclusion of failure detection: one message for all ranks.
#pragma once

#include <exception>
#include <string>

#include <weft/base/error.hpp>

namespace weft::detail {

struct watch_verdict {
  bool late = false;  // thrown as timeout_error
  std::string text;
};

inline std::exception_ptr exception_of(const watch_verdict& v) {
  if (v.late) return std::make_exception_ptr(timeout_error(v.text));
  return std::make_exception_ptr(comm_error(v.text));
}
[[noreturn]] inline void throw_verdict(const watch_verdict& v) { std::rethrow_exception(exception_of(v)); }

}  // namespace weft::detail
