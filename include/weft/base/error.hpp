// SPDX-License-Identifier: MIT
// The exceptions of weft. Invalid user input throws; it never aborts the process.
//
// Every message names the op, shapes, file or module path concerned.
#pragma once

#include <stdexcept>
#include <string>

namespace weft {

/// Base of all exceptions of weft.
struct error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Extents that do not fit, found at run time.
struct shape_error : error {
  using error::error;
};

/// An invalid value: changed in place, out of range, without a gradient.
struct value_error : error {
  using error::error;
};

/// A device that is missing, failed, or has no kernel for an op.
struct device_error : error {
  using error::error;
};

/// A device without enough memory. The allocator releases cached blocks and retries on this error only.
struct out_of_memory_error : device_error {
  using device_error::device_error;
};

/// A file that cannot be read or written, or has invalid content.
struct io_error : error {
  using error::error;
};

/// Ranks that disagree, or a rank that has failed. Names the operation and the rank.
struct comm_error : error {
  using error::error;
};

/// A rank that did not respond in time.
struct timeout_error : comm_error {
  using comm_error::comm_error;
};

/// Invalid arguments of a call or program; examples exit with code 2.
struct usage_error : error {
  using error::error;
};

}  // namespace weft
