// SPDX-License-Identifier: MIT
// A pipeline: every rank is a stage, and holds some blocks of a model that is not written for pipelines.
//
//   WEFT_RANKS=2 pipeline [timeline.svg]      mpirun -n 2 pipeline      launch -n 2 pipeline
#include <cstdio>
#include <fstream>

#include <weft/comm/run_world.hpp>
#include <weft/parallel/pipeline.hpp>
#include <weft/parallel/schedule/timeline.hpp>
#include <weft/parallel/stage_timing.hpp>
#include <weft/weft.hpp>

using namespace weft;

struct block {
  linear<32, 32> in, out;
  auto operator()(expression auto x) const {
    return let(x, [this](auto h) { return h + out(relu(in(h))); });
  }
};

struct network {
  linear<2, 32> first;
  repeat<block> blocks{{block(), block(), block(), block(), block(), block()}};
  linear<32, 2> last;
  auto operator()(expression auto x) const { return last(blocks(first(x))); }
};

using plan = policy<strategy::mesh<pp<>>>;  // pp<>: the 1F1B schedule

int main(int argc, char** argv) {
  return run_world(argc, argv, [&](communicator& ranks) {
    network model;
    initialize(model, 1);
    adamw optimizer{.lr = 1e-3};
    auto run = bind<plan>(model, optimizer, ranks, mesh_sizes{.pp = ranks.size()});
    context own;                        // a context for this thread
    const auto loss = [&](index_t j) {  // of micro-batch j: is a point inside the circle?
      auto points = randn<float>(extents<dyn, 2>{64, 2}, {.seed = static_cast<std::uint64_t>(j)});
      auto inside = eval(cast<std::int32_t>(sum(square(points), dims<1>) < 1.4f), own);
      return cross_entropy(model(points), inside);
    };
    for (int step = 0; step <= 200; ++step) {
      const auto r = run.step(4, loss);
      if (ranks.rank() > 0) continue;
      if (step == 0) std::printf("%s", run.to_string().c_str());
      if (step % 100 == 0) std::printf("step %3d  loss %.4f\n", step, r.loss);
    }
    const pipeline::timing times = measured_timing(run);  // the last step, on all stages
    if (argc > 1 && ranks.rank() == 0)
      std::ofstream(argv[1]) << pipeline::timeline_svg(times.records, {.unit = "ms", .time_scale = 1e3});
  });
}
