// SPDX-License-Identifier: MIT
#include <weft/weft.hpp>

using namespace weft;

// Common names in programs: even with using namespace weft, they mean the program's own.
namespace {
bool run(const tensor<float, extents<4>>& x) { return eval(sum(x * 3.0f)).item() == 24; }
}  // namespace

int main() { return run(full<float>(extents<4>{}, 2.0f)) ? 0 : 1; }
