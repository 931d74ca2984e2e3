// SPDX-License-Identifier: MIT
// One kernel of a native op, as text.
#pragma once

#include <string>

#include <weft/shape/shape.hpp>

namespace weft::gpu {

/// One kernel of a native op. Without `threads`, the text is the body of a loop over `items`. With `threads`,
/// it is compiled for groups of this many threads, defines its functions and the body of NATIVE_KERNEL, and
/// loops over `items` tasks: for (long task = GROUP_ID; task < tasks; task += GROUPS). GROUP_MEMORY of
/// tensor_core_words has `group_bytes`. If operands have scratch memory, texts can use `scratch`.
struct native_text {
  const char* text = nullptr;
  index_t items = 0;
  int threads = 0;
  std::string definitions{};  // before the text
  index_t group_bytes = 0;
  index_t pass = 0;  // `pass` of texts with scratch memory
};

/// The limits of groups of threads on a device.
struct group_limits {
  index_t memory = index_t{48} << 10;  // bytes that a group can share
  index_t tensor_core_memory = 0;      // the same for kernels that use tensor_core_words; 0 if unsupported
  bool warpgroups = false;             // whether warpgroup_words are supported
  int threads = 1024;                  // of a group
  bool memory_is_own = true;           // not part of device memory, as it is on CPUs
};

}  // namespace weft::gpu
