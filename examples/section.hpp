// SPDX-License-Identifier: MIT
// The line that begins a part of the output of a program that docs/ shows: tests/docs/check.py.
#pragma once

#include <iostream>

inline void section(const char* name) { std::cout << "-- " << name << '\n'; }
