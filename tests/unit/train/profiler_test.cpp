// SPDX-License-Identifier: MIT
// The profiler: names, counts and work of ops, compared with what the model computes; nesting, threads,
// ranks, and traces that parse.
#include <doctest/doctest.h>

#include <chrono>
#include <map>
#include <thread>

#include <weft/comm/threads.hpp>
#include <weft/io/files.hpp>
#include <weft/io/json.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/train/profiler.hpp>
#include <weft/weft.hpp>

#include "../../comma_locale.hpp"

using namespace weft;

namespace {

struct classifier {
  linear<7, 5> hidden;
  linear<5, 3> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};

std::map<std::string, profiled_range> by_name(const profiler& p) {
  std::map<std::string, profiled_range> all;
  for (const profiled_range& r : p.ranges()) all[r.name] = r;
  return all;
}
void wait_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
const auto points = [] { return randn<float>(extents<dyn, 7>{4, 7}, {.seed = 2}); };
const auto labels = [] { return generate<std::int32_t>(extents<dyn>{4}, [](index_t i) { return i % 3; }); };

}  // namespace

TEST_CASE("profiler: the ops of a step, with their work") {
  classifier model = create<classifier>(default_device());
  sgd optimizer{.lr = 0.1};
  const auto x = points();
  const auto y = labels();
  profiler p;
  for (int s = 0; s < 3; ++s) {
    tape steps;
    steps.backward(steps.eval(cross_entropy(model(x), y)));
    optimizer.step(model);
  }
  p.stop();
  const auto all = by_name(p);
  CHECK(all.at("forward").count == 3);
  CHECK(all.at("backward").count == 3);
  CHECK(all.at("optimizer step").count == 3);
  const profiled_range& product = all.at("matmul [4, 7] x [7, 5] f32");
  CHECK(product.count == 3);
  CHECK(product.operations == 3 * 2 * 4 * 7 * 5);
  CHECK(product.bytes == 3 * 4 * (4 * 7 + 7 * 5 + 4 * 5));
  CHECK(all.at("matmul [3, 4] x [4, 5] f32").operations ==
        3 * 2 * 3 * 4 * 5);  // the gradient of output.weight
  // every product of the step: two forward, their weights' gradients, and that of the hidden layer
  double operations = 0;
  for (const auto& [name, r] : all) {
    operations += r.operations;
    CHECK(r.self_ms <= r.total_ms);
    CHECK(r.longest_ms <= r.total_ms);
  }
  CHECK(operations == 3 * 2 * (2 * (4 * 7 * 5 + 4 * 5 * 3) + 4 * 3 * 5));
  CHECK(p.utilization(1e9).hardware == doctest::Approx(operations / (p.elapsed_ms() * 1e-3) / 1e9));
  CHECK(p.utilization(1e9).model == p.utilization(1e9).hardware);
  const std::string table = p.table(), by_op = p.table({.rows = 3, .shapes = false});
  CHECK(table.find("matmul [4, 7] x [7, 5] f32") != std::string::npos);
  CHECK(by_op.find("matmul [") == std::string::npos);
  CHECK(by_op.find("more rows") != std::string::npos);
}

TEST_CASE("profiler: what native ops and kernels cost") {
  const auto q = randn<float>(extents<2, 5, 4, 8>{});
  const auto k = randn<float>(extents<2, 7, 2, 8>{});
  const auto wide = randn<float>(extents<3, 4>{});
  const auto row = randn<float>(extents<4>{});
  profiler p;
  eval(attention<false>(q, k, k));
  eval(wide * row + 1.f);
  eval(sum(wide, dims<0>));
  eval(concat<0>(wide, wide));
  p.stop();
  const auto all = by_name(p);
  CHECK(all.at("attention [2, 5, 4, 8] f32").operations == 4.0 * 2 * 4 * 5 * 7 * 8);
  CHECK(all.at("multiply, add [3, 4] f32").bytes == 4 * (12 + 4 + 12));  // the row is read once
  CHECK(all.at("sum [3, 4] f32").bytes == 4 * (12 + 4));
  CHECK(all.at("concat [6, 4] f32").bytes == 4 * (12 + 12 + 24));
}

