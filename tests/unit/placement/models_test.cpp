// SPDX-License-Identifier: MIT
// Whole models, sharded: the resulting messages, the published volumes, and the values of all outputs.
#include <doctest/doctest.h>

#include <weft/parallel/tensor_parallel.hpp>
#include <weft/weft.hpp>

#include "../../../examples/gpt2.hpp"
#include "ranks.hpp"

using namespace weft;

namespace {

using graph::compute_graph;

template <index_t... E>
using var = variable<float, extents<E...>>;
template <class T, index_t... E>
using data = tensor<T, extents<E...>>;
template <index_t In, index_t Out, class Division>
using weight = parameter<extents<In, Out>, float, typename Division::template weight<1, 0>>;

constexpr index_t B = 2, T = 6, C = 24, H = 6, V = 11, S = B * T * C;
using plan = policy<strategy::mesh<tp<>>>;
using by_positions = policy<strategy::mesh<tp<activations::by_positions>>>;
using labels = data<std::int32_t, B, T>;

template <class F, class... A>
using of = decltype(std::declval<F>()(std::declval<A>()...));

using block = of<const gpt2::block<C, H>&, var<B, T, C>>;
using table = parameter<extents<V, C>, float, divided::vocabulary>;

// The volumes of Megatron-LM (Korthikanti et al., 2022), in elements for t ranks.
constexpr index_t bytes = 4;
static_assert(sent<block, plan>(4) == bytes * 8 * S * 3);
static_assert(sent<block, by_positions>(4) == bytes * (10 * S + 6 * 2 * C) * 3,
              "backward gathers two activations again; and six vectors of gradients");

inline constexpr auto embed = [](auto words, auto positions, auto tokens) {
  return embedding(words, tokens) + positions;
};
using embed_of = of<decltype(embed), table, parameter<extents<T, C>>, labels>;
static_assert(sent<embed_of, plan>(3) == bytes * 2 * S * 2);
static_assert(sent<embed_of, by_positions>(3) == bytes * (2 * S + T * C) * 2);

inline constexpr auto head = [](auto x, auto words, auto y) {
  return cross_entropy(matmul(x, transpose(words)), y);
};
using head_of = of<decltype(head), var<B, T, C>, table, labels>;
static_assert(sent<head_of, plan>(3) == bytes * (2 * S + 6 * B * T) * 2);
static_assert(sent<head_of, by_positions>(3) == bytes * (3 * S + 6 * B * T) * 2);

// Separate queries, keys and values after a norm: their gradients are added before they are reduced over
// ranks.
struct apart {
  layer_normalization<C> norm;
  weight<C, C, divided::columns<>> q, k, v;
  weight<C, C, divided::rows<>> out;
  auto operator()(expression auto x) const {
    return let(norm(x), [this](auto h) {
      const auto heads = [](auto y) { return unflatten<-1, H>(y); };
      return matmul(
          flatten<2, 3>(attention<causal>(heads(matmul(h, q)), heads(matmul(h, k)), heads(matmul(h, v)))),
          out);
    });
  }
};
static_assert(sent<of<const apart&, var<B, T, C>>, plan>(2) == bytes * 4 * S);

/// Custom layers: a gated unit, and an LSTM step whose gates are groups.
struct gated {
  rms_normalization<C> norm;
  weight<C, 10, divided::columns<>> gate, up;
  weight<10, C, divided::rows<>> down;
  auto operator()(expression auto x) const {
    return let(x, [this](auto h) {
      return h + let(norm(h), [this](auto n) { return matmul(silu(matmul(n, gate)) * matmul(n, up), down); });
    });
  }
};
/// Mixes positions with an unsharded matrix, as an MLP-Mixer does.
struct mixer {
  gated after;
  weight<T, T, divided::nowhere> mix;
  auto operator()(expression auto x) const {
    return after(let(x, [this](auto h) { return h + transpose(matmul(transpose(tanh(h)), mix)); }));
  }
};
struct lstm_step {
  weight<5, 28, divided::columns<4>> wx;
  weight<7, 28, divided::columns<4>> wh;
  parameter<extents<28>, float, divided::columns<4>::bias> b;
  weight<7, 3, divided::rows<>> out;
  auto operator()(expression auto x, expression auto h) const {
    return let(matmul(x, wx) + matmul(h, wh) + b, [this](auto z) {
      const auto cell = sigmoid(chunk<-1, 4, 0>(z)) * tanh(chunk<-1, 4, 2>(z));
      return matmul(sigmoid(chunk<-1, 4, 3>(z)) * tanh(cell), out);
    });
  }
};

bool near(const test::array& a, const test::array& b) {
  if (a.extents != b.extents) return false;
  for (std::size_t k = 0; k < a.at.size(); ++k)
    if (!(std::abs(a.at[k] - b.at[k]) <= 1e-9 * (1 + std::abs(b.at[k])))) return false;
  return true;
}

/// Checks all outputs of E on 1, 2 and 3 ranks; `sizes` are the extents of leaves that are known only at run
/// time.
template <expression E>
void check_values(bool in_stream, const std::vector<std::vector<index_t>>& shapes = {},
                  const std::vector<index_t>& sizes = {},
                  const std::vector<index_t>& numbers_of_ranks = {1, 2, 3}) {
  const compute_graph joint = runtime::detail::joint_graph_of<E, program_options<>>();
  const graph::stream_extents stream = in_stream ? graph::stream_of(joint) : graph::stream_extents{};
  const weft::sequence<placement> leaves = graph::leaf_placements(joint, stream);
  const graph::placed_graph placed = graph::detail::placed_program(joint, in_stream);
  REQUIRE_MESSAGE(!placed.found, graph::to_text(placed));
  CHECK(!graph::verify_graph(placed.graph));
  test::given_values v;
  v.sizes = sizes;
  v.numbers.assign(static_cast<std::size_t>(joint.arguments), 0.5);
  v.leaves.resize(static_cast<std::size_t>(joint.leaves));
  double next = 0.1;
  for (const graph::node& n : joint.nodes) {
    if (n.op != &graph::info_of<op::leaf>) continue;
    const auto number = static_cast<std::size_t>(n.at[0]);
    std::vector<index_t> e;
    if (number < shapes.size()) e = shapes[number];
    for (int d = 0; number >= shapes.size() && d < n.result.extents.order; ++d)
      e.push_back(test::resolved(joint.dims, n.result.extents[d], v));
    v.leaves[number] = test::filled(e, [&](const test::position&) {
      next = next * 1.37 + 0.11;
      next -= std::floor(next);
      return is_floating(n.result.type) ? next - 0.5 : std::floor(next * static_cast<double>(V));
    });
  }
  const std::vector<test::array> whole = test::interpreted(joint, v);
  for (const index_t ranks : numbers_of_ranks) {
    const test::divided_program program(placed, v, ranks);
    REQUIRE(program.fits());
    const test::rank_values values = program.values();
    for (int o = 0; o < joint.outputs.size(); ++o) {
      if (joint.outputs[o] < 0) continue;
      const placement p = o == 0 ? placed.result : leaves[o - 1];
      for (index_t r = 0; r < ranks; ++r)
        CHECK(near(values[static_cast<std::size_t>(placed.graph.outputs[o])][static_cast<std::size_t>(r)],
                   program.part_of(whole[static_cast<std::size_t>(joint.outputs[o])], p, r)));
    }
  }
}

}  // namespace

