// SPDX-License-Identifier: MIT
// The law of placement: under every valid placement of its operands, on 2 and 3 ranks, with extents that
// divide evenly and unevenly, every op has the value and gradients of the unsharded op.
//
// The tests also state how many placements of an op are valid, on how many ranks, and the bytes that two
// ranks send for all of them: without some rule, placements would be refused, or values gathered that can
// stay sharded.
#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <string>
#include <type_traits>

#include <weft/placement/messages.hpp>
#include <weft/weft.hpp>

#include "../unit/placement/ranks.hpp"

using namespace weft;

namespace {

using graph::compute_graph;
using test::array;

template <index_t... E>
using var = variable<float, extents<E...>>;
template <class T, index_t... E>
using data = tensor<T, extents<E...>>;

/// Some numbers for the leaves of a graph; integers are below `top`.
test::given_values some_values(const compute_graph& g, index_t top, std::vector<double> numbers = {}) {
  test::given_values v;
  v.numbers = std::move(numbers);
  v.numbers.resize(static_cast<std::size_t>(g.arguments), 2.0);
  v.sizes.resize(static_cast<std::size_t>(g.sizes), 0);
  v.leaves.resize(static_cast<std::size_t>(g.leaves));
  std::uint64_t state = 12345;
  for (const graph::node& n : g.nodes) {
    if (n.op != &graph::info_of<op::leaf>) continue;
    std::vector<index_t> e;
    for (int d = 0; d < n.result.extents.order; ++d)
      e.push_back(test::resolved(g.dims, n.result.extents[d], v));
    v.leaves[static_cast<std::size_t>(n.at[0])] = test::filled(e, [&](const test::position&) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const double x = static_cast<double>(state >> 11) * 0x1p-53;
      return is_floating(n.result.type) ? 0.25 + x : std::floor(x * static_cast<double>(top));
    });
  }
  return v;
}

bool near(const array& a, const array& b) {
  if (a.extents != b.extents) return false;
  for (std::size_t k = 0; k < a.at.size(); ++k)
    if (!(std::abs(a.at[k] - b.at[k]) <= 1e-9 * (1 + std::abs(b.at[k])))) return false;
  return true;
}

/// Whether each output of the sharded graph is, on each rank, the part of the unsharded one that its
/// placement specifies.
bool same_on(index_t ranks, const compute_graph& joint, const graph::placed_graph& placed,
             const sequence<placement>& leaves, const test::given_values& v) {
  const test::divided_program program(placed, v, ranks);
  const test::rank_values divided = program.values();
  const std::vector<array> undivided = test::interpreted(joint, v);
  for (int o = 0; o < joint.outputs.size(); ++o) {
    if (joint.outputs[o] < 0) continue;
    const placement& p = o == 0 ? placed.result : leaves[o - 1];
    const auto at = static_cast<std::size_t>(placed.graph.outputs[o]);
    const array& whole = undivided[static_cast<std::size_t>(joint.outputs[o])];
    for (index_t r = 0; r < ranks; ++r)
      if (!near(program.gradient(divided[at], whole, p, r), program.part_of(whole, p, r))) return false;
  }
  return true;
}

/// The placements of a value of shape `s`: whole, and sharded along each dim, also in groups of 2 and in
/// units of 2.
sequence<placement> placements_of(const shape& s) {
  sequence<placement> all{placement{}};
  for (int d = 0; d < s.order; ++d) {
    if (s[d] == 1) continue;
    all.push_back(divided_along(d));
    if (s[d] % 2 == 0 && s[d] > 2) {
      all.push_back(divided_along(d, 2));
      all.push_back(divided_along(d, 1, 2));
    }
  }
  return all;
}

/// The expected counts of an op.
struct counts {
  int fit = 0, runs = 0;
  index_t bytes = 0;
  bool operator==(const counts&) const = default;
};
std::string to_text(const counts& c) {
  return "{" + std::to_string(c.fit) + ", " + std::to_string(c.runs) + ", " + std::to_string(c.bytes) + "}";
}