TEST_CASE("profiler: recomputation is work of the hardware, not of the model") {
  classifier model = create<classifier>(default_device());
  const auto x = points();
  const auto y = labels();
  context c;
  c.recompute_programs = 1;
  profiler p;
  tape steps(c);
  const auto h = steps.eval(relu(model.hidden(x)));
  steps.backward(steps.eval(cross_entropy(model.output(h), y)));
  p.stop();
  CHECK(by_name(p).at("recompute").count == 1);
  const flop_utilization u = p.utilization(1e9);
  CHECK(u.hardware > u.model);
  double operations = 0;
  for (const profiled_range& r : p.ranges()) operations += r.operations;
  CHECK((u.hardware - u.model) * p.elapsed_ms() * 1e6 == doctest::Approx(2 * 4 * 7 * 5));
  CHECK(u.hardware * p.elapsed_ms() * 1e6 == doctest::Approx(operations));
}

TEST_CASE("profiler: ranges are nested; times of inner ones are not the outer one's own") {
  profiler p;
  {
    const record_function outer("outer");
    wait_ms(2);
    for (int i = 0; i < 2; ++i) {
      const record_function inner([] { return std::string("inner 0"); }, 7);
      wait_ms(3);
    }
  }
  const auto all = by_name(p);
  CHECK(all.at("inner 0").count == 2);
  CHECK(all.at("inner 0").bytes == 14);
  CHECK(all.at("inner 0").total_ms >= 6);
  CHECK(all.at("inner 0").longest_ms <= all.at("inner 0").total_ms - 3);
  CHECK(all.at("outer").self_ms >= 2);
  CHECK(all.at("outer").total_ms == doctest::Approx(all.at("outer").self_ms + all.at("inner 0").total_ms));
}

TEST_CASE("profiler: one at a time; ranges may be open when it starts, clears and stops") {
  auto before = std::make_unique<record_function>("before");
  auto first = std::make_unique<profiler>();
  CHECK_THROWS_WITH_AS(profiler(), "weft: profiler: another one is already running", usage_error);
  before.reset();
  auto cleared = std::make_unique<record_function>("cleared");
  first->clear();
  auto open = std::make_unique<record_function>("open");
  { const record_function whole("whole"); }
  first->stop();
  first->stop();
  { const record_function late("late"); }
  CHECK(first->ranges().size() == 1);
  CHECK(first->ranges()[0].name == "whole");
  const double ms = first->elapsed_ms();
  {
    profiler second;
    CHECK(first->ranges().size() == 1);  // what it has collected stays
    CHECK(first->elapsed_ms() == ms);
    first->stop();
    first->clear();
    CHECK(first->ranges().empty());
    first.reset();
    open.reset();
    cleared.reset();
    CHECK(second.ranges().empty());
    std::thread([] { const record_function other("of another thread"); }).join();
    CHECK(second.ranges().size() == 1);
  }
  const record_function after("after");
}

TEST_CASE("profiler: without ops; another profiler gets the ranges, too") {
  struct counting_sink final : range_sink {
    int begun = 0, ended = 0;
    void begin(const char*, std::int64_t) noexcept override { ++begun; }
    void end() noexcept override { ++ended; }
  } other;
  set_range_sink(&other);
  const auto x = points();
  {
    profiler p({.ops = false});
    eval(x + 1.f);
    CHECK(p.ranges().size() == 1);
  }
  {
    profiler p;
    eval(x + 1.f);
    CHECK(p.ranges().size() == 2);
  }
  CHECK(set_range_sink(nullptr) == &other);
  CHECK(other.begun == 2);
  CHECK(other.ended == 2);
}

TEST_CASE("profiler: waits for the device after each op on request; errors end ranges") {
  struct counting_backend final : cpu::cpu_backend {
    counting_backend() : cpu_backend(1) {}
    void synchronize() override { ++waits; }
    int waits = 0;
  };
  const auto counted = std::make_shared<counting_backend>();
  const device d(counted);
  context c(d);
  const auto x = randn<float>(extents<3, 4>{}, {}, d);
  const auto indices = full<std::int64_t>(extents<2>{}, 7, d);
  {
    profiler p;
    eval(matmul(x, transpose(x)) + 1.f, c);
    CHECK(counted->waits == 0);
  }
  profiler p({.wait_for_devices = true});
  eval(matmul(x, transpose(x)) + 1.f, c);
  CHECK(counted->waits == 2);
  CHECK_THROWS_AS(eval(index_select<0>(x, indices), c), value_error);
  CHECK(counted->waits == 2);
  const record_function after("after");
  CHECK(by_name(p).at("eval").count == 2);
}

