// SPDX-License-Identifier: MIT
// One translation unit that trains GPT-2 on ranks. AXES: the mesh's axes, "dp" or "pp<>, dp" for example.
#include <weft/parallel/bind.hpp>
#if WEFT_STAGES
#include <weft/parallel/pipeline.hpp>
#endif
#if WEFT_LAYERS
#include <weft/parallel/tensor_parallel.hpp>
#endif
#include <weft/weft.hpp>

#include "../../examples/gpt2.hpp"

using namespace weft;
using tokens = tensor<std::uint8_t, extents<dyn, dyn>>;

double train(communicator& ranks, const mesh_sizes& sizes, tokens inputs, tokens labels) {
  auto model = gpt2::model<>::create({});
  adamw optimizer{.lr = 3e-4};
  auto run = bind<policy<strategy::mesh<AXES>>>(model, optimizer, ranks, sizes);
  const auto loss = [&](index_t) { return cross_entropy(model(inputs, inputs.extent(1)), labels); };
  return run.step(4, loss, {.clip = 1.0}).loss;
}
