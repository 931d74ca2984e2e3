# SPDX-License-Identifier: MIT
# The instruction set that every machine of the architecture has: SSE2.
set(WEFT_NATIVE OFF CACHE BOOL "")
set(WEFT_TEST_FILTER "^(agree|base|device|law|nn|optim|run)/.*_test$" CACHE STRING "")  # what computes elements
include(${CMAKE_CURRENT_LIST_DIR}/o3.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
