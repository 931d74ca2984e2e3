// SPDX-License-Identifier: MIT
// How much of the communication time is hidden behind computation: a GPT on ranks with a slow link between
// them. Started alone, it runs on two threads; under mpirun, on MPI.
//
//   mpirun -n 2 build/benchmarks/weft_benchmark_overlap [LINK [LAYERS]]
//
// The link is simulated: a message is done when it has arrived and a wire of a given speed would have carried
// this rank's bytes, one message after the other. LINK (0.5) is the time that data parallelism's messages
// take on the wire, as a fraction of the time of a step. In the table of sharded layers, the messages of a
// backward pass with whole activations take the fraction LAYERS (0.2) of its time on the wire.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <weft/comm/threads.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/parallel/tensor_parallel.hpp>
#include <weft/weft.hpp>
#if WEFT_WITH_MPI
#include <weft/comm/mpi.hpp>
#endif

#include "../examples/gpt2.hpp"

namespace {

using namespace weft;
using steady = std::chrono::steady_clock;

double milliseconds(steady::duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

/// A wire that carries one message of a rank at a time.
struct wire {
  double bytes_per_ms = 0;  // 0: unlimited
  steady::time_point free_at{};
  double busy_ms = 0;

  steady::time_point carries(index_t bytes) {
    if (bytes_per_ms == 0) return {};
    const double ms = static_cast<double>(bytes) / bytes_per_ms;
    busy_ms += ms;
    return free_at = std::max(free_at, steady::now()) + std::chrono::duration_cast<steady::duration>(
                                                            std::chrono::duration<double, std::milli>(ms));
  }
};

class delayed : public work::state {
 public:
  delayed(work w, steady::time_point due) : work_(std::move(w)), due_(due) {}
  bool poll() override { return work_.is_completed() && steady::now() >= due_; }
  void wait(std::chrono::milliseconds limit) override {
    work_.wait(limit);
    std::this_thread::sleep_until(due_);
  }
  std::exception_ptr failure() const override { return work_.exception(); }

 private:
  work work_;
  steady::time_point due_;
};

template <class Communicator>
class slow : public Communicator {
 public:
  using Communicator::Communicator;
  wire link;

 protected:
  work start(operation o) override {
    const index_t bytes = sent_by(o, this->rank(), this->size()) * size_of(o.type());
    const auto limit = o.timeout;
    work w = Communicator::start(std::move(o));
    return work(std::make_shared<delayed>(std::move(w), link.carries(bytes)), limit);
  }
};

struct figures {
  double step_ms, wire_ms;
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

/// Medians over steps.
figures measure(communicator& ranks, wire& link, double bytes_per_ms, const parallel_options& o) {
  const device where(std::make_shared<cpu::cpu_backend>(1));
  const index_t batch = 4, context = 128;
  auto model = gpt2::model<>::create(
      {.layers = 6, .heads = 6, .width = 384, .context = context, .vocabulary = 256}, where);
  initialize(model, 1);
  adamw optimizer;
  auto run = bind(model, optimizer, ranks, o);
  tensor<std::uint8_t, extents<dyn, dyn>> tokens(shape{2, {batch, context}}, where);
  std::vector<std::uint8_t> text(static_cast<std::size_t>(batch * context));
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::uint8_t>(i * 7);
  tokens.copy_from(text);
  link.bytes_per_ms = bytes_per_ms;
  std::vector<double> step, wired;
  for (int s = 0; s < 12; ++s) {
    ranks.barrier().wait();
    const auto start = steady::now();
    const double busy = link.busy_ms;
    tape steps(run);
    steps.backward(steps.eval(cross_entropy(model(tokens, context), tokens)));
    run.step({.clip = 1});
    if (s < 3) continue;
    step.push_back(milliseconds(steady::now() - start));
    wired.push_back(link.busy_ms - busy);
  }
  link.bytes_per_ms = 0;
  return {median(step), median(wired)};
}

/// A pass through blocks whose layers are sharded, without a wire and with one.
struct pass_figures {
  figures free, wired;
};
struct layer_figures {
  pass_figures forward, backward;
};

/// Medians over passes, alternately with a wire and without one.
template <activations Between>
layer_figures measure_layers(communicator& ranks, wire& link, double bytes_per_ms) {
  constexpr index_t batch = 4, positions = 256, width = 512, heads = 8, blocks = 4;
  const device where(std::make_shared<cpu::cpu_backend>(1));
  auto model = gpt2::model<width>::create(
      {.layers = blocks, .heads = heads, .width = width, .context = positions, .vocabulary = 256}, where);
  initialize(model, 1);
  sgd optimizer;
  auto run = bind<policy<strategy::mesh<tp<Between>>>>(model, optimizer, ranks, {.tp = ranks.size()});
  variable<float, extents<batch, positions, width>> x(
      randn<float>(extents<batch, positions, width>{}, {.seed = 1}, where));
  struct series {
    std::vector<double> step, wire;
    figures medians() const { return {median(step), median(wire)}; }
  };
  series forward[2], backward[2];
  for (int s = 0; s < 24; ++s) {
    const auto timed = [&](series& to, auto f) {
      link.bytes_per_ms = s % 2 ? bytes_per_ms : 0;
      ranks.barrier().wait();
      const auto start = steady::now();
      const double busy = link.busy_ms;
      f();
      if (s > 3) {
        to.step.push_back(milliseconds(steady::now() - start));
        to.wire.push_back(link.busy_ms - busy);
      }
      link.bytes_per_ms = 0;
    };
    tape steps(run);
    variable<float, extents<>> loss;
    timed(forward[s % 2], [&] { loss = steps.eval(mean(square(model.h(x)))); });
    timed(backward[s % 2], [&] { steps.backward(loss); });
    run.step();
  }
  return {{forward[0].medians(), forward[1].medians()}, {backward[0].medians(), backward[1].medians()}};
}

void print_layers(communicator& ranks, wire& link, double share) {
  const figures fast = measure_layers<activations::whole>(ranks, link, 0).backward.free;
  const double bytes = 4.0 * 4 * 4 * 256 * 512 * 4;  // sent by four blocks on two ranks: 4 S each
  std::vector<double> speed{bytes / 2 / (share * fast.step_ms)};
  ranks.broadcast(speed, 0).wait();
  const auto print = [&](const char* name, const pass_figures& f) {
    const double exposed = f.wired.step_ms - f.free.step_ms;
    if (ranks.rank() == 0)
      std::printf("| %s | %.1f | %.1f | %.1f | %.1f | %.0f%% |\n", name, f.free.step_ms, f.wired.step_ms,
                  f.wired.wire_ms, exposed, 100 * exposed / f.wired.wire_ms);
  };
  if (ranks.rank() == 0)
    std::printf(
        "\ndivided layers, a wire of %.0f MB/s\n\n"
        "| activations, pass | no wire, ms | with it, ms | on the wire, ms "
        "| more than without, ms | exposed |\n"
        "|---|---|---|---|---|---|\n",
        speed[0] / 1e3);
  const layer_figures whole = measure_layers<activations::whole>(ranks, link, speed[0]),
                      parts = measure_layers<activations::by_positions>(ranks, link, speed[0]);
  print("whole, forward", whole.forward);
  print("whole, backward", whole.backward);
  print("by positions, forward", parts.forward);
  print("by positions, backward", parts.backward);
}

void print_table(communicator& ranks, wire& link, double share) {
  struct row {
    const char* name;
    parallel_options options;
  };
  const row rows[] = {{"data parallel", {}},
                      {"data parallel, messages of 2 MB", {.bucket_bytes = 2 << 20}},
                      {"data parallel, one message",
                       {.bucket_bytes = index_t{1} << 40, .first_bucket_bytes = index_t{1} << 40}},
                      {"stage 1", {.divide = sharding::optimizer}},
                      {"stage 2", {.divide = sharding::gradients}},
                      {"stage 3", {.divide = sharding::parameters}},
                      {"stage 3, two blocks ahead", {.divide = sharding::parameters, .prefetch = 2}},
                      {"stage 3, no prefetch", {.divide = sharding::parameters, .prefetch = 0}}};
  const bool first = ranks.rank() == 0;
  const figures fast = measure(ranks, link, 0, {});
  const double bytes = 4.0 * 10.8e6;  // about as many as data parallelism sends on two ranks
  std::vector<double> speed{bytes / (share * fast.step_ms)};
  ranks.broadcast(speed, 0).wait();
  if (first)
    std::printf(
        "%d ranks on %s, a wire of %.0f MB/s\n\n| strategy | step, no wire, ms | step, ms | on the wire, ms "
        "| more than without, ms | hidden | exposed, of the step |\n"
        "|---|---|---|---|---|---|---|\n",
        ranks.size(), ranks.name(), speed[0] / 1e3);
  for (const row& r : rows) {
    const figures without = measure(ranks, link, 0, r.options),
                  with = measure(ranks, link, speed[0], r.options);
    const double exposed = with.step_ms - without.step_ms;
    if (first)
      std::printf("| %s | %.1f | %.1f | %.1f | %.1f | %.0f%% | %.1f%% |\n", r.name, without.step_ms,
                  with.step_ms, with.wire_ms, exposed, 100 * (1 - exposed / with.wire_ms),
                  100 * exposed / with.step_ms);
  }
}

}  // namespace

int main(int count, char** values) {
  const double share = count > 1 ? std::atof(values[1]) : 0.5,
               layers = count > 2 ? std::atof(values[2]) : 0.2;
#if WEFT_WITH_MPI
  if (std::getenv("OMPI_COMM_WORLD_SIZE")) {
    boost::mpi::environment mpi(count, values, boost::mpi::threading::funneled);
    slow<mpi_communicator> ranks{boost::mpi::communicator{}};
    print_layers(ranks, ranks.link, layers);
    print_table(ranks, ranks.link, share);
    return 0;
  }
#endif
  const auto group = std::make_shared<detail::thread_group>(std::make_shared<detail::thread_world>(), 2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      slow<threads_communicator> ranks(group, r);
      print_layers(ranks, ranks.link, layers);
      print_table(ranks, ranks.link, share);
    });
  for (auto& t : threads) t.join();
}
