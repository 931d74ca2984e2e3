// SPDX-License-Identifier: MIT
// within 10: weft: a policy or context takes at most one device
// at most 30 lines
#include <weft/weft.hpp>
using namespace weft;
struct second : host {};
void f() { context_in<on<host>, on<second>> c; }
