# SPDX-License-Identifier: MIT
# Optimized for this machine, as users do.
set(CMAKE_CXX_COMPILER g++ CACHE STRING "")
set(CMAKE_CXX_FLAGS_RELEASE -O3 CACHE STRING "")
set(WEFT_BUILD_EXAMPLES OFF CACHE BOOL "")
set(WEFT_WARNINGS_AS_ERRORS OFF CACHE BOOL "")  # at -O3, g++ 12 warns about literal + std::string in tests (GCC bug 105651)
set(WEFT_TEST_FILTER "^[^/]*/[^/]*_(test|ranks)$|^gpu/" CACHE STRING "")
set(WEFT_BUILD_COMPILED OFF CACHE BOOL "")  # as for most users
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
