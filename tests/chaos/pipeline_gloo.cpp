// SPDX-License-Identifier: MIT
// Stages over TCP, one of which is killed, is stopped or hangs during training: within the time-out, all
// others get an error that names it and no other rank. WEFT_CHAOS_ROUNDS is the number of rounds.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>
#include <regex>

#include <weft/comm/gloo_world.hpp>
#include <weft/nn/repeat.hpp>
#include <weft/parallel/pipeline.hpp>
#include <weft/weft.hpp>

#include "forked_ranks.hpp"

using namespace weft;
using namespace weft::test;
using namespace std::chrono_literals;

namespace {

constexpr auto limit = 2000ms;  // of every operation
enum class fault { killed, stopped, hangs };

struct round {
  int stages, victim;
  fault what;
  int after_ms;
};

struct net {
  linear<8, 8> start;
  repeat<linear<8, 8>> h;
  auto operator()(expression auto x) const { return h(start(x)); }
};

[[noreturn]] void train(const round& r, communicator& ranks) {
  const device where(std::make_shared<cpu::cpu_backend>(1));
  net model;
  for (int i = 0; i < r.stages; ++i) model.h.blocks.emplace_back();
  to(model, where);
  sgd optimizer;
  using plan = policy<strategy::mesh<pp<>>>;
  parallel_options o = plan::strategy_type::options({.pp = r.stages});
  o.timeout = limit;
  auto run = bind<plan>(model, optimizer, ranks, o);
  const double start = now_ms();
  for (;;)
    run.step(4, [&](index_t) {
      if (ranks.rank() == r.victim && r.what == fault::hangs && now_ms() - start > r.after_ms)
        for (volatile bool forever = true; forever;) {}
      return mean(square(model(full<float>(extents<dyn, 8>{3, 8}, 1.0f, where))));
    });
}

/// Trains until an error; returns the time and the message.
std::string train_until_failure(const round& r, int rank, int port) {
  try {
    gloo_world world({.rank = rank, .size = r.stages, .address = "127.0.0.1", .port = port}, limit,
                     [](const char*) { return nullptr; });
    train(r, world.ranks());
  } catch (const comm_error& e) { return std::to_string(now_ms()) + " " + e.what(); }
}

/// Whether an error names this rank, and no other, as gone.
bool blames(const std::string& text, int victim) {
  static const std::regex named(
      R"((; not there: |^\d+\.\d+ weft: )(rank \d+(, rank \d+)*))"
      R"(( is gone| does not answer| is not there|, which serves|, which does|\n))");
  std::smatch found;
  return std::regex_search(text, found, named) && found[2] == "rank " + std::to_string(victim);
}

void play(const round& r) {
  const kept_port port;
  std::vector<child> children;
  for (int rank = 0; rank < r.stages; ++rank)
    children.push_back(fork_rank([&] { return train_until_failure(r, rank, port.number); }));
  double fault_ms = now_ms() + r.after_ms;
  if (r.what != fault::hangs) {
    std::this_thread::sleep_for(std::chrono::milliseconds(r.after_ms));
    ::kill(children[static_cast<std::size_t>(r.victim)].id, r.what == fault::killed ? SIGKILL : SIGSTOP);
    fault_ms = now_ms();
  }
  for (int rank = 0; rank < r.stages; ++rank) {
    if (rank == r.victim) continue;
    const std::string report = read_all(children[static_cast<std::size_t>(rank)].pipe);
    INFO("rank " << rank << " of " << r.stages << ", victim " << r.victim << ", after " << r.after_ms
                 << " ms: " << report);
    CHECK(blames(report, r.victim));
    CHECK(std::atof(report.c_str()) - fault_ms < static_cast<double>(limit.count()) + 20'000);
  }
  end_all(children);
}

void play_rounds(fault what, int rounds) {
  if (const char* more = std::getenv("WEFT_CHAOS_ROUNDS")) rounds = std::atoi(more);
  for (int i = 0; i < rounds; ++i) {
    const int n = 2 + i % 3;
    play({n, (i / 3 + i) % n, what, 200 + (i * 137) % 700});
  }
}

}  // namespace

TEST_CASE("a stage that is killed is named by all others") { play_rounds(fault::killed, 9); }
TEST_CASE("a stage that is stopped is named by all others") { play_rounds(fault::stopped, 3); }
TEST_CASE("a stage that hangs is named by all others") { play_rounds(fault::hangs, 3); }

int main(int count, char** values) {
  std::signal(SIGPIPE, SIG_IGN);
  doctest::Context context(count, values);
  return context.run();
}
