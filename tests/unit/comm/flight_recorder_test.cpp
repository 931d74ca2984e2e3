// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include <weft/comm/flight_report.hpp>
#include <weft/comm/threads.hpp>

using namespace weft;
using namespace std::chrono_literals;

namespace {

struct folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("weft-flight-" + std::to_string(::getpid()));
  folder() { std::filesystem::remove_all(path); }
  ~folder() { std::filesystem::remove_all(path); }
};
bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

}  // namespace

TEST_CASE("a recording survives the process, and names the rank that is behind") {
  const folder f;
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      run_ranks(3, [&](communicator& ranks) {
        ranks.record_in(std::make_shared<flight_recorder>(f.path.string(), ranks.rank()));
        std::vector<float> x(4);
        for (int i = 0; i < 2000; ++i)
          ranks.all_reduce(x, reduction::sum, {.label = "warm up"}).wait();  // more than the ring holds
        if (ranks.rank() == 1) {
          const auto begun = [&](const std::string& rank) {
            return has(flight_report(f.path.string()), rank + ": waits in world #2000");
          };
          while (!begun("rank 0") || !begun("rank 2")) std::this_thread::sleep_for(10ms);
          ::kill(::getpid(), SIGKILL);  // without any chance to report
        }
        ranks.all_gather(std::span(x).first(1), std::span(x).first(3), {}, {.label = "h.7"}).wait();
      });
    } catch (const error&) {
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
  const std::string report = flight_report(f.path.string());
  CHECK(has(report, "rank 0: waits in world #2000 all_gather(f32 x 3 = 1+1+1) for h.7"));
  CHECK(has(report, "rank 1: ended world #1999 all_reduce(sum, f32 x 4) for warm up"));
  CHECK(has(report, "rank 1 has not begun world #2000 all_gather(f32 x 3 = 1+1+1) for h.7"));
  CHECK_FALSE(has(report, "rank 2 has not begun"));
}

TEST_CASE("groups are recorded too: a rank that has begun nothing in one, or an operation that failed") {
  const folder f;
  run_ranks(4, [&](communicator& ranks) {
    ranks.record_in(std::make_shared<flight_recorder>(f.path.string(), ranks.rank()));
    const auto pair = ranks.split(ranks.rank() / 2, 0, {.label = "stages"});
    const auto one = pair->split(0);
    if (ranks.rank() == 2)
      CHECK_THROWS_AS(one->barrier({.label = "h.1", .timeout = 50ms}).wait(), timeout_error);
    while (ranks.rank() == 3 && !ranks.failure()) std::this_thread::sleep_for(1ms);
  });
  const std::string report = flight_report(f.path.string());
  CAPTURE(report);
  CHECK(has(report, "rank 2: waits in world/stages0.1/split0.0 #0 barrier() for h.1\n"));
  CHECK(has(report, "rank 3: ended world/stages0.1/split0.0 formation\n"));
  CHECK(has(report, "rank 3 has not begun world/stages0.1/split0.0 #0 barrier() for h.1\n"));
  CHECK_FALSE(has(report, "rank 0 has not"));
  CHECK_FALSE(has(report, "rank 2 has not"));
}

TEST_CASE("an operation has the same number in recordings and in errors") {
  const folder f;
  std::string text;
  run_ranks(2, [&](communicator& ranks) {
    ranks.record_in(std::make_shared<flight_recorder>(f.path.string(), ranks.rank()));
    std::vector<float> x(4);
    ranks.split(ranks.rank());
    ranks.all_reduce(x).wait();
    if (ranks.rank() == 0) ranks.send(x, 1).wait();
    else ranks.receive(x, 0).wait();
    try {
      if (ranks.rank() == 0) ranks.barrier({.timeout = 50ms}).wait();
    } catch (const timeout_error& e) { text = e.what(); }
    if (ranks.rank() == 1)
      while (!ranks.failure()) std::this_thread::sleep_for(1ms);
  });
  CHECK(has(text, "waited 50 ms in #2 barrier()"));
  CHECK(has(flight_report(f.path.string()), "rank 1 has not begun world #2 barrier()"));
}

TEST_CASE("a rank that has begun nothing in the world is behind") {
  const folder f;
  flight_recorder(f.path.string(), 0).begin("world", 0, "barrier()");
  flight_recorder(f.path.string(), 1);
  CHECK(has(flight_report(f.path.string()), "rank 1 has not begun world #0 barrier()"));
}

TEST_CASE("room is reserved: a disk that is full is an error at the beginning, not a signal later") {
  const folder f;
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {  // no file may have more than 64 KB
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{65536, 65536};
    ::setrlimit(RLIMIT_FSIZE, &small);
    try {
      flight_recorder(f.path.string(), 0);
    } catch (const io_error& e) {
      ::_exit(has(e.what(), "rank-0.flight: cannot record there: ") ? 0 : 2);
    }
    ::_exit(1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(!std::filesystem::exists(f.path / "rank-0.flight"));
  std::ofstream(f.path / "elsewhere") << "kept";
  std::filesystem::create_symlink(f.path / "elsewhere", f.path / "rank-1.flight");  // not written through
  flight_recorder(f.path.string(), 1).begin("world", 1, "barrier");
  CHECK(std::filesystem::file_size(f.path / "elsewhere") == 4);
  CHECK(std::filesystem::file_size(f.path / "rank-1.flight") == sizeof(detail::flight_file));
  struct stat is {};
  REQUIRE(::stat((f.path / "rank-1.flight").c_str(), &is) == 0);
  CHECK(static_cast<std::size_t>(is.st_blocks) * 512 >= sizeof(detail::flight_file));  // not sparse
  CHECK((is.st_mode & 0777) == 0600);
  ::mkfifo((f.path / "rank-2.flight").c_str(), 0600);
  CHECK(has(flight_report(f.path.string()), "rank-2.flight: is not a recording"));
}

TEST_CASE("what is no recording is said so") {
  const folder f;
  CHECK(has(flight_report(f.path.string()), "no recordings"));
  std::filesystem::create_directories(f.path);
  std::ofstream(f.path / "rank-0.flight") << "nonsense";
  std::ofstream(f.path / "rank-1.flight") << std::string(sizeof(detail::flight_file), 'x');
  const std::string report = flight_report(f.path.string());
  CHECK(has(report, "rank-0.flight: is not a recording"));
  CHECK(has(report, "rank-1.flight: is not a recording"));
  CHECK_THROWS_AS(flight_recorder("/proc/nowhere", 0), io_error);
}

TEST_CASE("a report of hostile files comes, and no terminal obeys it") {
  const folder f;
  {
    flight_recorder r(f.path.string(), 3);
    r.begin("group", 1, "\033]0;title\007 \x9b" "1m\nrank 0: ended");
  }
  REQUIRE(::mkfifo((f.path / "rank-1.flight").c_str(), 0600) == 0);  // would wait for a writer
  std::filesystem::create_directory(f.path / "rank-2.flight");
  std::filesystem::create_symlink("/dev/zero", f.path / "rank-4.flight");
  const std::string report = flight_report(f.path.string());
  CHECK(has(report, "rank 3: waits in group #1 ?]0;title? ?1m?rank 0: ended\n"));
  for (const char* name : {"rank-1.flight", "rank-2.flight", "rank-4.flight"})
    CHECK(has(report, std::string(name) + ": is not a recording"));
}