/// The ops that some program of this test computes on shards of values.
std::set<std::string>& divided_ops() {
  static std::set<std::string> names;
  return names;
}

struct outcome {
  counts seen;
  int wrong = 0;
  std::string first_wrong;
};

void try_placement(const compute_graph& joint, const sequence<placement>& leaves, const test::given_values& v,
                   outcome& o) {
  const graph::placed_graph placed = graph::place(joint, leaves);
  if (placed.found) return;
  ++o.seen.fit;
  o.seen.bytes += graph::bytes_sent(placed.graph, 2);
  for (int i = 0; i < placed.graph.size(); ++i)
    if (placed.where[i].kind != weft::placed::whole) divided_ops().insert(placed.graph[i].op->name);
  std::string text;
  for (const placement& p : leaves) text += to_string(p) + "; ";
  if (const auto broken = graph::verify_graph(placed.graph)) {
    ++o.wrong;
    o.first_wrong += text + broken.what;
    return;
  }
  for (index_t ranks : {1, 2, 3}) {
    if (!test::divided_program(placed, v, ranks).fits()) continue;
    ++o.seen.runs;
    bool right = false;
    try {
      right = same_on(ranks, joint, placed, leaves, v);
    } catch (const std::logic_error& e) { text += e.what(); }
    if (right) continue;
    if (o.wrong++ == 0) o.first_wrong = text + std::to_string(ranks) + " ranks";
  }
}

/// All combinations of placements of the leaves of expression E.
template <expression E>
outcome placed_every_way(index_t top, std::vector<double> numbers) {
  const compute_graph joint = runtime::detail::joint_graph_of<E, program_options<>>();
  const test::given_values v = some_values(joint, top, std::move(numbers));
  sequence<sequence<placement>> choices(joint.leaves - 1, {});
  for (const graph::node& n : joint.nodes)
    if (n.op == &graph::info_of<op::leaf> && n.at[0] < joint.leaves - 1)
      choices[static_cast<int>(n.at[0])] = placements_of(n.result.extents);
  outcome o;
  sequence<int> at(choices.size(), 0);
  for (bool more = true; more;) {
    sequence<placement> leaves;
    for (int k = 0; k < at.size(); ++k)
      leaves.push_back(choices[k].empty() ? placement{} : choices[k][at[k]]);
    try_placement(joint, leaves, v, o);
    more = false;
    for (int k = 0; k < at.size() && !more; ++k) {
      more = ++at[k] < choices[k].size();
      if (!more) at[k] = 0;
    }
  }
  return o;
}

/// The law for f(operands...), with operand types A.
template <class... A>
struct on {
  template <class F>
  on(const char* name, const counts& expected, F, index_t top = 3, std::vector<double> numbers = {}) {
    using E = decltype(std::declval<F>()(std::declval<A>()...));
    const outcome o = placed_every_way<E>(top, std::move(numbers));
    CAPTURE(std::string(name));
    CHECK_MESSAGE(o.wrong == 0, o.first_wrong);
    CHECK_MESSAGE(o.seen == expected, to_text(o.seen));
  }
};

}  // namespace

