// SPDX-License-Identifier: MIT
// How an expression is fused: its graph in Graphviz's DOT format.
//
//   draw_graph | dot -Tsvg -o docs/pictures/fused.svg
#include <cstdio>

#include <weft/run/draw.hpp>
#include <weft/weft.hpp>

int main() {
  using namespace weft;
  const tensor<float, extents<dyn, 784>> x(extents<dyn, 784>{32, 784});
  const linear<784, 10> layer;
  std::puts(to_dot(softmax(layer(x))).c_str());
}
