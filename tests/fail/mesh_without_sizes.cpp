// SPDX-License-Identifier: MIT
// within 12: bind: a mesh of several axes needs their sizes
#include <weft/parallel/bind.hpp>
#include <weft/weft.hpp>
using namespace weft;
using plan = policy<strategy::mesh<dp, fsdp<3>>>;
void f(linear<2, 3>& model, sgd& optimizer, communicator& ranks) { bind<plan>(model, optimizer, ranks); }