TEST_CASE("element-wise ops: divided alike, whole operands are cut") {
  on<var<4, 3>, var<4, 3>>("add", {7, 19, 0}, [](auto x, auto y) { return x + y; });
  on<var<4, 3>, var<3>>("multiply", {5, 15, 72}, [](auto x, auto y) { return x * y; });
  on<var<4, 1>, var<3>>("divide", {5, 15, 104}, [](auto x, auto y) { return x / y; });
  on<var<4, 3>>("negate, exp, log, sqrt", {5, 15, 0}, [](auto x) { return sqrt(log(exp(-x) + 2.0f)); });
  on<var<4, 3>, var<3>>("maximum", {5, 15, 72}, [](auto x, auto y) { return maximum(x, y); });
  on<var<5>, var<5>>("pow", {2, 6, 0}, [](auto x, auto y) { return pow(x, y); });
  on<var<4, 3>, var<4, 3>>("where", {25, 59, 0},
                           [](auto x, auto y) { return where(x < y, x * 2.0f, sin(y)); });
  on<var<4, 3>>("activations", {19, 43, 0},
                [](auto x) { return gelu(x) * silu(x) + softplus(relu(x)) * atan(tanh(x)); });
  on<var<5>, var<5>>("other functions", {2, 6, 0}, [](auto x, auto y) {
    return floor(x) + round(y) - sign(x) * abs(cos(y)) + log1p(x) / rsqrt(y) + expm1(x) + minimum(x, y);
  });
  on<var<5>, var<5>>("conditions", {9, 27, 0}, [](auto x, auto y) {
    return where(logical_or(logical_and(x <= y, y != x), x < 0.5f), clamp(x, 0.5f, y), y);
  });
  on<var<4, 3>>("a derivative inside", {5, 15, 0},
                [](auto x) { return grad([](auto v) { return sum(v * v * v); }, x); });
  on<var<4, 3>, parameter<extents<3>>>("a parameter", {6, 18, 84}, [](auto x, auto w) { return x * w; });
  on<var<5>>("cast", {2, 6, 0}, [](auto x) { return cast<double>(x) * 2.0; });
}

TEST_CASE("folds") {
  on<var<4, 3>>("sum", {5, 15, 56}, [](auto x) { return sum(x); });
  on<var<4, 3>>("sum of rows", {7, 19, 32}, [](auto x) { return sum(x * x, dims<1>); });
  on<var<4, 3>>("mean of columns", {17, 51, 576}, [](auto x) { return mean(x, dims<0>, keepdim) * x; });
  on<var<4, 3>>("largest", {5, 15, 64}, [](auto x) { return amax(x, dims<1>); });
  on<var<4, 3>>("smallest", {4, 12, 0}, [](auto x) { return amin(x, dims<1>); });
  on<var<4, 3>>("logsumexp", {5, 15, 64}, [](auto x) { return logsumexp(x, dims<1>); });
  on<var<4, 3>>("vector_norm", {5, 15, 32}, [](auto x) { return vector_norm(x, dims<1>); });
  on<var<4, 3>>("variance", {5, 15, 96}, [](auto x) { return variance(x, dims<1>); });
  on<var<4, 3>>("stddev of columns", {5, 15, 216}, [](auto x) { return stddev<0>(x, dims<0>); });
  on<var<4, 5>>("softmax", {5, 15, 96}, [](auto x) { return softmax(x); });
  on<var<4, 5>>("softmax of columns", {5, 15, 360}, [](auto x) { return softmax<0>(x); });
  on<var<4, 5>>("log_softmax of columns", {5, 15, 360}, [](auto x) { return log_softmax<0>(x); });
  on<var<4, 5>>("normalize of columns", {5, 15, 240}, [](auto x) { return normalize<0>(x); });
  on<var<4, 5>, var<5>, var<5>>("layer_norm", {5, 15, 400},
                                [](auto x, auto w, auto b) { return layer_norm(x, w, b); });
  on<var<4, 4, 3>, var<4>>("group_norm", {14, 35, 1088},
                           [](auto x, auto w) { return group_norm<2>(x, w, w); });
  on<var<4, 4, 3>>("channel moments", {8, 24, 672}, [](auto x) { return apply<op::channel_moments>(x); });
  on<var<4, 4, 3>, var<2, 4>, var<4>>("batch norm", {22, 52, 672}, [](auto x, auto m, auto w) {
    return apply<op::batch_norm, attr<number_bits(1e-5)[0]>>(x, square(m), w, w);
  });
  on<var<2, 4, 3, 4>>("rotary", {7, 21, 0}, [](auto x) { return rotary(x, 2); });
  on<var<2, 4, 3, 4>, data<std::int32_t, 4>>("rotary of positions", {12, 34, 0},
                                             [](auto x, auto p) { return rotary(x, p); });
}

