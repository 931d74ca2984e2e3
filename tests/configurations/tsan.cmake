# SPDX-License-Identifier: MIT
# clang with its thread sanitizer: ranks as threads and over TCP, threads that share a device, the store. Without oneTBB, whose own threads
# cause false reports. -O0 saves more time in compiling than it costs in running tests.
set(CMAKE_CXX_COMPILER clang++-19 CACHE STRING "")
set(CMAKE_CXX_FLAGS_RELEASE "-O0 -gline-tables-only" CACHE STRING "")
set(WEFT_SANITIZE thread CACHE STRING "")
set(WEFT_NATIVE OFF CACHE BOOL "")
foreach(component TBB OPENCL MPI)
  set(WEFT_WITH_${component} OFF CACHE STRING "")
endforeach()
set(WEFT_BUILD_EXAMPLES OFF CACHE BOOL "")
set(WEFT_TEST_FILTER "^comm/.*_test|^parallel/(context_threads|overlap|context_parallel|faults|join)" CACHE STRING "")
set(WEFT_TEST_EXCLUDE "^comm/out_of_memory_test" CACHE STRING "")  # replaces operator new, which is the sanitizer's
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
