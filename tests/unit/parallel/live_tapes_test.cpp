// SPDX-License-Identifier: MIT
// Several tapes that hold entries at the same time, as under pipeline schedules.
#include <optional>

#include "training.hpp"

using namespace training;

namespace {
/// Counts the gathers that were in flight while programs ran, which poll them, and those that were not.
class watched_communicator : public threads_communicator {
 public:
  using threads_communicator::threads_communicator;
  int ahead = 0, at_once = 0;

 protected:
  work start(operation o) override {
    const bool gathers = o.kind == collective::all_gather;
    work w = threads_communicator::start(std::move(o));
    return gathers ? work(std::make_shared<watched>(std::move(w), *this)) : std::move(w);
  }

 private:
  struct watched : work::state {
    work message;
    watched_communicator& by;
    int polls = 0;
    bool over = false;
    watched(work w, watched_communicator& c) : message(std::move(w)), by(c) {}
    bool poll() override { return ++polls, over; }
    void wait(std::chrono::milliseconds limit) override {
      ++(polls > 1 ? by.ahead : by.at_once);  // waiting has polled once
      message.wait(limit);
      over = true;
    }
    std::exception_ptr failure() const override { return nullptr; }  // wait throws it
  };
};

struct result {
  std::vector<float> losses, parameters;
  int ahead = 0, at_once = 0;  // gathers of the last step
  index_t gathered = 0;        // bytes, in the last step
  bool operator==(const result& other) const {
    return losses == other.losses && parameters == other.parameters;
  }
};

/// Trains with `live` forward passes before the first backward pass: 1F1B, as a stage of a pipeline.
result train_interleaved(watched_communicator& ranks, const parallel_options& o, std::size_t live,
                         bool recompute = false) {
  constexpr std::size_t count = 4;
  const device where = one_thread();
  net model = net::create(where);
  initialize(model, 5);
  adamw optimizer{.lr = 1e-2};
  auto run = bind(model, optimizer, ranks, o);
  run.recompute_programs = recompute ? context::every_program : 0;
  result r;
  for (int s = 0; s < 3; ++s) {
    const traffic before = run.groups().sent();
    ranks.ahead = ranks.at_once = 0;
    using loss_type = variable<float, extents<>>;
    std::optional<tape<>> tapes[count];
    loss_type losses[count];
    for (std::size_t j = 0; j < count + live - 1; ++j) {
      if (j < count) {
        const index_t g = run.micro_batch(static_cast<index_t>(j), count);
        run.begin_micro_batch(static_cast<std::uint64_t>(s), static_cast<std::uint64_t>(g));
        tapes[j].emplace(run);
        losses[j] = tapes[j]->eval(cross_entropy(model(batch_of(g, where, 0)), batch_of(g, where, 1)));
        r.losses.push_back(losses[j].item());
      }
      if (j + 1 < live) continue;
      const std::size_t back = j + 1 - live;
      const auto quiet = run.no_sync(back + 1 < count);
      tapes[back]->backward(losses[back]);
    }
    run.step({.clip = 0.5, .micro_batches = count});
    r.gathered = (run.groups().sent() - before).of(collective::all_gather);
    r.ahead = ranks.ahead;
    r.at_once = ranks.at_once;
  }
  r.parameters = elements_of(run.full());
  return r;
}

template <class F>
void on_watched_ranks(int n, F f) {
  const auto group = std::make_shared<detail::thread_group>(std::make_shared<detail::thread_world>(), n);
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&, r] {
      watched_communicator ranks(group, r);
      f(ranks);
    });
  for (std::thread& t : threads) t.join();
}
}  // namespace

TEST_CASE("tapes that are alive at once: the bits of one after the other, under every stage") {
  for (sharding stage : stages)
    for (int n : {2, 3})
      for (bool reshard : {true, false})
        for (bool recompute : {false, true}) {
          if (stage != sharding::parameters && (!reshard || recompute)) continue;
          on_watched_ranks(n, [&](watched_communicator& ranks) {
            const parallel_options o{.divide = stage, .reshard_after_forward = reshard};
            const result sequential = train_interleaved(ranks, o, 1, recompute);
            for (std::size_t live : {2, 3}) {
              const result interleaved = train_interleaved(ranks, o, live, recompute);
              INFO("stage " << static_cast<int>(stage) << " on " << n << " ranks, " << live << " tapes");
              CHECK(interleaved == sequential);
              CHECK((interleaved.gathered > 0) == (stage != sharding::none));
              if (stage != sharding::parameters) continue;
              CHECK(interleaved.at_once <= sequential.at_once);
              if (reshard) CHECK(interleaved.ahead == sequential.ahead);
              else CHECK(interleaved.gathered * 4 == sequential.gathered);  // once for all four
            }
          });
        }
}

