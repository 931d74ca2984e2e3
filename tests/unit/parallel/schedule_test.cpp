// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>

#include <weft/parallel/schedule/handing.hpp>
#include <weft/parallel/schedule/live.hpp>
#include <weft/parallel/schedule/named.hpp>
#include <weft/parallel/schedule/simulate.hpp>

#include "schedule_oracle.hpp"

using namespace weft::pipeline;
using weft::test::runs;
using weft::test::transport;

// ----- in constant expressions, on both compilers within their limits -----

static_assert(proved<[] { return layer_wise(4); }>);
static_assert(proved<[] { return gpipe(4, 16); }>);
static_assert(proved<[] { return one_f_one_b(8, 32); }>);
static_assert(proved<[] { return interleaved_1f1b(4, 8, 2); }>);
static_assert(proved<[] { return breadth_first(4, 8, 2); }>);
static_assert(proved<[] { return zb_h1(8, 16); }>);
static_assert(proved<[] { return zb_v(4, 16); }>);
static_assert(proved<[] { return dual_pipe_v(4, 16); }>);
static_assert(proved<[] { return pipedream(4, 16); }>);
static_assert(simulate(zb_h1(4, 16)).bubble() == 3 && simulate(zb_v(4, 16)).bubble() == 0);
static_assert(live(one_f_one_b(4, 16))[1].activations == 3);
static_assert(!check(with_messages(gpipe(2, 4), {4096})));

namespace {

/// All sizes for the tests of formulas.
void for_sizes(const std::function<void(int p, int m)>& test) {
  for (int p = 2; p <= 16; ++p)
    for (int m = 1; m <= 64; ++m) test(p, m);
}
constexpr costs some_costs[] = {{1, 1, 1, 0}, {5, 7, 4, 0}, {2, 1, 2, 0}};

/// Names the schedule that differs; counts no assertion if none does.
void equal(double found, double expected, const std::string& what, int p, int m) {
  if (found == expected) return;
  const std::string where = " of " + std::to_string(p) + " stages, " + std::to_string(m) + " micro-batches: ";
  FAIL_CHECK((what + where + std::to_string(found) + ", not " + std::to_string(expected)));
}

/// DualPipeV with each forward pass and the backward pass after it as one step, as DeepSeek computes its
/// bubble: messages leave when both are done. Executes the lists of all stages until no step can run.
double bubble_in_pairs(const schedule& s, double forward, double input, double weight, double pair) {
  const int last = s.chunks() - 1;
  std::vector<double> ready(std::size_t(2 * s.chunks() * s.micro_batches), -1);
  const auto at = [&](bool gradient, int c, int j) -> double& {
    return ready[std::size_t((2 * c + int(gradient)) * s.micro_batches + j)];
  };
  std::vector<double> begin(s.steps.size(), -1), now(s.steps.size(), 0), work(s.steps.size(), 0);
  std::vector<std::size_t> next(s.steps.size(), 0);
  const auto input_of = [&](const step& e) {
    if (e.kind == step_kind::forward) return e.chunk == 0 ? 0 : at(false, e.chunk, e.micro_batch);
    return e.kind == step_kind::backward_weight || e.chunk == last ? 0 : at(true, e.chunk, e.micro_batch);
  };
  const auto hand_on = [&](const step& e, double t) {
    if (e.kind == step_kind::forward && e.chunk < last) at(false, e.chunk + 1, e.micro_batch) = t;
    if (yields_gradient(e.kind) && e.chunk > 0) at(true, e.chunk - 1, e.micro_batch) = t;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t k = 0; k < s.steps.size(); ++k) {
      const auto& list = s.steps[k];
      while (next[k] < list.size()) {
        const step& e = list[next[k]];
        // A stage pairs steps once its backward passes have begun; the turn of the V starts with a single
        // forward and backward pass.
        const bool is_turn = k + 1 == s.steps.size() && e.chunk == int(k) && next[k] > 0 &&
                             std::none_of(list.begin(), list.begin() + std::ptrdiff_t(next[k]),
                                          [](const step& b) { return b.kind == step_kind::backward; });
        const bool paired = e.kind == step_kind::forward && next[k] + 1 < list.size() && !is_turn &&
                            list[next[k] + 1].kind == step_kind::backward &&
                            list[next[k] + 1].chunk != e.chunk;
        double start = std::max(now[k], input_of(e));
        if (input_of(e) < 0 || (paired && input_of(list[next[k] + 1]) < 0)) break;
        if (paired) start = std::max(start, input_of(list[next[k] + 1]));
        const double cost = paired                                   ? pair
                            : e.kind == step_kind::forward           ? forward
                            : e.kind == step_kind::backward_input    ? input
                            : e.kind == step_kind::backward_weight   ? weight
                                                                     : input + weight;
        if (begin[k] < 0) begin[k] = start;
        now[k] = start + cost;
        work[k] += cost;
        hand_on(e, now[k]);
        if (paired) hand_on(list[next[k] + 1], now[k]);
        next[k] += paired ? 2 : 1;
        moved = true;
      }
    }
  }
  double most = 0;
  for (std::size_t k = 0; k < s.steps.size(); ++k) most = std::max(most, now[k] - begin[k] - work[k]);
  return most;
}

}  // namespace

