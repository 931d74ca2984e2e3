// SPDX-License-Identifier: MIT
// The simulation of ranks against closed formulas, and against the simulator of pipeline schedules, which
// shares no code with it.
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include <weft/parallel/schedule/named.hpp>
#include <weft/parallel/schedule/simulate.hpp>
#include <weft/planner/simulate.hpp>

#include "../../throws_with.hpp"

using namespace weft;
using namespace weft::planner;
using weft::test::throws_with;
using kind = step_trace::kind;

namespace {

constexpr double exact = 1e-12;
bool near(double a, double b) { return std::abs(a - b) <= exact * std::max(std::abs(a), std::abs(b)); }

/// A device with one operation per second, and links of one byte per second.
cluster unit_cluster(int ranks, int of_node = 0) {
  return {.ranks = ranks,
          .ranks_of_node = of_node,
          .device = {.products = 1, .bytes = 1},
          .within = {.latency = 0, .bytes = 1},
          .between = {.latency = 0, .bytes = 1}};
}

/// Writes a trace by hand.
struct writer {
  step_trace t;
  explicit writer(int rank) { t.rank = rank; }
  writer& call(double operations) {
    t.events.push_back({kind::call, t.calls.size()});
    t.calls.push_back({.operations = operations});
    return *this;
  }
  std::size_t begin(rank_operation o, rank_group group) {
    o.group = static_cast<int>(t.groups.size());
    t.groups.push_back(std::move(group));
    t.events.push_back({kind::begin, t.operations.size()});
    t.operations.push_back(std::move(o));
    return t.operations.size() - 1;
  }
  writer& wait(std::size_t operation) {
    t.events.push_back({kind::wait, operation});
    return *this;
  }
};

rank_operation all_reduce(double bytes, std::int64_t number) {
  return {.kind = collective::all_reduce, .bytes = bytes, .number = number, .text = "all_reduce"};
}

/// The stage of a schedule as the trace of a rank.
step_trace stage_trace(const pipeline::schedule& s, int stage, const pipeline::costs& costs) {
  writer w(stage);
  const rank_group all{"stages", {}};
  const auto message = [&](collective k, int chunk, int micro_batch, bool up, int peer) {
    const auto tag = static_cast<int>(2 * pipeline::detail::cell(s, chunk, micro_batch)) + up;
    return w.begin({.kind = k, .peer = peer, .tag = tag, .text = name_of(k)}, all);
  };
  for (const pipeline::step& e : s.steps[static_cast<std::size_t>(stage)]) {
    if (pipeline::is_message(e.kind)) continue;
    const bool up = e.kind == pipeline::step_kind::forward, reads = up || pipeline::yields_gradient(e.kind);
    const int from = up ? e.chunk - 1 : e.chunk + 1, to = up ? e.chunk + 1 : e.chunk - 1;
    if (reads && pipeline::detail::crosses(s, e.chunk, from))
      w.wait(message(collective::receive, e.chunk, e.micro_batch, up,
                     s.stage_of[static_cast<std::size_t>(from)]));
    w.call(costs.of(e.kind));
    if (reads && pipeline::detail::crosses(s, e.chunk, to))
      message(collective::send, to, e.micro_batch, up, s.stage_of[static_cast<std::size_t>(to)]);
  }
  return w.t;
}

}  // namespace

TEST_CASE("an operation takes what the formulas say") {
  cluster c{.ranks = 16,
            .ranks_of_node = 4,
            .device = {.products = 1, .bytes = 1},
            .within = {.latency = 1, .bytes = 100},
            .between = {.latency = 10, .bytes = 20}};
  const std::vector<int> node{4, 5, 6, 7}, across{1, 5, 9, 13}, pair_of_each{0, 1, 4, 5, 8, 9, 12, 13},
      uneven{0, 1, 2, 4};
  // 2 * 3/4 * 4000 / 100 and 6 latencies, or 2 * 4000 / 100 and 4 of them.
  CHECK(near(seconds_of(c, collective::all_reduce, 4000, node), 66));
  CHECK(near(seconds_of(c, collective::all_reduce, 4, node), 4.08));
  CHECK(near(seconds_of(c, collective::all_reduce, 4000, across), 300 + 60));
  CHECK(near(seconds_of(c, collective::all_gather, 8000, pair_of_each), 7 * 10 + 7000.0 / 40));
  CHECK(near(seconds_of(c, collective::reduce_scatter, 4000, uneven), 3 * 10 + 3000.0 / 20));
  CHECK(near(seconds_of(c, collective::broadcast, 4000, node), 2 + 40));
  CHECK(near(seconds_of(c, collective::reduce, 4000, across), 20 + 200));
  CHECK(near(seconds_of(c, collective::all_to_all, 4000, across), 10 + 200));
  CHECK(near(seconds_of(c, collective::send, 4000, node), 1 + 40));
  CHECK(near(seconds_of(c, collective::barrier, 0, std::vector<int>{0, 1, 2}), 4));
  CHECK(seconds_of(c, collective::all_reduce, 4000, std::vector<int>{3}) == 0);
  c.between.bytes = 1000;  // 8 ranks, 2 on each machine: inside the machine they send 100
  CHECK(near(seconds_of(c, collective::all_gather, 8000, pair_of_each), 7 * 10 + 7000.0 / 100));
}

