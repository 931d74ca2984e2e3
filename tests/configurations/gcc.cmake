# SPDX-License-Identifier: MIT
# g++ and every check, but the test programs that clang-asan.cmake or tsan.cmake build and that compute little, and what takes long
# and is tried elsewhere in part; an empty WEFT_TEST_EXCLUDE has these, too. With more memory before g++ collects garbage, a tenth less time.
set(CMAKE_CXX_COMPILER g++ CACHE STRING "")
set(CMAKE_CXX_FLAGS_RELEASE "-O1 --param=ggc-min-heapsize=1048576" CACHE STRING "")
set(WEFT_TEST_EXCLUDE "^comm/.*_test$|^expr/lifetime|^io/|^law/elementwise_gradient|^shape/|^structure/warnings_O3|^train/loader" CACHE STRING "")
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
