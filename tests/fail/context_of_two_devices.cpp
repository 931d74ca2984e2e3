// SPDX-License-Identifier: MIT
// within 10: weft: a policy or context takes at most one device
// at most 30 lines
#include <weft/device/kind.hpp>
#include <weft/run/context.hpp>
using namespace weft;
struct second : host {};
void f() { context_in<on<host>, on<second>> c; }