TEST_CASE("profiler: traces of ranks in one file") {
  const std::string path = "profiler_test_trace.json";
  profiler p({.most_events = 5000});
  run_ranks(3, [&](communicator& ranks) {
    classifier model = create<classifier>(default_device());
    sgd optimizer{.lr = 0.1};
    auto run = bind<policy<strategy::data_parallel>>(model, optimizer, ranks, parallel_options{});
    const auto x = points();
    const auto y = labels();
    for (int s = 0; s < 2; ++s) {
      const record_function range([&] { return "batch \"" + std::to_string(s) + "\""; });
      run.step(1, [&](index_t) { return cross_entropy(model(x), y); });
    }
    p.save_trace(path, ranks);
  });
  p.stop();
  const auto counted = [&] {
    const io::json trace(io::input_file(path).text(), path);
    std::map<std::int64_t, std::map<std::string, int>> of_rank;
    trace.root().find("traceEvents")->for_each_item([&](const io::json_value& e) {
      if (e.find("ph")->text() != "X") return;
      CHECK(std::stod(std::string(e.find("ts")->text())) >= 0);
      CHECK(std::stod(std::string(e.find("dur")->text())) >= 0);
      ++of_rank[*e.find("pid")->integer()][std::string(e.find("name")->text())];
    });
    return of_rank;
  };
  auto of_rank = counted();
  CHECK(of_rank.size() == 3);
  for (auto& [rank, names] : of_rank) {
    CHECK(names["step"] == 2);
    CHECK(names["batch \"0\""] == 1);
    CHECK(names["matmul [4, 7] x [7, 5] f32"] == 2);
  }
  p.save_trace(path, 7);
  of_rank = counted();
  CHECK(of_rank.size() == 1);
  CHECK(of_rank[7]["step"] == 6);
  CHECK(p.exposed_communication_ms() >= 0);
  std::remove(path.c_str());
  CHECK_THROWS_AS(p.save_trace("no/such/folder/trace.json"), io_error);
  run_ranks(2, [&](communicator& ranks) {
    CHECK_THROWS_AS(p.save_trace("no/such/folder/trace.json", ranks), io_error);
  });
}

TEST_CASE("profiler: a trace holds so many events, sums hold all") {
  const std::string path = "profiler_test_trace.json";
  profiler p({.most_events = 10});
  for (int i = 0; i < 25; ++i) const record_function range("many");
  p.stop();
  CHECK(p.ranges()[0].count == 25);
  p.save_trace(path);
  const std::string text = io::input_file(path).text();
  std::size_t events = 0;
  for (std::size_t at = 0; (at = text.find("\"many\"", at)) != text.npos; ++at) ++events;
  CHECK(events == 10);
  std::remove(path.c_str());
}

TEST_CASE("profiler: traces and tables are the same in every locale") {
  const test::comma_locale locale;
  const std::string path = "profiler_test_locale.json";
  profiler p;
  for (int i = 0; i < 2; ++i) {
    const record_function range("range");
    wait_ms(2);
  }
  p.stop();
  p.save_trace(path);
  const std::string text = io::input_file(path).text();
  const io::json trace(text, path);
  CHECK(trace.root().find("traceEvents")->size() == 3);
  CHECK(text.find("\"ts\":0.000,\"dur\":") != text.npos);
  std::remove(path.c_str());
  const std::string table = p.table();
  CHECK(table.starts_with("name" + std::string(58, ' ') +
                          "   count   total ms    self ms self %    mean us   GFLOP/s     GB/s\nrange"));
  CHECK(table.find("range" + std::string(57, ' ') + "       2      ") != table.npos);
  CHECK(std::count(table.begin(), table.end(), ',') == 2);  // "elapsed 1.2 ms, 0.0 GFLOP/s, waited"
}