TEST_CASE("schedules: the bubble equals the published formula, 2 to 16 stages, 1 to 64 micro-batches") {
  for_sizes([](int p, int m) {
    for (const costs& c : some_costs) {
      const double whole = c.forward + c.input + c.weight;
      equal(simulate(gpipe(p, m), c).bubble(), (p - 1) * whole, "gpipe", p, m);
      equal(simulate(one_f_one_b(p, m), c).bubble(), (p - 1) * whole, "1f1b", p, m);
      equal(simulate(pipedream(p, m), c).bubble(), (p - 1) * whole, "pipedream, a run", p, m);
      const double h1 = (p - 1) * (c.forward + c.input - c.weight) + std::max(0, p - m) * c.weight;
      equal(simulate(zb_h1(p, m), c).bubble(), h1, "zb_h1", p, m);
      if (m == 1) equal(simulate(layer_wise(p), c).bubble(), (p - 1) * whole, "layer_wise", p, m);
    }
  });
}

TEST_CASE("schedules: with several chunks the bubble is that of one chunk") {
  for_sizes([](int p, int m) {
    if (m > 16 && m % 16 != 0) return;
    for (const costs& c : some_costs)
      for (int v = 1; v <= 4; ++v) {
        const double whole = c.forward + c.input + c.weight;
        if (m % p == 0)
          equal(simulate(interleaved_1f1b(p, m, v), c).bubble(), (p - 1) * whole, "interleaved", p, m);
        const double late = (v - 1) * std::max(0, p - m) * whole;
        equal(simulate(breadth_first(p, m, v), c).bubble(), (p - 1) * whole + late, "breadth_first", p, m);
      }
  });
}

TEST_CASE(
    "schedules: zb_v is never idle between first and last step once there are 2 stages - 1 micro-batches") {
  for_sizes([](int p, int m) {
    const timing t = simulate(zb_v(p, m));
    equal(t.bubble(), 2 * std::max(0, 2 * p - 1 - m), "zb_v", p, m);
    if (m >= 2 * p - 1) equal(t.makespan - t.stages[0].busy, p - 1, "zb_v, idle with a flush", p, m);
  });
}

TEST_CASE(
    "schedules: dual_pipe_v has the published bubble in pairs, less if messages leave between their halves") {
  for_sizes([](int p, int m) {
    if (m < 2 * p) return;
    const schedule s = dual_pipe_v(p, m);
    equal(bubble_in_pairs(s, 1, 1, 1, 3), (p - 1) * (3 + 2 - 3), "dual_pipe_v", p, m);
    const double overlapped = (p - 1) * (2.5 + 2 - 3);
    equal(std::max(bubble_in_pairs(s, 1, 1, 1, 2.5), overlapped), overlapped, "dual_pipe_v, faster in pairs",
          p, m);
    equal(simulate(s).bubble(), p - 1, "dual_pipe_v, not in pairs", p, m);
  });
}

