// SPDX-License-Identifier: MIT
// docs/cookbook/ranks.md: ranks as processes under mpirun.
// [main]
#include <cstdio>

#include <weft/comm/mpi_world.hpp>

#include "train.hpp"

int main(int count, char** values) {
  const auto body = [](weft::communicator& ranks) {
    train(ranks);
    return 0;
  };
  const auto report = [](const std::exception_ptr& what) {   // what went wrong, and the exit code for it
    try {
      std::rethrow_exception(what);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    return 1;
  };
  return weft::run_under_mpirun(count, values, body, report);
}
// [/main]
