// SPDX-License-Identifier: MIT
// A small model of odd sizes, trained on n ranks.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/nn/repeat.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/parallel/hook.hpp>
#include <weft/weft.hpp>

#include "../../compare.hpp"
#include "../../elements.hpp"

namespace training {

using namespace weft;

struct block {
  layer_normalization<> norm;
  linear<> in, out;
  auto operator()(expression auto x) const {
    return let(x, [&](auto x) { return x + dropout(out(gelu(in(norm(x)))), 0.1f); });
  }
};

struct net_sizes {
  index_t rows = 11, width = 6, hidden = 7;
};

/// Odd sizes, so that nothing divides evenly; the table is used twice.
struct net {
  embedding_table<> table;
  repeat<block> h;
  layer_normalization<> last;

  static net create(const device& where, const net_sizes& s = {}) {
    net n{
        embedding_table<>::create(s.rows, s.width, where), {}, layer_normalization<>::create(s.width, where)};
    for (int i = 0; i < 3; ++i)
      n.h.blocks.push_back({layer_normalization<>::create(s.width, where),
                            linear<>::create(s.width, s.hidden, where),
                            linear<>::create(s.hidden, s.width, where)});
    return n;
  }
  auto operator()(expression auto tokens) const {
    return matmul(last(h(table(tokens))), transpose(table.weight));
  }
};

struct outcome {
  std::vector<double> losses, norms;
  std::vector<float> parameters, optimizer;  // its state
  double scale = 1;            // of the loss, at the end
  std::vector<index_t> sent;   // bytes of data by this rank in the last step
};

using tokens = tensor<std::int32_t, extents<dyn>>;

inline tokens batch_of(index_t number, const device& where, int shift) {
  tokens t(shape{1, {5}}, where);
  std::vector<std::int32_t> v;
  for (index_t i = 0; i < 5; ++i) v.push_back(static_cast<std::int32_t>((number * 7 + i * 3 + shift) % 11));
  t.copy_from(v);
  return t;
}

inline device one_thread() { return device(std::make_shared<cpu::cpu_backend>(1)); }

using test::elements_of;

/// Trains on `per_rank` micro-batches per step on this rank.
template <class... Choices>
outcome train(communicator& ranks, const parallel_options& o, index_t per_rank, int steps,
              bool recompute = false, double scale = 65536, device (*make)() = one_thread,
              const net_sizes& sizes = {}) {
  const device where = make();
  net model = net::create(where, sizes);
  initialize(model, 5);
  adamw optimizer{.lr = 1e-2};
  auto run = bind<Choices...>(model, optimizer, ranks, o);
  run.seed = 3;
  loss_scaler scaler = run.scaler();
  scaler.scale = scale;
  run.set_scaler(scaler);
  run.recompute_programs = recompute ? context::every_program : 0;
  outcome result;
  const index_t total = per_rank * ranks.size();
  for (int s = 0; s < steps; ++s) {
    const traffic before = run.groups().sent();
    std::vector<double> losses(static_cast<std::size_t>(total));
    for (index_t j = 0; j < per_rank; ++j) {
      const index_t g = run.micro_batch(j, per_rank);
      run.begin_micro_batch(static_cast<std::uint64_t>(s), static_cast<std::uint64_t>(g));
      const auto quiet = run.no_sync(j + 1 < per_rank);
      tape steps(run);
      const auto loss = steps.eval(
          cross_entropy(model(batch_of(s * total + g, where, 0)), batch_of(s * total + g, where, 1)));
      steps.backward(loss);
      losses[static_cast<std::size_t>(g)] = loss.item();
    }
    ranks.all_reduce(losses, reduction::sum, {.control = true}).wait();
    double mean = 0;
    for (double l : losses) mean += l;
    result.losses.push_back(mean / static_cast<double>(total));
    const double norm = run.step({.clip = 0.5, .micro_batches = per_rank});
    result.norms.push_back(std::isfinite(norm) ? norm : -1);  // a skipped step
    const traffic sent = run.groups().sent() - before;
    result.sent = {sent.of(collective::all_reduce), sent.of(collective::reduce_scatter),
                   sent.of(collective::all_gather)};
  }
  result.scale = run.loss_scale;
  result.parameters = elements_of(run.full());
  result.optimizer = elements_of(run.full_optimizer());
  CHECK(result.optimizer.size() == 2 * result.parameters.size());
  return result;
}

template <class... Choices>
outcome train_on(int n, const parallel_options& o, index_t per_rank, int steps = 6, bool recompute = false,
                 double scale = 65536, device (*make)() = one_thread, const net_sizes& sizes = {}) {
  std::vector<outcome> of(static_cast<std::size_t>(n));
  run_ranks(n, [&](communicator& ranks) {
    of[static_cast<std::size_t>(ranks.rank())] =
        train<Choices...>(ranks, o, per_rank, steps, recompute, scale, make, sizes);
  });
  for (const outcome& r : of) {  // all ranks agree
    CHECK(r.losses == of[0].losses);
    CHECK(r.norms == of[0].norms);
    CHECK(r.parameters == of[0].parameters);
    CHECK(r.optimizer == of[0].optimizer);
  }
  for (int r = 1; r < n; ++r)
    for (std::size_t k = 0; k < 3; ++k) of[0].sent[k] += of[static_cast<std::size_t>(r)].sent[k];
  return of[0];
}

using test::largest_difference;
using test::largest_relative_difference;

inline constexpr sharding stages[] = {sharding::none, sharding::optimizer, sharding::gradients,
                                      sharding::parameters};

}  // namespace training
