// SPDX-License-Identifier: MIT
// Every data-parallel strategy, sharded or not, computes the same as one process; bitwise, if deterministic.
#include <unistd.h>

#include <cstdio>
#include <sstream>

#include <weft/comm/counting.hpp>
#include <weft/device/counting.hpp>
#include <weft/io/tensor_files.hpp>
#include <weft/nn/clone.hpp>
#include <weft/nn/linear_cross_entropy.hpp>

#include "training.hpp"

using namespace training;

TEST_CASE("every strategy learns what one process learns") {
  const outcome whole = train_on(1, {}, 4);
  CHECK(whole.losses.back() < whole.losses.front());
  for (sharding stage : stages)
    for (int n : {2, 4})
      for (index_t micro : {1, 2, 4}) {
        if (n * micro != 4) continue;
        const outcome part = train_on(n, {.divide = stage}, micro);
        INFO("stage " << static_cast<int>(stage) << " on " << n << " ranks");
        CHECK(largest_relative_difference(part.losses, whole.losses) < 1e-5);
        CHECK(largest_relative_difference(part.norms, whole.norms) < 1e-4);
      }
}

TEST_CASE("deterministic: the same bits for any division of a step") {
  constexpr int count = 50;
  const outcome whole = train_on(1, {.deterministic = true}, 8, count);
  for (sharding stage : stages)
    for (int n : {1, 2, 4, 8}) {
      const outcome part = train_on(n, {.divide = stage, .deterministic = true}, 8 / n, count);
      INFO("stage " << static_cast<int>(stage) << " on " << n << " ranks");
      CHECK(part.losses == whole.losses);
      CHECK(part.norms == whole.norms);
      CHECK(part.parameters == whole.parameters);
      CHECK(part.optimizer == whole.optimizer);
    }
  CHECK(train_on(2, {.divide = sharding::parameters, .deterministic = true}, 4, count, true).parameters ==
        whole.parameters);
  const outcome hybrid =
      train_on(4, {.divide = sharding::parameters, .shard_ranks = 2, .deterministic = true}, 2, count);
  CHECK(hybrid.parameters == whole.parameters);
  CHECK(hybrid.optimizer == whole.optimizer);
}

TEST_CASE("deterministic: the same bits for shards that end anywhere in a vector") {
  for (const net_sizes& sizes : {net_sizes{13, 15, 31}, net_sizes{37, 20, 61}, net_sizes{97, 60, 33}}) {
    const auto train_sized = [&](int n, sharding stage) {
      return train_on(n, {.divide = stage, .deterministic = true}, 4 / n, 12, false, 65536, one_thread,
                      sizes);
    };
    const outcome whole = train_sized(1, sharding::none);
    for (sharding stage : stages)
      for (int n : {2, 4}) {
        const outcome part = train_sized(n, stage);
        INFO("width " << sizes.width << ", stage " << static_cast<int>(stage) << " on " << n << " ranks");
        CHECK(part.losses == whole.losses);
        CHECK(part.norms == whole.norms);
        CHECK(part.parameters == whole.parameters);
        CHECK(part.optimizer == whole.optimizer);
      }
  }
}

TEST_CASE("deterministic: three ranks with one micro-batch each") {
  const outcome whole = train_on(1, {.deterministic = true}, 3);
  for (sharding stage : stages) {
    const outcome part = train_on(3, {.divide = stage, .deterministic = true}, 1);
    CHECK(part.losses == whole.losses);
    CHECK(part.norms == whole.norms);
    CHECK(part.parameters == whole.parameters);
    CHECK(part.optimizer == whole.optimizer);
  }
}

