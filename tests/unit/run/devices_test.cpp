// SPDX-License-Identifier: MIT
// Several devices in one program, and devices without memory: errors name the devices of tensors, and keep
// existing values.
#include <doctest/doctest.h>

#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include <weft/optim/optimizer.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/weft.hpp>

#include "../../compare.hpp"
#include "../../gpu/device_memory.hpp"
#include "../../limited_backend.hpp"

using namespace weft;
namespace oracle = test::oracle;

namespace {

using matrix = extents<dyn, dyn>;
using vector = extents<4>;

/// A CPU whose allocations fail from number `fails_at` on, unless that is negative.
class scarce_backend : public cpu::cpu_backend {
 public:
  scarce_backend() : cpu_backend(1) {}
  int fails_at = -1, allocations = 0;
  void* allocate(std::size_t bytes) override {
    if (fails_at >= 0 && allocations >= fails_at) throw out_of_memory_error("weft: no memory in this test");
    ++allocations;
    return cpu_backend::allocate(bytes);
  }
};
struct scarce_device {
  std::shared_ptr<scarce_backend> backend = std::make_shared<scarce_backend>();
  device handle{backend};
  /// Lets the next `count` allocations succeed.
  void allow(int count) {
    handle.memory().empty_cache();
    backend->allocations = 0;
    backend->fails_at = count;
  }
  void allow_all() { backend->fails_at = -1; }
};

device another_cpu() { return device(std::make_shared<cpu::cpu_backend>(1)); }

}  // namespace

TEST_CASE("after a program for which there was no memory, a smaller one runs") {
  const device d(std::make_shared<test::limited_backend>(std::size_t{1} << 20));
  context c(d);
  const auto square_sum = [&](index_t rows) {
    const auto x = ones<float>(matrix{rows, 16}, d);
    return eval(sum(matmul(x, transpose(x))), c).item();
  };
  CHECK(square_sum(64) == 64 * 64 * 16);
  CHECK_THROWS_AS(square_sum(1000), out_of_memory_error);
  CHECK(square_sum(32) == 32 * 32 * 16);
  CHECK(square_sum(64) == 64 * 64 * 16);
}

TEST_CASE("update: a target on another device") {
  const device there = another_cpu();
  context c(there);
  auto x = ones<float>(vector{}), y = ones<float>(vector{}, there);
  CHECK_THROWS_WITH_AS(update(y, x * 2.0f),
                       doctest::Contains("target 0 of shape [4] is on device cpu, but the context computes "
                                         "on cpu (another device of that name): pass a context"),
                       device_error);
  CHECK_THROWS_AS(update(y, softmax(x)), device_error);
  CHECK_THROWS_AS(update(x, y * 2.0f, c), device_error);
  CHECK_THROWS_AS(update(slice<0>(y, 1, 3), slice<0>(x, 0, 2)), device_error);
  CHECK_THROWS_AS(update(default_context(), {x.state(), y.state()}, bundled(x + 1.0f, x * 2.0f)),
                  device_error);
  CHECK(x.to_vector() == std::vector<float>(4, 1));
  CHECK(y.to_vector() == std::vector<float>(4, 1));
  update(y, y * 2.0f, c);
  CHECK(y.to_vector() == std::vector<float>(4, 2));
}

TEST_CASE("an operand on another device is named if it is a parameter with a name") {
  const device there = another_cpu();
  context c(there);
  linear<4, 3> m;
  (void)state_dict(m);
  m.weight = m.weight.to(there);
  const auto x = ones<float>(extents<2, 4>{}, there);
  CHECK_THROWS_WITH_AS(eval(m(x), c), doctest::Contains("(parameter bias) of shape [3] is on device cpu"),
                       device_error);
}

TEST_CASE("backward: a seed on another device") {
  const device there = another_cpu();
  for (const bool has_hook : {false, true}) {
    variable<float, vector> x(ones<float>(vector{}));
    tape steps;
    auto y = steps.eval(x * 3.0f);
    if (has_hook) y.on_gradient([](auto) {});
    CHECK_THROWS_WITH_AS(steps.backward(y, ones<float>(vector{}, there)),
                         doctest::Contains("backward: seed 0 of shape [4] is on device"), device_error);
    steps.backward(y, ones<float>(vector{}));  // nothing was lost
    CHECK(x.grad().to_vector() == std::vector<float>(4, 3));
  }
}

TEST_CASE("a move for which there is no memory changes nothing, whichever allocation fails") {
  for (int allowed = 0; allowed < 2; ++allowed) {
    scarce_device scarce;
    variable<float, vector> x(full<float>(vector{}, 2));
    tape steps;
    steps.backward(steps.eval(sum(square(x))));
    scarce.allow(allowed);
    CHECK_THROWS_AS(move_to(*x.state(), scarce.handle), out_of_memory_error);
    CHECK(x.state()->where == default_device());
    CHECK(x.to_vector() == std::vector<float>(4, 2));
    CHECK(x.grad().state()->where == default_device());
    scarce.allow_all();
    move_to(*x.state(), scarce.handle);
    CHECK(x.to_vector() == std::vector<float>(4, 2));
    CHECK(x.grad().state()->where == scarce.handle);
    CHECK(x.grad().to_vector() == std::vector<float>(4, 4));
  }
}

