// SPDX-License-Identifier: MIT
// Shared libraries opened at run time, so that programs start on machines without them.
#pragma once

#include <dlfcn.h>

#include <initializer_list>
#include <string>

#include <weft/base/error.hpp>

namespace weft::gpu {

/// A shared library, opened at construction.
class library {
 public:
  /// Opens the first of `names` that exists. Throws device_error if none does.
  [[gnu::cold]] library(std::initializer_list<const char*> names) {
    for (const char* name : names)
      if (!handle_) handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle_) throw device_error(std::string("weft: ") + *names.begin() + " is not on this machine");
    name_ = *names.begin();
  }
  library(const library&) = delete;
  library& operator=(const library&) = delete;
  // Never closed: drivers have threads, and functions that run at process exit.

  template <class Function>
  Function function(const char* name) const {
    return reinterpret_cast<Function>(find(name));
  }

 private:
  [[gnu::cold]] void* find(const char* name) const {
    void* found = dlsym(handle_, name);
    if (!found) throw device_error(std::string("weft: ") + name_ + " has no function " + name);
    return found;
  }

  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace weft::gpu
