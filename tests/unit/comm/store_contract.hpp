// SPDX-License-Identifier: MIT
// The contract of all stores.
#pragma once

#include <doctest/doctest.h>

#include <limits>
#include <thread>
#include <vector>

#include <weft/comm/store.hpp>

inline void check_queues(weft::store& here, weft::store& there) {
  using namespace std::chrono_literals;
  const std::int64_t keys = here.num_keys();
  here.push("q", "1");
  there.push("q", std::string("2\0", 2));  // any bytes
  here.push("q", "");
  here.push("odd key/with: all sorts\n", "other");
  CHECK(here.num_keys() == keys);  // queues do not count as keys
  CHECK_FALSE(here.check({"q"}));
  CHECK(there.pop("q") == "1");
  CHECK(here.pop("q", 0ms) == std::string("2\0", 2));
  CHECK(here.pop("q") == "");
  CHECK(here.pop("q", 20ms) == std::nullopt);
  CHECK(there.pop("odd key/with: all sorts\n") == "other");

  std::stop_source stop;
  std::thread other([&] {
    std::this_thread::sleep_for(30ms);
    there.push("late", "x");
    std::this_thread::sleep_for(30ms);
    stop.request_stop();
  });
  CHECK(here.pop("late", 60s) == "x");
  CHECK(here.pop("never", 60s, stop.get_token()) == std::nullopt);
  CHECK(here.pop("never", 60s, stop.get_token()) == std::nullopt);  // stopped before
  other.join();
  here.push("never", "after");  // an abandoned pop takes nothing
  CHECK(here.pop("never", 0ms) == "after");

  std::vector<std::thread> many;  // each value is taken once
  for (int t = 0; t < 4; ++t)
    many.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        (t % 2 ? here : there).push("work", "1");
        while (!(t % 2 ? here : there).pop("work", 1ms)) {}  // gives up often
      }
    });
  for (std::thread& t : many) t.join();
  CHECK(here.pop("work", 0ms) == std::nullopt);
}

/// The longest limit means no limit.
inline void check_longest_limit(weft::store& here, weft::store& there) {
  using namespace std::chrono_literals;
  constexpr auto longest = std::chrono::milliseconds::max();
  std::thread later([&] {
    std::this_thread::sleep_for(30ms);
    there.set("late key", "1");
    std::this_thread::sleep_for(30ms);
    there.push("late value", "2");
  });
  CHECK(here.get("late key", longest) == "1");
  here.wait({"late key"}, longest);
  CHECK(here.pop("late value", longest) == "2");
  later.join();
  CHECK_THROWS_AS(here.get("never", std::chrono::milliseconds::min()), weft::timeout_error);
}

/// `here` and `there` are two ways to one store, as two ranks have them.
inline void check_contract(weft::store& here, weft::store& there, bool counts_others = false) {
  using namespace weft;
  using namespace std::chrono_literals;
  const std::int64_t before = here.num_keys();
  here.set("a", "one");
  CHECK(there.get("a", 60s) == "one");
  there.set("a", std::string("two\0three", 9));  // any bytes
  CHECK(here.get("a", 60s) == std::string("two\0three", 9));
  here.set("empty", "");
  CHECK(there.get("empty", 60s).empty());
  CHECK(here.check({"a", "empty"}));
  CHECK_FALSE(there.check({"a", "b"}));
  CHECK(here.num_keys() == before + 2);
  CHECK(here.delete_key("empty"));
  CHECK_FALSE(there.delete_key("empty"));
  if (!counts_others) CHECK(here.num_keys() == 1);

  CHECK(here.add("n", 5) == 5);
  CHECK(there.add("n", -7) == -2);
  CHECK(here.get("n", 60s) == "-2");
  CHECK_THROWS_AS(here.add("a", 1), value_error);
  here.set("most", std::to_string(std::numeric_limits<std::int64_t>::max()));
  CHECK_THROWS_WITH_AS(there.add("most", 1), doctest::Contains("overflows"), value_error);
  CHECK(there.add("most", -1) == std::numeric_limits<std::int64_t>::max() - 1);
  here.delete_key("most");

  CHECK(here.compare_set("c", "", "first") == "first");       // not there: made
  CHECK(there.compare_set("c", "other", "second") == "first");  // not as expected: kept
  CHECK(there.compare_set("c", "first", "second") == "second");
  CHECK(here.compare_set("d", "expected", "x") == "expected");  // not there, something expected
  CHECK_FALSE(here.check({"d"}));

  CHECK_THROWS_AS(here.get("never", 20ms), timeout_error);
  CHECK_THROWS_AS(here.wait({"a", "never"}, 20ms), timeout_error);

  std::thread other([&] {
    std::this_thread::sleep_for(30ms);
    there.set("odd key/with: all sorts\n", "late");
    there.set("second", "");
  });
  CHECK(here.get("odd key/with: all sorts\n", 60s) == "late");
  here.wait({"odd key/with: all sorts\n", "second"}, 60s);
  other.join();

  std::vector<std::thread> many;
  for (int t = 0; t < 8; ++t)
    many.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) (t % 2 ? here : there).add("count", 1);
    });
  for (std::thread& t : many) t.join();
  CHECK(here.add("count", 0) == 400);
  check_queues(here, there);
  check_longest_limit(here, there);
}