TEST_CASE("views and copies") {
  on<var<4, 6>>("transpose", {7, 21, 0}, [](auto x) { return transpose(x) * 2.0f; });
  on<var<4, 6>>("contiguous", {7, 21, 0}, [](auto x) { return apply<op::contiguous>(transpose(x)) * 2.0f; });
  on<var<4, 6>>("reshape, split", {6, 17, 0}, [](auto x) { return reshape<4, 3, 2>(x) * 2.0f; });
  on<var<4, 3, 2>>("reshape, merged", {6, 18, 0}, [](auto x) { return reshape<4, 6>(x) * 2.0f; });
  on<var<2, 3, 4>>("reshape, rows merged", {6, 18, 0}, [](auto x) { return reshape<6, 4>(x) * 2.0f; });
  on<var<4, 6>>("reshape, lost", {3, 5, 0}, [](auto x) { return reshape<3, 8>(x) * 2.0f; });
  on<var<4, 1>>("expand", {4, 12, 0}, [](auto x) { return expand<3, 4, 5>(x) * 2.0f; });
  on<var<4, 6>>("slice", {5, 15, 0}, [](auto x) { return slice<1, 0, 3>(x) * 2.0f; });
  on<var<6, 6>>("slice of two parts of a concatenation", {19, 45, 0},
                [](auto x) { return slice<1, 0, 12>(concat<1>(concat<1>(x, x), x)) * 2.0f; });
  on<var<4, 6>>("slice of the middle", {4, 12, 0}, [](auto x) { return slice<1, 1, 5>(x) * 2.0f; });
  on<var<4, 6>>("chunks", {7, 19, 0}, [](auto x) { return chunk<1, 2, 0>(x) * chunk<1, 2, 1>(x); });
  on<var<4, 6>>("flip", {4, 12, 0}, [](auto x) { return flip<1>(x) * 2.0f; });
  on<var<4, 3>>("pad", {5, 15, 0}, [](auto x) { return pad<1, 3, 0>(x) * 2.0f; });
  on<var<4, 3>, var<4, 3>>("concat", {7, 19, 0}, [](auto x, auto y) { return concat<1>(x, y) * 2.0f; });
  on<var<4, 3>, var<4, 2>>("concat of unequal parts", {6, 16, 0},
                           [](auto x, auto y) { return concat<1>(x, y) * 2.0f; });
}

TEST_CASE("products") {
  on<var<4, 5>, var<5, 3>>("matmul", {6, 18, 616}, [](auto x, auto w) { return matmul(x, w); });
  on<var<2, 3, 4>, var<4, 5>>("rows of a batch", {9, 25, 1712}, [](auto x, auto w) { return matmul(x, w); });
  on<var<4, 5>, var<3, 5>>("transposed", {6, 18, 616},
                           [](auto x, auto w) { return matmul(x, transpose(w)); });
  on<var<3, 4, 2>, var<3, 2, 5>>("batches", {7, 21, 1392}, [](auto x, auto y) { return matmul(x, y); });
  on<var<2, 3, 4>, var<4, 5>>("rows of a batch, by an equation", {9, 25, 1712},
                              [](auto x, auto w) { return einsum<"bij,jk->bik">(x, w); });
}

TEST_CASE("look-ups: rows of other ranks are zeros") {
  using index = data<std::int32_t, 4, 2>;
  on<var<5, 3>, index>("embedding", {7, 21, 672}, [](auto w, auto i) { return embedding(w, i); }, 5);
  on<var<6, 3>, index>("embedding in units", {8, 24, 960}, [](auto w, auto i) { return embedding(w, i); }, 5);
  on<var<4, 6>, data<std::int32_t, 5>>(
      "index_select of columns", {7, 21, 512}, [](auto x, auto i) { return index_select<1>(x, i); }, 6);
  on<var<4, 3>, index>("gather", {9, 25, 0}, [](auto x, auto i) { return gather<1>(x, i); }, 3);
  on<var<4, 3>, index, var<4, 2>>(
      "scatter_add", {15, 37, 0}, [](auto x, auto i, auto s) { return scatter_add<1>(x, i, s); }, 3);
  on<var<4, 5>, var<4>>("argmax", {9, 25, 0}, [](auto x, auto y) { return cast<float>(argmax<1>(x)) * y; });
  on<var<4, 5>>("sort", {4, 12, 0}, [](auto x) { return sort<1>(x); });
  on<var<4, 5>>("topk", {4, 12, 0}, [](auto x) { return topk<1, 2>(x).values; });
  on<var<4, 5>>("cumsum", {4, 12, 0}, [](auto x) { return cumsum<1>(x) * 2.0f; });
  on<var<4, 5>>("cumprod", {4, 12, 0}, [](auto x) { return cumprod<1>(x) * 2.0f; });
  on<var<4, 5>, var<4, 5>>("recurrence", {6, 16, 0}, [](auto x, auto y) {
    return apply<op::linear_recurrence, attr<1, 0>>(x, y) * 2.0f;
  });
  on<data<std::int32_t, 5>, var<5, 3>>("one_hot", {4, 12, 0},
                                       [](auto i, auto x) { return one_hot<3>(i) * x; });
}

