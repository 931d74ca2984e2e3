#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A program and the plugins that it loads can exchange tensors if the program exports its symbols, whatever else is hidden. Otherwise
# an exception says that there are two default devices, and can be caught across the boundary.
#
#   plugins.sh COMPILER FOLDER
set -euo pipefail
compiler=$1 at=$2
include=$(cd "$(dirname "$0")/../../include" && pwd)
mkdir -p "$at" && cd "$at"
cat >plugin.cpp <<'CPP'
#include <weft/weft.hpp>
using handle = weft::tensor<float, weft::extents<3>>;
extern "C" [[gnu::visibility("default")]] void twice(handle* x) { *x = weft::eval(*x * 2.0f); }
CPP
cat >program.cpp <<'CPP'
#include <dlfcn.h>

#include <cstring>

#include <weft/weft.hpp>
using handle = weft::tensor<float, weft::extents<3>>;
int main(int count, char**) {
  void* const plugin = dlopen("./plugin.so", RTLD_NOW | RTLD_LOCAL);
  if (!plugin) return 2;
  const auto twice = reinterpret_cast<void (*)(handle*)>(dlsym(plugin, "twice"));
  handle x = weft::eval(weft::full<float>(weft::extents<3>{}, 1.5f) * 1.0f);
  try {
    twice(&x);
  } catch (const weft::device_error& e) {
    return std::strstr(e.what(), "another device of that name") ? 3 : 4;
  }
  return weft::eval(sum(x)).item() == 9 ? 0 : 5;
}
CPP
flags=(-std=c++20 "-I$include" -Wno-psabi -fvisibility=hidden)
"$compiler" "${flags[@]}" -fPIC -shared plugin.cpp -o plugin.so
"$compiler" "${flags[@]}" -c program.cpp
"$compiler" -rdynamic program.o -ldl -pthread -o exports
"$compiler" program.o -ldl -pthread -o hides
./exports || { echo "with -rdynamic: $?"; exit 1; }
code=0
./hides || code=$?
[ $code -eq 3 ] || { echo "without -rdynamic: $code"; exit 1; }
