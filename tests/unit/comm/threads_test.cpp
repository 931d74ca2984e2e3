// SPDX-License-Identifier: MIT
#include "contract.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <limits>

#include <weft/comm/fingerprint.hpp>
#include <weft/comm/self.hpp>
#include <weft/comm/threads.hpp>

using namespace weft;
using namespace std::chrono_literals;

namespace {

template <class F>
void on_threads(int n, F f) {
  run_ranks(n, f);
}
template <class F>
void alone(int, F f) {
  self_communicator c;
  f(static_cast<communicator&>(c));
}

/// The messages of the exceptions that ranks throw, by rank.
template <class F>
std::vector<std::string> failures(int n, F f) {
  std::vector<std::string> texts(static_cast<std::size_t>(n));
  run_ranks(n, [&](communicator& ranks) {
    try {
      f(ranks);
    } catch (const error& e) {
      texts[static_cast<std::size_t>(ranks.rank())] = e.what();
    }
  });
  return texts;
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

/// Counts threads that have reached a point; other threads can wait for the count.
class counter {
 public:
  void operator++() {
    ++count_;
    count_.notify_all();
  }
  void wait_for(int n) const {
    for (int now; (now = count_) < n;) count_.wait(now);
  }

 private:
  std::atomic<int> count_ = 0;
};
/// Counts at the end of a block, also after an exception.
struct at_end {
  explicit at_end(counter& c) : count(c) {}
  at_end(const at_end&) = delete;
  at_end& operator=(const at_end&) = delete;
  ~at_end() { ++count; }
  counter& count;
};

}  // namespace

TEST_CASE("the contract of communicators: one rank alone") {
  contract::check_contract([](int n, auto f) { alone(n, f); }, 1);
}
TEST_CASE("the contract of communicators: threads") {
  for (int n : {1, 2, 3, 4, 5}) contract::check_contract([](int k, auto f) { on_threads(k, f); }, n);
}

TEST_CASE("sums follow the tree of a binary counter, whatever the timing") {
  const int n = 7;
  const auto number = [](int r) { return 1.0f / static_cast<float>(3 + r) * (r % 2 ? -1e4f : 1.0f); };
  const float expected =
      ((number(0) + number(1)) + (number(2) + number(3))) + ((number(4) + number(5)) + number(6));
  for (int round = 0; round < 20; ++round)
    run_ranks(n, [&](communicator& ranks) {
      if ((ranks.rank() + round) % 3 == 0) std::this_thread::sleep_for(1ms);
      std::vector<float> x(3, number(ranks.rank()));
      ranks.all_reduce(x).wait();
      CHECK(x[1] == expected);
    });
}

TEST_CASE("ranks that call different operations: the one at fault is named on all of them") {
  const auto texts = failures(3, [](communicator& ranks) {
    std::vector<float> x(4);
    if (ranks.rank() == 1) ranks.broadcast(x, 0, {.label = "h.3"}).wait();
    else ranks.all_reduce(x, reduction::sum, {.label = "h.3"}).wait();
  });
  for (const std::string& t : texts) {
    CHECK(has(t, "at fault: rank 1 called broadcast(f32 x 4, root 0) for h.3"));
    CHECK(has(t, "most: rank 0 2 called all_reduce(sum, f32 x 4) for h.3"));
  }
}

TEST_CASE("sizes, types and roots that differ are found before data moves") {
  const auto wrong_size = failures(2, [](communicator& ranks) {
    std::vector<float> x(ranks.rank() == 0 ? 4 : 5);
    ranks.all_reduce(x).wait();
  });
  CHECK(has(wrong_size[0], "f32 x 5"));
  const auto wrong_type = failures(2, [](communicator& ranks) {
    std::vector<float> x(4);
    std::vector<double> y(4);
    if (ranks.rank() == 0) ranks.all_reduce(x).wait();
    else ranks.all_reduce(y).wait();
  });
  CHECK(has(wrong_type[1], "f64 x 4"));
  const auto wrong_root = failures(2, [](communicator& ranks) {
    std::vector<float> x(4);
    ranks.broadcast(x, ranks.rank()).wait();
  });
  CHECK(has(wrong_root[0], "root 1"));
  const auto wrong_message = failures(2, [](communicator& ranks) {
    std::vector<float> x(4), y(3);
    if (ranks.rank() == 0) ranks.send(x, 1).wait();
    else ranks.receive(y, 0).wait();
  });
  CHECK(has(wrong_message[1], "send(f32 x 4, to 1, tag 0)"));
}

TEST_CASE("a part of an all_to_all whose sides differ is an error on all ranks that names both") {
  for (int ranks = 2; ranks <= 3; ++ranks)
    run_ranks(ranks, [=](communicator& all) {
      const std::string wrong = contract::wrong_part(all);
      CHECK_MESSAGE(has(wrong, contract::wrong_part_says), wrong);
    });
}

TEST_CASE("a message whose sides differ is an error on all ranks that names both") {
  for (int ranks = 2; ranks <= 3; ++ranks)
    for (int how = 0; how < 3; ++how)
      run_ranks(ranks, [=](communicator& all) {
        const std::string wrong = contract::wrong_message(all, how);
        for (const std::string& part : contract::wrong_message_says(ranks, how))
          CHECK_MESSAGE(has(wrong, part), wrong);
      });
}

TEST_CASE("a rank that does not come: a time-out names it and what it did last") {
  counter posted, told;
  const auto texts = failures(3, [&](communicator& ranks) {
    std::vector<float> x(4);
    ranks.all_reduce(x, reduction::sum, {.label = "h.0"}).wait();
    if (ranks.rank() == 2) {
      told.wait_for(2);
      ranks.barrier().wait();
    }
    const at_end told_now(told);
    const work w = ranks.all_reduce(x, reduction::sum, {.label = "h.1", .timeout = 100ms});
    ++posted;
    posted.wait_for(2);
    w.wait();
  });
  CHECK(has(texts[0], "not there: rank 2"));
  CHECK(has(texts[0], "rank 2: #0 all_reduce(sum, f32 x 4) for h.0"));
  CHECK(has(texts[1], "not there: rank 2"));
  CHECK(has(texts[2], "not there: rank 2"));  // it gets the error, too
}

TEST_CASE("the longest time-out is none") {
  constexpr auto longest = std::chrono::milliseconds::max();
  run_ranks(2, [&](communicator& ranks) {
    std::vector<float> x{1, 2};
    if (ranks.rank() == 1) std::this_thread::sleep_for(30ms);
    ranks.barrier({.timeout = longest}).wait();
    if (ranks.rank() == 1) std::this_thread::sleep_for(30ms);
    if (ranks.rank() == 1) ranks.send(x, 0, 0, {.timeout = longest}).wait();
    else ranks.receive(x, 1, 0, {.timeout = longest}).wait();
    ranks.split(0, 0, {.timeout = longest})->all_reduce(x, reduction::sum, {.timeout = longest}).wait();
    CHECK(x == std::vector<float>{2, 4});
  });
}

TEST_CASE("an axis divides the ranks of its group") {
  run_ranks(6, [](communicator& ranks) {
    CHECK(ranks.axis(3, 2)->size() == 3);
    CHECK(ranks.axis(6, 1)->rank() == ranks.rank());
    constexpr int most = std::numeric_limits<int>::max();
    for (const auto& [count, stride] : std::vector<std::pair<int, int>>{
             {0, 1}, {1, 0}, {-2, -3}, {-1, 1}, {4, 1}, {2, 6}, {1 << 16, 1 << 16}, {most, 2}, {1, most}})
      CHECK_THROWS_AS(ranks.axis(count, stride), value_error);
    CHECK_THROWS_WITH_AS(ranks.axis(4, 1),
                         "weft: axis: 6 ranks cannot be divided into groups of 4 ranks that are 1 apart",
                         value_error);
  });
}

TEST_CASE("a message that nobody receives times out; a rank that ends early is named") {
  counter told;
  const auto lonely = failures(2, [&](communicator& ranks) {
    std::vector<float> x(100'000);
    if (ranks.rank() == 1) return told.wait_for(1);
    const at_end told_now(told);
    ranks.send(x, 1, 7, {.timeout = 50ms}).wait();
  });
  CHECK(has(lonely[0], "tag 7"));
  const auto left = failures(3, [](communicator& ranks) {
    std::vector<float> x(4);
    if (ranks.rank() != 1) ranks.all_reduce(x).wait();
  });
  CHECK(has(left[0], "rank 1 is gone"));
  CHECK(has(left[2], "rank 1 is gone"));
}

TEST_CASE("what a rank throws arrives where the ranks were started, and the others stop") {
  CHECK_THROWS_WITH_AS(run_ranks(3,
                                 [](communicator& ranks) {
                                   if (ranks.rank() == 1) throw value_error("no batch on rank 1");
                                   std::this_thread::sleep_for(20ms);
                                   ranks.barrier().wait();
                                 }),
                       "no batch on rank 1", value_error);
}

TEST_CASE(
    "a rank that gives up at any moment: the others are told, and nobody works in memory that is gone") {
  std::atomic<int> wrong = 0;
  for (int round = 0; round < 180; ++round) {
    const int who = round % 3, how = round / 3 % 3, when = round / 9;
    const auto texts = failures(3, [&](communicator& ranks) {
      for (int i = 0; i < 20; ++i) {
        std::vector<float> x(i % 2 ? 100 : 40'000, 1.0f);
        const bool now = ranks.rank() == who && i == when;
        if (now && how == 0) return;
        if (now && how == 1) ranks.abort("enough");
        ranks.all_reduce(x, reduction::sum, {.timeout = now ? 0ms : default_timeout}).wait();
        wrong += std::count(x.begin(), x.end(), 3.0f) != static_cast<std::ptrdiff_t>(x.size());
      }
    });
    const bool told = !texts[static_cast<std::size_t>((who + 1) % 3)].empty() &&
                      !texts[static_cast<std::size_t>((who + 2) % 3)].empty();
    if (how < 2) CHECK(told);  // a wait without time may still succeed
  }
  CHECK(wrong == 0);
}

TEST_CASE("a group that is given up fails everywhere, subgroups too") {
  const auto texts = failures(2, [](communicator& ranks) {
    const auto inner = ranks.split(0);
    if (ranks.rank() == 0) ranks.abort("the disk is full");
    else inner->barrier().wait();
    if (ranks.rank() == 0) ranks.barrier().wait();
  });
  for (const std::string& t : texts) CHECK(has(t, "rank 0 gave up: the disk is full"));
  const auto of_part = failures(4, [](communicator& ranks) {
    const auto part = ranks.split(ranks.rank() / 2);
    if (ranks.rank() == 2) part->abort("the disk is full");  // rank 0 of its group
    ranks.barrier().wait();
  });
  for (const std::string& t : of_part) CHECK(has(t, "rank 2 gave up: the disk is full"));
}

TEST_CASE("sums and products of integers overflow modulo 2^bits") {
  run_ranks(2, [](communicator& ranks) {
    std::vector<std::int32_t> sum{std::numeric_limits<std::int32_t>::max() - ranks.rank()};
    ranks.all_reduce(sum).wait();
    CHECK(sum[0] == -3);
    std::vector<std::int64_t> product{(std::int64_t{1} << 62) + ranks.rank()};
    ranks.all_reduce(product, reduction::product).wait();
    CHECK(product[0] == std::int64_t{1} << 62);
  });
}

TEST_CASE("groups are not formed where ranks execute code at different times") {
  const auto texts = failures(2, [](communicator& ranks) {
    const collectives_refused here("a stage", {});
    ranks.split(0);
  });
  for (const std::string& t : texts) CHECK(has(t, "split() in a stage"));
}

TEST_CASE("a long text of an operation is shortened, and different operations have different texts") {
  operation a{.kind = collective::all_gather, .out = {nullptr, 128 * 250'000, dtype::f32}};
  a.out_counts = rank_counts(std::size_t{128}, 250'000);
  a.label = "h.0.mlp";
  a.step = 7;
  CHECK(a.text() == "all_gather(f32 x 32000000 = 128 x 250000) for h.0.mlp in step 7");
  for (std::size_t r = 0; r < 128; r += 2) ++a.out_counts[r];
  operation b = a, c = a;
  ++b.out_counts[64], --b.out_counts[65];
  c.step = 8;
  for (const operation* o : {&a, &b, &c}) {
    CHECK(o->text().size() == operation::most_text);
    CHECK(has(o->text(), " for h.0.mlp in step "));
  }
  CHECK(a.text() != b.text());
  CHECK(a.text() != c.text());
  const std::vector<detail::fingerprint> meant{{a, 0}, {a, 1}, {b, 2}};
  CHECK(has(detail::disagreement_of(a, meant, {0, 1, 2}, 0, 5), "at fault: rank 2 called all_gather"));
}

TEST_CASE("a rank that hangs is named by those who wait for others, in other groups too") {
  counter in_pair, posted, told;
  const auto texts = failures(4, [&](communicator& ranks) {
    const auto pair = ranks.split(ranks.rank() / 2);  // 0 and 1, 2 and 3
    std::vector<float> x(4);
    const at_end told_now(told);
    if (ranks.rank() == 3) told.wait_for(3);
    if (ranks.rank() == 2) {  // waits for rank 3, and rank 3 for it
      const work w = pair->all_reduce(x);
      ++in_pair;
      w.wait();
    }
    const work w = ranks.all_reduce(x, reduction::sum, {.timeout = 1s});
    if (ranks.rank() < 2) {
      ++posted;
      posted.wait_for(2);
      in_pair.wait_for(1);
    }
    w.wait();
  });
  for (const std::string& t : texts) CHECK(has(t, "; not there: rank 3\n"));
}

TEST_CASE("ranks of a subgroup are named by their numbers in the world") {
  counter told;
  const auto texts = failures(4, [&](communicator& ranks) {
    const auto upper = ranks.split(ranks.rank() >= 2);
    std::vector<float> x(4);
    const at_end told_now(told);
    if (ranks.rank() == 3) told.wait_for(1);
    if (ranks.rank() == 2) upper->all_reduce(x, reduction::sum, {.timeout = 100ms}).wait();
    ranks.barrier().wait();
  });
  CHECK(has(texts[2], "rank 2 waited 100 ms"));
  CHECK(has(texts[2], "; not there: rank 3\n"));
}

TEST_CASE("an operation that an exception drops uses its buffers no longer") {
  for (int round = 0; round < 20; ++round) {
    const auto texts = failures(3, [&](communicator& ranks) {
      if (ranks.rank() == 1) {
        auto x = std::make_unique<std::vector<float>>(40'000, 1.0f);
        const work dropped = ranks.all_reduce(*x);
        throw value_error("between start and wait");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(round % 3));
      std::vector<float> x(40'000, 1.0f);
      ranks.all_reduce(x).wait();
      CHECK(std::count(x.begin(), x.end(), 3.0f) == 40'000);
    });
    CHECK(texts[1] == "between start and wait");
  }
  run_ranks(2, [](communicator& ranks) {  // by another operation that takes its place
    std::vector<float> x(40'000, 1.0f), y(40'000, 2.0f);
    work w = ranks.all_reduce(x);
    w = ranks.all_reduce(y);
    CHECK(x[39'999] == 2);
    w.wait();
    CHECK(y[39'999] == 4);
  });
}

TEST_CASE("ranks that cannot be are refused") {
  for (int n : {0, -1})
    CHECK_THROWS_WITH_AS(run_ranks(n, [](communicator&) {}), doctest::Contains("expected 1 or more"),
                         usage_error);
  CHECK_THROWS_WITH_AS(run_ranks(2, [](communicator&) { run_ranks(2, [](communicator&) {}); }),
                       doctest::Contains("called by a rank"), usage_error);
  int ran = 0;
  run_ranks(1, [&](communicator&) { ++ran; });  // afterwards as before
  CHECK(ran == 1);
}

TEST_CASE("a process that is stopped for longer than a time limit, and continues, is not late") {
  std::fflush(nullptr);
  for (const bool message : {false, true}) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto late = failures(2, [&](communicator& ranks) {
        const bool waits = ranks.rank() == 0;
        for (int i = 0; i < 50 && !waits; ++i) std::this_thread::sleep_for(20ms);
        std::vector<float> x(1);
        if (!message) ranks.barrier({.timeout = 3s}).wait();
        else if (waits) ranks.receive(x, 1, 0, {.timeout = 3s}).wait();
        else ranks.send(x, 0, 0, {.timeout = 3s}).wait();
      });
      for (const std::string& text : late) std::fputs(text.c_str(), stderr);
      ::_exit(late[0].empty() && late[1].empty() ? 0 : 1);
    }
    std::this_thread::sleep_for(300ms);
    ::kill(child, SIGSTOP);
    std::this_thread::sleep_for(4s);
    ::kill(child, SIGCONT);
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
  }
}

#ifndef WEFT_SANITIZED
TEST_CASE("where the system gives no more threads, those that run end, with an error") {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit few{256 << 20, 256 << 20};  // bytes of address space: some stacks
    bool good = ::setrlimit(RLIMIT_AS, &few) == 0;
    try {
      run_ranks(1000, [](communicator& ranks) { ranks.barrier().wait(); });
      good = false;
    } catch (const comm_error& e) {
      good = good && has(e.what(), "of 1000 could not be started: ");
    }
    ::_exit(good ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
}
#endif