TEST_CASE("a GPT-2 block: four all_reduces; with sequence four gathers and four scatters") {
  for (const bool in_stream : {false, true}) {
    const compute_graph joint = runtime::detail::joint_graph_of<block, program_options<>>();
    const graph::placed_graph p = graph::detail::placed_program(joint, in_stream);
    int reduces = 0, gathers = 0, scatters = 0, vectors = 0;
    for (const graph::message& m : graph::messages_of(p.graph)) {
      const bool large = m.whole.extents.size() == S;
      vectors += !large;
      reduces += large && m.op == &graph::info_of<op::all_reduce>;
      gathers += m.op == &graph::info_of<op::all_gather>;
      scatters += m.op == &graph::info_of<op::reduce_scatter>;
    }
    CHECK(reduces == (in_stream ? 0 : 4));
    CHECK(gathers == (in_stream ? 4 : 0));
    CHECK(scatters == (in_stream ? 4 : 0));
    CHECK(vectors == (in_stream ? 6 : 0));
    check_values<block>(in_stream);
  }
}

TEST_CASE("extents that are known at run time") {
  using blocks = of<const gpt2::block<dyn, dyn>&, var<dyn, dyn, dyn>>;
  const std::vector<std::vector<index_t>> shapes = {{B, T, C},  {B, T, C}, {C},        {C}, {C, 3 * C},
                                                    {3 * C},    {C, C},    {C},        {C}, {C},
                                                    {C, 4 * C}, {4 * C},   {4 * C, C}, {C}};
  check_values<blocks>(false, shapes, {H, H, H});
  check_values<blocks>(true, shapes, {H, H, H});
}