TEST_CASE("where the bits would differ is known beforehand") {
  const outcome whole = train_on(1, {.deterministic = true}, 12, 2);
  for (sharding stage : {sharding::none, sharding::gradients})
    for (int n : {2, 3, 4, 6}) {
      const parallel_options o{.divide = stage, .deterministic = true};
      INFO("stage " << static_cast<int>(stage) << " on " << n << " ranks");
      CHECK((train_on(n, o, 12 / n, 2).parameters == whole.parameters) == o.keeps_bits(n, 12 / n));
    }
  const outcome of_six = train_on(1, {.deterministic = true}, 6, 2);
  for (sharding stage : {sharding::optimizer, sharding::gradients, sharding::parameters})
    for (int shards : {2, 3, 6}) {
      const parallel_options o{.divide = stage, .shard_ranks = shards, .deterministic = true};
      INFO("stage " << static_cast<int>(stage) << " on 6 ranks, divided by " << shards);
      CHECK((train_on(6, o, 2, 2).parameters == whole.parameters) == o.keeps_bits(6, 2));
      CHECK((train_on(6, o, 1, 2).parameters == of_six.parameters) == o.keeps_bits(6, 1));
    }
  const parallel_options rounds{
      .divide = sharding::parameters, .deterministic = true, .reduce_dtype = dtype::bf16};
  CHECK_FALSE(rounds.keeps_bits(1, 12));
  CHECK(train_on(1, rounds, 12, 2).parameters != whole.parameters);
  parallel_options sends_otherwise{.hook = bf16_compress()}, sends_later{.local_steps = 2};
  CHECK_FALSE(sends_otherwise.keeps_bits(2, 1));
  CHECK_FALSE(sends_later.keeps_bits(2, 1));
  CHECK(sends_later.keeps_bits(1, 3));
  for (int parallel_options::* divided :
       {&parallel_options::layer_ranks, &parallel_options::context_ranks, &parallel_options::expert_ranks}) {
    parallel_options o{.deterministic = true};
    o.*divided = 2;
    CHECK_FALSE(o.keeps_bits(1, 1));
  }
}

TEST_CASE("bytes sent are the formulas'") {
  const index_t block = 6 + 6 + 42 + 7 + 42 + 6, all = 3 * block + 11 * 6 + 6 + 6;
  const index_t read = 3 * (block - 6 - 6);  // backward reads all of a block except norm.bias and out.bias
  for (index_t n : {2, 3, 4, 8}) {
    const int ranks = static_cast<int>(n);
    INFO(n << " ranks");
    CHECK(train_on(ranks, {}, 1, 2).sent == std::vector<index_t>{4 * 2 * all * (n - 1), 0, 0});
    CHECK(train_on(ranks, {}, 3, 2).sent == std::vector<index_t>{4 * 2 * all * (n - 1), 0, 0});
    CHECK(train_on(ranks, {.divide = sharding::optimizer}, 2, 2).sent ==
          std::vector<index_t>{0, 4 * all * (n - 1), 4 * all * (n - 1)});
    CHECK(train_on(ranks, {.divide = sharding::gradients}, 2, 2).sent ==
          std::vector<index_t>{0, 2 * 4 * all * (n - 1), 4 * all * (n - 1)});
    CHECK(train_on(ranks, {.divide = sharding::parameters}, 2, 2).sent ==
          std::vector<index_t>{0, 2 * 4 * all * (n - 1), 2 * 4 * (all + read) * (n - 1)});
    CHECK(train_on(ranks, {.divide = sharding::parameters, .reshard_after_forward = false}, 1, 2).sent ==
          std::vector<index_t>{0, 4 * all * (n - 1), 4 * all * (n - 1)});
  }
  // Recomputing a block reads all of it again.
  CHECK(train_on(2, {.divide = sharding::parameters}, 1, 2, true).sent[2] == 4 * (all + 3 * block));
  // Hybrid: fully sharded within groups of 2; across the 2 groups, the sums of each half.
  const index_t inside = 4 * (all + read) * 2, scattered = 4 * all * 2, across = 4 * 2 * all;
  CHECK(train_on(4, {.divide = sharding::parameters, .shard_ranks = 2}, 1, 2).sent ==
        std::vector<index_t>{across, scattered, inside});
}

namespace {
/// Messages that complete only when they are waited for.
class slow_communicator : public threads_communicator {
 public:
  using threads_communicator::threads_communicator;

 protected:
  work start(operation o) override {
    return work(std::make_shared<slow>(threads_communicator::start(std::move(o))));
  }

 private:
  struct slow : work::state {
    work message;
    bool over = false;
    explicit slow(work w) : message(std::move(w)) {}
    bool poll() override { return over; }
    void wait(std::chrono::milliseconds limit) override {
      message.wait(limit);
      over = true;
    }
    std::exception_ptr failure() const override { return nullptr; }  // wait throws it
  };
};

index_t peak_of_steps(communicator& ranks, const device& where, sharding stage) {
  net model = net::create(where);
  while (model.h.blocks.size() < 8)  // so that the peak is while gradients are in flight
    model.h.blocks.push_back({layer_normalization<>::create(6, where), linear<>::create(6, 70, where),
                              linear<>::create(70, 6, where)});
  sgd optimizer;
  auto run = bind(model, optimizer, ranks, {.divide = stage});
  for (int s = 0; s < 2; ++s) {
    tape steps(run);
    steps.backward(steps.eval(cross_entropy(model(batch_of(s, where, 0)), batch_of(s, where, 1))));
    run.step();
  }
  return static_cast<index_t>(where.memory().figures().peak);
}
}  // namespace

