// SPDX-License-Identifier: MIT
// The planner's predictions for a step against the step itself: memory and traffic of every rank, the work of
// its device, calculated by hand, gradients that are sent during the backward pass; and the order of plans.
#include <doctest/doctest.h>

#include <limits>

#include <weft/comm/counting.hpp>
#include <weft/comm/threads.hpp>
#include <weft/parallel/context_pipeline.hpp>
#include <weft/parallel/tensor_parallel.hpp>
#include <weft/planner/planner.hpp>
#include <weft/weft.hpp>

#include "../../../examples/gpt2.hpp"
#include "../../throws_with.hpp"

using namespace weft;
using namespace weft::planner;
using weft::test::throws_with;
using kind = step_trace::kind;

namespace {

constexpr gpt2::config sizes{.layers = 3, .heads = 4, .width = 60, .context = 24, .vocabulary = 101};

using depth = policy<strategy::mesh<pp<>, fsdp<2>, tp<>>>;

/// A machine with this many ranks and a CPU's rates.
cluster machine(int ranks) {
  return {.ranks = ranks,
          .device = {.products = 1e11, .bytes = 1e10, .launch = 1e-6},
          .within = {.latency = 1e-5, .bytes = 1e9}};
}

/// Trains a GPT for two steps; `step(f)` calls f.
template <class Plan, class Step>
void train(const device& where, communicator& ranks, const candidate& m, Step&& step) {
  auto model = gpt2::model<>::create(sizes, where.deferred());
  initialize(model, 1);
  adamw optimizer;
  auto run = bind<Plan>(model, optimizer, ranks, m.sizes);
  const auto words = zeros<std::int32_t>(extents<dyn, dyn>{m.samples, sizes.context}, where);
  const auto loss = [&] {
    if constexpr (requires { run.part_of_context(sizes.context); }) {
      const auto own = run.part_of_context(sizes.context);
      return model.loss(own.of(words), own.of(words), own.positions());
    } else {
      return model.loss(words, words, sizes.context);
    }
  };
  step([&] { return run.step(m.micro_batches, [&](index_t) { return loss(); }, {.clip = 1}); });
}

/// The job of a planner.
template <class Plan>
const traced_job job = [](traced_rank& r, const candidate& m) {
  train<Plan>(r.where(), r.ranks(), m, [&](const auto& f) { r.step(f); });
};

struct mlp {
  static constexpr index_t in = 7, hidden = 11, out = 3;
  linear<in, hidden> first;
  linear<hidden, out> last;
  auto operator()(expression auto x) const { return last(relu(first(x))); }
};

/// `exact`: whether memory is known to the byte; otherwise messages may complete before ranks wait for them,
/// so that ranks hold less.
template <class Plan>
void same_as_used(const candidate& m, bool exact = true) {
  const int n = static_cast<int>(m.sizes.ranks());
  INFO(to_string(m.sizes));
  std::vector<step_trace> traces;
  for (int r = 0; r < n; ++r) {
    traced_rank rank(machine(n), r);
    job<Plan>(rank, m);
    traces.push_back(rank.trace());
  }
  run_ranks(n, [&](communicator& ranks) {
    const device where(std::make_shared<cpu::cpu_backend>(1));
    const step_trace& known = traces[static_cast<std::size_t>(ranks.rank())];
    index_t sent = 0;
    train<Plan>(where, ranks, m, [&](const auto& step) {
      step();
      sent = step().sent.total();
    });
    CAPTURE(ranks.rank());
    const std::size_t used = where.memory().figures().peak;
    CHECK(known.peak_bytes >= used);
    CHECK(known.peak_bytes <= used + (exact ? 0 : used / 8));
    // Norms and losses are in every trace, but not in the figures of all runs.
    CHECK(known.sent() >= sent);
    CHECK(known.sent() <= sent + 512);
  });
  const step_times t = simulate(machine(n), traces);
  for (const rank_times& r : t.ranks) {
    CHECK(r.computing > 0);
    CHECK(r.computing + r.waiting == doctest::Approx(r.end));
  }
  const forecast f = forecast_of(machine(n), m, job<Plan>);
  REQUIRE(f.refused == "");
  // The first rank of each stage represents ranks that may have fewer rows, or other positions.
  for (const step_trace& trace : traces) CHECK(trace.peak_bytes <= f.peak_bytes + f.peak_bytes / 256);
  std::vector<step_trace> firsts;
  for (int r = 0; r < n; r += m.sizes.stride(mesh_axis::pp))
    firsts.push_back(traces[static_cast<std::size_t>(r)]);
  CHECK(f.seconds == simulate(machine(n), firsts).seconds);
  CHECK(f.seconds <= t.seconds * (1 + 1e-9));
  CHECK(f.seconds >= 0.9 * t.seconds);
}

}  // namespace

