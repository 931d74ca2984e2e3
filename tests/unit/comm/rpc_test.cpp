// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <weft/comm/rpc.hpp>
#include <weft/comm/tcp_store.hpp>

using namespace weft;
using namespace std::chrono_literals;

namespace {

struct point {
  double x, y;
};

void check_calls(const rpc_agent::connect& connect) {
  // Before the agents, whose destructors wait for the functions that use it.
  int counted = 0;
  std::atomic<bool> late = false;
  rpc_agent zero(connect, 0, 2), one(connect, 1, 2);
  one.serve("add", [](int a, int b) { return a + b; });
  one.serve("join", [](const std::string& a, std::vector<std::string> rest) {
    std::string all = a;
    for (const std::string& r : rest) all += r;
    return all;
  });
  one.serve("mirror", [](point p) { return point{p.y, p.x}; });
  one.serve("count", [&counted] { ++counted; });
  one.serve("squares", [](std::vector<double> v) {
    for (double& x : v) x *= x;
    return v;
  });
  one.serve("fails", [](int) -> int { throw value_error("out of range"); });
  one.serve("slow", [&late] { late.wait(false); });
  one.serve("throws 7", [] { throw 7; });
  one.serve("not", [](bool b) { return !b; });
  one.serve("asks back", [&one] { return one.call<int>(0, "ask back").get() + 1; });
  zero.serve("ask back", [] { return 7; });

  CHECK(zero.call<int>(1, "add", 2, 3).get() == 5);
  CHECK(zero.call_within<int>(std::chrono::milliseconds::max(), 1, "add", 2, 3).get() == 5);
  CHECK(zero.call<std::string>(1, "join", std::string("a"), std::vector<std::string>{"b", "", "c"}).get() ==
        "abc");
  CHECK(zero.call<point>(1, "mirror", point{1, 2}).get().x == 2);
  zero.call<void>(1, "count").get();
  CHECK(counted == 1);
  CHECK(zero.call<std::vector<double>>(1, "squares", std::vector<double>{1, 2, 3}).get() ==
        std::vector<double>{1, 4, 9});
  CHECK(one.call<int>(0, "ask back").get() == 7);

  CHECK(zero.call<int>(1, "asks back").get() == 8);
  CHECK(zero.call<bool>(1, "not", true).get() == false);
  CHECK_THROWS_WITH_AS(zero.call<bool>(1, "not", std::uint8_t{7}).get(),
                       doctest::Contains("has another type"), comm_error);
  CHECK_THROWS_WITH_AS(zero.call<void>(1, "throws 7").get(),
                       doctest::Contains("threw something other than a std::exception"), comm_error);

  // Numbers of the same size but another kind, and other values of a number's size.
  one.serve("half", [](double x) { return x / 2; });
  one.serve("sizes", [](std::vector<float> v) { return v.size(); });
  CHECK(zero.call<double>(1, "half", 3.0).get() == 1.5);
  CHECK_THROWS_WITH_AS(
      zero.call<double>(1, "half", std::int64_t{3}).get(),
      doctest::Contains("has another type: a signed integer of 8 bytes, not a floating-point "
                        "number of 8 bytes"),
      comm_error);
  CHECK_THROWS_WITH_AS(zero.call<int>(1, "add", 1, 2u).get(),
                       doctest::Contains("an unsigned integer of 4 bytes, not a signed integer of 4 bytes"),
                       comm_error);
  CHECK_THROWS_WITH_AS(zero.call<int>(1, "add", 1, std::int64_t{2}).get(),
                       doctest::Contains("a signed integer of 8 bytes, not a signed integer of 4 bytes"),
                       comm_error);
  CHECK_THROWS_WITH_AS(zero.call<double>(1, "half", std::string("8 bytes.")).get(),
                       doctest::Contains("a string, not a floating-point number"), comm_error);
  CHECK_THROWS_WITH_AS(zero.call<std::size_t>(1, "sizes", std::vector<int>{1}).get(),
                       doctest::Contains("a signed integer of 4 bytes, not a floating-point"), comm_error);
  CHECK_THROWS_WITH_AS(zero.call<float>(1, "add", 1, 2).get(), doctest::Contains("a signed integer of 4"),
                       comm_error);

  std::vector<std::future<int>> many;
  for (int i = 0; i < 20; ++i) many.push_back(zero.call<int>(1, "add", i, i));
  for (int i = 0; i < 20; ++i) CHECK(many[static_cast<std::size_t>(i)].get() == 2 * i);

  CHECK_THROWS_WITH_AS(zero.call<int>(1, "fails", 1).get(), "weft: rpc: fails on rank 1: out of range",
                       comm_error);
  CHECK_THROWS_WITH_AS(zero.call<int>(1, "nothing").get(),
                       doctest::Contains("nothing on rank 1: weft: rpc: no such function is served"),
                       comm_error);
  CHECK_THROWS_WITH_AS(zero.call<int>(1, "add", 1).get(), doctest::Contains("has another type"), comm_error);
  CHECK_THROWS_WITH_AS(zero.call<int>(1, "add", 1, 2, 3).get(), doctest::Contains("the arguments of a call"),
                       comm_error);
  CHECK_THROWS_WITH_AS(zero.call<double>(1, "add", 1, 2).get(), doctest::Contains("another type"),
                       comm_error);
  CHECK_THROWS_WITH_AS(zero.call_within<void>(30ms, 1, "slow").get(),
                       doctest::Contains("rank 1 has not answered slow within 30 ms"), timeout_error);
  late = true;
  late.notify_all();
  CHECK_THROWS_AS(zero.call<int>(2, "add", 1, 2), value_error);
}

}  // namespace

TEST_CASE("calls between ranks through a store in memory") {
  const auto all = std::make_shared<memory_store>();
  check_calls([all] { return all; });
}