TEST_CASE("what was moved is listed by its name") {
  const device there = another_cpu();
  linear<3, 4> layer = linear<3, 4>::create(3, 4);
  sgd o;
  auto run = bind<policy<strategy::single>>(layer, o);
  to(layer, there);
  CHECK(memory_summary(there).find("weight") != std::string::npos);
}

TEST_CASE("values of a tape on another device: to read, not to go on with") {
  const device there = another_cpu();
  context c(there);
  variable<float, vector> x(full<float>(vector{}, 2));
  tape steps, other(c);
  const auto y = steps.eval(square(x));
  const auto copy = y.to(there);
  CHECK(copy.to_vector() == std::vector<float>(4, 4));
  CHECK_THROWS_WITH_AS(other.eval(sum(copy)),
                       doctest::Contains("is a copy, by to(device), of what a tape recorded"), usage_error);
  CHECK_THROWS_WITH_AS(steps.backward(copy, ones<float>(vector{})),
                       doctest::Contains("is a copy, by to(device)"), usage_error);
  CHECK(other.eval(sum(detach(copy))).item() == 16);
  CHECK(y.to(default_device()).state() == y.state());
  steps.backward(steps.eval(sum(y)));
  CHECK(x.grad().to_vector() == std::vector<float>(4, 4));
  // From a variable: another variable.
  variable<float, vector> moved = x.to(there);
  moved.zero_grad();
  other.backward(other.eval(sum(moved * 5.0f)));
  CHECK(moved.grad().to_vector() == std::vector<float>(4, 5));
  CHECK(x.grad().to_vector() == std::vector<float>(4, 4));
}

TEST_CASE("after a backward pass that failed, its values are no longer operands of tapes") {
  variable<float, vector> x(full<float>(vector{}, 2));
  tape steps;
  auto h = steps.eval(square(x));
  auto y = steps.eval(sum(h));
  y.on_gradient([](auto) { throw std::runtime_error("a hook"); });
  CHECK_THROWS_WITH(steps.backward(y), "a hook");
  CHECK_THROWS_WITH_AS(steps.eval(sum(exp(h))), doctest::Contains("so that no gradient can reach"),
                       usage_error);
  steps.backward(steps.eval(sum(square(x))));
  CHECK(x.grad().to_vector() == std::vector<float>(4, 4));
}

TEST_CASE("random numbers after a recomputation that failed") {
  scarce_device scarce;
  const device& d = scarce.handle;
  context c(d);
  c.recompute_programs = 1;
  variable<float, matrix> x(randn<float>(matrix{64, 64}, {}, d));
  const auto loss = [&] { return sum(dropout(exp(dropout(sin(x), 0.5f)), 0.5f)); };
  const auto failing = [&](int allowed) {
    tape steps(c);
    const auto y = steps.eval(loss());
    const auto before = c.randomness();
    scarce.allow(allowed);
    bool failed = false;
    try {
      steps.backward(y);
    } catch (const out_of_memory_error&) { failed = true; }
    scarce.allow_all();
    CHECK(c.randomness().programs >= before.programs);  // none is drawn again
    return failed;
  };
  int failures = 0;
  while (failing(failures)) ++failures;
  CHECK(failures > 0);
}

namespace {
struct two_layers {
  linear<> first = linear<>::create(4, 3), second = linear<>::create(3, 2);
};
}  // namespace

TEST_CASE("an optimizer step that fails is completed by the next") {
  const auto gradients = [](two_layers& m, context& c) {
    tape steps(c);
    const auto x = ones<float>(matrix{5, 4}, c.where());
    steps.backward(steps.eval(sum(square(m.second(relu(m.first(x)))))));
  };
  const auto elements = [](two_layers& m) {
    std::vector<float> all;
    for (const auto& [name, p] : state_dict(m)) {
      const auto v = tensor<float, extents<dyn>>(flat_view<float>(p)).to_vector();
      all.insert(all.end(), v.begin(), v.end());
    }
    return all;
  };
  const auto model = [](const device& d) {
    two_layers m;
    initialize(m, 7);
    to(m, d);
    return m;
  };
  scarce_device scarce;
  context c(scarce.handle);
  two_layers whole = model(scarce.handle);
  adamw reference;
  for (int step = 0; step < 2; ++step) gradients(whole, c), reference.step(whole, 1, c);
  for (int allowed = 0; allowed < 4; ++allowed) {
    two_layers m = model(scarce.handle);
    adamw o;
    gradients(m, c);
    // The context of another device: nothing has changed.
    CHECK_THROWS_WITH_AS(o.step(m), doctest::Contains("the gradient of parameter first.weight of shape ["),
                         device_error);
    CHECK(o.steps == 0);
    scarce.allow(allowed);
    CHECK_THROWS_AS(o.step(m, 1, c), out_of_memory_error);
    scarce.allow_all();
    CHECK(o.steps == 0);
    o.step(m, 1, c);
    CHECK(o.steps == 1);
    gradients(m, c);
    o.step(m, 1, c);
    CHECK(elements(m) == elements(whole));
  }
}

