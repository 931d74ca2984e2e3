#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Compiles <weft/weft.hpp> once for all files that must not compile: precompile.sh COMPILER INCLUDE TO
set -eu
compiler=$1 include=$2 to=$3
rm -rf "$to"
mkdir -p "$to/weft"
if "$compiler" --version | grep -q clang; then
  "$compiler" -std=c++20 -I"$include" -Wno-pragma-once-outside-header -x c++-header "$include/weft/weft.hpp" -o "$to/weft.pch"
else  # as many lines of where it is included from as without
  echo "#include \"$include/weft/weft.hpp\"" >"$to/weft/weft.hpp"
  "$compiler" -std=c++20 -I"$include" -x c++-header "$to/weft/weft.hpp" -o "$to/weft/weft.hpp.gch"
fi
