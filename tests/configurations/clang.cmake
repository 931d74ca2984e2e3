# SPDX-License-Identifier: MIT
# clang without sanitizers: tests that depend on the compiler.
set(CMAKE_CXX_COMPILER clang++-19 CACHE STRING "")
set(WEFT_TEST_FILTER "^[^/]*/[^/]*_(test|ranks)$|^(chaos|docs|fail|gdb|gpu|job|package)/|^structure/(headers|two_units|warnings)" CACHE STRING "")
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
