// SPDX-License-Identifier: MIT
// within 12: bind: an optimizer must have members `optimizer_state state`, `std::int64_t steps` and a
#include <weft/parallel/bind.hpp>
#include <weft/weft.hpp>
using namespace weft;
struct settings {
  double lr = 1e-3;
};
void f(linear<2, 3>& model, settings& s) { bind<policy<strategy::single>>(model, s); }
