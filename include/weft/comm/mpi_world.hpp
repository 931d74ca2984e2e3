// SPDX-License-Identifier: MIT
// Programs under mpirun: initializes MPI, and turns exceptions into exit codes.
//
//   int main(int count, char** values) {
//     return weft::run_under_mpirun(count, values, [](communicator& ranks) { return train(ranks); }, report);
//   }
//
// MPI by itself terminates a process with an uncaught exception without printing it.
#pragma once

#include <cstdio>

#include <weft/comm/mpi.hpp>

namespace weft {

/// Executes body(communicator&) on this rank and returns the exit code of the job, which is the same on all
/// ranks: the return value of `body`, or, for an exception, that of report(std::exception_ptr), which prints
/// it. Other ranks are notified, and terminated if they do not finish within two seconds. Throws usage_error
/// the second time in a process, because MPI can be initialized only once.
template <class Body, class Report>
int run_under_mpirun(int& count, char**& values, Body body, Report report) {
  if (boost::mpi::environment::finalized())
    throw usage_error(
        "weft: run_under_mpirun: MPI was finalized in this process and cannot be initialized again: do "
        "everything in one call");
  constexpr bool exceptions_abort = false;
  boost::mpi::environment mpi(count, values, boost::mpi::threading::funneled, exceptions_abort);
  const boost::mpi::communicator world;
  int code = 0;
  bool good = false;
  const auto ranks = std::make_unique<mpi_communicator>(world);
  try {
    code = body(static_cast<communicator&>(*ranks));
    good = true;
  } catch (...) {
    code = report(std::current_exception());
    ranks->abort(detail::reason_of(std::current_exception()));  // no effect if the other ranks know already
  }
  std::fflush(nullptr);
  const std::chrono::milliseconds limit = good ? std::chrono::hours(24 * 365) : std::chrono::seconds(2);
  if (!ranks->end_together(code, limit)) MPI_Abort(world, code);
  return code;
}

}  // namespace weft
