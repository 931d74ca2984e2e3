#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs missing packages, then builds and runs the tests in the configurations of tests/configurations.
#
#   tests/run.sh           the quick tier: g++ with most checks; clang with address, undefined-behavior and thread sanitizers
#   tests/run.sh --full    the long forms of all tests, with every compiler, library and instruction set, and all of the quick
#                          tier on bare Debian 12 and 13 (hours; needs root)
#   tests/run.sh --full avx2-g++ trixie ...    only these configurations
#
# A program takes up to 4 GB to compile, 6 GB with --full. JOBS=N compiles N at a time; the default is one per core and per 4 or 6 GB of free memory.
set -euo pipefail
cd "$(dirname "$0")/.."
full=0
[ "${1:-}" = --full ] && full=1 && shift
wanted=("$@")
gigabytes=$((full ? 6 : 4))
memory=$(awk -v gigabytes=$gigabytes '/MemAvailable/ {print int($2 / 1048576 / gigabytes)}' /proc/meminfo)
jobs=${JOBS:-$((memory < 1 ? 1 : memory < $(nproc) ? memory : $(nproc)))}

install_missing() {
  local need=() optional=()  # without the optional packages, the tests that use them are left out
  command -v gdb >/dev/null || optional+=(gdb)
  [ -e /usr/include/eigen3/Eigen/Dense ] || optional+=(libeigen3-dev)
  command -v cmake >/dev/null || need+=(cmake)
  command -v make >/dev/null || need+=(make)
  command -v g++ >/dev/null || need+=(g++)
  command -v clang++-19 >/dev/null || need+=(clang-19)
  command -v python3 >/dev/null || need+=(python3)
  command -v pkill >/dev/null || need+=(procps)
  [ -e /usr/include/tbb/parallel_for.h ] || need+=(libtbb-dev)
  [ -e /usr/include/doctest/doctest.h ] || need+=(doctest-dev)
  [ -e /usr/include/boost/mpi.hpp ] || need+=(libboost-mpi-dev libopenmpi-dev openmpi-bin)
  [ -e /usr/include/gloo/context.h ] || need+=(libgloo-dev)
  [ -e /usr/include/CL/cl.h ] || need+=(opencl-headers)
  compgen -G "/etc/OpenCL/vendors/*.icd" >/dev/null || need+=(pocl-opencl-icd)
  compgen -G "/usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.asan*" >/dev/null || need+=(libclang-rt-19-dev)
  if [ $full -eq 1 ]; then
    command -v aarch64-linux-gnu-g++ >/dev/null || need+=(g++-aarch64-linux-gnu)
    command -v qemu-aarch64 >/dev/null || need+=(qemu-user)
    command -v debootstrap >/dev/null || need+=(debootstrap)
    command -v ip >/dev/null || need+=(iproute2)
    [ -x /usr/sbin/sshd ] || need+=(openssh-server openssh-client)
  fi
  local as_root=() apt=(env DEBIAN_FRONTEND=noninteractive apt-get)
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  if [ ${#need[@]} -gt 0 ]; then
    "${as_root[@]}" "${apt[@]}" update -qq
    "${as_root[@]}" "${apt[@]}" install -y -qq --no-install-recommends "${need[@]}"
  fi
  if [ ${#optional[@]} -gt 0 ]; then
    { "${as_root[@]}" "${apt[@]}" update -qq && "${as_root[@]}" "${apt[@]}" install -y -qq --no-install-recommends "${optional[@]}"; } ||
      echo "not installed, and not tested: ${optional[*]}"
  fi
}

# check FOLDER CONFIGURATION OPTIONS...: builds and runs the tests that tests/configurations/CONFIGURATION.cmake selects, in build/FOLDER.
check() {
  local at=build/$1 configuration=$2
  [ $full -eq 0 ] || at=build/full/$1
  chosen "$1" || return 0
  shift 2
  echo "== ${at#build/}"
  mkdir -p "$at"
  rm -f "$at/CMakeCache.txt"  # configurations may have changed
  cmake -C "tests/configurations/$configuration.cmake" -S . -B "$at" -DWEFT_TEST_JOBS="$jobs" "$@" >"$at/configure.log" 2>&1 ||
    { tail -n 20 "$at/configure.log"; return 1; }
  sed -n 's/^-- weft/weft/p' "$at/configure.log"
  cmake --build "$at" -j "$jobs" -- --no-print-directory >"$at/build.log" 2>&1 || { tail -n 60 "$at/build.log"; return 1; }
  WEFT_TEST_DEVICE=opencl ctest --test-dir "$at" --output-on-failure -j "$jobs"  # a missing OpenCL device is a failure
}

# chosen CONFIGURATION: whether the command line names this configuration, or none.
chosen() { [ ${#wanted[@]} -eq 0 ] || [[ " ${wanted[*]} " == *" $1 "* ]]; }

known=(gcc random clang-asan tsan clang serial gcc-asan arm {o3,avx2,baseline}-{g++,clang++-19} bookworm trixie)
for name in "${wanted[@]}"; do
  [[ $full -eq 1 && " ${known[*]} " == *" $name "* ]] || { echo "tests/run.sh: --full and any of: ${known[*]}" >&2; exit 2; }
done
install_missing
if [ $full -eq 0 ]; then
  for configuration in gcc clang-asan tsan; do
    check $configuration $configuration
  done
else
  check gcc gcc -DWEFT_TEST_FULL=ON '-DWEFT_TEST_EXCLUDE=^random/' -DWEFT_TRAIN_GPT_UNITS=
  check random gcc -DWEFT_TEST_FULL=ON -DWEFT_TEST_EXCLUDE= '-DWEFT_TEST_FILTER=^random/' -DWEFT_BUILD_EXAMPLES=OFF
  check clang-asan clang-asan -DCMAKE_CXX_FLAGS_RELEASE=-O1 '-DWEFT_TEST_FILTER=^[^/]*/[^/]*_(test|ranks)$|^(fail|gpu)/|^structure/warnings'
  check tsan tsan '-DCMAKE_CXX_FLAGS_RELEASE=-O1 -g' '-DWEFT_TEST_FILTER=^(comm|parallel)/|^chaos/store_test$|^gpu/cuda$'
  for configuration in clang serial gcc-asan arm; do
    check $configuration $configuration
  done
  for configuration in o3 avx2 baseline; do  # optimized as users do, for each instruction set
    for compiler in g++ clang++-19; do
      elements=('-DWEFT_TEST_FILTER=^(agree|base|device|law|nn|optim|run)/.*_test$')  # the tests of code that computes elements
      [ $configuration-$compiler != o3-g++ ] || elements=()
      check "$configuration-$compiler" $configuration -DCMAKE_CXX_COMPILER=$compiler "${elements[@]}"
    done
  done
  for suite in bookworm trixie; do
    ! chosen $suite || tests/bare.sh $suite build/bare
  done
fi
echo "all checks passed"
