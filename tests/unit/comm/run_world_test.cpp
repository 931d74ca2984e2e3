// SPDX-License-Identifier: MIT
// One main() for all kinds of ranks: the number of ranks, and how exit codes and exceptions propagate.
#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <set>

#include <weft/comm/run_world.hpp>

using namespace weft;

namespace {

/// Calls run_world on `n` threads; returns the last text passed to `report`.
template <class Body>
int run(int n, std::string& told, Body body) {
  int count = 0;
  char** values = nullptr;
  const auto report = [&](const std::exception_ptr& e) {
    try {
      std::rethrow_exception(e);
    } catch (const std::exception& what) {
      told = what.what();
    }
    return report_failure(e);
  };
  return run_world(count, values, body,
                   {.over = transport::threads, .threads = n, .timeout = default_timeout, .report = report});
}

[[maybe_unused]] world_options only(transport t) {
  world_options o;
  o.over = t;
  return o;
}
launch started_by(launch::launcher l) {
  launch me;
  me.from = l;
  return me;
}

}  // namespace

TEST_CASE("run_world: every rank runs the body once, whether it returns a code or nothing") {
  std::string told;
  for (const int n : {1, 2, 5}) {
    std::mutex guard;
    std::multiset<int> seen;
    CHECK(run(n, told, [&](communicator& ranks) {
            const std::lock_guard lock(guard);
            seen.insert(ranks.rank());
            CHECK(ranks.size() == n);
          }) == 0);
    std::multiset<int> all;
    for (int r = 0; r < n; ++r) all.insert(r);
    CHECK(seen == all);
    CHECK(run(n, told, [&](communicator& ranks) { return ranks.rank() == n - 1 ? 7 : 3; }) == 7);
    CHECK(told.empty());
  }
}

TEST_CASE("run_world: an exception of any rank is reported once and becomes an exit code") {
  std::string told;
  for (const int n : {1, 3}) {
    const auto code_for = [&](auto what) {
      told.clear();
      return run(n, told, [&](communicator& ranks) {
        if (ranks.rank() == n - 1) throw what;
        ranks.barrier().wait();
      });
    };
    CHECK(code_for(usage_error("no such option")) == exit_codes::bad_use);
    CHECK(told == "no such option");
    CHECK(code_for(io_error("no such file")) == exit_codes::bad_use);
    CHECK(code_for(comm_error("rank 1 is gone")) == exit_codes::others_failed);
    CHECK(code_for(value_error("nan")) == exit_codes::failed);
    CHECK(code_for(std::bad_alloc()) == exit_codes::failed);
  }
}

TEST_CASE("run_world: the code of a rank that ends early, not that of those who miss it") {
  std::string told;
  CHECK(run(3, told, [&](communicator& ranks) {
          if (ranks.rank() == 1) return 7;
          ranks.barrier().wait();
          return 0;
        }) == 7);
  CHECK(told.find("rank 1 is gone") != std::string::npos);
}

TEST_CASE("run_world: a thread that hangs is reported, and the process ends with the code of the report") {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    std::string told;
    run(3, told, [&](communicator& ranks) {
      if (ranks.rank() == 1) ::sleep(1000);
      ranks.barrier({.timeout = std::chrono::milliseconds(50)}).wait();
    });
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == exit_codes::others_failed);
}

TEST_CASE("run_world: ranks are what the program was started as") {
  CHECK(detail::transport_for({}) == transport::threads);
  CHECK(detail::transport_for(started_by(launch::launcher::variables)) == transport::gloo);
  CHECK(detail::transport_for(started_by(launch::launcher::mpirun)) == transport::mpi);
  CHECK(detail::ranks_from_environment([](const char*) -> const char* { return nullptr; }) == 1);
  CHECK(detail::ranks_from_environment([](const char*) { return "3"; }) == 3);
  CHECK(detail::ranks_from_environment([](const char*) { return ""; }) == 1);
  for (const char* bad : {"0", "-1", "2 ", "1e3", "99999"})
    CHECK_THROWS_WITH_AS(detail::ranks_from_environment([&](const char*) { return bad; }),
                         doctest::Contains("WEFT_RANKS"), usage_error);
}

TEST_CASE("run_world: a transport that the program was built without is refused by name") {
  int count = 0;
  char** values = nullptr;
#if !WEFT_WITH_GLOO
  CHECK(run_world(count, values, [](communicator&) {}, only(transport::gloo)) == exit_codes::bad_use);
#endif
#if !WEFT_WITH_MPI
  CHECK(run_world(count, values, [](communicator&) {}, only(transport::mpi)) == exit_codes::bad_use);
#endif
}
