# SPDX-License-Identifier: MIT
# g++ and every check: what users have most.
set(CMAKE_CXX_COMPILER g++ CACHE STRING "")
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
