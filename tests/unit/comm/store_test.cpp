// SPDX-License-Identifier: MIT
// Every store fulfills the contract in store_contract.hpp.
#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>

#include <future>
#include <thread>

#include <weft/base/descriptor.hpp>
#include <weft/comm/file_store.hpp>

#include "store_contract.hpp"

using namespace weft;
using namespace std::chrono_literals;

namespace {

std::string fresh_folder() {
  static int count = 0;
  const auto path = std::filesystem::temp_directory_path() /
                    ("weft-store-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
  std::filesystem::remove_all(path);
  return path.string();
}

}  // namespace

TEST_CASE("store in memory") {
  memory_store s;
  check_contract(s, s);
  CHECK_THROWS_WITH_AS(s.wait({"a", "never", "nor this"}, 20ms),
                       "weft: store: nobody has set never nor this within 20 ms", timeout_error);
}

TEST_CASE("store in files, seen from two places") {
  const std::string folder = fresh_folder();
  {
    file_store here(folder), there(folder);
    CHECK((std::filesystem::status(folder).permissions() & std::filesystem::perms::all) ==
          std::filesystem::perms::owner_all);
    check_contract(here, there);
  }
  file_store again(folder);  // it outlives its processes
  CHECK(again.add("count", 0) == 400);
  std::filesystem::remove_all(folder);
  CHECK_THROWS_AS(file_store("/proc/no such place"), io_error);
  CHECK_THROWS_AS(file_store(fresh_folder()).set(std::string(500, 'x'), ""), value_error);
}

TEST_CASE("stores in files: nothing changes a key while another reads and writes it") {
  const std::string folder = fresh_folder();
  file_store store(folder);
  store.set("kept", "1");
  const descriptor file(::open((folder + "/lock").c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(::flock(file.number(), LOCK_EX) == 0);  // as add and compare_set do meanwhile
  auto set = std::async(std::launch::async, [&] { store.set("new", "2"); });
  auto removed = std::async(std::launch::async, [&] { return store.delete_key("kept"); });
  CHECK(set.wait_for(100ms) == std::future_status::timeout);
  CHECK(removed.wait_for(0ms) == std::future_status::timeout);
  CHECK(store.check({"kept"}));
  CHECK_FALSE(store.check({"new"}));
  ::flock(file.number(), LOCK_UN);
  set.get();
  CHECK(removed.get());
  CHECK(store.get("new", 60s) == "2");
  std::filesystem::remove_all(folder);
}

TEST_CASE("prefixes keep groups apart") {
  const auto all = std::make_shared<memory_store>();
  prefix_store one("one", all), two("two", all), nested("deep", std::make_shared<prefix_store>("one", all));
  two.set("a", "other");
  check_contract(one, one, true);
  CHECK(two.get("a", 60s) == "other");
  nested.set("x", "1");
  CHECK(all->get("one/deep/x", 60s) == "1");
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
        mine.get("go", 60s);
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
