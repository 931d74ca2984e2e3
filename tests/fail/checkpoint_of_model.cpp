// SPDX-License-Identifier: MIT
// within 12: weft: checkpointer: takes a bound run: auto run = bind<plan>(model, optimizer); checkpointer saves(folder, run)
// at most 20 lines
#include <weft/train/checkpoint.hpp>
#include <weft/weft.hpp>
using namespace weft;
void f(linear<2, 3>& model, adamw& optimizer) { checkpointer saves("runs/a", model, optimizer); }
