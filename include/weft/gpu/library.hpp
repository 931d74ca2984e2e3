// SPDX-License-Identifier: MIT
// Shared libraries opened at run time, so that programs start on machines without them.
#pragma once

#include <string>
#include <vector>

#include <weft/base/error.hpp>

namespace weft::gpu {

/// The paths that match a shell pattern, in alphabetical order.
[[gnu::cold]] std::vector<std::string> matching_paths(const std::string& pattern);

/// Folders that may hold CUDA's libraries but that the loader does not search: of the toolkit (CUDA_PATH,
/// CUDA_HOME, /usr/local/cuda), and of the packages that pip and conda install (nvidia-cuda-nvrtc,
/// nvidia-cublas, nvidia-nccl).
[[gnu::cold]] std::vector<std::string> cuda_folders();

/// A shared library, opened at construction.
class library {
 public:
  /// Opens the first of `names` that the loader finds, or else the first found in one of the folders that
  /// `more` returns. Throws device_error if none is found.
  [[gnu::cold]] explicit library(const std::vector<std::string>& names,
                                 std::vector<std::string> (*more)() = nullptr);
  library(const library&) = delete;
  library& operator=(const library&) = delete;
  // Never closed: drivers have threads, and functions that run at process exit.

  /// The folder where it was found, if the loader does not search it; empty if the loader found it.
  const std::string& folder() const { return folder_; }

  template <class Function>
  Function function(const char* name) const {
    return reinterpret_cast<Function>(find(name));
  }

 private:
  [[gnu::cold]] void search(const std::vector<std::string>& names, const std::vector<std::string>& folders);
  [[gnu::cold]] void* find(const char* name) const;

  void* handle_ = nullptr;
  std::string name_, folder_;
};

}  // namespace weft::gpu

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/library.ipp>
#endif
