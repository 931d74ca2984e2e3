// SPDX-License-Identifier: MIT
// within 20: weft: the tensors of this class cannot be found: make it a plain struct
// at most 30 lines
#include <weft/weft.hpp>
using namespace weft;
struct net {
  linear<2, 2>* body;
};
index_t f(const net& n) { return parameter_count(n); }
