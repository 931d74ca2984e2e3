// SPDX-License-Identifier: MIT
// Trains a GPT-2 on the bytes of text files; see --help.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <optional>
#include <string_view>

#include <weft/comm/run_world.hpp>
#include <weft/train/profiler.hpp>

#include "train_gpt_job.hpp"

std::atomic<std::size_t> job::allocations = 0;
volatile std::sig_atomic_t job::interrupted = 0;

// Allocations are counted, so that the log can show that a steady-state step allocates nothing.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  job::allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace {

using namespace weft;

/// Trains; if the device runs out of memory, the error says which other settings would fit.
int train_or_advise(const job::unit& u, const settings& s, communicator& ranks) {
  try {
    return u.train(s, ranks);
  } catch (const out_of_memory_error& e) {
    const std::size_t bytes = e.shortage.attainable();
    if (bytes == 0) throw;
    throw out_of_memory_error(e.what() + job::what_would_fit(s, ranks.size(), bytes), e.shortage);
  }
}

int train(const settings& asked, communicator& ranks) {
  settings s = job::resolved(asked, ranks.size());
  if (s.memory_limit > 0) s = job::within_memory(s, ranks.size());
  else if (s.recompute.empty()) s.recompute = "none";
  for (const job::unit& u : job::units())
    if (job::fits(u, s) && u.recompute == s.recompute) return train_or_advise(u, s, ranks);
  throw job::not_built(s);
}

/// Threads per rank on this machine: an equal share of the cores, at most as many as the process may use.
int threads_per_rank(int ranks) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, std::min(cores / ranks, hardware_threads()));
}

/// Prints what went wrong and returns the exit code for it.
int report(const std::exception_ptr& what) {
  std::fputs("train_gpt: ", stderr);
  return report_failure(what);
}

/// Runs `train` on all ranks and returns the worst exit code.
int train_on_ranks(const settings& s, int& count, char**& values) {
  const transport over = s.comm == "mpi"    ? transport::mpi
                         : s.comm == "gloo" ? transport::gloo
                         : s.comm == "nccl" ? detail::transport_for(launch_from_environment())
                                            : transport::threads;
  const int on_this_machine = over == transport::threads ? s.ranks : launch_from_environment().local_size;
  std::optional<profiler> profile;  // of all ranks in this process
  if (!s.profile.empty()) profile.emplace();
  const auto body = [&](communicator& ranks) {
    settings own = s;
    if (own.threads == 0 && on_this_machine > 1) own.threads = threads_per_rank(on_this_machine);
    const int code = train(own, ranks);
    if (!profile || code != 0) return code;
    profile->save_trace(s.profile, ranks);
    if (ranks.rank() == 0) std::printf("\n%s", profile->table().c_str());
    return code;
  };
  return run_world(count, values, body, {over, s.ranks, std::chrono::seconds(s.timeout), report});
}

/// Asks the run to end after its step; a second Ctrl-C ends it at once.
void interrupt(int signal) {
  const int before = errno;
  if (signal == SIGINT) {
    if (job::interrupted) std::_Exit(exit_codes::interrupted);
    constexpr std::string_view text = "\nending after this step; Ctrl-C again ends at once\n";
    static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size()));
  }
  job::interrupted = 1;
  errno = before;
}

}  // namespace

int main(int count, char** values) {
  for (const int asked :
       {SIGINT, SIGTERM, SIGUSR1})  // Ctrl-C, a scheduler, and mpirun, which forwards only SIGUSR1
    std::signal(asked, interrupt);
  std::signal(SIGPIPE, SIG_IGN);  // the reader of our output may be gone
  try {
    settings s = parse(count, values);
    if (s.help) return std::fputs(usage, stdout), 0;
    if (s.list_devices) return std::fputs(job::devices().c_str(), stdout), 0;
    s.device_name = job::resolved_device(s.device_name);
    return train_on_ranks(s, count, values);
  } catch (...) {
    return report(std::current_exception());
  }
}
