// SPDX-License-Identifier: MIT
// One main function for one process, threads, processes over TCP and mpirun.
//
//   int main(int argc, char** argv) {
//     return weft::run_world(argc, argv, [](weft::communicator& ranks) { train(ranks); });
//   }
//
//   ./program                            one rank
//   WEFT_RANKS=4 ./program               four ranks, threads of one process
//   launch -n 4 ./program                four processes over TCP      (link weft::gloo)
//   mpirun -n 4 ./program                four processes under MPI     (link weft::mpi)
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <type_traits>

#include <weft/comm/environment.hpp>
#include <weft/comm/self.hpp>
#include <weft/comm/threads.hpp>
#if WEFT_WITH_GLOO
#include <weft/comm/gloo_world.hpp>
#endif
#if WEFT_WITH_MPI
#include <weft/comm/mpi_world.hpp>
#endif

namespace weft {

/// What ranks are (threads or processes), and what transfers their messages.
enum class transport : std::uint8_t {
  automatic,  // by the launcher: mpi under mpirun, gloo if RANK and WORLD_SIZE are set, otherwise threads
  threads,
  gloo,
  mpi
};

/// Prints the message of an exception to stderr and returns its exit code (`exit_codes`): bad_use for
/// usage_error and io_error, others_failed for comm_error, otherwise failed.
int report_failure(const std::exception_ptr& what);

/// Options of run_world.
struct world_options {
  transport over = transport::automatic;
  int threads = 0;  // number of ranks that are threads; 0: WEFT_RANKS, or 1 if that is not set
  std::chrono::milliseconds timeout = default_timeout;  // for forming the group over TCP
  std::function<int(const std::exception_ptr&)> report = report_failure;
};

namespace detail {

/// The exit code that `body` returns; 0 if it returns nothing.
template <class Body>
int exit_code_of(Body& body, communicator& ranks) {
  if constexpr (std::is_void_v<std::invoke_result_t<Body&, communicator&>>)
    return body(ranks), exit_codes::done;
  else return body(ranks);
}

transport transport_for(const launch& me);

#if WEFT_WITH_GLOO
/// Runs `body` on this rank; other ranks are notified if it fails.
template <class Body>
int run_over_gloo(const launch& me, Body& body, const world_options& o) {
  gloo_world world(me, o.timeout);
  try {
    return exit_code_of(body, world.ranks());
  } catch (...) {
    const int code = o.report(std::current_exception());       // before ~gloo_world, which waits
    world.ranks().abort(reason_of(std::current_exception()));  // no effect if they know already
    return code;
  }
}
#endif

/// Runs `body` on `count` threads. Returns the highest exit code of all ranks, or, if ranks throw, the code
/// that the report of the first exception returns, because a rank that returns early makes others throw. A
/// single thread cannot be ended: if a rank fails and another has not ended 5 seconds later, the process
/// ends.
template <class Body>
int run_on_threads(int count, Body& body, const world_options& o) {
  if (count == 1) {
    self_communicator alone;
    return exit_code_of(body, alone);
  }
  std::atomic<int> worst = exit_codes::done;
  rank_threads threads(count, [&](communicator& ranks) {
    const int code = exit_code_of(body, ranks);
    for (int known = worst; code > known && !worst.compare_exchange_weak(known, code);) {}
  });
  const auto failure = threads.first_failure();
  if (!failure) return worst;
  const int told = o.report(failure);
  const bool all_ended = threads.end_within(std::chrono::seconds(5));
  const int code = told == exit_codes::others_failed && worst != exit_codes::done ? worst.load() : told;
  if (!all_ended) {
    std::fflush(nullptr);
    std::_Exit(code);
  }
  return code;
}

inline int ranks_from_environment(const variable_lookup& look_up = [](const char* n) {
  return std::getenv(n);
}) {
  const char* const text = look_up("WEFT_RANKS");
  if (!text || !*text) return 1;  // not set, or empty
  return variable_as_int(look_up, "WEFT_RANKS", 1, 1024);
}

}  // namespace detail

/// Calls body(communicator&) on every rank of this process and returns the exit code of the process: what
/// `body` returns (0 if nothing), or what `report` returns for an exception. Under mpirun the code is the
/// same on all ranks. Ranks that are threads call `body` concurrently; if one of them fails and others have
/// not ended 5 seconds later, the process ends with that code.
template <class Body>
int run_world(int& argc, char**& argv, Body body, world_options o = {}) try {
  const launch me = launch_from_environment();
  switch (o.over == transport::automatic ? detail::transport_for(me) : o.over) {
    case transport::mpi:
#if WEFT_WITH_MPI
      return run_under_mpirun(
          argc, argv, [&](communicator& ranks) { return detail::exit_code_of(body, ranks); }, o.report);
#else
      throw usage_error("weft: run_world: ranks under mpirun need a program that is linked with weft::mpi");
#endif
    case transport::gloo:
#if WEFT_WITH_GLOO
      return detail::run_over_gloo(me, body, o);
#else
      throw usage_error("weft: run_world: ranks over TCP need a program that is linked with weft::gloo");
#endif
    case transport::automatic:
    case transport::threads: break;
  }
  (void)argc, (void)argv;
  return detail::run_on_threads(o.threads > 0 ? o.threads : detail::ranks_from_environment(), body, o);
} catch (...) {
  return o.report(std::current_exception());
}

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/comm/impl/run_world.ipp>
#endif
