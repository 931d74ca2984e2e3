// SPDX-License-Identifier: MIT
// PipeDream: an update after each backward pass, which uses the parameter version that the forward pass read.
// Compared with a simulation of the same delayed updates on one rank, which keeps all versions.
#include <numeric>

#include <weft/comm/counting.hpp>
#include <weft/parallel/schedule/live.hpp>

#include "pipelines.hpp"

using namespace pipelines;

namespace {

struct shifted_block {
  block inner;
  parameter<extents<dyn>> shift;  // one tensor in all blocks, or one in each
  auto operator()(expression auto x) const { return inner(x) + shift; }
};

/// Whether the head is tied to the table, and all stages read one parameter.
template <bool Tied>
struct net_of {
  embedding_table<> table;
  repeat<shifted_block> h;
  linear<> head;

  static net_of create(const device& where) {
    const auto shift = [&] { return make_parameter(extents<dyn>{6}, init::normal(0.1), where); };
    const auto shared = shift();
    net_of n{embedding_table<>::create(11, 6, where), {}, linear<>::create(6, Tied ? 6 : 11, where)};
    for (int i = 0; i < 5; ++i)
      n.h.blocks.push_back({{layer_normalization<>::create(6, where), linear<>::create(6, 7, where),
                             linear<>::create(7, 6, where)},
                            Tied ? shared : shift()});
    initialize(n, 5);
    return n;
  }
  auto operator()(expression auto tokens) const {
    if constexpr (Tied) return matmul(head(h(table(tokens))), transpose(table.weight));
    else return head(h(table(tokens)));
  }
};

const auto loss = [](const auto& model, const device& where, index_t number) {
  return cross_entropy(model(batch_of(number, where, 0)), batch_of(number, where, 1));
};

/// The stage that holds a parameter, which is the first that reads it, for these numbers of blocks.
int stage_of(const std::string& name, const std::vector<index_t>& blocks) {
  if (name.starts_with("head")) return static_cast<int>(blocks.size()) - 1;
  if (!name.starts_with("h.")) return 0;
  index_t block = name[2] - '0';
  int stage = 0;
  while (block >= blocks[static_cast<std::size_t>(stage)]) block -= blocks[static_cast<std::size_t>(stage++)];
  return stage;
}

/// Moves an f32 gradient on the host into a sum, as its first or a further part.
void add(std::shared_ptr<tensor_state>& sum, std::shared_ptr<tensor_state>& part) {
  if (const auto more = std::exchange(part, nullptr); !sum) {
    sum = more;
  } else {
    for (index_t i = 0; i < sum->extents.size(); ++i)
      static_cast<float*>(sum->memory.data())[i] += static_cast<const float*>(more->memory.data())[i];
  }
}

/// The gradient of micro-batch j of a step is that of a model whose stage s has received only the updates of
/// the micro-batches before j - (p - 1 - s); it updates the newest parameters.
template <class Precision, bool Tied>
outcome train_delayed(const setting& s) {
  const device where = one_thread();
  const auto newest = net_of<Tied>::create(where), seen = net_of<Tied>::create(where);
  const state_dict_t to = detail::once_each(newest), from = detail::once_each(seen);
  adamw optimizer{.lr = 1e-2};
  context_in<Precision> c(where);
  c.seed = 3;
  outcome result;
  index_t before = 0;
  for (const index_t m : s.per_rank) {
    const auto first = static_cast<std::uint64_t>(optimizer.steps);
    std::vector<std::vector<std::vector<float>>> versions;  // by update, then by parameter
    const auto remember = [&] {
      versions.emplace_back();
      for (const auto& named : to) versions.back().push_back(elements_of({named}));
    };
    remember();
    std::vector<double> losses(static_cast<std::size_t>(m * s.sizes.dp));
    for (index_t j = 0; j < m; ++j) {
      for (std::size_t i = 0; i < from.size(); ++i) {
        const index_t delay = s.sizes.pp - 1 - stage_of(from[i].first, s.blocks);
        const auto& old = versions[static_cast<std::size_t>(std::max<index_t>(0, j - delay))][i];
        where->upload(from[i].second->memory.data(), old.data(), from[i].second->bytes());
        to[i].second->grad = nullptr;
      }
      for (int rank = 0; rank < s.sizes.dp; ++rank) {
        const index_t number = rank * m + j;
        c.begin_micro_batch(first, static_cast<std::uint64_t>(number));
        tape steps(c);
        const auto value = steps.eval(loss(seen, where, before + number));
        steps.backward(value);
        losses[static_cast<std::size_t>(number)] = static_cast<double>(value.item());
        for (std::size_t i = 0; i < to.size(); ++i) add(to[i].second->grad, from[i].second->grad);
      }
      optimizer.step(newest, 1.0 / s.sizes.dp, c);
      remember();
    }
    before += m * s.sizes.dp;
    result.losses.push_back(std::accumulate(losses.begin(), losses.end(), 0.0) /
                            static_cast<double>(losses.size()));
  }
  result.parameters = elements_of(to);
  return result;
}

template <class Precision, bool Tied = false, class... Axes>
void check_bits(const setting& s) {
  INFO(to_string(s) << (Tied ? ", tied" : ""));
  const outcome expected = train_delayed<Precision, Tied>(s);
  const outcome staged =
      train_staged<policy<Precision, strategy::mesh<pp<>, Axes...>>>(s, net_of<Tied>::create, loss);
  CHECK(staged.losses == expected.losses);
  CHECK(staged.parameters == expected.parameters);
  for (const double norm : staged.norms) CHECK(norm == -1);  // is not known
}

/// Blocks by stage, 5 in all.
std::vector<index_t> blocks_of(int stages) {
  const std::vector<index_t> by_stages[] = {{5}, {2, 3}, {1, 3, 1}, {2, 1, 1, 1}, {1, 1, 1, 1, 1}};
  return by_stages[stages - 1];
}
setting pipedream(const mesh_sizes& sizes, std::vector<index_t> per_rank) {
  return {.sizes = sizes,
          .schedule = "pipedream",
          .per_rank = std::move(per_rank),
          .blocks = blocks_of(sizes.pp),
          .clip = 0};
}

}  // namespace

