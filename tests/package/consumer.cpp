// SPDX-License-Identifier: MIT
#include <weft/weft.hpp>

int main() {
  auto x = weft::full<float>(weft::extents<4>{}, 2.0f);
  return weft::eval(sum(x * 3.0f)).item() == 24 ? 0 : 1;
}