TEST_CASE("evaluation without gradients: values between programs are no variables, and divided alike") {
  using blocks = of<const gpt2::block<dyn, dyn>&, data<float, dyn, dyn, dyn>>;
  const compute_graph g = graph::expanded(runtime::detail::graph_of<blocks, program_options<>>());
  const graph::placed_graph p = graph::detail::placed_program(g, true);
  REQUIRE_MESSAGE(!p.found, graph::to_text(p));
  CHECK(p.result == divided_along(1));
  std::vector<std::string> sent;
  for (const graph::message& m : graph::messages_of(p.graph)) sent.push_back(m.op->name);
  CHECK(sent == std::vector<std::string>{"all_gather", "reduce_scatter", "all_gather", "reduce_scatter"});
  CHECK(!graph::detail::placed_program(g, false).found);
}

TEST_CASE("the ends of a model, and layers of a user's own") {
  for (const bool in_stream : {false, true}) {
    check_values<embed_of>(in_stream);
    check_values<head_of>(in_stream);
    check_values<of<const apart&, var<B, T, C>>>(in_stream);
    check_values<of<const gated&, var<B, T, C>>>(in_stream);
    check_values<of<const mixer&, var<B, T, C>>>(in_stream);
  }
  check_values<of<const lstm_step&, var<3, 5>, var<3, 7>>>(false);
}

TEST_CASE("logits and gradients of a divided vocabulary are never whole") {
  const graph::placed_graph p =
      graph::detail::placed_program(runtime::detail::joint_graph_of<head_of, program_options<>>(), false);
  const sequence<bool> live = graph::live_nodes(p.graph);
  for (int i = 0; i < p.graph.size(); ++i)
    for (int d = 0; live[i] && d < p.graph[i].result.extents.order; ++d)
      CHECK_MESSAGE(p.graph[i].result.extents[d] != V, graph::to_text(p));
  for (const bool in_stream : {false, true}) {
    const graph::placed_graph rows = graph::detail::placed_program(
        runtime::detail::joint_graph_of<embed_of, program_options<>>(), in_stream);
    for (const graph::node& n : rows.graph.nodes)
      CHECK((n.result.extents.order == 0 || n.result.extents[0] != V));
  }
}

TEST_CASE("a divided graph as text and as a picture") {
  const graph::placed_graph p =
      graph::detail::placed_program(runtime::detail::joint_graph_of<block, program_options<>>(), false);
  const std::string text = graph::to_text(p);
  CHECK(text.find("all_reduce") != std::string::npos);
  CHECK(text.find("{dim 1 in 3 groups}") != std::string::npos);
  CHECK(
      graph::to_text(graph::messages_of(p.graph)) ==
      "all_reduce f32 [12, 24]\nall_reduce f32 [12, 24]\nall_reduce f32 [12, 24]\nall_reduce f32 [12, 24]\n");
  const linear<C, 8, divided::columns<>> in;
  const linear<8, C, divided::rows<>> out;
  const std::string dot = to_dot_divided<plan>(out(in(var<4, C>(shape{2, {4, C}}))));
  CHECK(dot.find("shape=oval") != std::string::npos);
}
