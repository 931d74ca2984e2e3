// SPDX-License-Identifier: MIT
// Hooks: what they send, what the sum loses, and that error feedback pays it back.
#include <doctest/doctest.h>

#include <cmath>

#include <weft/comm/threads.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/weft.hpp>

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
      const auto x = randn<float>(extents<8, 24>{}, {static_cast<std::uint64_t>(s), static_cast<std::uint64_t>(ranks.rank())}, where);
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
  // 2 ranks send as many elements each as the bucket has: rank (rows + columns) of matrices, all of vectors
  CHECK(low.sent == 4 * (4 * (32 + 24) + 4 * (16 + 32) + 32 + 16));
  CHECK(low.last < full.first / 4);
  const outcome no_memory = train_on(2, power_sgd({.rank = 1, .error_feedback = false}), steps);
  const outcome memory = train_on(2, power_sgd({.rank = 1}), steps);
  CHECK(memory.last < no_memory.last * 1.05);
  const outcome late = train_on(2, power_sgd({.rank = 1, .start_step = steps}), steps);
  CHECK(late.weights == full.weights);
  CHECK_THROWS_AS(power_sgd({.rank = 0}), usage_error);
}

TEST_CASE("PowerSGD of full rank is exact") {
  const outcome full = train_on(2, nullptr, 1);
  // 12 (24 + 32) < 768 still counts as a matrix; a gradient of 16 samples over two ranks has rank 16
  const outcome exact = train_on(2, power_sgd({.rank = 13}), 1);
  for (std::size_t i = 0; i < full.weights.size(); ++i) CHECK(exact.weights[i] == doctest::Approx(full.weights[i]).epsilon(0.2));
}

TEST_CASE("top-k: values and places of the largest, the rest later") {
  const outcome full = train_on(2, nullptr, steps), some = train_on(2, top_k(0.1), steps);
  CHECK(some.sent < full.sent / 3);
  CHECK(some.last < full.first / 3);
  CHECK_THROWS_AS(top_k(0), usage_error);
  const outcome all = train_on(2, top_k(1), 5), plain = train_on(2, nullptr, 5);
  for (std::size_t i = 0; i < all.weights.size(); ++i) CHECK(all.weights[i] == doctest::Approx(plain.weights[i]).epsilon(1e-4));
}

TEST_CASE("local steps: nothing is sent but the parameters, now and then") {
  const outcome full = train_on(2, nullptr, steps), local = train_on(2, nullptr, steps, 10);
  CHECK(local.sent == full.sent);  // step 300 is one of those: the parameters are as large as the gradients
  CHECK(train_on(2, nullptr, 9, 10).sent == 0);
  CHECK(local.last < full.first / 4);
}

TEST_CASE("hooks are for ranks that hold everything") {
  run_ranks(2, [](communicator& ranks) {
    net model;
    adamw optimizer;
    parallel_options o{.divide = sharding::gradients};
    o.hook = bf16_compress();
    CHECK_THROWS_WITH_AS(bind(model, optimizer, ranks, o), doctest::Contains("a gradient hook needs"), usage_error);
  });
}
