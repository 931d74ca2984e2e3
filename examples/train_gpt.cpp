// SPDX-License-Identifier: MIT
// Trains a GPT-2 on the bytes of text files; see --help.
#include <cstdlib>
#include <new>

#include <weft/comm/environment.hpp>
#include <weft/comm/self.hpp>
#include <weft/comm/threads.hpp>
#if WEFT_WITH_MPI
#include <weft/comm/mpi_world.hpp>
#endif
#if WEFT_WITH_GLOO
#include <weft/comm/gloo_world.hpp>
#endif

#include "train_gpt_job.hpp"

std::atomic<std::size_t> job::allocations = 0;
volatile std::sig_atomic_t job::interrupted = 0;

// Counted, so that the log can show that a steady step allocates nothing.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  job::allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace {

using namespace weft;

int train(settings s, communicator& ranks) {
  if (s.strategy.empty()) s.strategy = ranks.size() > 1 ? "ddp" : "single";
  if (s.strategy == "single" && ranks.size() > 1)
    throw usage_error("--strategy single: is for one rank, there are " + std::to_string(ranks.size()));
  if (s.memory_limit > 0) s = job::within_memory(s, ranks.size());
  else if (s.recompute.empty()) s.recompute = "none";
  for (const job::unit& u : job::units())
    if (u.precision == s.precision && u.recompute == s.recompute) return u.train(s, ranks);
  throw usage_error("--precision " + s.precision + " --recompute " + s.recompute + ": this program was built without it");
}

/// The threads of each of the ranks on this machine: its share, and no more cores than it may use.
int threads_per_rank(int ranks) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, std::min(cores / ranks, hardware_threads()));
}

/// Says what went wrong, and returns the exit code for it.
int report(const std::exception_ptr& what) {
  const auto say = [](const char* why, int code) { return std::fprintf(stderr, "train_gpt: %s\n", why), code; };
  try {
    std::rethrow_exception(what);
  } catch (const usage_error& e) {
    return say(e.what(), exit_codes::bad_use);
  } catch (const io_error& e) {
    return say(e.what(), exit_codes::bad_use);
  } catch (const comm_error& e) {
    return say(e.what(), exit_codes::others_failed);
  } catch (const std::bad_alloc&) {
    return say("the host has no more memory", exit_codes::failed);
  } catch (const std::exception& e) {
    return say(e.what(), exit_codes::failed);
  }
}

/// `train`; what goes wrong here is told to the others.
[[maybe_unused]] int train_among_others(const settings& s, communicator& ranks) {
  try {
    return train(s, ranks);
  } catch (const comm_error&) {
    throw;  // they know
  } catch (const std::exception& e) {
    ranks.abort(e.what());
    throw;
  }
}

/// Runs `train` on all ranks and returns the worst exit code.
int train_on_ranks(settings s, int count, char** values) {
  if (s.comm == "mpi") {
#if WEFT_WITH_MPI
    const auto body = [&](communicator& ranks) {
      if (s.threads == 0) s.threads = threads_per_rank(launch_from_environment().local_size);
      return train(s, ranks);
    };
    return run_under_mpirun(count, values, body, report);
#else
    (void)count, (void)values;
    throw usage_error("--comm mpi: this program was built without MPI");
#endif
  }
  if (s.comm == "gloo") {
#if WEFT_WITH_GLOO
    const launch me = launch_from_environment();
    gloo_world world(me, std::chrono::seconds(s.timeout));
    if (s.threads == 0) s.threads = threads_per_rank(me.local_size);
    return train_among_others(s, world.ranks());
#else
    throw usage_error("--comm gloo: this program was built without Gloo");
#endif
  }
  if (s.ranks == 1) {
    self_communicator alone;
    return train(s, alone);
  }
  if (s.threads == 0) s.threads = threads_per_rank(s.ranks);
  std::atomic<int> worst = 0;
  run_ranks(s.ranks, [&](communicator& ranks) {
    const int code = train(s, ranks);
    if (ranks.rank() == 0 || code > worst) worst = code;
  });
  return worst;
}

}  // namespace

int main(int count, char** values) {
  for (const int asked : {SIGINT, SIGTERM, SIGUSR1})  // Ctrl-C, a scheduler, and mpirun, which passes on the last alone
    std::signal(asked, [](int) { job::interrupted = 1; });
  std::signal(SIGPIPE, SIG_IGN);  // who reads our messages may have gone
  try {
    const settings s = parse(count, values);
    if (s.help) return std::fputs(usage, stdout), 0;
    return train_on_ranks(s, count, values);
  } catch (...) {
    return report(std::current_exception());
  }
}
