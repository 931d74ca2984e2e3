// SPDX-License-Identifier: MIT
// A program under mpirun: from MPI_Init to an exit code that says what went wrong.
//
//   int main(int count, char** values) {
//     return weft::run_under_mpirun(count, values, [](communicator& ranks) { return train(ranks); }, report);
//   }
//
// MPI itself ends a process whose exception passes its end, without a word of what it was.
#pragma once

#include <cstdio>

#include <weft/comm/mpi.hpp>

namespace weft {

/// Runs body(communicator&) on this rank and returns the job's exit code, the same on all ranks: what
/// `body` returns, or for an exception what report(std::exception_ptr) does, which says what it was. The
/// others are told, and ended if they do not come to their end within two seconds.
template <class Body, class Report>
int run_under_mpirun(int& count, char**& values, Body body, Report report) {
  constexpr bool exceptions_abort = false;
  boost::mpi::environment mpi(count, values, boost::mpi::threading::funneled, exceptions_abort);
  const boost::mpi::communicator world;
  int code = 0;
  bool good = false;
  const auto ranks = std::make_unique<mpi_communicator>(world);
  try {
    code = body(static_cast<communicator&>(*ranks));
    good = true;
  } catch (const comm_error&) {
    code = report(std::current_exception());
  } catch (const std::exception& e) {
    code = report(std::current_exception());
    ranks->abort(e.what());
  } catch (...) {
    code = report(std::current_exception());
    ranks->abort("an exception");
  }
  std::fflush(nullptr);
  const std::chrono::milliseconds limit = good ? std::chrono::hours(24 * 365) : std::chrono::seconds(2);
  if (!ranks->end_together(code, limit)) MPI_Abort(world, code);
  return code;
}

}  // namespace weft
