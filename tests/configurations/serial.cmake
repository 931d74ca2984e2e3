# SPDX-License-Identifier: MIT
# Without oneTBB: kernels on one thread.
set(CMAKE_CXX_COMPILER g++ CACHE STRING "")
set(WEFT_WITH_TBB OFF CACHE STRING "")
set(WEFT_TEST_FILTER "^[^/]*/[^/]*_(test|ranks)$|^(chaos|gpu|job)/" CACHE STRING "")
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