TEST_CASE("an operation is hidden behind what its rank computes meanwhile, and waits for the last rank") {
  const auto rank = [](int r, double before, double beside) {
    writer w(r);
    w.call(before);
    const std::size_t o = w.begin(all_reduce(4, 0), {"world", {0, 1}});
    w.call(beside).wait(o).call(1);
    return w.t;
  };
  // 2 * 1/2 * 4 = 4 seconds, from second 5 on.
  const std::vector<step_trace> traces{rank(0, 2, 1), rank(1, 5, 3)};
  const step_times t = simulate(unit_cluster(2), traces);
  CHECK(near(t.ranks[0].computing, 4));
  CHECK(near(t.ranks[0].waiting, 6));
  CHECK(near(t.ranks[1].computing, 9));
  CHECK(near(t.ranks[1].waiting, 1));
  CHECK(near(t.seconds, 10));
}

TEST_CASE("operations share a link, messages of both directions do not") {
  writer w(0);
  const std::size_t a = w.begin(all_reduce(4, 0), {"world", {0, 1}}),
                    b = w.begin(all_reduce(4, 1), {"world", {0, 1}});
  w.wait(a).wait(b);
  step_trace other = w.t;
  other.rank = 1;
  CHECK(near(simulate(unit_cluster(2), std::vector{w.t, other}).seconds, 8));

  const auto exchange = [](int r) {
    writer m(r);
    const rank_group both{"world", {0, 1}};
    const std::size_t out =
        m.begin({.kind = collective::send, .bytes = 4, .peer = 1 - r, .text = "send"}, both);
    const std::size_t in =
        m.begin({.kind = collective::receive, .bytes = 4, .peer = 1 - r, .text = "receive"}, both);
    m.wait(out).wait(in);
    return m.t;
  };
  CHECK(near(simulate(unit_cluster(2), std::vector{exchange(0), exchange(1)}).seconds, 4));
}

TEST_CASE("equal ranks take the same time, whether all are simulated or one stands for them") {
  const auto trace = [](int rank) {  // gradients of ranks 0 and 1, then a message of each to the next stage
    writer w(rank);
    std::vector<std::size_t> begun;
    if (rank < 2) begun.push_back(w.begin(all_reduce(4, 0), {"dp", {0, 1}}));
    begun.push_back(w.begin({.kind = rank < 2 ? collective::send : collective::receive,
                             .bytes = 4,
                             .peer = (rank + 2) % 4,
                             .text = "message"},
                            {"world", {0, 1, 2, 3}}));
    for (const std::size_t o : begun) w.wait(o);
    return w.t;
  };
  CHECK(simulate(unit_cluster(4), std::vector{trace(0), trace(2)}).seconds == 8);
  const step_times all = simulate(unit_cluster(4), std::vector{trace(0), trace(1), trace(2), trace(3)});
  for (const rank_times& r : all.ranks) CHECK(r.end == 8);
}

TEST_CASE("a step waits for what the step before has begun") {
  const auto trace = [](int rank) {
    writer w(rank);
    w.call(3);
    w.t.events.push_back({kind::wait_for_last, 0});
    w.call(2);
    w.begin(all_reduce(10, 0), {"all", {0, 1}});
    return w.t;
  };
  const step_times t = simulate(unit_cluster(2), std::vector{trace(0), trace(1)});
  CHECK(near(t.seconds, 12));  // ten seconds in flight, three of them hidden
  CHECK(near(t.ranks[0].waiting, 7));
  CHECK(near(t.ranks[0].computing, 5));
}

TEST_CASE("all ranks are on one machine where their number is not given") {
  const cluster c{.ranks = 3, .within = {.latency = 0, .bytes = 1}, .between = {.latency = 0, .bytes = 2}};
  const std::vector<int> all{0, 1, 2};
  CHECK(near(seconds_of(c, collective::all_gather, 3, all), 2));
}

