// SPDX-License-Identifier: MIT
// within 12: weft: save_onnx: pass what the model computes: save_onnx(path, model(x), {.inputs = {{"x", x}}, .tensors = state_dict(model)})
#include <weft/onnx/save.hpp>
#include <weft/weft.hpp>
using namespace weft;
void f(linear<2, 3>& model) { save_onnx("m.onnx", model); }