TEST_CASE(
    "what a rank holds is known beforehand: with slow messages to the byte, with others no more than that") {
  constexpr int n = 2;
  for (sharding stage : stages) {
    const auto group = std::make_shared<detail::thread_group>(std::make_shared<detail::thread_world>(), n);
    std::vector<std::thread> threads;
    index_t slow[n], prompt[n];
    for (int r = 0; r < n; ++r)
      threads.emplace_back([&, r] {
        slow_communicator ranks(group, r);
        slow[r] = peak_of_steps(ranks, one_thread(), stage);
      });
    for (std::thread& t : threads) t.join();
    run_ranks(n,
              [&](communicator& ranks) { prompt[ranks.rank()] = peak_of_steps(ranks, one_thread(), stage); });
    for (int r = 0; r < n; ++r) {
      INFO("stage " << static_cast<int>(stage) << ", rank " << r);
      counting_communicator nowhere(r, n);
      const index_t forecast = peak_of_steps(nowhere, device(std::make_shared<counting_backend>()), stage);
      CHECK(slow[r] == forecast);
      CHECK(prompt[r] <= forecast);
    }
  }
}

namespace {
/// Computes on the CPU; as with a GPU, ranks cannot access its memory, so that messages are in other memory,
/// and kernels have scratch memory.
class distant_backend : public cpu::cpu_backend {
 public:
  distant_backend() : cpu_backend(1) {}
  bool host_accessible() const override { return false; }
  std::size_t scratch_bytes(const kernel_call& call) const override { return group_scratch_bytes(call); }
};
}  // namespace

TEST_CASE(
    "what a device holds whose messages lie on the host is known beforehand, in use and reserved, to the "
    "byte") {
  const auto figures_of = [](communicator& ranks, const device& where, bool deterministic) {
    net model = net::create(where);
    adamw optimizer;
    auto run = bind(model, optimizer, ranks, {.deterministic = deterministic});
    for (int s = 0; s < 3; ++s) {
      tape steps(run);
      steps.backward(steps.eval(cross_entropy(model(batch_of(s, where, 0)), batch_of(s, where, 1))));
      run.step();
    }
    const memory_figures all = where.memory().figures();
    return std::pair(all.peak, all.reserved);
  };
  for (int n : {1, 2})
    for (bool deterministic : {false, true})
      run_ranks(n, [&](communicator& ranks) {
        counting_communicator nowhere(ranks.rank(), n);
        const auto forecast =
            figures_of(nowhere, device(std::make_shared<counting_backend>(false)), deterministic);
        const auto found = figures_of(ranks, device(std::make_shared<distant_backend>()), deterministic);
        INFO(n << " ranks, deterministic " << deterministic);
        CHECK(found.first == forecast.first);
        CHECK(found.second == forecast.second);
      });
}

TEST_CASE("a head with its loss by slices: the same bits under every strategy") {
  const auto train = [](communicator& ranks, sharding stage) {
    const device where = one_thread();
    net model = net::create(where);
    initialize(model, 5);
    adamw optimizer{.lr = 1e-2};
    auto run = bind(model, optimizer, ranks, {.divide = stage, .deterministic = true});
    const index_t per_rank = 4 / ranks.size();
    for (int s = 0; s < 3; ++s) {
      for (index_t j = 0; j < per_rank; ++j) {
        const index_t g = run.micro_batch(j, per_rank);
        run.begin_micro_batch(static_cast<std::uint64_t>(s), static_cast<std::uint64_t>(g));
        const auto quiet = run.no_sync(j + 1 < per_rank);
        tape steps(run);
        const auto features = model.last(model.h(model.table(batch_of(4 * s + g, where, 0))));
        steps.backward(steps.eval(
            linear_cross_entropy(features, model.table.weight, batch_of(4 * s + g, where, 1), 2 * 11)));
      }
      run.step({.clip = 0.5, .micro_batches = per_rank});
    }
    return elements_of(run.full());
  };
  std::vector<float> whole;
  run_ranks(1, [&](communicator& ranks) { whole = train(ranks, sharding::none); });
  for (sharding stage : stages)
    for (int n : {2, 4})
      run_ranks(n, [&](communicator& ranks) {
        INFO("stage " << static_cast<int>(stage) << " on " << n << " ranks");
        CHECK(train(ranks, stage) == whole);
      });
}

