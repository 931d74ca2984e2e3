// SPDX-License-Identifier: MIT
// Gradient hooks: the bytes that they send, the error of the sum, and its compensation by error feedback.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <weft/comm/threads.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/train/weights.hpp>
#include <weft/weft.hpp>

#include "../../compare.hpp"

using namespace weft;

namespace {

struct net {
  linear<24, 32> in;
  linear<32, 16> out;
  auto operator()(expression auto x) const { return out(tanh(in(x))); }
};

struct outcome {
  double first = 0, last = 0;
  index_t sent = 0;  // bytes of data by this rank in a step
  std::vector<float> weights;
};

outcome train_on(int n, const gradient_hook& hook, int steps, int local_steps = 1) {
  outcome result;
  run_ranks(n, [&](communicator& ranks) {
    const device where(std::make_shared<cpu::cpu_backend>(1));
    net model;
    to(model, where);
    initialize(model, 1);
    adamw optimizer{.lr = 1e-2};
    parallel_options o{.bucket_bytes = 3000, .first_bucket_bytes = 100};  // several buckets
    o.hook = hook;
    o.local_steps = local_steps;
    auto run = bind(model, optimizer, ranks, o);
    const auto teacher = randn<float>(extents<24, 16>{}, {7, 0}, where);
    outcome mine;
    for (int s = 0; s < steps; ++s) {
      const auto x = randn<float>(
          extents<8, 24>{}, {static_cast<std::uint64_t>(s), static_cast<std::uint64_t>(ranks.rank())}, where);
      const traffic before = run.groups().sent();
      tape t(run);
      const auto loss = t.eval(mean(square(model(x) - matmul(x, teacher) * 0.1f)));
      std::vector<float> seen{loss.item()};
      t.backward(loss);
      ranks.all_reduce(seen, reduction::average, {.control = true}).wait();
      run.step();
      mine.sent = (run.groups().sent() - before).total() - (run.groups().sent() - before).control;
      (s == 0 ? mine.first : mine.last) = seen[0];
    }
    mine.weights = model.in.weight.to_vector();
    if (ranks.rank() == 0) result = mine;
  });
  return result;
}

/// The first layer's weights after steps of plain gradient descent on 6 samples of each of two ranks.
std::vector<float> gradient_steps(const gradient_hook& hook, int steps) {
  std::vector<float> weights;
  run_ranks(2, [&](communicator& ranks) {
    const device where(std::make_shared<cpu::cpu_backend>(1));
    net model;
    to(model, where);
    initialize(model, 1);
    sgd optimizer{.lr = 10};
    parallel_options o;
    o.hook = hook;
    auto run = bind(model, optimizer, ranks, o);
    for (int s = 0; s < steps; ++s) {
      const auto x = randn<float>(
          extents<6, 24>{}, {static_cast<std::uint64_t>(s), static_cast<std::uint64_t>(ranks.rank())}, where);
      tape t(run);
      t.backward(t.eval(mean(square(model(x)))));
      run.step();
    }
    if (ranks.rank() == 0) weights = model.in.weight.to_vector();
  });
  return weights;
}

constexpr int steps = 300;

}  // namespace

TEST_CASE("a hook of one's own that does what all_reduce does changes nothing") {
  const gradient_hook plain = [](const gradient_bucket& b) {
    return [b, begun = false]() mutable -> std::optional<work> {
      if (std::exchange(begun, true)) return {};
      return b.ranks->all_reduce(b.elements(), reduction::sum, b.options);
    };
  };
  const outcome a = train_on(3, nullptr, 20), b = train_on(3, plain, 20);
  CHECK(a.weights == b.weights);
  CHECK(a.sent == b.sent);
}

TEST_CASE("bf16: half the bytes, nearly the same loss") {
  const outcome full = train_on(2, nullptr, steps), half = train_on(2, bf16_compress(), steps);
  CHECK(half.sent * 2 == full.sent);
  CHECK(half.last < full.first / 5);
  CHECK(std::abs(half.last - full.last) < 0.1 * full.last + 1e-3);
}

