// SPDX-License-Identifier: MIT
// Training steps recorded as CUDA graphs, on the fake driver, which captures calls, refuses those that a
// capture does not allow, and replays them.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>

#include <weft/gpu/open.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/weft.hpp>

#include "fake_cuda.hpp"

using namespace weft;

namespace {

device nvidia() { return device(std::make_shared<gpu::cuda_backend>(0)); }

struct block {
  layer_normalization<> before, between;
  causal_self_attention<> attend;
  feed_forward<> mlp;
  dropout_layer drop{.rate = 0.25f};
  static block create(const device& where) {
    return {layer_normalization<>::create(8, where), layer_normalization<>::create(8, where),
            causal_self_attention<>::create(8, 2, where), feed_forward<>::create(8, 16, where)};
  }
  auto operator()(expression auto x) const {
    return let(x + drop(attend(before(x))), [this](auto y) { return y + drop(mlp(between(y))); });
  }
};
struct language_model {
  embedding_table<> tokens;
  repeat<block> blocks;
  static language_model create(const device& where) {
    language_model m{embedding_table<>::create(11, 8, where), {}};
    for (int b = 0; b < 2; ++b) m.blocks.blocks.push_back(block::create(where));
    initialize(m, 5);
    return m;
  }
  /// The logits are computed in slices of rows.
  auto loss(expression auto x, expression auto labels) const {
    return linear_cross_entropy(flatten<0, 1>(dropout(blocks(tokens(x)), 0.1f)), tokens.weight, labels, 66);
  }
};

using token_batch = std::pair<tensor<std::int32_t, extents<dyn, dyn>>, tensor<std::int32_t, extents<dyn>>>;
token_batch batch(const device& d, index_t length, int number) {
  const auto token = [=](index_t i) { return (3 * i + number) % 11; };
  const auto label = [=](index_t i) { return i * (i + number) % 11; };
  return {generate<std::int32_t>(extents<dyn, dyn>{2, length}, token, d),
          generate<std::int32_t>(extents<dyn>{2 * length}, label, d)};
}

long launches() {
  return fake_cuda::calls("cuLaunchKernel") + fake_cuda::products_of().products +
         fake_cuda::calls("cuMemsetD8Async");
}

struct run_of_steps {
  std::vector<double> numbers;  // losses, norms, then the parameters
  std::vector<long> launches, graphs, waits, allocations;  // per step
};
/// Takes steps with different batches of two lengths, different random numbers and learning rates. Between
/// them the model is evaluated on a batch that needs more memory, and other allocations take the memory it
/// leaves.
template <class... Choices, class Optimizer>
run_of_steps trained(bool graph, Optimizer optimizer, index_t micro_batches, int steps = 8,
                     int recompute_programs = 0) {
  const device d = nvidia();
  language_model model = language_model::create(d);
  self_communicator alone;
  auto run = bind<Choices...>(model, optimizer, alone, {});
  run.recompute_programs = recompute_programs;
  run_of_steps all;
  std::vector<tensor<float, extents<dyn>>> others;
  for (int s = 0; s < steps; ++s) {
    if (s == 5) {
      eval(model.loss(batch(d, 40, 1).first, batch(d, 40, 1).second), run);
      for (index_t n = 16; n < 40000; n += n / 8) others.push_back(full<float>(extents<dyn>{n}, 3, d));
    }
    optimizer.lr = 0.01 / (1 + s);
    const long graphs = fake_cuda::calls("cuGraphLaunch"), waits = fake_cuda::calls("cuStreamSynchronize"),
               memory = fake_cuda::calls("cuMemAlloc");
    std::vector<token_batch> batches;
    for (index_t j = 0; j < micro_batches; ++j)
      batches.push_back(batch(d, s % 4 == 3 ? 7 : 5, s + 10 * static_cast<int>(j)));
    const long before = launches();
    const step_result r = run.step(
        micro_batches,
        [&](index_t j) {
          const auto& [x, y] = batches[static_cast<std::size_t>(j)];
          return model.loss(x, y);
        },
        {.clip = 0.5, .graph = graph});
    all.launches.push_back(launches() - before);
    all.graphs.push_back(fake_cuda::calls("cuGraphLaunch") - graphs);
    all.waits.push_back(fake_cuda::calls("cuStreamSynchronize") - waits);
    all.allocations.push_back(fake_cuda::calls("cuMemAlloc") - memory);
    all.numbers.insert(all.numbers.end(), {r.loss, r.norm});
  }
  for (const auto& t : others)
    CHECK(t.to_vector() == std::vector<float>(static_cast<std::size_t>(t.size()), 3));
  for (const auto& p : parameters_of(model))
    for (float x : flat_view<float>(p).to_vector()) all.numbers.push_back(x);
  return all;
}

/// The message of the exception that `f` throws.
template <class Error, class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing of the kind was thrown";
}