TEST_CASE("images: ranks divide batch and channels, not the windows") {
  using image = var<4, 2, 4, 3>;
  on<image>("windows", {5, 15, 0}, [](auto x) { return windows<2>(x); });
  on<image>("max_pool2d", {5, 15, 0}, [](auto x) { return max_pool2d<2>(x); });
  on<image>("avg_pool2d", {5, 15, 0}, [](auto x) { return avg_pool2d<2>(x); });
  on<image, var<4, 2, 2, 3>>("conv2d", {5, 15, 3840}, [](auto x, auto w) { return conv2d(x, w); });
  on<image, var<2, 1, 2, 3>>("depthwise", {5, 15, 288},
                             [](auto x, auto w) { return conv2d<conv_options{.groups = 2}>(x, w); });
  on<image, var<2, 4, 2, 3>>("conv_transpose2d", {5, 15, 11520},
                             [](auto x, auto w) { return conv_transpose2d(x, w); });
  on<image>("upsample_nearest", {9, 27, 0}, [](auto x) { return upsample_nearest<2>(x); });
  on<image>("upsample_bilinear", {5, 15, 0}, [](auto x) { return upsample_bilinear<2>(x); });
}

/// A custom op, which the interpreter computes by name.
template <class Divides>
struct own_exp : op::rule<1>, Divides {
  static constexpr auto kind = op::op_kind::native;
  static constexpr auto name = "exp";
  static constexpr native_code code{};
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, operands[0]};
  }
  static constexpr auto vjp(auto g, auto y, auto) { return g * y; }
};
struct states_nothing {};
struct states_rows {
  static constexpr auto divides = "b. -> b.";
};

TEST_CASE("ops of users: what they state, or nothing but whole operands") {
  on<var<4, 3>>("nothing stated", {1, 3, 0}, [](auto x) { return apply<own_exp<states_nothing>>(x); });
  on<var<4, 3>>("rows", {4, 12, 0}, [](auto x) { return apply<own_exp<states_rows>>(x); });
}

TEST_CASE("values that are passed on") {
  on<var<4, 3>>("tap", {5, 15, 0}, [](auto x) { return tap(x, "x") * 2.0f; });
  on<var<4, 3>>("sum_over_positions", {7, 19, 0}, [](auto x) { return sum_over_positions(x) * x; });
}

TEST_CASE("attention by batch elements and heads") {
  using heads = var<2, 3, 4, 2>;
  on<heads, heads, heads>("causal", {11, 27, 0},
                          [](auto q, auto k, auto v) { return attention<causal>(q, k, v); });
  using keys = var<2, 3, 2, 2>;
  on<heads, keys, keys>("grouped queries", {4, 11, 0},
                        [](auto q, auto k, auto v) { return attention<causal>(q, k, v); });
  on<heads, keys, keys, var<2, 1, 1, 3>>(
      "mask", {9, 26, 4560}, [](auto q, auto k, auto v, auto mask) { return attention(q, k, v, mask); });
}