TEST_CASE("what a divided parameter means") {
  run_ranks(2, [](communicator& ranks) {
    const device where(std::make_shared<cpu::cpu_backend>(1));
    net model = net::create(where);
    initialize(model, 5 + static_cast<std::uint64_t>(ranks.rank()));  // rank 0's counts
    const std::vector<float> first = model.table.weight.to_vector();
    adamw optimizer;
    auto run = bind<policy<strategy::fully_sharded<3>>>(model, optimizer, ranks);
    CHECK_THROWS_WITH_AS(model.table.weight.to_vector(), doctest::Contains("is divided among ranks"),
                         value_error);
    context other(where);
    CHECK_THROWS_WITH_AS(eval(model.table.weight + 1.0f, other), doctest::Contains("is divided among ranks"),
                         value_error);
    CHECK(model.table.weight.extents() == shape{2, {11, 6}});
    const auto whole = run.full();
    CHECK(whole[0].second->extents == shape{2, {11, 6}});
    const std::vector<float> got = tensor<float, extents<dyn, dyn>>(whole[0].second).to_vector();
    if (ranks.rank() == 0) CHECK(got == first);
    CHECK(run.local()[0].second->extents == shape{2, {ranks.rank() == 0 ? 6 : 5, 6}});
    eval(model.table.weight + 1.0f, run);  // in the run's context it is gathered
  });
}

TEST_CASE("whoever reads or writes a divided parameter outside its run is told which, and what to do") {
  struct one {
    parameter<extents<4, 3>> w = make_parameter(extents<4, 3>{}, init::uniform(1));
    parameter<extents<>> scale = make_parameter(extents<>{}, init::constant(2));
  };
  const auto refused = [](auto f, const char* name = "parameter w of shape [4, 3]") {
    CHECK_THROWS_WITH_AS(f(), doctest::Contains(name), value_error);
    CHECK_THROWS_WITH_AS(f(), doctest::Contains("run.full() gives whole copies"), value_error);
  };
  const std::string path = "/tmp/weft_divided_" + std::to_string(::getpid()) + ".safetensors";
  io::save(path, state_dict(one{}));
  run_ranks(2, [&](communicator& ranks) {
    one model;
    sgd optimizer;
    auto run = bind<policy<strategy::fully_sharded<3>>>(model, optimizer, ranks);
    std::ostringstream out;
    const std::vector<float> values(12);
    const device other = one_thread();
    refused([&] { model.w.to_vector(); });
    refused([&] { model.w.data(); });
    refused([&] { model.w.mutable_data(); });
    refused([&] { model.w.copy_from(values); });
    refused([&] { model.w.to(other); });
    refused([&] { model.scale.item(); }, "parameter scale of shape []");
    refused([&] { out << model.w; });
    refused([&] { clone(model); });
    refused([&] { to(model, other); });
    refused([&] { initialize(model, 1); });
    refused([&] { io::save(path + "2", state_dict(model)); });
    refused([&] { io::load(path, state_dict(model)); });
    context apart;  // all threads share the default context
    refused([&] { eval(model.w * 2.0f, apart); });
    refused([&] { update(apart, {model.w.state()}, full<float>(extents<4, 3>{}, 1) * 2.0f); });
    out << model;  // shapes and counts need no elements
    CHECK(out.str().find("w          [4, 3]") != std::string::npos);
    CHECK(parameter_count(model) == 13);
    CHECK(elements_of(run.full()).size() == 13);
    CHECK(eval(model.scale * 2.0f, run).item() == 4);
  });
  std::remove(path.c_str());
}