TEST_CASE("PipeDream: exactly the bits of delayed updates, each with the weights of its forward step") {
  for (const int stages : {1, 2, 3, 4, 5})
    check_bits<precision::f32>(pipedream({.pp = stages}, {8, 1, 3, 8}));
  for (const int stages : {2, 3})
    check_bits<precision::f32, false, dp>(pipedream({.pp = stages, .dp = 2}, {5, 2, 8}));
  setting again = pipedream({.pp = 3}, {8, 8});
  again.recompute = context::every_program;  // backward reads the parameters twice
  check_bits<precision::f32>(again);
  check_bits<precision::bf16>(again);
  again.deterministic = false;  // nothing else adds in another order
  check_bits<precision::f32>(again);
}

TEST_CASE("PipeDream: stages that read one parameter read the version of the first of them") {
  for (const bool deterministic : {true, false}) {
    for (const int stages : {2, 3, 4}) {
      setting s = pipedream({.pp = stages}, {9, 1, 4});
      s.deterministic = deterministic;
      check_bits<precision::f32, true>(s);
    }
    setting s = pipedream({.pp = 2, .dp = 2}, {5, 8});
    s.deterministic = deterministic;
    check_bits<precision::f32, true, dp>(s);
  }
}

namespace {

/// Blocks with a parameter of any size, which does not affect the size of activations.
struct heavy_block {
  linear<4, 4> layer;
  parameter<extents<dyn>> weights;
  auto operator()(expression auto x) const { return layer(x) + sum(weights); }
};
struct heavy_net {
  repeat<heavy_block> h;
  auto operator()(expression auto x) const { return h(x); }
};

/// The peak of two steps on this rank. Each stage has one block, with this many weights.
std::size_t peak_of(communicator& ranks, const device& where, index_t m, index_t weights) {
  using plan = policy<strategy::mesh<pp<pipeline::pipedream>>>;
  heavy_net model;
  for (int i = 0; i < ranks.size(); ++i)
    model.h.blocks.push_back(
        {{}, make_parameter(extents<dyn>{weights}, init::normal(0.1), where.deferred())});
  to(model, where);
  sgd optimizer;
  auto run = bind<plan>(model, optimizer, ranks, mesh_sizes{.pp = ranks.size()});
  for (int step = 0; step < 2; ++step)
    run.step(m, [&](index_t) { return mean(model(full<float>(extents<dyn, 4>{3, 4}, 1.0f, where))); });
  return where.memory().figures().peak;
}
std::size_t forecast_of(int rank, int stages, index_t m, index_t weights) {
  counting_communicator nowhere(rank, stages);
  return peak_of(nowhere, device(std::make_shared<counting_backend>()), m, weights);
}

}  // namespace

TEST_CASE("PipeDream: messages of tied parameters are in the memory that is known before") {
  using plan = policy<strategy::mesh<pp<pipeline::pipedream>>>;
  const auto peak = [](communicator& ranks, const device& where) {
    const auto model = net_of<true>::create(where.deferred());
    adamw optimizer;
    auto run = bind<plan>(model, optimizer, ranks, mesh_sizes{.pp = ranks.size()});
    for (int step = 0; step < 2; ++step) run.step(9, [&](index_t j) { return loss(model, where, j); });
    return where.memory().figures().peak;
  };
  run_ranks(3, [&](communicator& ranks) {
    INFO("stage " << ranks.rank());
    counting_communicator nowhere(ranks.rank(), 3);
    CHECK(peak(ranks, one_thread()) == peak(nowhere, device(std::make_shared<counting_backend>())));
  });
}

TEST_CASE("PipeDream: stage s of p holds p - s versions of its parameters, known before the first step") {
  constexpr index_t weights = 1 << 16, more = 1 << 14;
  for (const int p : {1, 2, 4}) {
    for (int stage = 0; stage < p; ++stage)
      for (const int m : {1, 2, 3, 4, 5, 6, 7, 12}) {
        INFO(p << " stages, stage " << stage << ", " << m << " micro-batches");
        const auto counts = pipeline::live(pipeline::pipedream(p, m));
        const int versions = counts[static_cast<std::size_t>(stage)].versions;
        if (m >= 2 * p) CHECK(versions == p - stage);
        const std::size_t grown =
            forecast_of(stage, p, m, weights + more) - forecast_of(stage, p, m, weights);
        CHECK(grown == static_cast<std::size_t>(4 * more * (versions + 1)));  // and one gradient
      }
    run_ranks(p, [&](communicator& ranks) {
      INFO("stage " << ranks.rank() << " of " << p);
      CHECK(peak_of(ranks, one_thread(), 2 * p, weights) == forecast_of(ranks.rank(), p, 2 * p, weights));
    });
  }
}
