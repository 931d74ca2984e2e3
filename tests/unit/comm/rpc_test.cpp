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
  rpc_agent zero(connect, 0, 2), one(connect, 1, 2);
  int counted = 0;
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
  one.serve("slow", [] { std::this_thread::sleep_for(300ms); });
  zero.serve("ask back", [] { return 7; });

  CHECK(zero.call<int>(1, "add", 2, 3).get() == 5);
  CHECK(zero.call<std::string>(1, "join", std::string("a"), std::vector<std::string>{"b", "", "c"}).get() == "abc");
  CHECK(zero.call<point>(1, "mirror", point{1, 2}).get().x == 2);
  zero.call<void>(1, "count").get();
  CHECK(counted == 1);
  CHECK(zero.call<std::vector<double>>(1, "squares", std::vector<double>{1, 2, 3}).get() == std::vector<double>{1, 4, 9});
  CHECK(one.call<int>(0, "ask back").get() == 7);

  std::vector<std::future<int>> many;
  for (int i = 0; i < 20; ++i) many.push_back(zero.call<int>(1, "add", i, i));
  for (int i = 0; i < 20; ++i) CHECK(many[static_cast<std::size_t>(i)].get() == 2 * i);

  CHECK_THROWS_WITH_AS(zero.call<int>(1, "fails", 1).get(), "weft: rpc: fails on rank 1: out of range", comm_error);
  CHECK_THROWS_WITH_AS(zero.call<int>(1, "nothing").get(), doctest::Contains("nothing on rank 1: weft: rpc: is not served"), comm_error);
  CHECK_THROWS_WITH_AS(zero.call<int>(1, "add", 1).get(), doctest::Contains("of another type"), comm_error);
  CHECK_THROWS_WITH_AS(zero.call<int>(1, "add", 1, 2, 3).get(), doctest::Contains("other arguments"), comm_error);
  CHECK_THROWS_WITH_AS(zero.call<double>(1, "add", 1, 2).get(), doctest::Contains("another type"), comm_error);
  CHECK_THROWS_WITH_AS(zero.call_within<void>(30ms, 1, "slow").get(), doctest::Contains("rank 1 has not answered slow within 30 ms"), timeout_error);
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