TEST_CASE("a part of a tensor is a tensor of the whole shape, and never read for the whole") {
  const auto part = make_state(default_device(), {2, {2, 3}}, dtype::f32);
  part->divided = std::make_shared<division>(division{"h.0.w", {2, {4, 3}}});
  const tensor<float, extents<4, 3>> t(part);
  CHECK(t.extents() == shape{2, {4, 3}});
  CHECK(t.size() == 12);
  CHECK_THROWS_AS((tensor<float, extents<2, 3>>(part)), shape_error);
  std::vector<float> host(12);
  const char* const what = "parameter h.0.w of shape [4, 3] is divided among ranks, and this rank has [2, 3]";
  CHECK_THROWS_WITH_AS(t.copy_to(host.data()), doctest::Contains(what), value_error);
  CHECK_THROWS_WITH_AS(t.item(), doctest::Contains("item: a tensor of shape [4, 3] has 12 elements, not 1"),
                       shape_error);
  const tensor<float, extents<dyn, dyn>> any(part);
  CHECK_THROWS_WITH_AS(eval(any + 1.0f), doctest::Contains(what), value_error);
  CHECK_THROWS_WITH_AS(eval(any + zeros<float>(extents<dyn, dyn>{2, 3})), doctest::Contains("[4, 3]"),
                       shape_error);
  const tensor<float, extents<dyn, dyn>> rows = [&] {
    const auto own = alias_of(*part);  // for its owner it is an ordinary tensor
    own->divided = nullptr;
    return tensor<float, extents<dyn, dyn>>(own);
  }();
  rows.state()->where->fill_zero(rows.state()->memory.data(), rows.state()->bytes());
  CHECK(eval(sum(rows)).item() == 0);
}

namespace {
/// Standardizes by running statistics: a mean that forward passes update, and their number.
struct standardizer {
  tensor<float, extents<3>> running_mean{shape{1, {3}}};
  tensor<std::int64_t, extents<>> count{shape{}};
  linear<3, 2> out;

  auto operator()(expression auto x) const { return out(x - running_mean); }
  void see(const tensor<float, extents<4, 3>>& x, context& c) {
    const auto before = count.item();
    update(c, {running_mean.state()}, running_mean * 0.5f + mean(x, dims<0>) * 0.5f);
    count.copy_from({before + 1});
  }
};
}  // namespace

TEST_CASE("buffers are whole on every rank, and those of rank 0 after a step") {
  using plain = tensor<float, extents<4, 3>>;
  for (sharding stage : stages)
    for (const bool broadcast : {true, false})
      run_ranks(3, [&](communicator& ranks) {
        const int r = ranks.rank();
        INFO("stage " << static_cast<int>(stage) << ", rank " << r);
        standardizer model;
        initialize(model, 5);
        model.running_mean.copy_from(std::vector<float>(3, 1.0f + static_cast<float>(r)));
        model.count.copy_from({r + 10});
        adamw optimizer;
        auto run = bind(model, optimizer, ranks, {.divide = stage, .broadcast_buffers = broadcast});
        CHECK(model.running_mean.to_vector() == std::vector<float>(3, 1.0f));
        CHECK(model.count.item() == 10);
        const traffic before = run.groups().sent();
        const plain x = eval(full<float>(extents<4, 3>{}, static_cast<float>(2 * r)), run);
        tape steps(run);
        steps.backward(steps.eval(mean(square(model(x)))));
        model.see(x, run);
        run.step();
        const int seen = broadcast ? 0 : r;  // whose batch
        CHECK(model.running_mean.to_vector() == std::vector<float>(3, 0.5f + static_cast<float>(seen)));
        CHECK(model.count.item() == 11);
        const index_t of_buffers = 3 * size_of(dtype::f32) + size_of(dtype::i64);
        CHECK((run.groups().sent() - before).of(collective::broadcast) ==
              (broadcast && r == 0 ? of_buffers * 2 : 0));
        const auto whole = run.full();
        REQUIRE(whole.size() == 4);
        CHECK(whole[2].first == "running_mean");
        CHECK(whole[3].first == "count");
        CHECK(tensor<std::int64_t, extents<>>(whole[3].second).item() == 11);
        CHECK(run.full_optimizer().size() == 4);  // two for each parameter, though rank 2 has rows of none
      });
}

