# SPDX-License-Identifier: MIT
# clang with its address and undefined-behavior sanitizers: the tests that compute addresses, hold memory, or read foreign bytes.
# -O0 compiles in three fifths of the time of -O1; programs that compute for long use -O1. tests/run.sh --full runs all test programs, at -O1.
set(CMAKE_CXX_COMPILER clang++-19 CACHE STRING "")
set(CMAKE_CXX_FLAGS_RELEASE -O0 CACHE STRING "")
set(WEFT_TEST_OPTIMIZED "^device/|^io/json|^run/(sizes|views)" CACHE STRING "")
set(WEFT_SANITIZE address,undefined CACHE STRING "")
set(WEFT_NATIVE OFF CACHE BOOL "")
set(WEFT_BUILD_EXAMPLES OFF CACHE BOOL "")
set(WEFT_TEST_FILTER "^comm/(flight|gloo|rpc|store_t|tcp)|^device/(attention|gemm|memory)|^expr/lifetime|^io/|^nn/module|^run/(movement|tape|views)|^shape/|^train/(checkpoint_test|checkpoint_boxes|loader)"
    CACHE STRING "")
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
