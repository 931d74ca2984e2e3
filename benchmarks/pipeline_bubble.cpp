// SPDX-License-Identifier: MIT
// The pipeline bubble, measured and simulated, with blocks that sleep, so that stages need no cores of their
// own.
//
//   weft_benchmark_pipeline_bubble [MILLISECONDS]      of a block's forward pass; backward takes 2x
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include <weft/comm/threads.hpp>
#include <weft/nn/repeat.hpp>
#include <weft/parallel/pipeline.hpp>
#include <weft/parallel/schedule/named.hpp>
#include <weft/weft.hpp>

using namespace weft;

namespace {

std::chrono::duration<double, std::milli> forward_ms{40};  // long compared to the machine's delays

/// The identity, which takes the time of `Times` forward passes.
template <int Times>
struct slow_identity : op::rule<1> {
  static constexpr auto kind = op::op_kind::native;
  static constexpr auto name = Times == 1 ? "slow_identity" : "slow_identity_backward";
  static void on_cpu(const native_call& call) {
    std::this_thread::sleep_for(Times * forward_ms);
    const strided& x = call.in[0];  // [rows, columns]
    const index_t columns = x.extents.last();
    for (index_t i = 0; i < x.size(); ++i)
      call.out[0].data<float>()[i] =
          x.data<const float>()[i / columns * x.stride[0] + i % columns * x.stride[1]];
  }
  static constexpr native_code code{&on_cpu, nullptr,
                                    [](const native_operands&) -> index_t { return 1; }};
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, operands[0]};
  }
  static constexpr auto vjp(auto g, auto, auto) { return apply<slow_identity<2>>(g); }
};

struct block {
  linear<4, 4> projection;
  auto operator()(expression auto x) const { return projection(apply<slow_identity<1>>(x)); }
};
struct net {
  repeat<block> h;
  auto operator()(expression auto x) const { return h(x); }
};

struct measured_step {
  double ms, bubble;  // the fraction of the time in which stages do not compute
};
/// The shortest of several steps.
measured_step shortest_step(int stages, int chunks, int m, const char* schedule) {
  measured_step best{INFINITY, 0};
  run_ranks(stages, [&](communicator& ranks) {
    const device where(std::make_shared<cpu::cpu_backend>(1));
    net model;
    for (int i = 0; i < chunks; ++i) model.h.blocks.emplace_back();
    to(model, where);
    sgd optimizer;
    auto run = bind<policy<strategy::mesh<pp<>>>>(
        model, optimizer, ranks, mesh_sizes{.pp = stages},
        {.schedule = [&](int p, int n) { return pipeline::schedule_named(schedule, p, n); },
         .blocks = std::vector<index_t>(static_cast<std::size_t>(chunks), 1)});
    for (int repeat = 0; repeat < 4; ++repeat) {  // the first one warms up
      ranks.barrier().wait();
      const step_result r = run.step(
          m, [&](index_t) { return mean(square(model(full<float>(extents<dyn, 4>{3, 4}, 1.0f, where)))); });
      std::vector<double> end{run.records().back().end};
      ranks.all_reduce(end, reduction::maximum).wait();
      if (repeat > 0 && ranks.rank() == 0 && 1e3 * end[0] < best.ms) best = {1e3 * end[0], r.bubble_fraction};
    }
  });
  return best;
}

}  // namespace

int main(int count, char** values) {
  if (count > 1) forward_ms = std::chrono::duration<double, std::milli>(std::atof(values[1]));
  double worst = 0, worst_bubble = 0;
  std::printf("schedule         stages  micro-batches  step, ms  simulated  bubble  simulated\n");
  for (const char* schedule : {"gpipe", "1f1b", "interleaved:2", "breadth-first:2"})
    for (const int p : {2, 3, 4})
      for (const int m : {p, 4 * p}) {
        const pipeline::schedule s = pipeline::schedule_named(schedule, p, m);
        const pipeline::timing t = pipeline::simulate(s, {.forward = 1, .input = 1, .weight = 1});
        const double simulated = t.makespan * forward_ms.count();
        const measured_step found = shortest_step(p, s.chunks(), m, schedule);
        std::printf("%-16s %6d %14d %9.1f %10.1f %7.3f %10.3f\n", schedule, p, m, found.ms, simulated,
                    found.bubble, t.bubble_fraction());
        std::fflush(stdout);
        worst = std::max(worst, std::abs(found.ms / simulated - 1));
        worst_bubble = std::max(worst_bubble, std::abs(found.bubble / t.bubble_fraction() - 1));
      }
  std::printf("at most %.1f%% longer or shorter than simulated; their bubbles differ by %.1f%% at most\n",
              100 * worst, 100 * worst_bubble);
}
