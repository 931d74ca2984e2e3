// SPDX-License-Identifier: MIT
// within 10: weft: a policy or context takes at most one precision
// at most 20 lines
#include <weft/run/policy.hpp>
using namespace weft;
using plan = policy<precision::bf16, precision::f16>;
plan::programs f();
