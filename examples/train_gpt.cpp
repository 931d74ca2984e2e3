// SPDX-License-Identifier: MIT
// Trains a GPT-2 on the bytes of text files; see --help.
#include <cstdlib>
#include <new>

#include <weft/comm/threads.hpp>
#if WEFT_WITH_MPI
#include <weft/comm/mpi.hpp>
#endif
#if WEFT_WITH_GLOO
#include <weft/comm/gloo_world.hpp>
#endif

#include "train_gpt_run.hpp"

std::atomic<std::size_t> allocations = 0;
volatile std::sig_atomic_t interrupted = 0;

// Counted, so that the log can show that a steady step allocates nothing.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

extern template int job::train<weft::precision::bf16>(settings, weft::communicator&);
extern template int job::train<weft::precision::f16>(settings, weft::communicator&);

namespace {

using namespace weft;

int train_in_precision(const settings& s, communicator& ranks) {
  if (s.precision == "bf16") return job::train<precision::bf16>(s, ranks);
  if (s.precision == "f16") return job::train<precision::f16>(s, ranks);
  return job::train<precision::f32>(s, ranks);
}

int threads_per_rank(int ranks) { return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks); }

/// Runs `train` on all ranks and returns the worst exit code.
int train_on_ranks(settings s, int count, char** values) {
  if (s.comm == "mpi") {
#if WEFT_WITH_MPI
    boost::mpi::environment mpi(count, values, boost::mpi::threading::funneled);
    mpi_communicator ranks{boost::mpi::communicator{}};
    if (s.threads == 0) s.threads = threads_per_rank(ranks.size());
    return train_in_precision(s, ranks);
#else
    (void)count, (void)values;
    throw usage_error("--comm mpi: this program was built without MPI");
#endif
  }
  if (s.comm == "gloo") {
#if WEFT_WITH_GLOO
    gloo_world world(launch_from_environment(), std::chrono::seconds(s.timeout));
    if (s.threads == 0) s.threads = threads_per_rank(world.ranks().size());
    return train_in_precision(s, world.ranks());
#else
    throw usage_error("--comm gloo: this program was built without Gloo");
#endif
  }
  if (s.ranks == 1) {
    self_communicator alone;
    return train_in_precision(s, alone);
  }
  if (s.threads == 0) s.threads = threads_per_rank(s.ranks);
  std::atomic<int> worst = 0;
  run_ranks(s.ranks, [&](communicator& ranks) {
    const int code = train_in_precision(s, ranks);
    if (ranks.rank() == 0 || code > worst) worst = code;
  });
  return worst;
}

}  // namespace

int main(int count, char** values) {
  std::signal(SIGINT, [](int) { interrupted = 1; });
  try {
    const settings s = parse(count, values);
    if (s.help) return std::fputs(usage, stdout), 0;
    return train_on_ranks(s, count, values);
  } catch (const usage_error& e) {
    std::fprintf(stderr, "train_gpt: %s\n", e.what());
    return 2;
  } catch (const io_error& e) {
    std::fprintf(stderr, "train_gpt: %s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "train_gpt: %s\n", e.what());
    return 1;
  }
}
