// SPDX-License-Identifier: MIT
// Batch norm agrees with PyTorch, in training and inference: values, gradients, and the resulting running
// statistics.
#include "cases.hpp"

#include <weft/nn/batch_norm.hpp>

using namespace weft;
using namespace weft::test;

namespace {

template <int Order>
void of_order(const io::stored_tensors& cases) {
  using extents_of_order =
      std::tuple_element_t<Order - 2, std::tuple<order2, order3, order4, extents<dyn, dyn, dyn, dyn, dyn>>>;
  for (const bool training : {true, false}) {
    const std::string name = (training ? "training_" : "inference_") + std::to_string(Order);
    for_each_case(cases, name, [&](const stored_case& c) {
      auto x = c.variable<float, extents_of_order>("x");
      auto norm = batch_normalization<>::create(x.extents()[1]);
      norm.training = training;
      norm.momentum = c.stored<double, extents<1>>("momentum").to_vector()[0];
      for (const char* stored : {"weight", "bias", "running_mean", "running_var"})
        for (const auto& [own, t] : state_dict(norm))
          if (own == stored) c.restore(own, *t);
      c.agrees([&] { return norm(x); }, 2e-5, 1, "x", x, "weight", norm.weight, "bias", norm.bias);
      c.same(*norm.running_mean.state(), "after.running_mean", 1e-6, 1);
      c.same(*norm.running_var.state(), "after.running_var", 1e-6, 1);
      CHECK(norm.num_batches_tracked.item() == (training ? 1 : 0));
    });
  }
}

}  // namespace

TEST_CASE("batch norm") {
  const io::stored_tensors cases = file("batch_norm");
  of_order<2>(cases);
  of_order<3>(cases);
  of_order<4>(cases);
  of_order<5>(cases);
}