TEST_CASE("schedules: live activations equal the published table") {
  for_sizes([](int p, int m) {
    const auto g = live(gpipe(p, m)), o = live(one_f_one_b(p, m)), h = live(zb_h1(p, m));
    const auto z = live(zb_v(p, m)), b = live(breadth_first(p, m, 2));
    for (int k = 0; k < p; ++k) {
      const auto i = std::size_t(k);
      equal(g[i].activations, m, "gpipe, activations", p, m);
      equal(o[i].activations, std::min(p - k, m), "1f1b, activations", p, m);
      equal(h[i].activations, std::min(p - k, m), "zb_h1, activations", p, m);
      equal(h[i].weight_inputs, std::min(k + 1, m), "zb_h1, inputs of weight parts", p, m);
      equal(h[i].together, std::min(p, m), "zb_h1, together", p, m);
      equal(b[i].activations, 2 * m, "breadth_first, activations", p, m);
      if (m >= 2 * p - 1) equal(z[i].together, 2 * p, "zb_v, together", p, m);
      equal(std::max(z[i].together, 2 * p), 2 * p, "zb_v, its limit", p, m);
    }
    for (int v = 2; v <= 3 && m % p == 0; ++v) {
      const auto l = live(interleaved_1f1b(p, m, v));
      for (int k = 0; k < p; ++k)
        equal(l[std::size_t(k)].activations, std::min(m * v, 2 * (p - 1 - k) + (v - 1) * p + 1),
              "interleaved", p, m);
    }
    if (m >= 2 * p)
      for (const live_counts& c : live(dual_pipe_v(p, m))) equal(c.together, 2 * p + 1, "dual_pipe_v", p, m);
  });
}

TEST_CASE("schedules: pipedream keeps stages - s versions of the parameters on stage s, others one") {
  for_sizes([](int p, int m) {
    const auto l = live(pipedream(p, m));
    for (int k = 0; k < p; ++k) {
      // The forward pass of j uses the version after the updates that its stage has made: none in the
      // warm-up, then one more each. Counts, after each update, the versions that forward passes in flight
      // use, and the newest one.
      const int warm = p - 1 - k;
      int most = 1;
      for (int done = 1; done <= m; ++done) {
        std::vector<int> used{done};
        for (int j = done; j < std::min(m, done + warm); ++j) used.push_back(std::max(0, j - warm));
        std::sort(used.begin(), used.end());
        most = std::max(most, int(std::unique(used.begin(), used.end()) - used.begin()));
      }
      equal(l[std::size_t(k)].versions, most, "pipedream, versions", p, m);
      if (m >= 2 * p) equal(most, p - k, "pipedream, versions in steady state", p, m);
    }
    for (const live_counts& c : live(one_f_one_b(p, m))) equal(c.versions, 1, "1f1b, versions", p, m);
  });
}

TEST_CASE("schedules: all run on the executor, blocking and buffered, and add gradients in ascending order") {
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 16; ++m) {
      std::vector<schedule> all = {gpipe(p, m), one_f_one_b(p, m), breadth_first(p, m, 3), zb_h1(p, m),
                                   zb_v(p, m)};
      if (m % p == 0) all.push_back(interleaved_1f1b(p, m, 3));
      if (m >= 2 * p) all.push_back(dual_pipe_v(p, m));
      for (const schedule& s : all) {
        CHECK(ascends(s));
        CHECK_FALSE(check(s));
        const schedule full = with_messages(s);
        CHECK_FALSE(check(full));
        CHECK(runs(full, transport::blocking));
        CHECK(runs(full, transport::buffered));
        CHECK(full.has_messages() == (p > 1));
        const handing ends[] = {{0, s.chunks() - 1}};
        if (s.chunks() > 1) CHECK_FALSE(check_handing(full, ends));
      }
    }
}

