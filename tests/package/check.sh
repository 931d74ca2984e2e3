#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A consumer finds weft in one of six ways, and gets no warnings from weft's headers, whatever flags it sets.
#
#   check.sh find_package|add_subdirectory|fetch_content|plain|single|conan SOURCE FOLDER [COMPILER [BUILT]]
#
# BUILT: a build folder with weft::compiled, which is installed; without BUILT, one is built.
set -euo pipefail
way=$1 source=$2 at=$3/$1 compiler=${4:-c++} built=${5:-}
rm -rf "$at" && mkdir -p "$at"
run() { "$@" >"$at/log" 2>&1 || { cat "$at/log"; return 1; }; }
quick=(-DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O0 "-DCMAKE_CXX_COMPILER=$compiler")

if [ "$way" = plain ]; then
  flags=(-std=c++20 "-I$source/include" -Wno-psabi "$source/tests/package/consumer.cpp")
  run "$compiler" "${flags[@]}" -o "$at/consumer"
  "$at/consumer"
  # The warnings that the other ways enable do occur if the headers are not system headers.
  for warning in -Weffc++ -Wpadded; do  # the first is g++'s, the second clang's
    "$compiler" "${flags[@]}" -fsyntax-only $warning -Werror 2>"$at/log" || exit 0
  done
  echo "-Weffc++ and -Wpadded find nothing: choose another"
  exit 1
fi
if [ "$way" = single ]; then  # one header, with the umbrella header only, and with every header that needs no other library
  mkdir "$at/weft" "$at/all" "$at/all/weft"
  "$source/tools/single_header.py" >"$at/weft/weft.hpp"
  run "$compiler" -std=c++20 "-I$at" -Wall -Wextra -Wno-psabi -Werror "$source/tests/package/consumer.cpp" -o "$at/consumer"
  "$at/consumer"
  mapfile -t headers < <(cd "$source/include" && find weft -name "*.hpp" ! -path "weft/gpu/*" ! -name "gloo*" ! -name "mpi*" ! -name environment.hpp | sort -r)
  "$source/tools/single_header.py" "${headers[@]}" >"$at/all/weft/weft.hpp"
  run "$compiler" -std=c++20 "-I$at/all" -Wall -Wextra -Wno-psabi -Werror -fsyntax-only "$source/tests/package/consumer.cpp"
  if "$compiler" -std=c++20 "-I$at" -DWEFT_COMPILED -fsyntax-only "$source/tests/package/consumer.cpp" 2>"$at/log"; then exit 1; fi
  grep -q "the single header is not used with weft::compiled" "$at/log"
  exit
fi
if [ "$way" = find_package ]; then
  if [ -z "$built" ]; then
    built=$at/installing
    run cmake -S "$source" -B "$built" "${quick[@]}" -DWEFT_BUILD_TESTS=OFF -DWEFT_BUILD_EXAMPLES=OFF -DWEFT_BUILD_COMPILED=ON
    run cmake --build "$built" --target weft_compiled
  fi
  run cmake --install "$built" --prefix "$at/prefix"
fi
packages=("-DCMAKE_PREFIX_PATH=$at/prefix")
if [ "$way" = conan ]; then  # oneTBB is the system's
  export CONAN_HOME=$at/home CXX=$compiler
  run conan profile detect
  run conan remote disable conancenter
  run conan create "$source/tests/package/onetbb.py"
  run conan create "$source" -s compiler.cppstd=20
  run conan install --requires "weft/[*]" -s compiler.cppstd=20 -g CMakeDeps -g CMakeToolchain -of "$at/found"
  packages=("-DCMAKE_TOOLCHAIN_FILE=$at/found/conan_toolchain.cmake")
fi
run cmake -S "$source/tests/package" -B "$at/build" "${quick[@]}" "-DWAY=${way/conan/find_package}" "-DWEFT_SOURCE=$source" "${packages[@]}"
case $way in  # weft::compiled is built for one of them
  find_package) targets=(consumer_weft consumer_precompiled consumer_compiled) ;;
  add_subdirectory | conan) targets=(consumer_weft consumer_precompiled) ;;
  fetch_content) targets=(consumer_weft) ;;  # from there on it is like add_subdirectory
esac
for target in "${targets[@]}"; do
  run cmake --build "$at/build" --target "$target"
  "$at/build/$target"
done
[ "$way" != fetch_content ] || exit 0
compgen -G "$at/build/CMakeFiles/consumer_precompiled.dir/cmake_pch.hxx.*ch" >/dev/null || { echo "no header was precompiled"; exit 1; }