// Not bitwise identical: the gradient of the table, which both parts read, is summed in another order.
TEST_CASE("parts of a model on tapes of their own: as on one tape, and gathered as far ahead") {
  const auto train = [](watched_communicator& ranks, bool apart) {
    const device where = one_thread();
    net model = net::create(where);
    initialize(model, 5);
    adamw optimizer{.lr = 1e-2};
    auto run = bind(model, optimizer, ranks, {.divide = sharding::parameters});
    result r;
    for (int s = 0; s < 4; ++s) {
      run.begin_step(static_cast<std::uint64_t>(s));
      ranks.ahead = ranks.at_once = 0;
      tape first(run), second(run);
      tape<>& other = apart ? second : first;
      auto x = first.eval(model.table(batch_of(s, where, 0)));
      for (std::size_t b : {0, 1}) x = decltype(x)(first.eval(model.h.blocks[b](x)));
      auto y = apart ? decltype(x)(alias_of(*x.state())) : x;
      const auto h = other.eval(model.h.blocks[2](y));
      const auto loss = other.eval(
          cross_entropy(matmul(model.last(h), transpose(model.table.weight)), batch_of(s, where, 1)));
      other.backward(loss);
      if (apart) first.backward(x, y.grad());
      r.losses.push_back(loss.item());
      run.step();
      r.ahead = ranks.ahead;
    }
    r.parameters = elements_of(run.full());
    return r;
  };
  on_watched_ranks(2, [&](watched_communicator& ranks) {
    const result whole = train(ranks, false), parts = train(ranks, true);
    CHECK(parts.losses[0] == whole.losses[0]);
    CHECK(largest_difference(parts.losses, whole.losses) < 1e-5);
    CHECK(largest_difference(parts.parameters, whole.parameters) < 1e-6);
    CHECK(parts.ahead >= 2);  // one ahead in each direction of the first part, which has two blocks
  });
}

TEST_CASE("gathered parameters stay as long as a tape wants them that was not dropped") {
  run_ranks(2, [](communicator& ranks) {
    const device where = one_thread();
    net model = net::create(where);
    adamw optimizer;
    const parallel_options keeps{.divide = sharding::parameters, .reshard_after_forward = false};
    auto run = bind(model, optimizer, ranks, keeps);
    const auto loss_on = [&](tape<>& t) {
      return t.eval(cross_entropy(model(batch_of(1, where, 0)), batch_of(1, where, 1)));
    };
    const auto is_here = [&](const auto& parameter) { return bool(parameter.state()->memory); };
    const auto& weight = model.h.blocks[1].in.weight;
    tape kept(run);
    const auto loss = loss_on(kept);
    {
      tape dropped(run), played(run);
      loss_on(dropped);
      played.backward(loss_on(played));
    }
    CHECK(is_here(weight));
    eval(weight + 1.0f, run);
    kept.backward(loss);
    CHECK_FALSE(is_here(weight));
    CHECK_FALSE(is_here(model.table.weight));
    eval(weight + 1.0f, run);
    CHECK(is_here(weight));
    run.step({.micro_batches = 2});
    CHECK_FALSE(is_here(weight));
  });
}

TEST_CASE("gradients that a function of the tape gives are reduced like those of programs") {
  for (sharding stage : stages)
    run_ranks(3, [&](communicator& ranks) {
      const device where = one_thread();
      net model = net::create(where);
      initialize(model, 5);
      const std::vector<float> before = model.last.bias.to_vector();
      sgd optimizer{.lr = 1};
      auto run = bind(model, optimizer, ranks, {.divide = stage});
      tape steps(run);
      const variable<float, extents<>> value(full<float>(extents<>{}, 1, where));
      steps.remember(value.state(), {model.last.bias.state()}, [&](const auto&) {
        return tensor_list{full<float>(extents<6>{}, static_cast<float>(1 + ranks.rank()), where).state()};
      });
      const auto loss = steps.eval(value + sum(model.last.bias));
      steps.backward(loss);
      run.step();
      const auto after = run.full().back();
      REQUIRE(after.first == "last.bias");
      for (std::size_t i = 0; i < 6; ++i)
        CHECK(tensor<float, extents<dyn>>(after.second).to_vector()[i] == before[i] - 3);
    });
}