TEST_CASE("schedules: messages have the sizes of their boundaries, and a turn on one stage sends nothing") {
  const schedule s = with_messages(zb_v(2, 1), {10, 20, 30});  // chunks 1 and 2 are both on stage 1
  std::int64_t sent = 0, received = 0;
  for (const auto& list : s.steps)
    for (const step& e : list)
      if (is_message(e.kind)) (is_send(e.kind) ? sent : received) += e.size;
  CHECK(sent == 2 * (10 + 30));
  CHECK(received == sent);
  CHECK(live(s)[0].received_size == 30);
  CHECK(live(s)[1].received == 1);
  CHECK_THROWS_WITH_AS(with_messages(s), "with_messages: the schedule has messages already",
                       weft::value_error);
  CHECK_THROWS_WITH_AS(with_messages(zb_v(2, 1), {10, 20}),
                       "with_messages: there must be one size for each boundary between chunks",
                       weft::value_error);
}

TEST_CASE("schedules: messages that travel for a while delay who waits for them") {
  const timing t = simulate(layer_wise(3), {.forward = 2, .input = 1, .weight = 1, .send = 5});
  CHECK(t.makespan == 3 * 4 + 4 * 5);
  CHECK(t.idle(1) == t.makespan - 4);
  CHECK(t.bubble_fraction() == doctest::Approx(1 - 12 / (3 * t.makespan)));
  const auto sent = std::count_if(t.records.begin(), t.records.end(),
                                  [](const record& r) { return is_send(r.kind) && r.end - r.start == 5; });
  CHECK(sent == 4);
  CHECK_THROWS_WITH_AS(simulate(layer_wise(3), {.forward = -1}),
                       "simulate: a cost is negative or not a number", weft::value_error);
}

TEST_CASE("schedules: each mistake has its kind, stage, step and peer") {
  const schedule good = with_messages(one_f_one_b(2, 2));
  // stage 0: F0 SEND F1 RECV SEND B0 RECV B1 in some order; found by kind.
  const auto find = [](const schedule& s, int stage, step_kind k) {
    const auto& list = s.steps[std::size_t(stage)];
    return std::find_if(list.begin(), list.end(), [&](const step& e) { return e.kind == k; }) - list.begin();
  };
  const auto change = [&](const schedule& s, int stage, step_kind k, auto&& edit) {
    schedule changed = s;
    auto& list = changed.steps[std::size_t(stage)];
    edit(list, list.begin() + find(s, stage, k));
    return check(changed);
  };
  using enum step_kind;
  const auto erase = [](auto& list, auto e) { list.erase(e); };
  const auto grow = [](auto&, auto e) { ++e->size; };
  const auto repeat = [](auto& list, auto e) { list.insert(e, *e); };
  const auto to_front = [](auto& list, auto e) { std::rotate(list.begin(), e, e + 1); };
  const auto kind_of = [](const std::optional<finding>& f) { return f ? f->kind : mistake{255}; };

  CHECK(kind_of(check({})) == mistake::wrong_sizes);
  CHECK(kind_of(check({.micro_batches = 1, .stage_of = {2}, .steps = {{}}})) == mistake::wrong_sizes);
  schedule idle = good;
  idle.steps.emplace_back();
  CHECK(check(idle) == finding{.kind = mistake::wrong_sizes, .stage = 2});
  CHECK(kind_of(change(good, 0, forward, [](auto&, auto e) { e->chunk = 1; })) == mistake::not_on_this_stage);
  CHECK(kind_of(change(good, 0, forward, [](auto&, auto e) { e->micro_batch = 2; })) ==
        mistake::not_on_this_stage);
  CHECK(kind_of(change(good, 0, forward, [](auto&, auto e) { e->micro_batch = -1; })) ==
        mistake::not_on_this_stage);
  CHECK(kind_of(change(good, 0, forward, repeat)) == mistake::repeated);
  CHECK(kind_of(change(good, 1, backward, to_front)) == mistake::backward_before_forward);
  CHECK(kind_of(change(good, 1, receive_activation, erase)) == mistake::input_missing);
  CHECK(kind_of(change(good, 0, send_activation, to_front)) == mistake::sent_before_computed);
  CHECK(kind_of(change(good, 0, send_activation, [](auto&, auto e) { e->kind = send_gradient; })) ==
        mistake::message_without_peer);
  CHECK(kind_of(check({.micro_batches = 1, .stage_of = {0}, .steps = {{{forward, 0, 0}}}})) ==
        mistake::missing);

  const auto unsent = change(good, 0, send_activation, erase);
  CHECK(kind_of(unsent) == mistake::receive_without_send);
  CHECK(unsent->stage == 1);
  CHECK(unsent->step == 0);
  CHECK(unsent->peer == 0);
  CHECK(to_text(*unsent) == "stage 1, step 0 (chunk 1, micro-batch 0), peer 0: the peer never sends this");
  const auto resized = change(good, 1, send_gradient, grow);
  CHECK(kind_of(resized) == mistake::unequal_sizes);
  CHECK(resized->peer == 1);
}