TEST_CASE("PowerSGD: bytes by the formula, and with error feedback it learns") {
  const outcome full = train_on(2, nullptr, steps), low = train_on(2, power_sgd({.rank = 4}), steps);
  // 2 ranks send as many elements each as the bucket has: rank * (rows + columns) for matrices, all of
  // vectors
  CHECK(low.sent == 4 * (4 * (32 + 24) + 4 * (16 + 32) + 32 + 16));
  CHECK(low.last < full.first / 4);
  const outcome no_memory = train_on(2, power_sgd({.rank = 1, .error_feedback = false}), steps);
  const outcome memory = train_on(2, power_sgd({.rank = 1}), steps);
  CHECK(memory.last < no_memory.last * 1.05);
  const outcome late = train_on(2, power_sgd({.rank = 1, .start_step = steps}), steps);
  CHECK(late.weights == full.weights);
  CHECK_THROWS_AS(power_sgd({.rank = 0}), usage_error);
}

TEST_CASE("PowerSGD: a matrix whose first gradient is zero learns later") {
  // The gradient of the first layer is the last layer's weight times the loss's gradient.
  run_ranks(2, [](communicator& ranks) {
    net model;
    initialize(model, 1);
    model.out.weight.copy_from(std::vector<float>(32 * 16, 0.0f));
    sgd optimizer{.lr = 0.1};
    parallel_options o;
    o.hook = power_sgd({.rank = 2});
    auto run = bind(model, optimizer, ranks, o);
    const std::vector<float> before = model.in.weight.to_vector();
    double first = 0, last = 0;
    for (int s = 0; s < 60; ++s) {
      const auto x = randn<float>(extents<8, 24>{},
                                  {static_cast<std::uint64_t>(s), static_cast<std::uint64_t>(ranks.rank())});
      tape t(run);
      const auto loss = t.eval(mean(square(model(x) - 1.0f)));
      t.backward(loss);
      (s == 0 ? first : last) = loss.item();
      run.step();
      if (s == 0) CHECK(model.in.weight.to_vector() == before);
    }
    CHECK(model.in.weight.to_vector() != before);
    CHECK(last < first / 10);
    std::vector<float> here = model.in.weight.to_vector(), there = here;
    ranks.broadcast(there, 0).wait();
    CHECK(here == there);
  });
}

TEST_CASE("PowerSGD that begins with another factor in each step learns") {
  for (const bool feedback : {true, false}) {
    CAPTURE(feedback);
    run_ranks(2, [&](communicator& ranks) {
      const device where(std::make_shared<cpu::cpu_backend>(1));
      linear<8, 8> model;
      to(model, where);
      initialize(model, 1);
      sgd optimizer{.lr = 0.5};
      parallel_options o;
      o.hook = power_sgd({.rank = 1, .error_feedback = feedback, .warm_start = false});
      auto run = bind(model, optimizer, ranks, o);
      const auto x = randn<float>(extents<64, 8>{}, {.seed = 7}, where);
      const auto teacher = randn<float>(extents<8, 8>{}, {.seed = 9}, where);
      const auto loss = [&](index_t) { return mean(square(model(x) - matmul(x, teacher))); };
      const double first = run.step(1, loss).loss;
      for (int s = 0; s < 400; ++s) run.step(1, loss);
      CHECK(run.step(1, loss).loss < 0.01 * first);
    });
  }
}

TEST_CASE("PowerSGD of the gradient's rank is exact, of a lower one not") {
  // The rank of the first layer's gradient [32, 24] is the number of samples: 6 on each of two ranks.
  const auto change = [](const gradient_hook& hook) {
    const std::vector<float> before = gradient_steps(hook, 0), after = gradient_steps(hook, 1);
    std::vector<float> difference;
    for (std::size_t i = 0; i < before.size(); ++i) difference.push_back(after[i] - before[i]);
    return difference;
  };
  const std::vector<float> full = change(nullptr);
  CHECK(test::matches(change(power_sgd({.rank = 12})), full, {.of_largest = 1e-4}));
  CHECK_FALSE(test::matches(change(power_sgd({.rank = 8})), full, {.of_largest = 1e-2}));
}

TEST_CASE("top-k: values and places of the largest, the rest later") {
  const outcome full = train_on(2, nullptr, steps), some = train_on(2, top_k(0.1), steps);
  CHECK(some.sent < full.sent / 3);
  CHECK(some.last < full.first / 3);
  CHECK_THROWS_AS(top_k(0), usage_error);
  const outcome all = train_on(2, top_k(1), 5), plain = train_on(2, nullptr, 5);
  CHECK(test::matches(all.weights, plain.weights, {.of_largest = 1e-4}));
}

