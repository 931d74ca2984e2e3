#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Programs with the settings of weft::compiled link it, even if one unit compiles all of weft itself, and have one default context
# and device. Units with other components or another instruction set do not link, and the linker names the difference.
#
#   compiled.sh COMPILER FOLDER LIBRARY FLAGS...             FLAGS: the library's compile flags, and the libraries that it links
set -euo pipefail
compiler=$1 at=$2 library=$3
shift 3
include=$(cd "$(dirname "$0")/../../include" && pwd)
mkdir -p "$at" && cd "$at"
cat >a.cpp <<'CPP'
#include <weft/weft.hpp>
float f(float x) { return weft::eval(weft::full<float>(weft::extents<1>{}, x) + 1.0f).item(); }
const void* context_of_a() { return &weft::default_context(); }
const void* device_of_a() { return &weft::default_device(); }
CPP
cat >b.cpp <<'CPP'
#include <weft/weft.hpp>
float f(float);
const void* context_of_a();
const void* device_of_a();
int main() {
  if (context_of_a() != &weft::default_context() || device_of_a() != &weft::default_device()) return 2;
  return weft::eval(matmul(weft::full<float>(weft::extents<2, 2>{}, f(1)), weft::ones<float>(weft::extents<2, 2>{})))(1, 1) == 4 ? 0 : 1;
}
CPP
compile() { "$compiler" -std=c++20 "-I$include" -Wno-psabi "$@"; }

# Optimized, so that an inlined function could have a separate copy of a variable.
compile "$@" -O2 -DWEFT_COMPILED=1 -c a.cpp -o a_compiled.o
compile "$@" -DWEFT_COMPILED=1 -c b.cpp -o b_compiled.o
compile "$@" -O2 -c a.cpp -o a_whole.o
for unit in a_compiled a_whole; do
  compile $unit.o b_compiled.o -Wl,--whole-archive "$library" -Wl,--no-whole-archive "$@" -o program  # the library lacks no definition
  ./program || { echo "$unit.o with the library: main returned $?"; exit 1; }
done
[ "$(wc -c <a_compiled.o)" -lt $(($(wc -c <a_whole.o) / 2)) ] || { echo "a unit that links the library is not half as large as one that does not"; exit 1; }

# Training gives the same results.
train=$include/../examples/train_mlp.cpp
compile "$train" "$@" -o train_whole
compile -DWEFT_COMPILED=1 "$train" "$library" "$@" -o train_compiled
./train_whole >whole.txt
./train_compiled >compiled.txt
diff whole.txt compiled.txt

refuse() {  # WORDS FLAGS...
  local words=$1
  shift
  compile "$@" -fdata-sections -DWEFT_COMPILED=1 -c a.cpp -o a_other.o
  if compile a_other.o b_compiled.o "$library" "$@" -Wl,--gc-sections -o program 2>log; then
    echo "linked in spite of $*"
    exit 1
  fi
  grep -q "undefined reference to.*$words" log || { cat log; echo "the linker does not say: $words"; exit 1; }
}
without=()
for flag in "$@"; do [[ $flag == -DWEFT_WITH_* ]] || without+=("$flag"); done
if [ ${#without[@]} -lt $# ]; then
  refuse "compiled_library<.*with_tbb<false>.*with_opencl<false>.*with_cuda<false>.*with_nccl<false>" "${without[@]}"
else
  refuse "compiled_library<.*with_opencl<true>" "$@" -DWEFT_WITH_OPENCL=1
fi
if [[ " $* " == *" -march=native "* ]] && "$compiler" -march=native -dM -E -x c++ /dev/null | grep -q "__AVX2__"; then
  refuse "baseline::compiled_library" "$@" -march=x86-64
fi
