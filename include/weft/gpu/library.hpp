// SPDX-License-Identifier: MIT
// Shared libraries opened at run time, so that programs start on machines without them.
#pragma once

#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <initializer_list>
#include <string>
#include <vector>

#include <weft/base/error.hpp>

namespace weft::gpu {

/// The paths that match a pattern of the shell, in alphabetical order.
[[gnu::cold]] inline std::vector<std::string> matching_paths(const std::string& pattern) {
  std::vector<std::string> paths;
  glob_t found{};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return paths;
}

/// Folders that may hold CUDA's libraries where the loader does not look: of the toolkit (CUDA_PATH,
/// CUDA_HOME, /usr/local/cuda), and of the packages that pip and conda install (nvidia-cuda-nvrtc,
/// nvidia-cublas, nvidia-nccl).
[[gnu::cold]] inline std::vector<std::string> cuda_folders() {
  std::vector<std::string> folders;
  const auto append = [&](const std::string& pattern) {
    for (std::string& path : matching_paths(pattern)) folders.push_back(std::move(path));
  };
  const auto variable = [](const char* name) {
    return std::string(std::getenv(name) ? std::getenv(name) : "");
  };
  for (const char* name : {"CUDA_PATH", "CUDA_HOME"})
    if (const std::string at = variable(name); !at.empty()) append(at + "/lib64");
  append("/usr/local/cuda/lib64");
  const std::string home = variable("HOME");
  for (const std::string& at : {variable("VIRTUAL_ENV"), variable("CONDA_PREFIX"),
                                home.empty() ? home : home + "/.local", std::string("/usr/local"),
                                std::string("/usr")}) {
    if (at.empty()) continue;
    for (const char* packages : {"/lib/python3*/site-packages", "/lib/python3*/dist-packages"})
      append(at + packages + "/nvidia/*/lib");
  }
  return folders;
}

/// A shared library, opened at construction.
class library {
 public:
  /// Opens the first of `names` that the loader finds, or else that is in one of the folders that `more`
  /// returns. Throws device_error if none does.
  [[gnu::cold]] explicit library(std::initializer_list<const char*> names,
                                 std::vector<std::string> (*more)() = nullptr)
      : name_(*names.begin()) {
    for (const char* name : names)
      if (!handle_) handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle_ && more) search(names, more());
    if (!handle_) throw device_error("weft: " + name_ + " is not on this machine");
  }
  library(const library&) = delete;
  library& operator=(const library&) = delete;
  // Never closed: drivers have threads, and functions that run at process exit.

  /// The folder where it was found beside those of the loader; empty if the loader found it.
  const std::string& folder() const { return folder_; }

  template <class Function>
  Function function(const char* name) const {
    return reinterpret_cast<Function>(find(name));
  }

 private:
  [[gnu::cold]] void search(std::initializer_list<const char*> names,
                            const std::vector<std::string>& folders) {
    for (const char* name : names)
      for (const std::string& folder : folders)
        if (!handle_ && (handle_ = dlopen((folder + "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL)))
          folder_ = folder;
  }
  [[gnu::cold]] void* find(const char* name) const {
    void* found = dlsym(handle_, name);
    if (!found) throw device_error(std::string("weft: ") + name_ + " has no function " + name);
    return found;
  }

  void* handle_ = nullptr;
  std::string name_, folder_;
};

}  // namespace weft::gpu
