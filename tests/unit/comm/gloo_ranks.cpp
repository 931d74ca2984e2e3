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

namespace {

communicator* world = nullptr;

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

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
  }
  std::filesystem::remove_all(folder);
  return failures;
}

template <class F>
std::string failure(F f) {
  try {
    f();
  } catch (const error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("the contract of communicators: processes over TCP" * doctest::test_suite("on every rank")) {
  contract::check_contract([](int, auto f) { f(*world); }, world->size());
}

TEST_CASE("sums have the bits of the tree that threads use") {
  CHECK(failures_on(3, [](int rank, auto store) {
          gloo_communicator ranks(store, rank, 3);
          std::vector<float> x(5), each;
          const auto number = [](int r) { return 1.0f / static_cast<float>(3 + r) * (r % 2 ? -1e4f : 1.0f); };
          std::vector<const void*> sources;
          for (int r = 0; r < 3; ++r) each.push_back(number(r));
          for (const float& e : each) sources.push_back(&e);
          float expected = 0;
          detail::reduce_ranks<float>(sources, 0, 1, reduction::sum, &expected);
          std::fill(x.begin(), x.end(), number(rank));
          ranks.all_reduce(x).wait();
          return x == std::vector<float>(5, expected);
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
          return has(wrong, "at fault: rank 1 called broadcast(f32 x 4, root 0)");
        }) == 0);
  CHECK(failures_on(3, [](int rank, auto store) {
          gloo_communicator ranks(store, rank, 3);
          std::vector<float> x(4);
          const std::string late = failure([&] {
            if (rank == 1) std::this_thread::sleep_for(1s);
            ranks.all_reduce(x, reduction::sum, {.label = "h.3", .timeout = 200ms}).wait();
          });
          return has(late, "waited 200 ms; not there: rank 1") && has(late, "for h.3");
        }) == 0);
  CHECK(failures_on(3, [](int rank, auto store) {
          gloo_communicator ranks(store, rank, 3);
          std::vector<float> x(4);
          ranks.all_reduce(x).wait();
          if (rank == 2) ::_exit(0);
          const std::string gone = failure([&] { ranks.all_reduce(x, reduction::sum, {.label = "h.3"}).wait(); });
          return has(gone, "rank 2 is gone") && has(gone, "all_reduce(sum, f32 x 4) for h.3");
        }) == 0);
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
