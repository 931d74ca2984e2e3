// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/library.hpp>.
#pragma once

#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>

#include <weft/base/config.hpp>
#include <weft/gpu/library.hpp>

namespace weft {
namespace gpu {

WEFT_DEFINE std::vector<std::string> matching_paths(const std::string& pattern) {
  std::vector<std::string> paths;
  glob_t found{};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return paths;
}

WEFT_DEFINE std::vector<std::string> cuda_folders() {
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
  for (const std::string& at :
       {variable("VIRTUAL_ENV"), variable("CONDA_PREFIX"), home.empty() ? home : home + "/.local",
        std::string("/usr/local"), std::string("/usr")}) {
    if (at.empty()) continue;
    for (const char* packages : {"/lib/python3*/site-packages", "/lib/python3*/dist-packages"})
      append(at + packages + "/nvidia/*/lib");
  }
  return folders;
}

WEFT_DEFINE library::library(const std::vector<std::string>& names, std::vector<std::string> (*more)())
    : name_(names.front()) {
  for (const std::string& name : names)
    if (!handle_) handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle_ && more) search(names, more());
  if (!handle_) throw device_error("weft: " + name_ + " was not found on this machine");
}

WEFT_DEFINE void library::search(const std::vector<std::string>& names,
                                 const std::vector<std::string>& folders) {
  for (const std::string& name : names)
    for (const std::string& folder : folders)
      if (!handle_ && (handle_ = dlopen((folder + "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL)))
        folder_ = folder;
}

WEFT_DEFINE void* library::find(const char* name) const {
  void* found = dlsym(handle_, name);
  if (!found) throw device_error(std::string("weft: ") + name_ + " has no function " + name);
  return found;
}

}  // namespace gpu
}  // namespace weft