TEST_CASE("memory and traffic of every rank are those of a step") {
  same_as_used<policy<strategy::mesh<dp>>>({{.dp = 3}, 2, 2});
  same_as_used<policy<strategy::mesh<dp, fsdp<1>>>>({{.dp = 2, .fsdp = 2}, 1, 3});
  same_as_used<policy<strategy::mesh<dp, fsdp<>>>>({{.dp = 1, .fsdp = 3}, 2, 2}, false);
  same_as_used<policy<strategy::mesh<dp, fsdp<>>>>({{.dp = 2, .fsdp = 2}, 1, 1});
  same_as_used<depth>({{.pp = 3}, 1, 5});
  same_as_used<depth>({{.pp = 2, .tp = 2}, 2, 4});
  same_as_used<policy<strategy::mesh<pp<>, fsdp<>, cp<ring>>>>({{.fsdp = 2, .cp = 2}, 1, 2}, false);
}

TEST_CASE("the work of a device: products of an MLP, counted by hand") {
  constexpr index_t batch = 5, in = mlp::in, hidden = mlp::hidden, out = mlp::out;
  traced_rank rank(machine(1), 0);
  auto model = create<mlp>(rank.where().deferred());
  sgd optimizer;
  auto run = bind<policy<strategy::single>>(model, optimizer, rank.ranks());
  const auto x = zeros<float>(extents<batch, in>{}, rank.where());
  rank.step([&] { run.step(1, [&](index_t) { return mean(square(model(x))); }); });
  double operations = 0;
  for (const device_call& c : rank.trace().calls) operations += c.operations;
  // Forward: both layers; backward: the weights of both, and the operand of the last.
  CHECK(operations == 2 * batch * (2 * in * hidden + 3 * hidden * out));
  CHECK(rank.trace().operations.empty());
}

TEST_CASE("operations are traced with their ranks and with what they carry") {
  traced_rank rank(machine(6), 3);
  rank.step([&] {
    std::vector<float> x(12), y(12), part(5), some(7);
    rank.ranks().all_reduce(x).wait();
    const auto odd = rank.ranks().split_by([](int r) { return r % 2; });
    REQUIRE(odd->size() == 3);
    REQUIRE(odd->rank() == 1);
    odd->all_gather(part, y, {3, 5, 4}).wait();
    odd->reduce_scatter(y, part, reduction::sum, {3, 5, 4}).wait();
    odd->all_to_all(x, some, {4, 3, 5}, {1, 3, 3}).wait();
    odd->broadcast(some, 2).wait();
    work later = odd->send(part, 2, 7);
    odd->receive(part, 0, 7).wait();
    later.wait();
    rank.ranks().barrier().wait();
  });
  const step_trace& t = rank.trace();
  std::vector<double> bytes;
  for (const rank_operation& o : t.operations) bytes.push_back(o.bytes);
  CHECK(bytes == std::vector<double>{48, 48, 48, 36, 28, 20, 20, 0});
  REQUIRE(t.groups.size() == 2);
  CHECK(t.groups[0].members == std::vector<int>{0, 1, 2, 3, 4, 5});
  CHECK(t.groups[1].members == std::vector<int>{1, 3, 5});
  CHECK(t.operations[5].peer == 5);
  CHECK(t.operations[6].peer == 1);
  CHECK(t.operations[7].number == 3);  // of all ranks, after two all_reduces and a barrier
  std::vector<kind> order;
  for (const step_trace::event& e : t.events) order.push_back(e.what);
  const std::vector<kind> end(order.end() - 6, order.end());
  CHECK(end == std::vector{kind::begin, kind::begin, kind::wait, kind::wait, kind::begin, kind::wait});
}

