// SPDX-License-Identifier: MIT
// Tables with a padding row: how it starts, and that training leaves it there, however the table is divided.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/nn/clone.hpp>
#include <weft/parallel/tensor_parallel.hpp>
#include <weft/weft.hpp>

#include "../../compare.hpp"
#include "../../elements.hpp"

using namespace weft;

namespace {

template <class Division>
struct net {
  embedding_table<7, 3, Division, 2> words;
  linear<3, 5> head;
  auto operator()(expression auto tokens) const { return head(words(tokens)); }
};
using whole_net = net<divided::nowhere>;

tensor<std::int64_t, extents<2, 4>> tokens() {
  return from(extents<2, 4>{}, std::vector<std::int64_t>{2, 0, 6, 2, 2, 5, 5, 3});
}
tensor<std::int64_t, extents<2, 4>> labels() {
  return from(extents<2, 4>{}, std::vector<std::int64_t>{0, 1, 2, 3, 4, 0, 1, 2});
}

/// Three steps; the parameters by name.
template <class Net, class Run>
state_dict_t trained(Net& model, Run& run) {
  for (int s = 0; s < 3; ++s) run.step(1, [&](index_t) { return cross_entropy(model(tokens()), labels()); });
  return run.full();
}
state_dict_t on_one_rank(std::uint64_t seed) {
  whole_net model;
  initialize(model, seed);
  adamw optimizer{.lr = 0.1, .weight_decay = 0.3};
  auto run = bind<policy<strategy::single>>(model, optimizer);
  return trained(model, run);
}
std::vector<float> row(const state_dict_t& parameters, index_t i) {
  const std::vector<float> all = test::elements_of({parameters.at(0)});
  return {all.begin() + 3 * i, all.begin() + 3 * i + 3};
}
const std::vector<float> zeros_of_row(3, 0.0f);

}  // namespace

TEST_CASE("padding: the row starts at 0, the others as without it, also of tables made at run time") {
  const auto check = [](const auto& padded, const auto& plain) {
    auto wanted = plain.weight.to_vector();
    std::fill(wanted.begin() + 6, wanted.begin() + 9, 0.0f);
    CHECK(padded.weight.to_vector() == wanted);
  };
  whole_net model;
  embedding_table<7, 3> plain;
  for (index_t j = 0; j < 3; ++j) CHECK(model.words.weight(2, j) == 0);
  initialize(model, 4);
  draw<float>(*plain.weight.state(),
              {model.words.weight.state()->init.seed, model.words.weight.state()->init.stream});
  check(model.words, plain);
  using table = embedding_table<dyn, dyn, divided::nowhere, 2>;
  auto sized = table::create(7, 3);
  CHECK(std::vector<float>(3) == eval(sized.weight[2]).to_vector());
  auto copy = clone(sized);
  draw<float>(*copy.weight.state(), {9, 1});
  draw<float>(*plain.weight.state(), {9, 1});
  check(copy, plain);
  auto deferred = table::create(7, 3, default_device().deferred());
  draw<float>(*deferred.weight.state(), {9, 1});
  materialize(deferred);
  check(deferred, plain);
  CHECK_THROWS_WITH_AS(table::create(2, 3), "weft: embedding_table: the padding index 2 is not one of 2 rows",
                       value_error);
  CHECK(table::create(3, 0).weight.size() == 0);
}

TEST_CASE("padding: the row gets no gradient, in second derivatives too, and training leaves it at 0") {
  whole_net model;
  initialize(model, 4);
  tape steps;
  steps.backward(steps.eval(sum(square(model.words(tokens()) + 1.0f))));
  CHECK(row({{"", model.words.weight.grad().state()}}, 2) == zeros_of_row);
  CHECK(row({{"", model.words.weight.grad().state()}}, 1) == zeros_of_row);  // no token
  CHECK(row({{"", model.words.weight.grad().state()}}, 5) != zeros_of_row);
  const auto slope = eval(grad(
      [&](auto w) {
        const auto f = [&](auto v) { return sum(exp(embedding<2>(v, tokens()))); };
        return sum(square(grad(f, w)));
      },
      model.words.weight));
  const auto plain = eval(grad(
      [&](auto w) {
        const auto f = [&](auto v) { return sum(exp(embedding(v, tokens()))); };
        return sum(square(grad(f, w)));
      },
      model.words.weight));
  for (index_t i = 0; i < 7; ++i)
    for (index_t j = 0; j < 3; ++j) CHECK(slope(i, j) == (i == 2 ? 0.0f : plain(i, j)));
  const state_dict_t ends = on_one_rank(4);
  CHECK(row(ends, 2) == zeros_of_row);
  CHECK(row(ends, 6) != row(named_parameters(model), 6));
}

TEST_CASE("padding: the same where ranks divide the table, by rows of parameters and by rows of the layer") {
  const state_dict_t one = on_one_rank(4);
  const auto check = [&](const state_dict_t& parameters) {
    CHECK(row(parameters, 2) == zeros_of_row);
    CHECK(test::largest_difference(test::elements_of(parameters), test::elements_of(one)) < 1e-5);
  };
  for (const bool is_deferred : {false, true})
    run_ranks(3, [&](communicator& ranks) {
      auto model = is_deferred ? create<whole_net>(default_device().deferred()) : whole_net{};
      initialize(model, ranks.rank() == 0 ? 4 : 5);
      adamw optimizer{.lr = 0.1, .weight_decay = 0.3};
      auto run = bind<policy<strategy::fully_sharded<3>>>(model, optimizer, ranks);
      check(trained(model, run));
    });
  for (const bool is_deferred : {false, true})
    run_ranks(2, [&](communicator& ranks) {
      using layers = net<divided::vocabulary>;
      auto model = is_deferred ? create<layers>(default_device().deferred()) : layers{};
      initialize(model, 4);
      adamw optimizer{.lr = 0.1, .weight_decay = 0.3};
      auto run = bind<policy<strategy::mesh<tp<>>>>(model, optimizer, ranks, {.tp = 2});
      check(trained(model, run));
    });
}

TEST_CASE("create: an error names a padding index only if there is one") {
  CHECK_THROWS_WITH_AS((embedding_table<dyn, dyn, divided::nowhere, 4>::create(3, 2)),
                       "weft: embedding_table: the padding index 4 is not one of 3 rows", value_error);
  try {
    (void)embedding_table<>::create(-2, 3);
    FAIL("nothing was refused");
  } catch (const error& refused) { CHECK(std::string(refused.what()).find("padding") == std::string::npos); }
}
