#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Two translation units that include everything link into one program.
#
#   two_units.sh COMPILER FOLDER
set -euo pipefail
compiler=$1 at=$2
include=$(cd "$(dirname "$0")/../../include" && pwd)
mkdir -p "$at" && cd "$at"
cat >a.cpp <<'CPP'
#include <weft/weft.hpp>
float f(float x) { return weft::eval(weft::full<float>(weft::extents<1>{}, x) + 1.0f).item(); }
CPP
cat >b.cpp <<'CPP'
#include <weft/weft.hpp>
float f(float);
int main() { return weft::eval(weft::full<float>(weft::extents<1>{}, f(1)) * 2.0f).item() == 4 ? 0 : 1; }
CPP
"$compiler" -std=c++20 "-I$include" -Wno-psabi a.cpp b.cpp -o both
./both
