// SPDX-License-Identifier: MIT
// A rank under mpirun that works until a failure, which ranks_mpi.sh selects.
//
//   mpirun -n 3 weft_test_chaos_mpi_program WHAT VICTIM FOLDER
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include <weft/comm/mpi_world.hpp>

using namespace weft;

namespace {

int report(const std::exception_ptr& what) {
  try {
    std::rethrow_exception(what);
  } catch (const comm_error& e) {
    std::fprintf(stderr, "program: %s\n", e.what());
    return exit_codes::others_failed;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "program: %s\n", e.what());
    return exit_codes::bad_use;
  }
}

int train(communicator& ranks, const std::string& what, int victim, const std::string& folder) {
  const std::chrono::seconds limit(2);
  ranks.barrier().wait();  // after this, all ranks have started
  std::ofstream(folder + "/pid." + std::to_string(ranks.rank())) << ::getpid() << std::endl;
  const auto pair = ranks.split(ranks.rank() / 2, ranks.rank(), {.timeout = limit});
  for (int i = 0; what != "done" || i < 100; ++i) {
    std::vector<float> x(1000);
    if (ranks.rank() == victim && i == 100) {
      if (what == "throws") throw io_error("the disk is full");
      if (what == "loses") throw comm_error("the store is lost");  // which no other rank knows
      if (what == "hangs")
        for (volatile bool forever = true; forever;) {}
    }
    (i % 2 ? *pair : ranks).all_reduce(x, reduction::sum, {.timeout = limit}).wait();
  }
  return what == "done" ? exit_codes::done : exit_codes::failed;
}

}  // namespace

int main(int count, char** values) {
  if (count < 4) return exit_codes::bad_use;
  const std::string what = values[1], folder = values[3];
  const int victim = std::atoi(values[2]);
  return run_under_mpirun(
      count, values, [&](communicator& ranks) { return train(ranks, what, victim, folder); }, report);
}