/// For each number of ranks from 1 on, whether it is valid; if so, also checks that all values are right.
template <class F>
std::string shared_on(F f, const sequence<placement>& leaves) {
  using queries = var<2, 3, 12, 2>;
  using keys = var<2, 3, 2, 2>;
  const compute_graph joint =
      runtime::detail::joint_graph_of<decltype(f(queries(), keys(), keys())), program_options<>>();
  const graph::placed_graph placed = graph::place(joint, leaves);
  if (placed.found) return graph::to_text(placed.found);
  CHECK(!graph::verify_graph(placed.graph));
  const test::given_values v = some_values(joint, 3);
  std::string fits;
  for (index_t ranks = 1; ranks <= 7; ++ranks) {
    fits += test::divided_program(placed, v, ranks).fits() ? '+' : '-';
    if (fits.back() == '+') CHECK(same_on(ranks, joint, placed, leaves, v));
  }
  return fits;
}

TEST_CASE("grouped queries: ranks that are more than the heads of keys have the same") {
  const placement heads = divided_along(2, 1, 6, 6), keys = divided_along(2, 1, 1, divided::shared);
  const auto attend = [](auto q, auto k, auto v) { return attention<causal>(q, k, v); };
  CHECK(shared_on(attend, {heads, keys, keys}) == "+++++++");
  CHECK(shared_on(attend, {divided_along(2, 1, 6, 3), keys, keys}) == "+++++++");
  // queries that are not sharded by key heads would meet the keys of other ranks' heads
  CHECK(shared_on(attend, {divided_along(2), keys, keys})
            .starts_with("attention: operands are divided differently (dim 2, dim 2, shared)"));
  // for functions of keys, and for joined and split keys and values; leaves are in the order of the formula
  CHECK(shared_on([](auto q, auto k, auto v) { return attention<causal>(q, exp(k) * 2.0f, sigmoid(v)); },
                  {heads, keys, keys}) == "+++++++");
  CHECK(shared_on(
            [](auto q, auto k, auto v) {
              return let(concat<2>(k, v), [q](auto all) {
                return attention<causal>(q, chunk<2, 2, 0>(all), sigmoid(chunk<2, 2, 1>(all)));
              });
            },
            {keys, keys, heads}) == "+++++++");
  // elements of keys may only be read together with queries: ranks would add the same ones several times
  CHECK(
      shared_on([](auto q, auto k, auto v) { return attention<causal>(q, k, v) * sum(k, dims<2>, keepdim); },
                {heads, keys, keys, keys})
          .starts_with("reduce_sum: this op needs whole operands along the divided dim (dim 2, shared"));
  CHECK(shared_on(attend, {heads, keys, {}}).starts_with("attention: a value that every rank has computed"));
  CHECK(shared_on([](auto q, auto k, auto v) { return attention<causal>(q, k + v, v); },
                  {heads, keys, divided_along(2), keys})
            .starts_with("add: operands are divided differently (dim 2, shared, dim 2)"));
}

TEST_CASE("losses") {
  on<var<4, 5>, data<std::int32_t, 4>>(
      "cross_entropy", {40, 112, 880}, [](auto x, auto y) { return cross_entropy(x, y); }, 5);
  on<var<4, 5>, data<std::int32_t, 4>>(
      "label smoothing", {10, 28, 192},
      [](auto x, auto y) {
        return cross_entropy<reduction_kind::sum, ignored_label, per_million<100'000>>(x, y);
      },
      5);
  on<var<4, 3>, var<4, 3>>("mse_loss", {7, 19, 72}, [](auto x, auto y) { return mse_loss(x, y); });
  on<var<4, 5>, var<4, 5>>("probabilities", {7, 19, 168}, [](auto x, auto y) { return cross_entropy(x, y); });
  on<var<4, 3>, var<4, 3>>("huber_loss", {7, 19, 72}, [](auto x, auto y) { return huber_loss(x, y); });
}

TEST_CASE("random numbers are those of the whole") {
  on<var<4, 3>, var<4, 3>>("bernoulli", {11, 31, 0}, [](auto x, auto p) { return x * bernoulli(p); });
  on<var<4, 3>, var<4, 3>>("multinomial", {10, 28, 0},
                           [](auto x, auto p) { return x + cast<float>(multinomial(p)); });
  on<var<4, 3>>("dropout", {5, 15, 0}, [](auto x) { return dropout(x, 0.3f); }, 3, {0.3, 1 / 0.7});
}

