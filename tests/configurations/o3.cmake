# SPDX-License-Identifier: MIT
# Optimised as users do, for this machine.
set(CMAKE_CXX_COMPILER g++ CACHE STRING "")
set(CMAKE_CXX_FLAGS_RELEASE -O3 CACHE STRING "")
set(WEFT_BUILD_EXAMPLES OFF CACHE BOOL "")
set(WEFT_TEST_FILTER "^[^/]*/[^/]*_(test|ranks)$|^gpu/" CACHE STRING "")
set(WEFT_BUILD_COMPILED OFF CACHE BOOL "")  # as most users do
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
