# SPDX-License-Identifier: MIT
# g++ with its address and undefined-behavior sanitizers.
set(CMAKE_CXX_COMPILER g++ CACHE STRING "")
set(WEFT_SANITIZE address,undefined CACHE STRING "")
set(WEFT_BUILD_EXAMPLES OFF CACHE BOOL "")
set(CMAKE_CXX_FLAGS -Wno-maybe-uninitialized CACHE STRING "")  # with sanitizers, g++ 12 warns about std::regex
set(WEFT_TEST_FILTER "^[^/]*/[^/]*_(test|ranks)$|^gpu/" CACHE STRING "")
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