TEST_CASE("top-k: NaN counts as the largest, so that all ranks see it") {
  const gradient_hook largest = top_k(0.1);
  const gradient_hook faulty = [&](const gradient_bucket& b) {
    if (b.ranks->rank() == 1)
      for (std::size_t i = 1; i < b.gradient.size(); i += 3) b.gradient[i] = std::nanf("");
    return largest(b);
  };
  const outcome got = train_on(2, faulty, 1);
  CHECK(std::any_of(got.weights.begin(), got.weights.end(), [](float w) { return std::isnan(w); }));
}

TEST_CASE("what a hook remembers is discarded while its messages are in flight") {
  for (const gradient_hook& hook : {top_k(0.5), power_sgd({.rank = 1, .start_step = 0})})
    run_ranks(2, [&](communicator& ranks) {
      net model;
      initialize(model, 1);
      sgd optimizer{.lr = 0.1};
      parallel_options o{.bucket_bytes = 4, .first_bucket_bytes = 4};
      o.hook = hook;
      auto run = bind(model, optimizer, ranks, o);
      const auto x = randn<float>(extents<8, 24>{}, {static_cast<std::uint64_t>(ranks.rank()), 0});
      tape t(run);
      t.backward(t.eval(mean(square(model(x)))));
      for (int i = 0; i < 20; ++i) eval(sum(x), run);  // makes progress
      run.reset_hook();
      run.step();
    });
}

TEST_CASE("local steps: nothing is sent but the parameters, now and then") {
  const outcome full = train_on(2, nullptr, steps), local = train_on(2, nullptr, steps, 10);
  CHECK(local.sent == full.sent);  // step 300 sends parameters, which are as large as the gradients
  CHECK(train_on(2, nullptr, 9, 10).sent == 0);
  CHECK(local.last < full.first / 4);
}

TEST_CASE("local steps: a parameter without a gradient keeps its bits, what is set by hand is averaged") {
  run_ranks(3, [](communicator& ranks) {
    net model;
    initialize(model, 1);
    adamw optimizer{.lr = 1e-2};
    auto run = bind(model, optimizer, ranks, {.local_steps = 2});
    const auto file = std::filesystem::temp_directory_path() /
                      ("weft_local_steps_" + std::to_string(::getpid()) + ".safetensors");
    save_weights(file.string(), run);
    load_weights(file.string(), run);  // the same on all ranks, whose mean may round otherwise
    const auto frozen = model.in.weight.to_vector();
    const auto x = randn<float>(extents<8, 24>{}, {.seed = static_cast<std::uint64_t>(ranks.rank())});
    const auto loss = [&](index_t) { return mean(square(model.out(tanh(detach(model.in(x)))))); };
    for (int s = 0; s < 6; ++s) run.step(1, loss);
    CHECK(model.in.weight.to_vector() == frozen);
    std::vector<float> ends = model.out.weight.to_vector(), all(3 * ends.size());
    ranks.all_gather(ends, all).wait();
    for (std::size_t i = 0; i < ends.size(); ++i) CHECK(ends[i] == all[i]);
    model.in.weight.copy_from(std::vector<float>(frozen.size(), static_cast<float>(ranks.rank())));
    run.reload();
    for (int s = 0; s < 2; ++s) run.step(1, loss);
    CHECK(model.in.weight.to_vector() == std::vector<float>(frozen.size(), 1));
    ranks.barrier().wait();
    std::filesystem::remove(file);
  });
}

TEST_CASE("hooks are for ranks that hold everything") {
  run_ranks(2, [](communicator& ranks) {
    net model;
    adamw optimizer;
    parallel_options o{.divide = sharding::gradients};
    o.hook = bf16_compress();
    CHECK_THROWS_WITH_AS(bind(model, optimizer, ranks, o), doctest::Contains("a gradient hook needs"),
                         usage_error);
    o = {.local_steps = 2};
    o.hook = bf16_compress();
    CHECK_THROWS_WITH_AS(bind(model, optimizer, ranks, o),
                         "weft: bind: a gradient hook says how gradients are sent, but ranks that take local "
                         "steps send none",
                         usage_error);
    CHECK_THROWS_WITH_AS(bind(model, optimizer, ranks, {.reduce_dtype = dtype::bf16, .local_steps = 2}),
                         doctest::Contains("reduce_dtype says how"), usage_error);
  });
}
