# SPDX-License-Identifier: MIT
# Vectors of eight floats, regardless of the machine.
set(CMAKE_CXX_FLAGS "-mavx2 -mfma" CACHE STRING "")
set(WEFT_NATIVE OFF CACHE BOOL "")
include(${CMAKE_CURRENT_LIST_DIR}/o3.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