TEST_CASE("a rank stands for others that are not simulated") {
  writer w(0);
  const std::size_t o = w.begin(all_reduce(4, 0), {"world", {0, 1, 2, 3}}),
                    in = w.begin({.kind = collective::receive, .bytes = 5, .peer = 3, .text = "receive"},
                                 {"world", {0, 1, 2, 3}});
  w.wait(o).wait(in);
  CHECK(near(simulate(unit_cluster(4), std::vector{w.t}).seconds, 6 + 5));
}

TEST_CASE("all schedules take what the simulator of schedules says") {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> cost(0.1, 4);
  int compared = 0;
  for (const char* name : {"gpipe", "1f1b", "interleaved:2", "interleaved:3", "breadth-first:2", "zb-h1",
                           "zb-v", "dual-pipe-v", "layer-wise"})
    for (int p = 1; p <= 5; ++p)
      for (const int m : {1, 2, 5, 6, 10, 12, 20}) {
        pipeline::schedule s;
        try {
          s = pipeline::schedule_named(name, p, m);
        } catch (const error&) {  // sizes that it does not have
          continue;
        }
        const pipeline::costs costs{cost(random), cost(random), cost(random), cost(random)};
        cluster c = unit_cluster(p);
        c.within.latency = costs.send;
        std::vector<step_trace> traces;
        for (int stage = 0; stage < p; ++stage) traces.push_back(stage_trace(s, stage, costs));
        const pipeline::timing expected = pipeline::simulate(s, costs);
        const step_times found = simulate(c, traces);
        INFO(name << ", " << p << " stages, " << m << " micro-batches");
        for (std::size_t stage = 0; stage < found.ranks.size(); ++stage) {
          CHECK(near(found.ranks[stage].computing, expected.stages[stage].busy));
          CHECK(near(found.ranks[stage].end, expected.stages[stage].last));
        }
        CHECK(near(found.seconds, expected.makespan));
        ++compared;
      }
  CHECK(compared > 150);
}

TEST_CASE("ranks that wait for each other are named, with what they wait for") {
  const auto rank = [](int r, const char* own) {
    writer w(r);
    rank_operation o = all_reduce(1, 0);
    o.text = std::string("all_reduce of ") + own;
    w.wait(w.begin(o, {own, {0, 1}}));
    return w.t;
  };
  CHECK(throws_with<comm_error>(
      [&] { simulate(unit_cluster(2), std::vector{rank(0, "a"), rank(1, "b")}); },
      {"wait for each other", "rank 0 for all_reduce of a", "rank 1 for all_reduce of b"}));
  CHECK(throws_with<value_error>([&] { simulate(unit_cluster(2), std::vector{rank(1, "a"), rank(1, "a")}); },
                                 {"rank 1 has two traces"}));
  writer early(1);
  rank_operation later = all_reduce(1, 0);
  early.t.events.push_back({kind::wait, early.begin(later, {"world", {0, 1}})});
  std::swap(early.t.events[0], early.t.events[1]);
  CHECK(throws_with<value_error>([&] { simulate(unit_cluster(2), std::vector{early.t}); },
                                 {"rank 1 waits for operation 0, which it has not begun"}));
}

TEST_CASE("a figure that is missing or makes no sense is named") {
  const auto refused = [](void (*change)(cluster&), const char* field) {
    cluster c = unit_cluster(4, 2);
    change(c);
    INFO(field);
    CHECK(throws_with<value_error>([&] { checked(c); }, {"cluster.", field}));
  };
  refused([](cluster& c) { c.ranks = 0; }, "ranks is 0");
  refused([](cluster& c) { c.ranks_of_node = -1; }, "ranks_of_node is -1");
  refused([](cluster& c) { c.memory = -1; }, "memory is -1");
  refused([](cluster& c) { c.device.products = 0; }, "device.products is 0");
  refused([](cluster& c) { c.device.bytes = NAN; }, "device.bytes is");
  refused([](cluster& c) { c.device.launch = INFINITY; }, "device.launch is");
  refused([](cluster& c) { c.within.bytes = 0; }, "within.bytes is 0");
  refused([](cluster& c) { c.between.bytes = 0; }, "between.bytes is 0");
  refused([](cluster& c) { c.between.latency = -2; }, "between.latency is -2");
  cluster one = unit_cluster(4);
  one.between = {};
  CHECK(checked(one).device.narrow_products == 1);
}
