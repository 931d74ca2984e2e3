// SPDX-License-Identifier: MIT
// The contract of communicators on processes over TCP: each test forks its ranks.
#define DOCTEST_CONFIG_IMPLEMENT
#include "contract.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include <weft/comm/file_store.hpp>
#include <weft/comm/gloo.hpp>

using namespace weft;
using namespace std::chrono_literals;
using contract::failure;

namespace {

communicator* world = nullptr;

/// Runs f(rank, store) in n processes; the number of those that did not end well.
template <class F>
int failures_on(int n, F f) {
  static int runs = 0;
  const auto folder = std::filesystem::temp_directory_path() / ("weft-gloo-" + std::to_string(::getpid()) + "-" + std::to_string(runs++));
  std::vector<pid_t> children;
  std::fflush(nullptr);
  for (int r = 0; r < n; ++r) {
    const pid_t child = ::fork();
    if (child == 0) {
      bool good = false;
      try {
        good = f(r, std::make_shared<file_store>(folder.string()));
      } catch (const std::exception& e) {
        std::fprintf(stderr, "rank %d: %s\n", r, e.what());
      }
      std::fflush(nullptr);
      ::_exit(good ? 0 : 1);
    }
    children.push_back(child);
  }
  int failures = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    failures += status != 0;
    if (WIFSIGNALED(status)) std::fprintf(stderr, "a rank was ended by signal %d\n", WTERMSIG(status));
  }
  std::filesystem::remove_all(folder);
  return failures;
}

/// Whether the text has all parts; shows one that has not.
template <class... Parts>
bool says(const std::string& text, Parts... parts) {
  const bool good = (contract::has(text, parts) && ...);
  if (!good) std::fprintf(stderr, "it says: %s\n", text.c_str());
  return good;
}

}  // namespace

TEST_CASE("the contract of communicators: processes over TCP" * doctest::test_suite("on every rank")) {
  contract::check_contract([](int, auto f) { f(*world); }, world->size());
}

TEST_CASE("sums have the bits of the tree that threads use") {
  CHECK(failures_on(3, [](int rank, auto store) {
          gloo_communicator ranks(store, rank, 3);
          return contract::sums_follow_the_tree(ranks);
        }) == 0);
}

TEST_CASE("ranks that disagree, are late or die are named on all others") {
  CHECK(failures_on(3, [](int rank, auto store) {
          gloo_communicator ranks(store, rank, 3);
          std::vector<float> x(4);
          const std::string wrong = failure([&] {
            if (rank == 1) ranks.broadcast(x, 0).wait();
            else ranks.all_reduce(x).wait();
          });
          return says(wrong, "at fault: rank 1 called broadcast(f32 x 4, root 0)");
        }) == 0);
  for (int round = 0; round < 10; ++round)  // a wait that ends a little early is late all the same
    CHECK(failures_on(2, [](int rank, auto store) {
            gloo_communicator ranks(store, rank, 2);
            std::vector<float> x(4);
            const std::string late = failure([&] {
              if (rank == 1) std::this_thread::sleep_for(100ms);
              ranks.all_reduce(x, reduction::sum, {.timeout = 10ms}).wait();
            });
            return says(late, "waited 10 ms; not there: rank 1");
          }) == 0);
  CHECK(failures_on(3, [](int rank, auto store) {
          gloo_communicator ranks(store, rank, 3);
          std::vector<float> x(4);
          const std::string late = failure([&] {
            if (rank == 1) std::this_thread::sleep_for(1s);
            ranks.all_reduce(x, reduction::sum, {.label = "h.3", .timeout = 200ms}).wait();
          });
          return says(late, "waited 200 ms; not there: rank 1", "for h.3");
        }) == 0);
  for (int round = 0; round < 10; ++round)  // who writes to one that is gone lives on, and both others name it
    CHECK(failures_on(3, [](int rank, auto store) {
            gloo_communicator ranks(store, rank, 3);
            std::vector<float> x(4);
            ranks.all_reduce(x).wait();
            if (rank == 2) ::_exit(0);
            const std::string gone = failure([&] { ranks.all_reduce(x, reduction::sum, {.label = "h.3"}).wait(); });
            return says(gone, "rank 2 is gone", "all_reduce(sum, f32 x 4) for h.3");
          }) == 0);
}

TEST_CASE("an address or an interface that no machine has is an error") {
  const auto meet = [](const gloo_network& network) { gloo_communicator(std::make_shared<memory_store>(), 0, 1, network); };
  CHECK_THROWS_WITH_AS(meet({.address = "no.such.name.invalid"}), doctest::Contains("weft: gloo: cannot use the network address no.such.name.invalid"), comm_error);
  CHECK_THROWS_WITH_AS(meet({.interface = "eth99"}), doctest::Contains("weft: gloo: cannot use the network interface eth99"), comm_error);
}

int main(int count, char** values) {
  int failures = 0;
  for (int n : {1, 2, 3, 4})
    failures += failures_on(n, [&](int rank, auto store) {
      gloo_communicator ranks(store, rank, n);
      world = &ranks;
      doctest::Context context(count, values);
      context.setOption("test-suite", "on every rank");
      context.setOption("minimal", true);
      return context.run() == 0;
    });
  std::printf("on 1 to 4 ranks: %d ranks failed\n", failures);
  doctest::Context context(count, values);
  context.setOption("test-suite-exclude", "on every rank");
  return context.run() || failures;
}