TEST_CASE("schedules: orders that differ between stages, and waits in a cycle") {
  using enum step_kind;
  // Both stages send before they receive: fine with buffers, a cycle without.
  const schedule face_to_face{.micro_batches = 2,
                              .stage_of = {0, 1},
                              .steps = {{{forward, 0, 0},
                                         {send_activation, 0, 0, 1},
                                         {forward, 0, 1},
                                         {send_activation, 0, 1, 1},
                                         {receive_gradient, 0, 0, 1},
                                         {backward, 0, 0},
                                         {receive_gradient, 0, 1, 1},
                                         {backward, 0, 1}},
                                        {{receive_activation, 1, 0, 1},
                                         {forward, 1, 0},
                                         {backward, 1, 0},
                                         {send_gradient, 1, 0, 1},
                                         {receive_activation, 1, 1, 1},
                                         {forward, 1, 1},
                                         {backward, 1, 1},
                                         {send_gradient, 1, 1, 1}}}};
  const auto blocked = check(face_to_face);
  REQUIRE(blocked);
  CHECK(blocked->kind == mistake::deadlock_of_blocking_sends);
  CHECK(runs(face_to_face, transport::buffered));
  CHECK_FALSE(runs(face_to_face, transport::blocking));

  schedule swapped = with_messages(gpipe(2, 2));
  auto& list = swapped.steps[1];
  std::swap(*std::find(list.begin(), list.end(), step{receive_activation, 1, 0, 1}),
            *std::find(list.begin(), list.end(), step{receive_activation, 1, 1, 1}));
  std::swap(*std::find(list.begin(), list.end(), step{forward, 1, 0}),
            *std::find(list.begin(), list.end(), step{forward, 1, 1}));
  const auto order = check(swapped);
  REQUIRE(order);
  CHECK(order->kind == mistake::out_of_order);

  // Without messages: stage 0 wants the gradient of 0 before it computes 1, stage 1 wants both forwards
  // first.
  const schedule crossed{.micro_batches = 2,
                         .stage_of = {0, 1},
                         .steps = {{{forward, 0, 0}, {backward, 0, 0}, {forward, 0, 1}, {backward, 0, 1}},
                                   {{forward, 1, 0}, {forward, 1, 1}, {backward, 1, 0}, {backward, 1, 1}}}};
  const auto cycle = check(crossed);
  CHECK(cycle == finding{mistake::deadlock, 0, 1, 1, 0, 0});
  CHECK_THROWS_WITH_AS(
      simulate(crossed),
      "simulate: stage 0, step 1 (chunk 0, micro-batch 0), peer 1: stages wait for each other in a cycle",
      weft::value_error);
}