TEST_CASE("calls between ranks through a store over TCP") {
  tcp_store_server server("127.0.0.1", 0, "secret");
  check_calls([&] { return std::make_shared<tcp_store>("127.0.0.1", server.port(), "secret"); });
}

namespace {

/// Counts its requests.
class counting_store : public memory_store {
 public:
  std::atomic<int> asked = 0;
  void set(const std::string& k, const std::string& v) override { ++asked, memory_store::set(k, v); }
  std::string get(const std::string& k, milliseconds limit) override {
    return ++asked, memory_store::get(k, limit);
  }
  bool check(const std::vector<std::string>& k) override { return ++asked, memory_store::check(k); }
  void push(const std::string& q, const std::string& v) override { ++asked, memory_store::push(q, v); }
  std::optional<std::string> pop(const std::string& q, milliseconds limit, std::stop_token stop) override {
    return ++asked, memory_store::pop(q, limit, std::move(stop));
  }
};

}  // namespace

TEST_CASE("an agent that is not called asks nothing, and leaves nothing in the store") {
  const auto all = std::make_shared<counting_store>();
  {
    std::atomic<bool> late = false;
    rpc_agent zero([&] { return all; }, 0, 2), one([&] { return all; }, 1, 2);
    one.serve("slow", [&late] { late.wait(false); });
    CHECK_THROWS_AS(zero.call_within<void>(1ms, 1, "slow").get(), timeout_error);
    late = true;
    late.notify_all();
    zero.call<void>(1, "slow").get();  // after the answer that came too late
    while (all->asked < 12) std::this_thread::sleep_for(1ms);  // 4 first pops, and 4 for each call
    std::this_thread::sleep_for(300ms);
    CHECK(all->asked == 12);
  }
  CHECK(all->num_keys() == 0);
  for (const char* queue : {"rpc/to/0", "rpc/to/1", "rpc/answers/0", "rpc/answers/1"})
    CHECK_FALSE(all->pop(queue, 0ms, {}));
}

TEST_CASE("an answer to an agent that has ended is not taken for one to the next agent of its rank") {
  const auto store = std::make_shared<memory_store>();
  const rpc_agent::connect connect = [&] { return store; };
  std::atomic<bool> late = false, later = false;
  rpc_agent server(connect, 1, 2);
  server.serve("slow", [&late](int a) {
    late.wait(false);
    return a;
  });
  server.serve("add", [&later](int a, int b) {  // when the answer of "slow" has been sent
    later.wait(false);
    return a + b;
  });
  CHECK_THROWS_AS(rpc_agent(connect, 0, 2).call_within<int>(50ms, 1, "slow", 999).get(), timeout_error);
  rpc_agent second(connect, 0, 2);
  std::future<int> sum = second.call<int>(1, "add", 2, 3);
  late = true;
  late.notify_all();
  std::this_thread::sleep_for(100ms);
  later = true;
  later.notify_all();
  CHECK(sum.get() == 5);
}

TEST_CASE("no call ends the process that serves it") {
  auto server = std::make_unique<tcp_store_server>("127.0.0.1", 0, "secret",
                                                   tcp_store_limits{.bytes = 3 << 20, .request = 2 << 20});
  const auto connect = [&] { return std::make_shared<tcp_store>("127.0.0.1", server->port(), "secret"); };
  std::atomic<bool> lost = false;
  rpc_agent zero(connect, 0, 2), one(connect, 1, 2);
  one.serve("text", [](int n) { return std::string(static_cast<std::size_t>(n), 'x'); });
  one.serve("long error", []() -> int { throw std::runtime_error(std::string(1 << 23, 'e')); });
  one.serve("wait", [&lost] { lost.wait(false); });
  const auto works = [&] { return zero.call<std::string>(1, "text", 3).get() == "xxx"; };

  CHECK_THROWS_WITH_AS(zero.call<std::string>(1, "text", 4 << 20).get(),
                       doctest::Contains("text on rank 1: weft: store: push rpc/answers/0: 419"), comm_error);
  CHECK(works());
  CHECK_THROWS_AS(zero.call<int>(1, "long error").get(), comm_error);
  CHECK_THROWS_WITH_AS(zero.call<int>(1, "text", std::string(4 << 20, 'x')).get(),
                       doctest::Contains("tcp_store_limits::request"), value_error);
  CHECK(works());
  connect()->set("fill", std::string(2000 << 10, 'x'));  // of 3 MiB: no place for an answer of 1.9
  CHECK_THROWS_WITH_AS(zero.call<std::string>(1, "text", 1900 << 10).get(),
                       doctest::Contains("tcp_store_limits::bytes"), comm_error);
  CHECK(works());
  for (const std::string& bytes :
       {std::string(), std::string("x"), std::string(100, '\xff'), std::string(16, '\0')}) {
    connect()->push("rpc/to/1", bytes);
    connect()->push("rpc/answers/0", bytes);
  }
  CHECK(works());

  std::future<void> waiting = zero.call<void>(1, "wait");
  server.reset();
  CHECK_THROWS_WITH_AS(waiting.get(), doctest::Contains("is lost"), comm_error);
  CHECK_THROWS_WITH_AS(zero.call<void>(1, "wait").get(), doctest::Contains("is lost"), comm_error);
  lost = true;
  lost.notify_all();
}

TEST_CASE("calls without an answer fail when their agent ends") {
  const auto all = std::make_shared<memory_store>();
  auto zero = std::make_unique<rpc_agent>([&] { return all; }, 0, 2);
  std::future<int> nobody = zero->call<int>(1, "nobody answers");
  zero.reset();
  CHECK_THROWS_WITH_AS(nobody.get(), doctest::Contains("the agent that called has ended"), comm_error);
}