TEST_CASE("gradients that no rank divides are sent once a step, while its last backward pass computes") {
  // The axis fsdp of the policy has one rank, so that all ranks hold everything.
  const candidate m{{.dp = 4, .fsdp = 1}, 1, 3};
  traced_rank rank(machine(4), 0);
  job<policy<strategy::mesh<dp, fsdp<>>>>(rank, m);
  const step_trace& t = rank.trace();
  const index_t parameters = parameter_count(gpt2::model<>::create(sizes, rank.where().deferred()));
  index_t sent = 0;
  int products = 0, products_after = 0;  // in total, and after the first gradients are sent
  for (const step_trace::event& e : t.events) {
    if (e.what == kind::call && t.calls[e.index].operations > 0) ++products, products_after += sent > 0;
    if (e.what != kind::begin || t.operations[e.index].bytes < 1000) continue;
    CHECK(t.operations[e.index].kind == collective::all_reduce);
    sent += t.operations[e.index].sent;
  }
  CHECK(std::abs(sent - 2 * 4 * parameters * 3 / 4) <= 64);
  // The backward pass of the blocks before the last one, and nothing of earlier micro-batches.
  CHECK(products_after > products / 9);
  CHECK(products_after < products / 3);
}

namespace {

/// A GPU that records what the host reads and what is copied, and ranks that access its memory as NCCL does.
struct watched_device final : counting_backend {
  watched_device() : counting_backend(false) {}
  void download(void* to, const void* from, std::size_t bytes) override {
    most_read = std::max(most_read, bytes);
    counting_backend::download(to, from, bytes);
  }
  void copy(const strided&, const strided&) override { ++copies; }
  void copy_together(std::span<const strided> from, std::span<const strided>) override {
    copies += from.size();
  }
  std::size_t most_read = 0, copies = 0;
};
struct ranks_of_devices final : counting_communicator {
  ranks_of_devices(int rank, int size, const backend* device)
      : counting_communicator(rank, size), device_(device) {}
  const backend* reaches() const override { return device_; }

 private:
  std::shared_ptr<communicator> divide_by(const std::function<int(int)>& color, comm_options o) override {
    const auto part = counting_communicator::divide_by(color, o);
    return std::make_shared<ranks_of_devices>(part->rank(), part->size(), device_);
  }

  const backend* device_;
};

struct even_mlp {
  linear<64, 64> first, last;
  auto operator()(expression auto x) const { return last(relu(first(x))); }
};

}  // namespace

TEST_CASE("gradients of a rank without data-parallel others stay on its device") {
  const auto watched = std::make_shared<watched_device>();
  const device where(watched);
  ranks_of_devices layers(0, 2, &*where);
  train<depth>(where, layers, {{.tp = 2}, 1, 3}, [&](const auto& step) {
    step();
    watched->most_read = 0;
    step();
  });
  // Norms read eight bytes per row. The messages of gradients contain whole matrices.
  CHECK(watched->most_read < 4 * sizes.width * 4 * sizes.width / 2);
}

TEST_CASE("the copies of a step are as many for any number of ranks that divide all rows") {
  const auto copies_among = [](int n) {
    const auto watched = std::make_shared<watched_device>();
    const device where(watched);
    ranks_of_devices ranks(0, n, &*where);
    auto model = create<even_mlp>(where.deferred());
    initialize(model, 1);
    sgd optimizer;
    auto run = bind<policy<strategy::fully_sharded<3>>>(model, optimizer, ranks);
    const auto x = zeros<float>(extents<5, 64>{}, where);
    const auto step = [&] { run.step(1, [&](index_t) { return mean(square(model(x))); }); };
    step();
    watched->copies = 0;
    step();
    return watched->copies;
  };
  CHECK(copies_among(2) > 0);
  CHECK(copies_among(2) == copies_among(32));
}

TEST_CASE("candidates are all meshes, and all micro-batches that divide what a rank has") {
  const mesh_sizes most{.pp = 3, .dp = 8, .tp = 4};
  std::size_t expected = 0;
  for (int pp = 1; pp <= most.pp; ++pp)
    for (int dp = 1; dp <= most.dp; ++dp)
      for (int tp = 1; tp <= most.tp; ++tp)
        if (pp * dp * tp == 12 && 24 % dp == 0)
          for (index_t b = 1; b <= 24; ++b) expected += 24 / dp % b == 0;
  const std::vector<candidate> found = candidates(12, 24, most);
  CHECK(found.size() == expected);
  for (const candidate& m : found) {
    CHECK(m.sizes.ranks() == 12);
    CHECK(m.samples * m.micro_batches * m.sizes.dp == 24);
  }
  CHECK(candidates(7, 1, {.dp = 7}).empty());
  CHECK(throws_with<value_error>([] { candidates(0, 1, {}); }, {"0 ranks"}));
  CHECK(throws_with<value_error>([] { candidates(1, 0, {}); }, {"a batch of 0 samples"}));
  CHECK(throws_with<value_error>([] { candidates(1, 1, {.tp = 0}); }, {"not 0 ranks along tp"}));
}

