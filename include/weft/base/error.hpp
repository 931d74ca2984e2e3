// SPDX-License-Identifier: MIT
// The exceptions of weft. User input never aborts the process: it ends here.
//
// Every message names the op, the shapes, the file or the module path it is about.
#pragma once

#include <stdexcept>
#include <string>

namespace weft {

/// Base of everything that weft throws.
struct error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Extents that do not fit together, found when they are first known.
struct shape_error : error {
  using error::error;
};

/// A value used in a way its state forbids: changed in place, out of range, no gradient.
struct value_error : error {
  using error::error;
};

/// A device that is missing, failed, or has no code for an op.
struct device_error : error {
  using error::error;
};

/// A device that has no more memory. Caches give back what they hold and ask again; every other error stays
/// what it is.
struct out_of_memory_error : device_error {
  using device_error::device_error;
};

/// A file that cannot be read or written, or does not hold what it should.
struct io_error : error {
  using error::error;
};

/// Ranks that do not understand each other, or one that is gone. Names the operation and the rank.
struct comm_error : error {
  using error::error;
};

/// A rank that did not come in time.
struct timeout_error : comm_error {
  using comm_error::comm_error;
};

/// A program called with arguments that make no sense; examples exit with code 2.
struct usage_error : error {
  using error::error;
};

}  // namespace weft