TEST_CASE("operands that are sums over ranks") {
  using x_t = var<4, 6>;
  using w_t = var<6, 4>;
  const auto with = [](auto f) { return [f](auto x, auto w) { return let(matmul(x, w), f); }; };
  on<x_t, w_t>("sum", {12, 34, 1792}, with([](auto s) { return s; }));
  on<x_t, parameter<extents<6, 4>>>("a sum over a parameter", {12, 34, 1792},
                                    [](auto x, auto w) { return matmul(x, w); });
  on<x_t, w_t>("sums added", {6, 16, 640}, with([](auto s) { return s + transpose(s) - s * 2.0f; }));
  on<x_t, w_t>("sums and numbers", {12, 34, 1792}, with([](auto s) { return -s / 3.0f + s * s; }));
  on<x_t, w_t>("sums in views", {6, 16, 880}, with([](auto s) {
                 return concat<1>(pad<1, 1, 2>(slice<0, 1, 3>(s)), flip<0>(slice<0, 0, 2>(s)));
               }));
  on<x_t, w_t>("sums folded", {12, 34, 2080},
               with([](auto s) { return sum(s, dims<1>) + amax(s, dims<1>); }));
  // The result of two sums over ranks is reduced once: ops that pass partial sums on do not reduce them.
  const auto of_two = [](auto f) {
    return [f](auto x, auto w, auto y, auto... c) { return f(matmul(x, w), c...) + f(matmul(y, w), c...); };
  };
  on<x_t, w_t, x_t>("two sums", {46, 114, 8320}, of_two([](auto s) { return s; }));
  on<x_t, w_t, x_t>("two sums negated", {46, 114, 8320}, of_two([](auto s) { return -s; }));
  on<x_t, w_t, x_t>("two sums folded", {86, 222, 15808}, of_two([](auto s) { return sum(s, dims<1>); }));
  using wide_x = variable<double, extents<4, 6>>;
  using wide_w = variable<double, extents<6, 4>>;
  on<wide_x, wide_w, wide_x>("two sums converted", {46, 114, 13440},
                             of_two([](auto s) { return cast<float>(s); }));
  on<x_t, w_t, x_t, data<float>>("two sums times a number", {46, 114, 8320},
                                 of_two([](auto s, auto c) { return s * c; }));
  on<x_t, w_t, x_t, data<float>>("two sums by a number", {46, 114, 8320},
                                 of_two([](auto s, auto c) { return s / c; }));
  on<x_t, w_t, x_t, data<float, 4, 4>>("two sums times a tensor", {116, 272, 38400},
                                       of_two([](auto s, auto c) { return s * c; }));
  on<x_t, w_t>("sums converted", {12, 34, 1792}, with([](auto s) { return cast<double>(s); }));
  on<x_t, w_t, var<4, 3>>("sums multiplied", {20, 54, 4352},
                          [](auto x, auto w, auto y) { return matmul(matmul(x, w), y); });
  on<x_t, w_t>("sums to a function", {12, 34, 2080}, with([](auto s) { return softmax(exp(s)); }));
  on<var<4, 5>, var<5, 3>, data<std::int32_t, 4, 2>>(
      "sums looked up", {10, 28, 1056}, [](auto x, auto w, auto i) { return gather<1>(matmul(x, w), i); }, 3);
}

TEST_CASE("every op has been divided above") {
  const auto check = []<class Op>(std::type_identity<Op>) {
    constexpr auto kind = Op::kind;
    const bool computes = kind != op::op_kind::composed && kind != op::op_kind::constant;
    CAPTURE(std::string(Op::name));
    const bool only_differentiates =
        std::is_same_v<Op, op::detach> || std::is_same_v<Op, op::differentiated_at>;
    if (computes && !only_differentiates) CHECK(divided_ops().contains(Op::name));
  };
  [&]<class... Ops>(op::op_list<Ops...>) { (check(std::type_identity<Ops>()), ...); }(op::all::list());
}
