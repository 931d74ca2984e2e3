// SPDX-License-Identifier: MIT
// One contract for every store.
#include <doctest/doctest.h>

#include <sys/wait.h>

#include <thread>

#include <weft/comm/file_store.hpp>

using namespace weft;
using namespace std::chrono_literals;

namespace {

std::string fresh_folder() {
  static int count = 0;
  const auto path = std::filesystem::temp_directory_path() / ("weft-store-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
  std::filesystem::remove_all(path);
  return path.string();
}

/// `here` and `there` are two ways to one store, as two ranks have them.
void check_contract(store& here, store& there, bool counts_others = false) {
  const std::int64_t before = here.num_keys();
  here.set("a", "one");
  CHECK(there.get("a", 1s) == "one");
  there.set("a", std::string("two\0three", 9));  // any bytes
  CHECK(here.get("a", 1s) == std::string("two\0three", 9));
  here.set("empty", "");
  CHECK(there.get("empty", 1s).empty());
  CHECK(here.check({"a", "empty"}));
  CHECK_FALSE(there.check({"a", "b"}));
  CHECK(here.num_keys() == before + 2);
  CHECK(here.delete_key("empty"));
  CHECK_FALSE(there.delete_key("empty"));
  if (!counts_others) CHECK(here.num_keys() == 1);

  CHECK(here.add("n", 5) == 5);
  CHECK(there.add("n", -7) == -2);
  CHECK(here.get("n", 1s) == "-2");
  CHECK_THROWS_AS(here.add("a", 1), value_error);

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
  CHECK(here.get("odd key/with: all sorts\n", 5s) == "late");
  here.wait({"odd key/with: all sorts\n", "second"}, 5s);
  other.join();

  std::vector<std::thread> many;
  for (int t = 0; t < 8; ++t)
    many.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) (t % 2 ? here : there).add("count", 1);
    });
  for (std::thread& t : many) t.join();
  CHECK(here.add("count", 0) == 400);
}

}  // namespace

TEST_CASE("store in memory") {
  memory_store s;
  check_contract(s, s);
  CHECK_THROWS_WITH_AS(s.wait({"a", "never", "nor this"}, 20ms), "weft: store: nobody has set never nor this within 20 ms", timeout_error);
}

TEST_CASE("store in files, seen from two places") {
  const std::string folder = fresh_folder();
  {
    file_store here(folder), there(folder);
    check_contract(here, there);
  }
  file_store again(folder);  // it outlives its processes
  CHECK(again.add("count", 0) == 400);
  std::filesystem::remove_all(folder);
  CHECK_THROWS_AS(file_store("/proc/no such place"), io_error);
  CHECK_THROWS_AS(file_store(fresh_folder()).set(std::string(500, 'x'), ""), value_error);
}

TEST_CASE("prefixes keep groups apart") {
  const auto all = std::make_shared<memory_store>();
  prefix_store one("one", all), two("two", all), nested("deep", std::make_shared<prefix_store>("one", all));
  two.set("a", "other");
  check_contract(one, one, true);
  CHECK(two.get("a", 1s) == "other");
  nested.set("x", "1");
  CHECK(all->get("one/deep/x", 1s) == "1");
}

TEST_CASE("processes meet in a file store") {
  const std::string folder = fresh_folder();
  file_store store(folder);
  constexpr int processes = 4;
  for (int p = 0; p < processes; ++p)
    if (::fork() == 0) {
      int code = 1;
      try {
        file_store mine(folder);
        for (int i = 0; i < 100; ++i) mine.add("count", 1);
        mine.add("ready", 1);
        mine.get("go", 10s);
        code = 0;
      } catch (const error&) {
      }
      ::_exit(code);
    }
  while (store.add("ready", 0) < processes) std::this_thread::sleep_for(5ms);
  store.set("go", "");
  for (int p = 0; p < processes; ++p) {
    int status = 1;
    ::wait(&status);
    CHECK(status == 0);
  }
  CHECK(store.add("count", 0) == 100 * processes);
  std::filesystem::remove_all(folder);
}