struct classifier {
  linear<7, 5> hidden;
  linear<5, 3> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};
struct small_run {
  device d = nvidia();
  classifier model = create<classifier>(d);
  sgd optimizer{.lr = 0.1};
  self_communicator alone;
  tensor<float, extents<dyn, 7>> x = randn<float>(extents<dyn, 7>{4, 7}, {.seed = 2}, d);
  tensor<std::int32_t, extents<dyn>> labels =
      generate<std::int32_t>(extents<dyn>{4}, [](index_t i) { return i % 3; }, d);
};

}  // namespace

TEST_CASE("graphs: steps that are recorded have the bits of those that are not") {
  const long held = fake_cuda::held();
  {
    const run_of_steps with = trained(true, adamw{}, 1), without = trained(false, adamw{}, 1);
    CHECK(with.numbers == without.numbers);
    CHECK(with.graphs == std::vector<long>{0, 1, 1, 0, 1, 1, 1, 1});  // one per length
    for (const std::size_t s : {2u, 4u, 5u, 6u}) {
      CHECK(with.launches[s] == 3);  // tokens, labels, the update of all parameters
      CHECK(without.launches[s] > 60);
      CHECK(with.waits[s] == 1);
      if (s < 5) CHECK(with.allocations[s] == 0);  // later, other allocations have taken the cached memory
    }
  }
  CHECK(fake_cuda::held() == held);
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("graphs: with several micro-batches, with recomputation, with products in bf16") {
  CHECK(trained(true, adamw{}, 3, 6).numbers == trained(false, adamw{}, 3, 6).numbers);
  const int all = context::every_program;
  CHECK(trained(true, adamw{}, 1, 5, all).numbers == trained(false, adamw{}, 1, 5).numbers);
  using momentum = sgd;
  CHECK(trained<precision::bf16>(true, momentum{.momentum = 0.9}, 2, 5).numbers ==
        trained<precision::bf16>(false, momentum{.momentum = 0.9}, 2, 5).numbers);
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("graphs: other settings, other shapes and other losses are steps of their own") {
  small_run r;
  auto run = bind<>(r.model, r.optimizer, r.alone, {});
  const auto step = [&](double clip, index_t rows) {
    const long before = fake_cuda::calls("cuGraphInstantiate");
    run.step(1,
             [&](index_t) {
               return cross_entropy(r.model(slice<0>(r.x, 0, rows)), slice<0>(r.labels, 0, rows));
             },
             {.clip = clip, .graph = true});
    return fake_cuda::calls("cuGraphInstantiate") - before;
  };
  const auto steps = [&](double clip, index_t rows) {
    return std::vector<long>{step(clip, rows), step(clip, rows), step(clip, rows)};
  };
  const std::vector<long> recorded{0, 1, 0}, known{0, 0, 0};
  CHECK(steps(1, 4) == recorded);
  CHECK(steps(2, 4) == recorded);
  CHECK(steps(1, 3) == recorded);
  CHECK(steps(1, 4) == known);
  run.recompute_programs = context::every_program;
  CHECK(steps(1, 4) == recorded);
  CHECK(fake_cuda::misuse() == "");
}

namespace {
struct two_heads {
  linear<7, 5> hidden;
  linear<5, 3> first, second;
};
}  // namespace

TEST_CASE("graphs: steps that read other parameters of the same shapes are steps of their own") {
  const auto parameters = [](bool graph) {
    small_run r;
    two_heads model = create<two_heads>(r.d);
    initialize(model, 3);
    auto run = bind<>(model, r.optimizer, r.alone, {});
    for (int s = 0; s < 7; ++s) {
      const linear<5, 3>& head = s % 2 ? model.first : model.second;
      run.step(1, [&](index_t) { return cross_entropy(head(relu(model.hidden(r.x))), r.labels); },
               {.graph = graph});
    }
    std::vector<float> all;
    for (const auto& p : parameters_of(model))
      for (float x : flat_view<float>(p).to_vector()) all.push_back(x);
    return all;
  };
  CHECK(parameters(true) == parameters(false));
  CHECK(fake_cuda::misuse() == "");
}

namespace {
struct scaled_block {
  linear<8, 8> map;
  std::vector<float> gains{1, 2};
  std::optional<float> shift;
  std::shared_ptr<float> offset = std::make_shared<float>(0);
  dropout_layer drop{.rate = 0.1f};
  tensor<float, extents<8>> mask;
  auto operator()(expression auto x) const {
    return x + drop(map(x)) * gains[0] * gains.back() * mask + shift.value_or(0.0f) + *offset;
  }
};
struct scaled_model {
  embedding_table<11, 8> tokens;
  repeat<scaled_block> blocks;
};
}  // namespace

TEST_CASE("graphs: what blocks hold, and the weight of a loss in slices, are those of the step") {
  const auto numbers = [](bool graph, long& recorded) {
    const device d = nvidia();
    scaled_model m = create<scaled_model>(d);
    for (int b = 0; b < 2; ++b) m.blocks.blocks.push_back(create<scaled_block>(d));
    for (auto& b : m.blocks.blocks) b.mask = full<float>(extents<8>{}, 1, d);
    initialize(m, 3);
    auto head = randn<float>(extents<dyn, 8>{11, 8}, {.seed = 3}, d);
    const auto other = full<float>(extents<8>{}, 0.5f, d);
    adamw optimizer{.lr = 0.05};
    self_communicator alone;
    auto run = bind<>(m, optimizer, alone, {});
    const long before = fake_cuda::calls("cuGraphInstantiate");
    std::vector<double> all;
    index_t at_once = 66;
    for (int s = 0; s < 24; ++s) {
      scaled_block& b = m.blocks.blocks[1];
      if (s == 3) b.drop.rate = 0.5f;
      if (s == 6) b.gains.back() = 3;
      if (s == 9) b.shift = 0.0f;  // the same values, another program
      if (s == 12) b.shift = 0.25f;
      if (s == 15) b.mask = other;
      if (s == 18) at_once = 33;
      if (s == 21) *b.offset = 0.5f;
      head = randn<float>(extents<dyn, 8>{11, 8}, {.seed = static_cast<std::uint64_t>(s)}, d);
      const auto [x, y] = batch(d, 5, s);
      const step_result r = run.step(
          1,
          [&](index_t) {
            return linear_cross_entropy(flatten<0, 1>(m.blocks(m.tokens(x))), head, y, at_once);
          },
          {.graph = graph});
      all.insert(all.end(), {r.loss, r.norm});
    }
    recorded = fake_cuda::calls("cuGraphInstantiate") - before;
    return all;
  };
  long with = 0, without = 0;
  CHECK(numbers(true, with) == numbers(false, without));
  CHECK(with == 8);
  CHECK(without == 0);
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("graphs: a weight that is rounded once for the slices of a loss is rounded in each step") {
  const auto numbers = [](bool graph) {
    const device d = nvidia();
    auto tokens = create<embedding_table<11, 8>>(d);
    initialize(tokens, 3);
    adamw optimizer{.lr = 0.05};
    self_communicator alone;
    auto run = bind<precision::bf16>(tokens, optimizer, alone, {});
    std::vector<double> all;
    for (int s = 0; s < 8; ++s) {
      const auto [x, y] = batch(d, 5, s);
      const step_result r = run.step(
          1, [&](index_t) { return linear_cross_entropy(flatten<0, 1>(tokens(x)), tokens.weight, y, 33); },
          {.graph = graph});
      all.insert(all.end(), {r.loss, r.norm});
    }
    return all;
  };
  CHECK(numbers(true) == numbers(false));
  CHECK(fake_cuda::misuse() == "");
}

namespace {
/// [time, batch, 6] -> [batch, 3].
struct recurrent_model {
  lstm<6, 5> first;
  gru<5, 4> second;
  batch_normalization<4> norm;
  linear<4, 3> output;
  auto operator()(expression auto x) const { return output(norm(mean(second(first(x)), dims<0>))); }
};
}  // namespace

TEST_CASE("graphs: recurrences and batch norm, whose running statistics go on") {
  const auto numbers = [](bool graph, long& recorded) {
    const device d = nvidia();
    auto m = create<recurrent_model>(d);
    initialize(m, 3);
    adamw optimizer{.lr = 0.05};
    self_communicator alone;
    auto run = bind<>(m, optimizer, alone, {});
    const long before = fake_cuda::calls("cuGraphInstantiate");
    std::vector<double> all;
    for (int s = 0; s < 12; ++s) {
      if (s == 9) m.norm.momentum = 0.5;
      const index_t time = s % 4 == 3 ? 7 : 4;
      const auto labels = generate<std::int32_t>(
          extents<dyn>{5}, [s](index_t i) { return (i * i + s) % 3; }, d);
      const step_result r =
          run.step(2,
                   [&](index_t j) {
                     const auto seed = static_cast<std::uint64_t>(2 * s + j);
                     return cross_entropy(
                         m(randn<float>(extents<dyn, dyn, 6>{time, 5, 6}, {.seed = seed}, d)), labels);
                   },
                   {.graph = graph});
      all.insert(all.end(), {r.loss, r.norm});
      for (const float x : m.norm.running_mean.to_vector()) all.push_back(x);
      for (const float x : m.norm.running_var.to_vector()) all.push_back(x);
    }
    recorded = fake_cuda::calls("cuGraphInstantiate") - before;
    for (const auto& p : parameters_of(m))
      for (float x : flat_view<float>(p).to_vector()) all.push_back(x);
    return all;
  };
  long with = 0, without = 0;
  CHECK(numbers(true, with) == numbers(false, without));
  CHECK(with == 3);
  CHECK(without == 0);
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("graphs: what cannot be recorded is refused by name, and the run goes on without") {
  const auto refused = [](auto prepare, auto loss, const parallel_options& o = {}) {
    small_run r;
    auto run = bind<>(r.model, r.optimizer, r.alone, o);
    run.on_tap = [](const tapped&) {};
    const auto step = [&](bool graph) {
      return run.step(1, [&](index_t) { return loss(r, r.model(r.x)); }, {.graph = graph}).loss;
    };
    step(false);
    prepare(r, run);
    const std::string said = message_of<usage_error>([&] {
      step(true);
      step(true);
    });
    CHECK(std::isfinite(step(false)));
    CHECK(fake_cuda::misuse() == "");
    return said;
  };
  const auto nothing = [](auto&, auto&) {};
  const auto plain = [](small_run& r, auto y) { return cross_entropy(y, r.labels); };
  CHECK(refused(nothing, [](small_run& r, auto y) { return cross_entropy(tap(y, "logits"), r.labels); }) ==
        "weft: tap: \"logits\" is in a step that is recorded (.graph = true): the host would have to wait");
  CHECK(refused(nothing, plain, {.offload_optimizer = default_device()}) ==
        "weft: step: a step with offload cannot be recorded (.graph = true)");
  CHECK(refused([](small_run& r, auto&) { r.model.hidden.weight.on_gradient([](const auto&) {}); }, plain) ==
        "weft: step: a step with gradient hooks cannot be recorded (.graph = true)");
  CHECK(refused([](small_run& r, auto& run) {
          tape steps(run);
          steps.backward(steps.eval(cross_entropy(r.model(r.x), r.labels)));
        }, plain) ==
        "weft: step: a step with gradients of another backward pass cannot be recorded (.graph = true)");
  CHECK(refused([](small_run&, auto& run) { run.join(true); }, plain) ==
        "weft: step: a step with join() cannot be recorded (.graph = true)");
  setenv("WEFT_CHECK_LAUNCHES", "1", 1);
  CHECK(refused(nothing, plain).find("WEFT_CHECK_LAUNCHES") != std::string::npos);
  unsetenv("WEFT_CHECK_LAUNCHES");
}

TEST_CASE("graphs: a step is recorded in the memory of the step before, whatever else was allocated since") {
  small_run r;
  auto run = bind<>(r.model, r.optimizer, r.alone, {});
  const auto step = [&] {
    return run.step(1, [&](index_t) { return cross_entropy(r.model(r.x), r.labels); }, {.graph = true}).loss;
  };
  step();
  r.d.memory().empty_cache();
  std::vector<buffer> others;
  for (int i = 0; i < 50; ++i) others.push_back(r.d.allocate(static_cast<std::size_t>(16 * i)));
  CHECK(std::isfinite(step()));
  CHECK(fake_cuda::misuse() == "");
}

namespace {
/// Whether a step of this many rows was a replayed recording.
template <class Run>
bool is_replayed(small_run& r, Run& run, index_t rows) {
  const long graphs = fake_cuda::calls("cuGraphLaunch");
  const auto x = randn<float>(extents<dyn, 7>{rows, 7}, {.seed = 4}, r.d);
  const auto labels = generate<std::int32_t>(extents<dyn>{rows}, [](index_t i) { return i % 3; }, r.d);
  CHECK(std::isfinite(
      run.step(1, [&](index_t) { return cross_entropy(r.model(x), labels); }, {.graph = true}).loss));
  return fake_cuda::calls("cuGraphLaunch") > graphs;
}
}  // namespace

TEST_CASE("graphs: a step whose memory went to others is executed once more before it is recorded") {
  small_run r;
  auto run = bind<>(r.model, r.optimizer, r.alone, {});
  CHECK_FALSE(is_replayed(r, run, 4));
  fake_cuda::fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, 2);
  const memory_figures before = r.d.memory().figures();
  const buffer large = r.d.allocate(1 << 20);
  CHECK(r.d.memory().figures().retries == before.retries + 1);
  CHECK_FALSE(is_replayed(r, run, 4));
  CHECK(is_replayed(r, run, 4));
  fake_cuda::fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, 2);
  const buffer larger = r.d.allocate(2 << 20);  // recordings keep their memory
  CHECK(is_replayed(r, run, 4));
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("graphs: of steps of ever other forms, the last four that came once hold memory") {
  small_run r;
  auto run = bind<>(r.model, r.optimizer, r.alone, {});
  std::size_t blocks = 0;
  for (index_t rows = 30; rows > 10; --rows) {
    CHECK_FALSE(is_replayed(r, run, rows));
    if (rows == 26) blocks = r.d.memory().figures().blocks;
  }
  CHECK(r.d.memory().figures().blocks == blocks);
  for (index_t rows = 14; rows > 10; --rows) CHECK(is_replayed(r, run, rows));
  CHECK_FALSE(is_replayed(r, run, 15));
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("graphs: what the driver does not allow in a capture is refused before it is asked") {
  const device d = nvidia();
  const buffer memory = d.allocate(64);
  const auto refused = [&](auto call) {
    d->begin_recording();
    const std::string said = message_of<usage_error>(call);
    CHECK(d->is_recording());
    d->abandon_recording();
    CHECK(!d->is_recording());
    return said;
  };
  float x = 1;
  const std::string recorded = "weft: cuda: this work cannot be recorded: it ";
  CHECK(refused([&] { (void)d.allocate(1 << 20); }) ==
        recorded + "needs more device memory than the previous step");
  CHECK(refused([&] { d->download(&x, memory.data(), 4); }) ==
        recorded + "waits for the device, to read elements on the host");
  CHECK(refused([&] { d->synchronize(); }) ==
        recorded + "waits for the device, to read elements on the host");
  CHECK(refused([&] {
          strided s;
          s.pointer = memory.data();
          s.extents = {1, {1}};
          set_contiguous(s);
          d->copy(s, s);
        }) == recorded + "needs a kernel that has not been launched before");
  const std::vector<char> large(5 << 20);
  CHECK(refused([&] { d->upload(memory.data(), large.data(), large.size()); }) ==
        recorded + "uploads more than 4 MiB");
  CHECK_THROWS_AS(default_device()->begin_recording(), device_error);
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("graphs: memory neither goes back nor is mapped while work is recorded") {
  for (const bool expands : {false, true}) {
    CAPTURE(expands);
    const device d(std::make_shared<gpu::cuda_backend>(0), {.expandable_segments = expands});
    { const buffer cached = d.allocate(3 << 20); }
    d.memory().limit(d.memory().figures().reserved);
    const memory_figures before = d.memory().figures();
    const long freed = fake_cuda::calls("cuMemFree") + fake_cuda::calls("cuMemUnmap"),
               mapped = fake_cuda::calls("cuMemMap");
    d->begin_recording();
    CHECK(message_of<usage_error>([&] { (void)d.allocate(30 << 20); }).find("needs more device memory") !=
          std::string::npos);
    d->abandon_recording();
    CHECK(fake_cuda::calls("cuMemFree") + fake_cuda::calls("cuMemUnmap") - freed <= 1);  // the keys
    CHECK(fake_cuda::calls("cuMemMap") == mapped);
    CHECK(d.memory().figures().reserved == before.reserved);
    CHECK_NOTHROW((void)d.allocate(30 << 20));
  }
  CHECK(fake_cuda::misuse() == "");
}

namespace {
/// A queue whose work never ends, and which counts the queries made while work is recorded.
struct busy_queue : queue_use {
  device where;
  long asked = 0;
  explicit busy_queue(device d) : where(std::move(d)) {}
  void close() noexcept override {}
  bool is_over() override {
    asked += where->is_recording();
    return false;
  }
  void wait() override {}
};
}  // namespace

TEST_CASE("graphs: nobody asks for the end of another queue's work while a step is recorded") {
  small_run r;
  auto run = bind<>(r.model, r.optimizer, r.alone, {});
  const auto use = std::make_shared<busy_queue>(r.d);
  for (int s = 0; s < 4; ++s) {
    {
      const buffer b = r.d.allocate(4000);
      CHECK(r.d.memory().record_use(b.data(), use));
    }
    run.step(1, [&](index_t) { return cross_entropy(r.model(r.x), r.labels); }, {.graph = true});
  }
  CHECK(use->asked == 0);
  CHECK(r.d.memory().figures().awaited >= 4 * 4000);
  use->where = default_device();
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("graphs: an invalid label is reported by the step that reads it") {
  small_run r;
  auto run = bind<>(r.model, r.optimizer, r.alone, {});
  for (int s = 0; s < 5; ++s) {
    const auto labels = full<std::int32_t>(extents<dyn>{4}, s == 3 ? 5 : 1, r.d);
    const auto step = [&] {
      run.step(1, [&](index_t) { return cross_entropy(r.model(r.x), labels); }, {.graph = true});
    };
    if (s == 3) CHECK_THROWS_AS(step(), value_error);
    else CHECK_NOTHROW(step());
  }
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("graphs: an invalid label is reported to the thread that takes the step, not to the recorder") {
  small_run r;
  auto run = bind<>(r.model, r.optimizer, r.alone, {});
  const auto step = [&](std::int32_t label) {
    const auto labels = full<std::int32_t>(extents<dyn>{4}, label, r.d);
    return message_of<value_error>(
        [&] { run.step(1, [&](index_t) { return cross_entropy(r.model(r.x), labels); }, {.graph = true}); });
  };
  const std::string none = "nothing of the kind was thrown";
  const auto takes = [&](std::int32_t label, bool fails) {
    const long before = fake_cuda::calls("cuGraphLaunch");
    const bool failed = step(label) != none;
    CHECK(failed == fails);
    return fake_cuda::calls("cuGraphLaunch") - before;
  };
  for (int s = 0; s < 3; ++s) takes(1, false);
  std::thread([&] {
    CHECK(takes(1, false) == 1);
    CHECK(takes(5, true) == 1);
    CHECK(takes(1, false) == 1);
  }).join();
  CHECK(takes(1, false) == 1);
  CHECK(takes(5, true) == 1);
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("graphs: a recorded step leaves the random state that one that is not recorded leaves") {
  const auto drawn = [](bool graph) {
    small_run r;
    auto run = bind<>(r.model, r.optimizer, r.alone, {});
    std::vector<std::vector<float>> all;
    for (int s = 0; s < 5; ++s) {
      run.step(2, [&](index_t) { return cross_entropy(r.model(dropout(r.x, 0.5f)), r.labels); },
               {.graph = graph});
      all.push_back(eval(dropout(r.x, 0.5f), run).to_vector());
    }
    return all;
  };
  CHECK(drawn(true) == drawn(false));
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("graphs: blocks that the run does not train, and that change between micro-batches, are refused") {
  const device d = nvidia();
  scaled_model bound = create<scaled_model>(d), other = create<scaled_model>(d);
  for (scaled_model* m : {&bound, &other}) {
    m->blocks.blocks.push_back(create<scaled_block>(d));
    m->blocks.blocks[0].mask = full<float>(extents<8>{}, 1, d);
    initialize(*m, 3);
  }
  adamw optimizer;
  self_communicator alone;
  auto run = bind<>(bound, optimizer, alone, {});
  const auto head = randn<float>(extents<dyn, 8>{11, 8}, {.seed = 3}, d);
  const auto [x, y] = batch(d, 5, 1);
  const auto step = [&](const scaled_model& of, auto change) {
    return message_of<error>([&] {
      run.step(2,
               [&](index_t j) {
                 if (j == 1) change();
                 return linear_cross_entropy(flatten<0, 1>(of.blocks(bound.tokens(x))), head, y);
               },
               {.graph = true});
    });
  };
  const auto nothing = [] {};
  const std::string fine = "nothing of the kind was thrown";
  CHECK(step(other, nothing).find("in a block that the run does not train") != std::string::npos);
  for (int s = 0; s < 4; ++s) {
    CHECK(step(bound, nothing) == fine);
    const std::string refused = "changes what blocks of an earlier loss hold";
    CHECK(step(bound, [&] { bound.blocks.blocks[0].gains[0] += 1; }).find(refused) != std::string::npos);
    auto& mask = bound.blocks.blocks[0].mask;
    CHECK(step(bound, [&] { update(mask, mask * 2.0f, run); }).find(refused) != std::string::npos);
  }
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("graphs: work that draws too many random numbers is refused, not written beside its keys") {
  small_run r;
  auto run = bind<>(r.model, r.optimizer, r.alone, {});
  const auto step = [&](index_t micro_batches) {
    return run.step(micro_batches,
                    [&](index_t j) {
                      return cross_entropy(r.model(dropout(r.x, j == 0 ? 0.5f : 0.25f)), r.labels);
                    },
                    {.graph = true});
  };
  step(4095);  // two programs each: just under the limit before those of the norm
  CHECK_THROWS_AS(step(4095), usage_error);
  CHECK_NOTHROW(step(1));
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("graphs: what the loss of a later micro-batch changes in place is no operand of an earlier one") {
  small_run r;
  auto run = bind<>(r.model, r.optimizer, r.alone, {});
  for (int s = 0; s < 5; ++s) {
    const auto step = [&] {
      run.step(2,
               [&](index_t j) {
                 if (s == 3 && j == 1) update(r.x, r.x * 2.0f, run);
                 return cross_entropy(r.model(r.x), r.labels);
               },
               {.graph = true});
    };
    if (s == 3) CHECK_THROWS_AS(step(), value_error);
    else CHECK_NOTHROW(step());
  }
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("graphs: in f16 the scale of the loss goes on, and steps that overflow are skipped") {
  const auto numbers = [](bool graph) {
    small_run r;
    initialize(r.model, 3);
    auto run = bind<precision::f16>(r.model, r.optimizer, r.alone, {});
    std::vector<double> all;
    for (int s = 0; s < 9; ++s) {
      if (s == 5) {
        loss_scaler large = run.scaler();
        large.scale = 0x1p90;
        run.set_scaler(large);
      }
      const auto made = run.step(1, [&](index_t) { return cross_entropy(r.model(r.x), r.labels); },
                                 {.clip = 1, .graph = graph});
      all.insert(all.end(), {made.loss, std::isfinite(made.norm) ? made.norm : -1, run.scaler().scale,
                             static_cast<double>(r.optimizer.steps)});
    }
    return all;
  };
  CHECK(numbers(true) == numbers(false));
}

TEST_CASE("graphs: another thread uses the device while a step is recorded") {
  const device d = nvidia();
  const auto x = randn<float>(extents<dyn, dyn>{9, 9}, {.seed = 1}, d);
  std::atomic<bool> goes_on{true};
  std::atomic<int> wrong{0}, rounds{0};
  std::thread other([&] {
    context c(d);
    const auto expected = eval(softmax(matmul(x, x)), c).to_vector();
    while (goes_on || rounds < 3) {
      wrong += eval(softmax(matmul(x, x)), c).to_vector() != expected;
      ++rounds;
    }
  });
  const auto losses = [&](bool graph) {
    classifier model = create<classifier>(d);
    initialize(model, 3);
    sgd optimizer{.lr = 0.1};
    self_communicator alone;
    auto run = bind<>(model, optimizer, alone, {});
    std::vector<double> all;
    for (index_t s = 0; s < 12; ++s) {
      const auto seed = static_cast<std::uint64_t>(s);
      const auto rows = randn<float>(extents<dyn, 7>{4 + s / 4, 7}, {.seed = seed}, d);
      const auto labels = full<std::int32_t>(extents<dyn>{4 + s / 4}, 1, d);
      all.push_back(
          run.step(1, [&](index_t) { return cross_entropy(model(rows), labels); }, {.graph = graph}).loss);
    }
    return all;
  };
  const auto with = losses(true), without = losses(false);
  goes_on = false;
  other.join();
  CHECK(with == without);
  CHECK(wrong == 0);
  CHECK(fake_cuda::misuse() == "");
}
