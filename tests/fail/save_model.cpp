// SPDX-License-Identifier: MIT
// within 12: weft: save: takes named tensors or one tensor: save(path, state_dict(model)); for an expression, save(path, eval(e))
#include <weft/io/tensor_files.hpp>
#include <weft/weft.hpp>
using namespace weft;
void f([[maybe_unused]] tensor<float, extents<1, 4, 2, 2>> x) {
  struct {
    linear<2, 3> a;
  } model;
  io::save("m.safetensors", model);
}