TEST_CASE("candidates of very many samples or ranks") {
  CHECK(candidates(1, index_t{1} << 40, {}).size() == 41);
  constexpr int most = std::numeric_limits<int>::max();  // a prime
  CHECK(candidates(most, most, {.dp = most}).size() == 1);
  CHECK(candidates(12, 12, {.dp = 5, .fsdp = 4}).size() == 2);  // 3 x 4 and 4 x 3
}

TEST_CASE("plans: the fastest that fits first, then what does not fit, then what is refused, and why") {
  using choice = policy<strategy::mesh<pp<>, dp, tp<>>>;
  cluster c = machine(4);
  const std::vector<candidate> all = candidates(4, 8, {.pp = 4, .dp = 4, .tp = 4});
  std::vector<forecast> found = plan(c, all, job<choice>);
  REQUIRE(found.size() == all.size());
  std::size_t least = ~std::size_t{0}, refused = 0;
  for (const forecast& f : found) {
    if (f.refused.empty()) least = std::min(least, f.peak_bytes);
    else ++refused;
  }
  CHECK(refused > 0);  // three blocks cannot form four stages
  c.memory = 1.5 * static_cast<double>(least);
  found = plan(c, all, job<choice>);
  const auto place = [](const forecast& f) { return !f.refused.empty() ? 2 : f.fits ? 0 : 1; };
  int count[3] = {};
  for (std::size_t i = 0; i < found.size(); ++i) {
    ++count[place(found[i])];
    CHECK((found[i].refused.empty() || found[i].of.sizes.pp == 4));
    if (i == 0) continue;
    CHECK(place(found[i - 1]) <= place(found[i]));
    if (place(found[i - 1]) < place(found[i])) continue;
    if (found[i].fits) CHECK(found[i - 1].seconds <= found[i].seconds);
    else CHECK(found[i - 1].peak_bytes <= found[i].peak_bytes);
  }
  CHECK(count[0] > 0);
  CHECK(count[1] > 0);
  const std::string table = to_string(found, found.size());
  CHECK(table.find("does not fit") != table.npos);
  CHECK(table.find("blocks") != table.npos);
  CHECK(to_string(found, 2).size() < table.size() / 4);
}

TEST_CASE("a step takes at least as long as what it sends, under every stage") {
  cluster c = machine(4);
  c.within = {.latency = 0, .bytes = 1e5};
  const auto at_least_sent = [&]<class Plan>(Plan, const candidate& way) {
    const forecast f = forecast_of(c, way, job<Plan>);
    CAPTURE(to_string(way.sizes));
    CHECK(f.sent > 0);
    CHECK(f.seconds >= 0.999 * static_cast<double>(f.sent) / c.within.bytes);
    CHECK(f.seconds < 1.3 * static_cast<double>(f.sent) / c.within.bytes);
  };
  at_least_sent(policy<strategy::mesh<dp>>{}, {{.dp = 4}, 1, 1});
  at_least_sent(policy<strategy::mesh<fsdp<1>>>{}, {{.fsdp = 4}, 1, 2});
  at_least_sent(policy<strategy::mesh<fsdp<2>>>{}, {{.fsdp = 4}, 1, 2});
  at_least_sent(policy<strategy::mesh<fsdp<3>>>{}, {{.fsdp = 4}, 1, 1});
}

TEST_CASE("steps that differ are traced together") {
  const auto of = [](int local_steps) {
    const traced_job alone = [&](traced_rank& r, const candidate& m) {
      auto model = create<mlp>(r.where().deferred());
      sgd optimizer;
      auto run = bind<policy<strategy::mesh<dp>>>(model, optimizer, r.ranks(),
                                                  parallel_options{.local_steps = local_steps});
      const auto x = zeros<float>(extents<5, mlp::in>{}, r.where());
      r.step([&] { run.step(m.micro_batches, [&](index_t) { return mean(square(model(x))); }); },
             local_steps);
    };
    return forecast_of(machine(2), {{.dp = 2}, 5, 1}, alone);
  };
  const forecast one = of(1), four = of(4);
  CHECK(four.sent * 3 < one.sent);
  CHECK(four.sent * 5 > one.sent);
  CHECK(four.seconds < one.seconds);
  CHECK(four.computing > one.computing / 2);
  CHECK(throws_with<value_error>([&] { traced_rank(machine(1), 0).step([] {}, 0); }, {"0 steps"}));
}

