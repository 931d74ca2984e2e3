// SPDX-License-Identifier: MIT
// What a pipeline step reports: measured times, idle time, bytes by axis, non-finite losses.
#include <algorithm>
#include <thread>

#include <weft/parallel/pipeline.hpp>
#include <weft/parallel/schedule/timeline.hpp>
#include <weft/parallel/stage_timing.hpp>

#include "training.hpp"

using namespace training;

namespace {

using plan = policy<strategy::mesh<pp<pipeline::interleaved<2>>, dp, fsdp<3>>>;
using record = pipeline::record;
using kind = pipeline::step_kind;

/// Calls f(run, model, where) on every rank of a mesh, with a model of four blocks.
template <class F>
void on_mesh(const mesh_sizes& sizes, F f) {
  run_ranks(static_cast<int>(sizes.ranks()), [&](communicator& ranks) {
    const device where = one_thread();
    net model = net::create(where);
    model.h.blocks.push_back({layer_normalization<>::create(6, where), linear<>::create(6, 7, where),
                              linear<>::create(7, 6, where)});
    initialize(model, 5);
    adamw optimizer{.lr = 1e-2};
    auto run = bind<plan>(model, optimizer, ranks, sizes);
    f(run, model, where);
  });
}

auto loss_of(const net& model, index_t j, const device& where) {
  return cross_entropy(model(batch_of(j, where, 0)), batch_of(j, where, 1));
}

index_t sum_of(const axis_bytes& all) {
  index_t sum = 0;
  for (const index_t b : all) sum += b;
  return sum;
}

}  // namespace

TEST_CASE("the measured times of all stages are those of the schedule's steps, none twice at once") {
  on_mesh({.pp = 2, .dp = 2}, [&](auto& run, const net& model, const device& where) {
    constexpr int m = 4;
    run.step(m, [&](index_t j) { return loss_of(model, j, where); });
    const step_result r = run.step(m, [&](index_t j) { return loss_of(model, j, where); });
    CHECK(r.bubble_fraction > 0);
    CHECK(r.bubble_fraction < 1);
    const pipeline::timing t = measured_timing(run);
    const auto of_kind = [&](kind k) {
      return std::count_if(t.records.begin(), t.records.end(), [&](const record& e) { return e.kind == k; });
    };
    CHECK(of_kind(kind::forward) == 4 * m);
    CHECK(of_kind(kind::backward) == 4 * m);
    for (const kind k :
         {kind::send_activation, kind::receive_activation, kind::send_gradient, kind::receive_gradient})
      CHECK(of_kind(k) == 3 * m);
    REQUIRE(t.stages.size() == 2);
    double before[2] = {0, 0}, busy[2] = {0, 0};
    for (const record& e : t.records) {
      if (pipeline::is_message(e.kind)) continue;
      CHECK(e.start >= before[e.stage]);
      CHECK(e.end <= t.makespan);
      before[e.stage] = e.end;
      busy[e.stage] += e.end - e.start;
    }
    CHECK(t.stages[0].busy == doctest::Approx(busy[0]));
    CHECK(t.stages[1].busy == doctest::Approx(busy[1]));
    CHECK(pipeline::timeline_svg(t.records).find("stage 1") != std::string::npos);
  });
}

TEST_CASE("waiting for another stage is not computing") {
  on_mesh({.pp = 2}, [&](auto& run, const net& model, const device& where) {
    using namespace std::chrono_literals;
    const auto late = [&](index_t j) {
      if (run.stage() == 0) std::this_thread::sleep_for(50ms);  // stage 1 waits for it
      return loss_of(model, j, where);
    };
    run.prepare(loss_of(model, 0, where), 2);
    run.step(2, late);
    double busy = 0, all = 0;
    for (const record& e : run.records()) {
      if (!pipeline::is_message(e.kind)) busy += e.end - e.start;
      all = std::max(all, e.end);
    }
    if (run.stage() == 1) CHECK(busy < 0.9 * all);
  });
}

TEST_CASE("clocks are compared by the answer that came soonest") {
  run_ranks(3, [](communicator& ranks) {  // threads share a clock: the offset is measurement error
    CHECK(std::abs(detail::clock_offset(ranks, {})) < 10);
    std::vector<record> own(static_cast<std::size_t>(ranks.rank()),
                            record{ranks.rank(), kind::backward, 7, 9, 1.5, 2.5});
    const auto all = detail::all_records(ranks, own, 0.25 * ranks.rank(), {});
    REQUIRE(all.size() == 3);
    CHECK(all[0] == record{1, kind::backward, 7, 9, 1.75, 2.75});
    CHECK(all[2] == record{2, kind::backward, 7, 9, 2.0, 3.0});
  });
}

TEST_CASE("bytes by axis are all the bytes that are no control") {
  for (const mesh_sizes& sizes :
       {mesh_sizes{.pp = 2, .dp = 2}, mesh_sizes{.pp = 2, .fsdp = 2}, mesh_sizes{.pp = 2},
        mesh_sizes{.dp = 2, .fsdp = 2}, mesh_sizes{.pp = 2, .dp = 2, .fsdp = 2}})
    on_mesh(sizes, [&](auto& run, const net& model, const device& where) {
      const auto loss = [&](index_t j) { return loss_of(model, j, where); };
      run.step(4, loss);
      const step_result r = run.step(4, loss);
      CHECK(sum_of(r.sent_by_axis) == payload(r.sent));
      for (const mesh_axis a : mesh_axes)
        CHECK((r.sent_by_axis[static_cast<std::size_t>(a)] > 0) == (sizes.of(a) > 1));
    });
}

TEST_CASE("a loss that is not finite is refused by its number before parameters change") {
  on_mesh({.pp = 2, .dp = 2}, [&](auto& run, const net& model, const device& where) {
    const auto loss = [&](float factor, index_t bad) {
      return [&, factor, bad](index_t j) {
        return loss_of(model, j, where) * (run.micro_batch(j, 4) == bad ? factor : 1.0f);
      };
    };
    run.step(4, loss(1, -1), {.finite = true});
    const auto before = elements_of(run.full());
    std::int64_t found = -1;
    try {
      run.step(4, loss(INFINITY, 6), {.finite = true});
    } catch (const non_finite_error& e) { found = e.micro_batch; }
    CHECK(found == 6);
    CHECK(elements_of(run.full()) == before);
  });
}