TEST_CASE("a parameter kept on another device than its gradient: a step that fails, and the next") {
  scarce_device scarce;
  context c(scarce.handle);
  const auto parameter_of = [](const device& where) {
    parameter<extents<3>> p(full<float>(extents<3>{}, 2).to(where));
    return std::tuple{p};
  };
  const auto set_gradient = [&](auto& model) {
    std::get<0>(model).state()->grad = full<float>(extents<3>{}, 0.5f, scarce.handle).state();
  };
  auto whole = parameter_of(scarce.handle);
  adamw reference;
  set_gradient(whole);
  reference.step(whole, 1, c);
  int failures = 0;
  for (bool failed = true; failed; failures += failed) {
    auto kept = parameter_of(default_device());
    const auto& p = std::get<0>(kept);
    adamw o;
    set_gradient(kept);
    scarce.allow(failures);
    failed = false;
    try {
      o.step(kept, 1, c);
    } catch (const out_of_memory_error&) { failed = true; }
    scarce.allow_all();
    CHECK(p.state()->where == default_device());
    if (failed) {
      CHECK(p.grad().state()->where == scarce.handle);
      CHECK(p.to_vector() == std::vector<float>(3, 2));
      o.step(kept, 1, c);
    }
    CHECK(o.steps == 1);
    CHECK(!p.grad().defined());
    CHECK(p.to_vector() == std::get<0>(whole).to_vector());
  }
  CHECK(failures > 0);
}

namespace {
/// A CPU device as a custom kind.
struct numbered {
  static constexpr auto name = "numbered";
  static std::vector<device_facts> list() { return {{"first", 0, ""}, {"second", 0, ""}, {"third", 0, ""}}; }
  static std::shared_ptr<backend> open(int, const device_options&) {
    return std::make_shared<cpu::cpu_backend>(1);
  }
};
/// A kind that opens another kind's device.
struct above {
  static constexpr auto name = "above";
  static std::vector<device_facts> list() { return numbered::list(); }
  static std::shared_ptr<backend> open(int number, const device_options&) {
    const device below = on<numbered>::where({.device = number});
    return std::make_shared<cpu::cpu_backend>(below->name() ? 1 : 2);
  }
};
}  // namespace

TEST_CASE("which device of a kind") {
  const device first = on<numbered>::where({.device = 0}), second = on<numbered>::where({.device = 1});
  CHECK(on<numbered>::where() == first);
  ::setenv("LOCAL_RANK", "1", 1);
  CHECK(on<numbered>::where() == second);
  CHECK(context_in<on<numbered>>().where() == second);
  CHECK(on<numbered>::where({.local_rank = 3}) == first);
  ::setenv("LOCAL_RANK", "one", 1);
  CHECK_THROWS_WITH_AS(on<numbered>::where(), "weft: LOCAL_RANK=one: expected a number, 0 or more",
                       usage_error);
  ::unsetenv("LOCAL_RANK");
  for (const int missing : {-7, 3})
    CHECK_THROWS_WITH_AS(on<numbered>::where({.device = missing}),
                         doctest::Contains("there is no device numbered:"), device_error);
  CHECK(on<above>::where() == on<above>::where({.device = 0}));
  // A number of threads applies only to newly opened devices.
  CHECK_THROWS_AS(on<host>::where({.threads = 1}), usage_error);
  linear<2, 2> layer = linear<2, 2>::create(2, 2);
  sgd o;
  CHECK_THROWS_WITH_AS(bind<policy<>>(layer, o, {.threads = 1}), doctest::Contains("1 threads"), usage_error);
}

TEST_CASE("threads that share a device: an invalid index is an error of the thread that gave it") {
  const device* const d = test::tested_device();
  if (!d) return;
  std::atomic<int> wrong{0}, seen{0}, silent{0};
  const auto look_up = [&](std::int64_t at, int rounds, std::atomic<int>& failed) {
    context c(*d);
    const auto table = ones<float>(matrix{5, 3}, *d);
    tensor<std::int64_t, extents<2>> index(zeros<std::int64_t>(extents<2>{}, *d));
    index.copy_from({at, 0});
    for (int i = 0; i < rounds; ++i) try {
        if (eval(embedding(table, index), c).to_vector() != std::vector<float>(6, 1)) ++silent;
      } catch (const value_error&) { ++failed; }
  };
  std::thread guilty([&] { look_up(99, 50, seen); }), innocent([&] { look_up(2, 50, wrong); });
  guilty.join();
  innocent.join();
  CHECK(seen == 50);
  CHECK(wrong == 0);
  CHECK(silent == 0);
}
