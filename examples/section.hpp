// SPDX-License-Identifier: MIT
// Marks the start of a section of output that docs/ shows; read by tests/docs/check.py.
#pragma once

#include <iostream>

inline void section(const char* name) { std::cout << "-- " << name << '\n'; }