TEST_CASE("sharded over optimiser state only, parameters can be read after a step") {
  run_ranks(2, [](communicator& ranks) {
    const device where(std::make_shared<cpu::cpu_backend>(1));
    net model = net::create(where);
    initialize(model, 5);
    adamw optimizer{.lr = 1e-2};
    auto run = bind<policy<strategy::fully_sharded<1>>>(model, optimizer, ranks);
    tape steps(run);
    steps.backward(
        steps.eval(cross_entropy(model(batch_of(ranks.rank(), where, 0)), batch_of(ranks.rank(), where, 1))));
    run.step();
    const auto whole = run.full();
    CHECK(tensor<float, extents<dyn, dyn>>(whole[0].second).to_vector() == model.table.weight.to_vector());
  });
}

TEST_CASE("norms are global, and end the backward passes of a step") {
  for (sharding stage : stages) {
    double norms[2][2] = {};
    for (int n : {1, 2})
      run_ranks(n, [&](communicator& ranks) {
        const device where(std::make_shared<cpu::cpu_backend>(1));
        net model = net::create(where);
        initialize(model, 5);
        adamw optimizer;
        auto run = bind(model, optimizer, ranks, {.divide = stage, .deterministic = true});
        const auto backward = [&](index_t g) {
          tape steps(run);
          run.begin_micro_batch(0, static_cast<std::uint64_t>(g));
          steps.backward(steps.eval(cross_entropy(model(batch_of(g, where, 0)), batch_of(g, where, 1))));
        };
        for (index_t j = 0; j < 2 / n; ++j) backward(ranks.rank() + j);
        const double two = run.gradient_norm(), inf = run.gradient_inf_norm();
        if (ranks.rank() == 0) {
          norms[n - 1][0] = two;
          norms[n - 1][1] = inf;
        }
        CHECK_THROWS_WITH_AS(backward(3), doctest::Contains("take the step first"), value_error);
        CHECK(run.step({.micro_batches = 2 / n}) == two / 2);
      });
    CHECK(norms[0][0] == norms[1][0]);
    CHECK(norms[0][1] == norms[1][1]);
    CHECK(norms[0][1] > 0);
    CHECK(norms[0][1] < norms[0][0]);
  }
}

TEST_CASE("the inf norm of gradients is NaN if any gradient is, on whichever rank") {
  struct two {
    linear_without_bias<3, 4> a, b;
  };
  for (const int n : {1, 2})
    for (const int with_nan : {0, 1, 2})
      run_ranks(n, [&](communicator& ranks) {
        two model;
        initialize(model, 1);
        sgd optimizer;
        auto run = bind(model, optimizer, ranks, {.divide = sharding::gradients});
        const auto factor = [&](int of) { return with_nan == of ? std::nanf("") : 2.0f; };
        tape steps(run);
        steps.backward(steps.eval(sum(model.a.weight * factor(1)) + sum(model.b.weight * factor(2))));
        const double norm = run.gradient_inf_norm();
        CHECK((with_nan == 0 ? norm == 2 * n : std::isnan(norm)));
        run.step();
      });
}

TEST_CASE("a step of more micro-batches than backward passes is refused, and no parameter changes") {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](communicator& all) {
      linear_without_bias<2, 3> model;
      sgd optimizer{.lr = 0.5};
      auto run = bind(model, optimizer, all, {});
      const auto before = model.weight.to_vector();
      const auto backward = [&] {
        tape steps(run);
        steps.backward(steps.eval(sum(square(model.weight))));
      };
      CHECK_THROWS_WITH_AS(run.step(), doctest::Contains("no backward pass has gone through this run"),
                           usage_error);
      backward();
      CHECK_THROWS_WITH_AS(run.step({.micro_batches = 3}),
                           doctest::Contains("weft: step: there was 1 backward pass since the last step, but "
                                             "gradients of 3 micro-batches are to be averaged"),
                           usage_error);
      CHECK(model.weight.to_vector() == before);
      run.zero_grad();
      backward();
      backward();
      CHECK_THROWS_AS(run.step({.micro_batches = 3}), usage_error);
      run.step({.micro_batches = 2});
      for (std::size_t i = 0; i < before.size(); ++i) CHECK(model.weight.to_vector()[i] == 0);
    });
}

namespace {
/// A scalar, a matrix of one row, and a matrix of which every rank has rows.
struct scaled {
  linear<4, 6> layer;
  parameter<extents<1, 6>> row = make_parameter(extents<1, 6>{}, init::constant(2));
  parameter<extents<>> factor = make_parameter(extents<>{}, init::constant(1));
  auto operator()(expression auto x) const { return layer(x) * row * factor; }
};
}  // namespace

