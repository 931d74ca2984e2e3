# SPDX-License-Identifier: MIT
# Vectors of eight floats, whatever the machine has.
set(CMAKE_CXX_FLAGS "-mavx2 -mfma" CACHE STRING "")
set(WEFT_NATIVE OFF CACHE BOOL "")
set(WEFT_TEST_FILTER "^(agree|base|device|law|nn|optim|run)/.*_test$" CACHE STRING "")  # what computes elements
include(${CMAKE_CURRENT_LIST_DIR}/o3.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
