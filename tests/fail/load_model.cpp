// SPDX-License-Identifier: MIT
// within 12: weft: load: takes named tensors or one tensor: load(path, state_dict(model))
#include <weft/io/tensor_files.hpp>
#include <weft/weft.hpp>
using namespace weft;
void f(linear<2, 3>& model) { io::load("m.safetensors", model); }
