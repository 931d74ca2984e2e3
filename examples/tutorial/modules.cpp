// SPDX-License-Identifier: MIT
// Chapter 4 of the tutorial, docs/tutorial/modules.md: modules.
#include <iostream>

#include <weft/weft.hpp>

#include "../section.hpp"
using namespace weft;

// [mlp]
struct mlp {
  linear<784, 128> hidden;
  linear<128, 10> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};
// [/mlp]

// [sizes]
struct wide_mlp {
  linear<> hidden;   // sizes given at run time
  linear<> output;

  static wide_mlp create(index_t in, index_t width, index_t out) {
    return {linear<>::create(in, width), linear<>::create(width, out)};
  }
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};
// [/sizes]

// [own]
/// y = x W times a trained scale, minus a running mean, which is not trained.
struct scaled {
  parameter<extents<4, 4>> weight = make_parameter(extents<4, 4>{}, init::normal(0.5));
  parameter<extents<>> scale = make_parameter(extents<>{}, init::constant(1));
  tensor<float, extents<4>> running_mean = zeros<float>(extents<4>{});   // a buffer

  auto operator()(expression auto x) const { return matmul(x, weight) * scale - running_mean; }
};
// [/own]

// [blocks]
template <index_t C>
struct block {
  layer_normalization<C> norm;
  feed_forward<C, 4 * C> mlp;
  auto operator()(expression auto x) const {
    return let(x, [this](auto h) { return h + mlp(norm(h)); });
  }
};
struct tower {
  repeat<block<16>> blocks;   // one program for any number of blocks
  linear<16, 2> head;
  auto operator()(expression auto x) const { return head(blocks(x)); }
};
// [/blocks]

int main() {
  section("mlp");
  // [use]
  mlp model;
  initialize(model, 1);
  auto images = randn<float>(extents<dyn, 784>{32, 784});
  auto logits = eval(model(images));
  std::cout << to_string(logits.extents()) << '\n' << model;
  static_assert(parameter_count<mlp>() == 784 * 128 + 128 + 128 * 10 + 10);
  // [/use]

  section("names");
  // [names]
  for (const auto& [name, t] : state_dict(model))
    std::cout << name << ' ' << name_of(t->type) << ' ' << to_string(t->extents) << '\n';
  // [/names]

  section("sizes");
  // [use_sizes]
  auto wide = wide_mlp::create(784, 512, 10);
  std::cout << parameter_count(wide) << '\n';
  // [/use_sizes]

  section("own");
  // [use_own]
  scaled layer;
  std::cout << layer;
  // [/use_own]

  section("sequential");
  // [sequential]
  sequential net{linear<784, 64>{}, [](auto x) { return relu(x); }, dropout_layer{0.1f}, linear<64, 10>{}};
  std::cout << net;
  // [/sequential]

  section("blocks");
  // [use_blocks]
  tower deep;
  deep.blocks.blocks.resize(12);
  std::cout << parameter_count(deep) << " parameters, "
            << to_string(eval(deep(randn<float>(extents<dyn, 16>{8}))).extents()) << '\n';
  // [/use_blocks]

  section("copies");
  // [copies]
  auto same = model;            // copies handles: the same parameters
  auto best = clone(model);     // separate parameters
  initialize(model, 2);
  const auto first = [](const mlp& m) { return m.hidden.weight.data()[0]; };
  std::cout << std::boolalpha << (first(same) == first(model)) << ' ' << (first(best) == first(model))
            << '\n';
  // [/copies]
}
