// SPDX-License-Identifier: MIT
// Messages of sharded layers that are in flight while other steps run: where they start and are waited for,
// bitwise the same results however late they arrive, and errors in between.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/parallel/tensor_parallel.hpp>
#include <weft/weft.hpp>

#include "../../../examples/gpt2.hpp"
#include "../../elements.hpp"
#include "../../late_communicator.hpp"
#include "divided_net.hpp"

using namespace weft;

namespace {

template <activations Between>
using plan = policy<strategy::mesh<tp<Between>>>;

/// The matrix products between the start and the arrival of each exchange of a program, in the order of
/// arrivals.
std::vector<std::string> covers(const lower::plan& p) {
  std::vector<std::string> found;
  for (int t = 0; t < p.steps.size(); ++t) {
    const lower::step_entry& arrival = p.steps[t];
    if (arrival.kind != lower::step_kind::arrival) continue;
    const int value = p.operands[arrival.first_operand + arrival.inputs - 1];
    int products = 0, start = t;
    for (bool is_start = false; !is_start;) {
      const lower::step_entry& s = p.steps[--start];
      is_start = s.kind == lower::step_kind::exchange && p.operands[s.first_operand + s.inputs] == value;
      products += s.kind == lower::step_kind::contraction || s.kind == lower::step_kind::native;
    }
    found.push_back(std::string(arrival.op) + " " + std::to_string(products));
  }
  return found;
}
template <class E, activations Between>
std::vector<std::string> backward_covers() {
  return covers(runtime::detail::backward_plan<E, typename plan<Between>::programs>::make());
}

using activation = variable<float, extents<dyn, dyn, 48>>;

/// Three column-sharded layers that read the same activation.
struct apart {
  linear<48, 48, divided::columns<>> q, k, v;
  linear<48, 48, divided::rows<>> out;
  auto operator()(expression auto x) const {
    return let(x, [this](auto h) { return out(relu(q(h)) * k(h) + v(h)); });
  }
};

/// Layers of columns of x, whose weights are the first operands of products, so that their gradients come
/// first.
struct weights_first {
  parameter<extents<96, 48>, float, divided::along<0>> in;
  parameter<extents<48, 96>, float, divided::along<1>> out;
  auto operator()(expression auto x) const { return matmul(out, relu(matmul(in, x))); }
};

using words = std::vector<std::string>;

}  // namespace

TEST_CASE("products of weights' gradients stand between the start and the arrival of messages") {
  using block = decltype(std::declval<const gpt2::block<48, 12>&>()(std::declval<activation>()));
  CHECK(backward_covers<block, activations::whole>() == words{"all_reduce 1", "all_reduce 1"});
  // Regathered activations arrive during the product before the one that reads them. Results of row-sharded
  // layers are needed at once.
  const words by_positions = backward_covers<block, activations::by_positions>();
  int gathers = 0, scatters = 0, sums = 0;
  for (const std::string& w : by_positions) {
    gathers += w == "all_gather 1";
    scatters += w == "reduce_scatter 1";
    sums += w.starts_with("all_reduce");  // of vectors, which arrive at the end
  }
  CHECK(gathers == 2);
  CHECK(scatters == 2);
  CHECK(sums == 6);
  CHECK(by_positions.size() == 12);
  for (std::size_t i = 6; i < by_positions.size(); ++i) CHECK(by_positions[i].starts_with("all_reduce"));
}

TEST_CASE("the gradients of three layers of one activation: one message, behind the last weights' gradient") {
  using E = decltype(std::declval<const apart&>()(std::declval<activation>()));
  const words found = backward_covers<E, activations::whole>();
  REQUIRE(found.size() == 1);
  CHECK(found[0] == "all_reduce 1");
}

TEST_CASE("a weight's gradient that comes before the message is computed behind it") {
  using E = decltype(std::declval<const weights_first&>()(std::declval<variable<float, extents<48, dyn>>>()));
  CHECK(backward_covers<E, activations::whole>() == words{"all_reduce 1"});
}

namespace {

using divided_model::B, divided_model::C, divided_model::T, divided_model::V;

/// The losses and parameters of three steps.
template <activations Between>
std::vector<double> trained(communicator& ranks) {
  auto model = divided_model::net::create(2);
  initialize(model, 3);
  sgd optimizer{.lr = 0.1, .momentum = 0.9};
  auto run = bind<plan<Between>>(model, optimizer, ranks, {.tp = ranks.size()});
  std::vector<double> all;
  for (int step = 0; step < 3; ++step)
    all.push_back(run.step(2,
                           [&](index_t j) {
                             const index_t n = 2 * step + j;
                             return cross_entropy(model(divided_model::batch(n, 0)),
                                                  divided_model::batch(n, 1));
                           })
                      .loss);
  for (double x : test::elements_of(run.full())) all.push_back(x);
  return all;
}

template <activations Between>
void same_bits_late() {
  for (int n : {2, 3})
    run_ranks(n, [](communicator& ranks) {
      const std::vector<double> prompt = trained<Between>(ranks);
      test::late_communicator late(ranks);
      CHECK(trained<Between>(late) == prompt);
      CHECK(late.most_under_way() > 1);
    });
}

}  // namespace

