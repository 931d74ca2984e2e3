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

/// The verdict for an operation of `rank`; says what it is `doing` unless the verdict contains its `text`.
inline watch_verdict verdict_in(watch_verdict v, int rank, const std::string& text,
                                const std::string& doing) {
  if (v.text.find(text) == v.text.npos) v.text += "; rank " + std::to_string(rank) + " is in " + doing;
  return v;
}

inline std::exception_ptr exception_of(const watch_verdict& v) {
  if (v.late) return std::make_exception_ptr(timeout_error(v.text));
  return std::make_exception_ptr(comm_error(v.text));
}
[[noreturn]] inline void throw_verdict(const watch_verdict& v) { std::rethrow_exception(exception_of(v)); }

}  // namespace weft::detail