TEST_CASE("schedules: gradients of a tied parameter are part of the proof") {
  using enum step_kind;
  // The parameters' gradients of 0 are wanted on stage 0 before its forward of 1, which stage 1 needs first.
  schedule s{.micro_batches = 2,
             .stage_of = {0, 1},
             .steps = {{{forward, 0, 0},
                        {backward_input, 0, 0},
                        {backward_weight, 0, 0},
                        {forward, 0, 1},
                        {backward_input, 0, 1},
                        {backward_weight, 0, 1}},
                       {{forward, 1, 0},
                        {backward_input, 1, 0},
                        {forward, 1, 1},
                        {backward_input, 1, 1},
                        {backward_weight, 1, 0},
                        {backward_weight, 1, 1}}}};
  const handing tied[] = {{0, 1}};
  const auto found = [&](const schedule& one) { return check_handing(with_messages(one), tied); };
  CHECK_FALSE(check(s));
  CHECK(found(s) == finding{mistake::deadlock_of_handing, 0, 4, 1, 0, 0});
  const auto move = [&](std::size_t stage, std::size_t from, std::size_t to) {
    auto& list = s.steps[stage];
    const step e = list[from];
    list.erase(list.begin() + std::ptrdiff_t(from));
    list.insert(list.begin() + std::ptrdiff_t(to), e);
  };
  move(0, 2, 4);
  CHECK_FALSE(found(s));
  move(1, 5, 4);  // the weight part of 1 before that of 0
  CHECK(found(s)->kind == mistake::handed_out_of_order);
  // Two chunks of one stage.
  const schedule alone{.micro_batches = 1,
                       .stage_of = {0, 0},
                       .steps = {{{forward, 0, 0},
                                  {forward, 1, 0},
                                  {backward_input, 1, 0},
                                  {backward_input, 0, 0},
                                  {backward_weight, 0, 0},
                                  {backward_weight, 1, 0}}}};
  CHECK_FALSE(check(alone));
  CHECK(found(alone) == finding{mistake::deadlock_of_handing, 0, 4, 0, 0, 0});
  // A parameter of all chunks: on three stages of a V, weight parts of the way up come too late.
  const std::vector<handing> all{{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}};
  CHECK_FALSE(check_handing(with_messages(one_f_one_b(6, 12)), all));
  CHECK(check_handing(with_messages(zb_v(3, 6)), all)->kind == mistake::deadlock_of_handing);
}

TEST_CASE("schedules: sizes that a schedule does not take are named") {
  CHECK_THROWS_WITH_AS(gpipe(0, 4), "gpipe: stages is 0: must be 1 or more", weft::value_error);
  CHECK_THROWS_WITH_AS(one_f_one_b(2, 0), "one_f_one_b: micro_batches is 0: must be 1 or more",
                       weft::value_error);
  CHECK_THROWS_WITH_AS(interleaved_1f1b(4, 6, 2),
                       "interleaved_1f1b: micro_batches is 6: must be a multiple of the stages, 4",
                       weft::value_error);
  CHECK_THROWS_WITH_AS(dual_pipe_v(4, 7),
                       "dual_pipe_v: micro_batches is 7: must be twice the stages, 8, or more",
                       weft::value_error);
}

TEST_CASE("schedules: by name") {
  CHECK(schedule_named("1f1b", 4, 8) == one_f_one_b(4, 8));
  CHECK(schedule_named("interleaved:3", 4, 8) == interleaved_1f1b(4, 8, 3));
  CHECK(schedule_named("zb-v", 4, 8) == zb_v(4, 8));
  CHECK_FALSE(schedule_named("pipedream", 4, 8).flush);
  CHECK_THROWS_AS(schedule_named("interleaved", 4, 8), weft::usage_error);
  CHECK_THROWS_AS(schedule_named("interleaved:0", 4, 8), weft::usage_error);
  CHECK_THROWS_AS(schedule_named("gpipe:2", 4, 8), weft::usage_error);
  CHECK_THROWS_AS(schedule_named("layer-wise", 4, 8), weft::usage_error);
  CHECK_THROWS_WITH_AS(
      schedule_named("2f2b", 4, 8),
      "schedule \"2f2b\": must be one of layer-wise, gpipe, 1f1b, interleaved:V, breadth-first:V, "
      "zb-h1, zb-v, dual-pipe-v, pipedream",
      weft::usage_error);
}