TEST_CASE("the same bits, however late messages are") {
  same_bits_late<activations::by_positions>();
  run_ranks(3, [](communicator& ranks) {
    const std::vector<double> prompt = trained<activations::whole>(ranks);
    test::late_communicator late(ranks);
    CHECK(trained<activations::whole>(late) == prompt);
  });
}

namespace {
/// A layer whose result is summed over ranks, plus rows by an index that may be out of range.
struct with_rows {
  linear<C, 4, divided::columns<>> in;
  linear<4, C, divided::rows<>> out;
  embedding_table<V, C> table;
  auto operator()(expression auto x, expression auto index) const { return out(relu(in(x))) + table(index); }
};
}  // namespace

TEST_CASE("products of which nothing overlaps the messages are marked, and send while they compute") {
  using block = decltype(std::declval<const gpt2::block<48, 12>&>()(std::declval<activation>()));
  const auto marked = [](const lower::plan& p) {
    int count = 0;
    for (const lower::step_entry& s : p.steps) count += s.in_slices;
    return count;
  };
  CHECK(marked(runtime::detail::forward_plan<block, plan<activations::whole>::programs>::make()) == 2);
  CHECK(marked(runtime::detail::forward_plan<block, program_options<>>::make()) == 0);
}

namespace {
/// Integral numbers, so that sums are exact in any order.
float whole_number(index_t i, index_t modulus) { return static_cast<float>(i * 7 % modulus - modulus / 2); }
template <index_t... E>
auto whole_numbers(extents<E...> e) {
  return generate<float>(e, [](index_t i) { return whole_number(i, 11); });
}

/// A row-sharded layer whose result has the size of its operand, whose memory is free after the product.
struct wide {
  linear<5, 128, divided::columns<>> in;
  linear<128, 64, divided::rows<>> out;
  auto operator()(expression auto x) const { return out(relu(in(x))); }
};
/// A matrix product for each index of the first dims.
struct batched {
  parameter<extents<1, 3, 5, 8>, float, divided::along<3>> in{zeros<float>(extents<1, 3, 5, 8>{})};
  parameter<extents<1, 3, 8, 64>, float, divided::along<2>> out{zeros<float>(extents<1, 3, 8, 64>{})};
  auto operator()(expression auto x) const { return matmul(relu(matmul(x, in)), out); }
};

/// Checks the result, which is sent in `messages` messages, against one rank's.
template <class Model, class X>
void check_slices(const X& x, int messages) {
  Model alone;
  const auto set = [](auto& model) {
    for_each_parameter(model, [](const std::string&, auto& p) {
      std::vector<float> all(static_cast<std::size_t>(p.extents().size()));
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = whole_number(static_cast<index_t>(i), 5);
      p.copy_from(all);
    });
  };
  set(alone);
  const std::vector<float> expected = eval(alone(x)).to_vector();
  for (int n : {1, 2, 3})
    run_ranks(n, [&](communicator& ranks) {
      test::late_communicator late(ranks);
      Model model;
      set(model);
      sgd optimizer;
      auto run = bind<plan<activations::whole>>(model, optimizer, late, {.tp = n});
      const int before = late.started();
      CHECK(eval(model(x), run).to_vector() == expected);
      CHECK(late.started() - before == (n == 1 ? 0 : messages));
    });
}
}  // namespace

TEST_CASE("results that are sent in slices are those of one rank") {
  check_slices<wide>(whole_numbers(extents<8195, 5>{}), 4);
  check_slices<wide>(whole_numbers(extents<3, 1367, 5>{}), 2);
  check_slices<wide>(whole_numbers(extents<67, 5>{}), 1);
  check_slices<batched>(whole_numbers(extents<1, 3, 2731, 5>{}), 3);
}

TEST_CASE("an error while messages are under way waits for them, and the next program runs") {
  run_ranks(2, [](communicator& ranks) {
    test::late_communicator late(ranks);
    with_rows model;
    initialize(model, 5);
    sgd optimizer;
    auto run = bind<plan<activations::whole>>(model, optimizer, late, {.tp = 2});
    const auto x = generate<float>(extents<2, C>{}, [](index_t i) { return 0.1f * static_cast<float>(i); });
    const auto good = from<std::int32_t>(extents<2>{}, {1, 2}),
               bad = from<std::int32_t>(extents<2>{}, {1, V});
    const std::vector<float> before = eval(model(x, good), run).to_vector();
    CHECK_THROWS_WITH_AS(eval(model(x, bad), run), doctest::Contains("embedding"), value_error);
    CHECK(eval(model(x, good), run).to_vector() == before);
  });
}

TEST_CASE("a rank that fails while messages are under way: the others are told by the arrival") {
  CHECK_THROWS_WITH(run_ranks(2,
                              [](communicator& ranks) {
                                test::late_communicator late(ranks);
                                with_rows model;
                                initialize(model, 5);
                                sgd optimizer;
                                auto run = bind<plan<activations::whole>>(model, optimizer, late, {.tp = 2});
                                if (ranks.rank() == 1) throw value_error("rank 1 has no batch");
                                const auto x = full<float>(extents<2, C>{}, 1.0f);
                                const auto index = from<std::int32_t>(extents<2>{}, {1, 2});
                                CHECK_THROWS_AS(eval(model(x, index), run), comm_error);
                              }),
                    doctest::Contains("rank 1 has no batch"));
}
