# SPDX-License-Identifier: MIT
# Settings that all configurations share: light optimization, which compiles fastest with g++, and warnings as errors. -D before or after -C overrides them.
set(CMAKE_BUILD_TYPE Release CACHE STRING "")
set(CMAKE_CXX_FLAGS_RELEASE -O1 CACHE STRING "")
set(WEFT_WARNINGS_AS_ERRORS ON CACHE BOOL "")
set(WEFT_BUILD_COMPILED ON CACHE BOOL "")
