# SPDX-License-Identifier: MIT
# What all configurations share: lightly optimised, which compiles fastest with g++, and free of warnings. -D before or after -C overrides.
set(CMAKE_BUILD_TYPE Release CACHE STRING "")
set(CMAKE_CXX_FLAGS_RELEASE -O1 CACHE STRING "")
set(WEFT_WARNINGS_AS_ERRORS ON CACHE BOOL "")
set(WEFT_BUILD_COMPILED ON CACHE BOOL "")
