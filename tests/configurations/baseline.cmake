# SPDX-License-Identifier: MIT
# The instruction set that every x86-64 machine has: SSE2.
set(WEFT_NATIVE OFF CACHE BOOL "")
include(${CMAKE_CURRENT_LIST_DIR}/o3.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
