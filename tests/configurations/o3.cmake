# SPDX-License-Identifier: MIT
# Optimised as users do, for this machine.
set(CMAKE_CXX_COMPILER g++ CACHE STRING "")
set(CMAKE_CXX_FLAGS_RELEASE -O3 CACHE STRING "")
set(WEFT_BUILD_EXAMPLES OFF CACHE BOOL "")
set(WEFT_WARNINGS_AS_ERRORS OFF CACHE BOOL "")  # at -O3 g++ 12 warns of a literal and a string that tests add (GCC bug 105651)
set(WEFT_TEST_FILTER "^[^/]*/[^/]*_(test|ranks)$|^gpu/" CACHE STRING "")
set(WEFT_BUILD_COMPILED OFF CACHE BOOL "")  # as most users do
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
