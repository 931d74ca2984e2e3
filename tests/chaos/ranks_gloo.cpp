// SPDX-License-Identifier: MIT
// Ranks over TCP, one of which is killed, is stopped or hangs at any moment from its start on: all others
// name it and no other rank. WEFT_CHAOS_ROUNDS is the number of rounds; the default is a few.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <regex>

#include <weft/comm/gloo_world.hpp>

#include "forked_ranks.hpp"

using namespace weft;
using namespace weft::test;
using namespace std::chrono_literals;

namespace {

constexpr auto limit = 2000ms;  // of every operation
enum class fault { killed, stopped, hangs, hangs_in_a_group };

struct round {
  int ranks, victim;
  fault what;
  int after_ms;
};

/// Works until the rank learns that another is gone; returns the time and the message.
std::string work_until_failure(const round& r, int rank, int port) {
  const auto learnt = [](const comm_error& e) { return std::to_string(now_ms()) + " " + e.what(); };
  try {
    gloo_world world({.rank = rank, .size = r.ranks, .address = "127.0.0.1", .port = port}, limit,
                     [](const char*) { return nullptr; });
    communicator& all = world.ranks();
    const auto some = all.split(rank % 2, rank, {.timeout = limit});
    const auto others = all.split(rank / 2, rank, {.timeout = limit});
    const double start = now_ms();
    for (int i = 0;; ++i) try {
        std::vector<float> x(static_cast<std::size_t>(1 + i * 977 % 20'000));
        communicator& in = i % 3 == 0 ? all : i % 3 == 1 ? *some : *others;
        const bool now = rank == r.victim && now_ms() - start > r.after_ms;
        if (now && (r.what == fault::hangs || (r.what == fault::hangs_in_a_group && i % 3 == 1)))
          for (volatile bool forever = true; forever;) {}
        in.all_reduce(x, reduction::sum, {.timeout = limit}).wait();
      } catch (const comm_error& e) { return learnt(e); }
  } catch (const comm_error& e) { return learnt(e); }
}

/// The ranks that an error names as gone.
std::vector<int> blamed(const std::string& text) {
  std::vector<int> ranks;
  std::smatch found;
  static const std::regex late(R"(; not there: (rank \d+(, rank \d+)*))"),
      gone(R"(^weft: (rank \d+(, rank \d+)*))"
           R"(( is gone| does not answer| is not there|, which serves the store:))");
  if (!std::regex_search(text, found, late) && !std::regex_search(text, found, gone)) return {};
  const std::string names = found[1];
  static const std::regex number(R"(\d+)");
  for (std::sregex_iterator i(names.begin(), names.end(), number), end; i != end; ++i)
    ranks.push_back(std::stoi(i->str()));
  return ranks;
}

struct outcome {
  int wrong = 0;         // survivors that did not name the victim, or named others
  double latest_ms = 0;  // from the fault to the last survivor's error
};

outcome play(const round& r) {
  const kept_port port;
  std::vector<child> children;
  for (int rank = 0; rank < r.ranks; ++rank)
    children.push_back(fork_rank([&] { return work_until_failure(r, rank, port.number); }));
  const child victim = children[static_cast<std::size_t>(r.victim)];
  double fault_ms = now_ms() + r.after_ms;
  if (r.what == fault::killed || r.what == fault::stopped) {
    std::this_thread::sleep_for(std::chrono::milliseconds(r.after_ms));
    ::kill(victim.id, r.what == fault::killed ? SIGKILL : SIGSTOP);
    fault_ms = now_ms();
  }
  outcome o;
  for (int rank = 0; rank < r.ranks; ++rank) {
    const child& c = children[static_cast<std::size_t>(rank)];
    if (rank == r.victim) continue;
    const std::string report = read_all(c.pipe);
    const std::string text = report.substr(std::min(report.find(' '), report.size()));
    if (!report.empty()) o.latest_ms = std::max(o.latest_ms, std::stod(report) - fault_ms);
    const bool right =
        blamed(text.substr(std::min<std::size_t>(1, text.size()))) == std::vector<int>{r.victim};
    o.wrong += !right;
    if (right && o.latest_ms < static_cast<double>(limit.count()) + 2000) continue;
    std::fprintf(stderr, "rank %d of %d, victim %d, after %d ms, knew after %.0f ms:%s\n", rank, r.ranks,
                 r.victim, r.after_ms, o.latest_ms, text.c_str());
  }
  end_all(children);
  return o;
}

void play_rounds(fault what, const char* name, int rounds) {
  if (const char* more = std::getenv("WEFT_CHAOS_ROUNDS")) rounds = std::atoi(more);
  int wrong = 0;
  double latest = 0;
  for (int i = 0; i < rounds; ++i) {
    const int n = 2 + i % 3;
    const outcome o = play({n, i / 3 % n, what, (i * 37) % 400});
    wrong += o.wrong;
    latest = std::max(latest, o.latest_ms);
  }
  std::printf("%s: %d rounds, %d wrong, the last survivor knew after %.0f ms\n", name, rounds, wrong, latest);
  std::fflush(stdout);
  CHECK(wrong == 0);
  CHECK(latest < static_cast<double>(limit.count()) + 20'000);  // 2,000 on an idle machine
}

}  // namespace

TEST_CASE("a rank that is killed is named by all others") { play_rounds(fault::killed, "killed", 12); }
TEST_CASE("a rank that is stopped is named by all others") { play_rounds(fault::stopped, "stopped", 3); }
TEST_CASE("a rank that hangs is named by all others") { play_rounds(fault::hangs, "hangs", 2); }
TEST_CASE("a rank that hangs while others wait for each other in other groups is named by all") {
  play_rounds(fault::hangs_in_a_group, "hangs in a group", 2);
}

int main(int count, char** values) {
  std::signal(SIGPIPE, SIG_IGN);
  doctest::Context context(count, values);
  return context.run();
}
