// SPDX-License-Identifier: MIT
// Rank, group size and address of this process, from the environment variables of its launcher: those of
// torchrun, or of mpirun; a process without them is alone.
//
//   const launch me = launch_from_environment();
//   std::printf("rank %d of %d\n", me.rank, me.size);
#pragma once

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <weft/base/error.hpp>

namespace weft {

/// The place of this process in its job.
struct launch {
  enum class launcher { none, variables, mpirun };
  launcher from = launcher::none;
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // among the ranks of this machine; by default all ranks are on it
  std::string address;  // where rank 0 listens; empty if unknown
  int port = 0;
};

/// Exit codes of ranks, as launchers interpret them (examples/launch).
namespace exit_codes {
/// The job succeeded; a rank failed; the command line was wrong; other ranks failed; ended by a signal.
inline constexpr int done = 0, failed = 1, bad_use = 2, others_failed = 3, interrupted = 130;
}

/// Returns the value of a variable, or null: std::getenv, or a replacement in tests.
using variable_lookup = std::function<const char*(const char*)>;

namespace detail {

int variable_as_int(const variable_lookup& look_up, const char* name, int low, int high);

}  // namespace detail

/// Reads WORLD_SIZE, RANK, LOCAL_WORLD_SIZE and LOCAL_RANK, or if they are not set the variables of Open MPI,
/// and with either MASTER_ADDR and MASTER_PORT (under torchrun the port after it, because torchrun itself
/// uses MASTER_PORT); without any of them, there is one rank. Throws usage_error, naming the variable, if
/// they are incomplete or not numbers in range, or if WORLD_SIZE contradicts mpirun, unless mpirun has
/// started torchrun.
launch launch_from_environment(const variable_lookup& look_up = [](const char* n) { return std::getenv(n); });

/// Variables that are set and affect other libraries but not weft, for a notice at the start.
std::vector<std::string> ignored_variables(const variable_lookup& look_up = [](const char* n) {
  return std::getenv(n);
});

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/comm/impl/environment.ipp>
#endif
