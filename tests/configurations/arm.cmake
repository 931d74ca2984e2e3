# SPDX-License-Identifier: MIT
# Matrix products, elementary functions, sizes and whole models on emulated NEON. Needs g++-aarch64-linux-gnu and qemu-user.
set(CMAKE_SYSTEM_NAME Linux CACHE STRING "")
set(CMAKE_SYSTEM_PROCESSOR aarch64 CACHE STRING "")
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++ CACHE STRING "")
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 CACHE STRING "")
set(CMAKE_EXE_LINKER_FLAGS -static CACHE STRING "")
set(WEFT_NATIVE OFF CACHE BOOL "")
foreach(component TBB OPENCL CUDA MPI GLOO)
  set(WEFT_WITH_${component} OFF CACHE STRING "")
endforeach()
set(WEFT_BUILD_EXAMPLES OFF CACHE BOOL "")
set(WEFT_TEST_FILTER "^device/(gemm|math)_test$|^run/sizes_test$|^agree/pytorch_test$" CACHE STRING "")
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