TEST_CASE("what an optimizer leaves alone by order is what one process leaves alone") {
  const auto train = [](int n, sharding stage, int decay_from) {
    std::vector<float> result;
    run_ranks(n, [&](communicator& ranks) {
      const device where = one_thread();
      scaled model;
      to(model, where);
      initialize(model.layer, 5);
      adamw optimizer{.lr = 0.1, .weight_decay = 0.5, .decay_from_order = decay_from};
      auto run = bind(model, optimizer, ranks, {.divide = stage, .deterministic = true});
      const auto x = full<float>(extents<2, 4>{}, 0.5f, where);
      for (int s = 0; s < 3; ++s) {
        tape steps(run);
        steps.backward(steps.eval(mean(square(model(x) - 5.0f))));
        run.step();
      }
      const auto all = elements_of(run.full());
      if (ranks.rank() == 0) result = all;
    });
    return result;
  };
  for (int decay_from : {0, 1, 2})
    for (sharding stage : stages) {
      INFO("stage " << static_cast<int>(stage) << ", decay from order " << decay_from);
      CHECK(train(2, stage, decay_from) == train(1, sharding::none, decay_from));
    }
}

TEST_CASE("a step whose backward passes have reached no parameter is an error on all ranks") {
  for (sharding stage : stages)
    run_ranks(3, [&](communicator& ranks) {
      INFO("stage " << static_cast<int>(stage));
      const device where = one_thread();
      scaled model, copy;
      to(model, where);
      to(copy, where);
      sgd optimizer{.lr = 0.1};
      auto run = bind(model, optimizer, ranks, {.divide = stage});
      const auto x = full<float>(extents<2, 4>{}, 0.5f, where);
      const auto step = [&](auto loss) {
        tape steps(run);
        steps.backward(steps.eval(loss));
        run.step();
      };
      const auto before = elements_of(run.full());
      CHECK_THROWS_WITH_AS(step(mean(square(copy(x)))), doctest::Contains("no parameter has a gradient"),
                           usage_error);
      CHECK(elements_of(run.full()) == before);
      CHECK(optimizer.steps == 0);
      step(sum(model.factor));  // of which one rank has a gradient, under ZeRO
      CHECK(optimizer.steps == 1);
      step(mean(square(model(x))) * 0.0f);  // zero, but there
      CHECK(optimizer.steps == 2);
      CHECK(elements_of(run.full()) != before);
    });
}

TEST_CASE("groups that do not divide the ranks are refused") {
  run_ranks(3, [](communicator& ranks) {
    net model = net::create(default_device());
    adamw optimizer;
    CHECK_THROWS_WITH_AS((bind<policy<strategy::hybrid<2>>>(model, optimizer, ranks)),
                         doctest::Contains("groups of 2 ranks do not divide 3 ranks"), usage_error);
  });
}

TEST_CASE("two runs with different strategies go on at once in one process") {
  outcome a, b;
  std::thread other([&] { b = train_on(2, {.divide = sharding::parameters, .deterministic = true}, 2); });
  a = train_on(4, {.deterministic = true}, 1);
  other.join();
  CHECK(a.parameters == b.parameters);
}

TEST_CASE("a run that ends waits for its messages") {
  for (sharding stage : stages)
    run_ranks(2, [&](communicator& ranks) {
      const device where(std::make_shared<cpu::cpu_backend>(1));
      for (bool steps_too : {true, false}) {
        net model = net::create(where);
        initialize(model, 5);
        adamw optimizer{.lr = 1e-2};
        auto run = bind(model, optimizer, ranks, {.divide = stage});
        tape steps(run);
        const auto loss = steps.eval(
            cross_entropy(model(batch_of(ranks.rank(), where, 0)), batch_of(ranks.rank(), where, 1)));
        if (ranks.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        steps.backward(loss);
        if (steps_too) run.step();
      }
    });
}

TEST_CASE("a model whose parameters another run has divided cannot be bound") {
  run_ranks(2, [](communicator& ranks) {
    net model = net::create(default_device());
    adamw optimizer;
    { auto run = bind<policy<strategy::fully_sharded<3>>>(model, optimizer, ranks); }
    CHECK_THROWS_WITH_AS(
        (bind<policy<strategy::data_parallel>>(model, optimizer, ranks)),
        doctest::Contains("parameter table.weight is divided among the ranks of another run"), value_error);
  });
}