TEST_CASE("what is kept on the host takes no memory, and time to be copied") {
  cluster c = machine(2);
  c.device.is_gpu = true;
  c.device.host = 1e8;
  double before = 0;
  for (const int kept : {0, 1, 2}) {
    const traced_job with = [&](traced_rank& r, const candidate& m) {
      auto model = create<even_mlp>(r.where().deferred());
      adamw optimizer;
      parallel_options o;
      if (kept > 0) o.offload_optimizer = r.host();
      if (kept > 1) o.offload_parameters = r.host();
      auto run = bind<policy<strategy::fully_sharded<3>>>(model, optimizer, r.ranks(), o);
      const auto x = zeros<float>(extents<5, 64>{}, r.where());
      r.step([&] { run.step(m.micro_batches, [&](index_t) { return mean(square(model(x))); }); });
    };
    const forecast f = forecast_of(c, {{.fsdp = 2}, 5, 1}, with);
    CHECK(f.seconds > before);
    before = f.seconds;
  }
}

TEST_CASE("where groups lie on machines differently, all ranks are simulated") {
  for (const auto& [ranks_of_node, sizes] :
       {std::pair(6, mesh_sizes{.dp = 3, .fsdp = 4}), std::pair(3, mesh_sizes{.dp = 6, .fsdp = 2}),
        std::pair(4, mesh_sizes{.dp = 3, .fsdp = 4})}) {
    cluster c = machine(12);
    c.ranks_of_node = ranks_of_node;
    c.between = {.latency = 1e-5, .bytes = 1e7};
    using choice = policy<strategy::mesh<dp, fsdp<3>>>;
    const candidate way{sizes, 1, 1};
    std::vector<step_trace> all;
    for (int r = 0; r < 12; ++r) {
      traced_rank rank(c, r);
      job<choice>(rank, way);
      all.push_back(rank.trace());
    }
    CHECK(forecast_of(c, way, job<choice>).seconds ==
          doctest::Approx(simulate(c, all).seconds).epsilon(0.01));
  }
}

TEST_CASE("the work of a device: depthwise convolutions") {
  struct net {
    convolution2d<8, 8, 3, conv_options{.groups = 8}> only;
  };
  traced_rank rank(machine(1), 0);
  auto model = create<net>(rank.where().deferred());
  sgd optimizer;
  auto run = bind<policy<strategy::single>>(model, optimizer, rank.ranks());
  const auto x = zeros<float>(extents<2, 8, 18, 18>{}, rank.where());
  rank.step([&] { run.step(1, [&](index_t) { return mean(square(model.only(x))); }); });
  double operations = 0;
  for (const device_call& c : rank.trace().calls) operations += c.operations;
  CHECK(operations == 2.0 * 2 * (2 * 8 * 16 * 16 * 9));  // forward, and the gradient of the weight
}

TEST_CASE("mistakes in a job are said") {
  const cluster c = machine(2);
  const auto refused = [&](const traced_job& j) { return forecast_of(c, {{.dp = 2}}, j).refused; };
  CHECK(refused([](traced_rank&, const candidate&) { std::vector<int>().at(3); }) != "");
  CHECK(refused({}) != "");
  const traced_job one_sided = [](traced_rank& r, const candidate&) {
    r.step([&] {
      std::vector<float> x(4);
      if (r.rank() == 0) r.ranks().all_reduce(x).wait();
    });
  };
  CHECK(forecast_of(c, {{.pp = 2}}, one_sided).refused.find("wait for each other") != std::string::npos);
  CHECK(throws_with<usage_error>(
      [&] { forecast_of(c, {{.dp = 2}}, [](traced_rank& r, const candidate&) { r.step([] {}); }); },
      {"computed nothing on rank.where()"}));
  CHECK(throws_with<value_error>([&] { forecast_of(c, {{.dp = 2}, 0, 1}, job<policy<strategy::mesh<dp>>>); },
                                 {"1 micro-batches of 0 samples"}));
  CHECK(forecast_of(c, {{.dp = 2}}, [](traced_rank&, const candidate&) {}).refused.find("rank.step") !=
        std::string::npos);
  CHECK(throws_with<value_error>([&] { forecast_of(c, {{.dp = 3}}, job<policy<strategy::mesh<dp>>>); },
                                 {"dp 3", "3 ranks, but the cluster has 2"}));
  CHECK(throws_with<value_error>([&] { traced_rank(c, 2); }, {"no rank 2 among 2"}));
}
