// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include <weft/base/descriptor.hpp>
#include <weft/io/files.hpp>
#include <weft/train/line_log.hpp>

using namespace weft;
namespace fs = std::filesystem;

namespace {
struct folder {
  fs::path path = fs::temp_directory_path() / ("weft-files-" + std::to_string(::getpid()));
  folder() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~folder() { fs::remove_all(path); }
  std::string operator/(const char* name) const { return (path / name).string(); }
};
std::string failure(const std::function<void()>& f) {
  try {
    f();
  } catch (const io_error& e) { return e.what(); }
  return "";
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }
/// A process that replaces a file by "half" and stops before the end, until it is killed.
class half_way {
 public:
  explicit half_way(const std::string& path) {
    int go[2], said[2];
    REQUIRE((::pipe(go) == 0 && ::pipe(said) == 0));
    std::fflush(nullptr);
    process_ = ::fork();
    if (process_ == 0) {
      char c;
      (void)!::read(go[0], &c, 1);
      const std::string text = failure([&] {
        io::replacement_file file(io::system_calls(), path);
        file.append("half");
        (void)!::write(said[1], "begun", 5);
        while (true) ::pause();
      });
      (void)!::write(said[1], text.data(), text.size());
      ::_exit(0);
    }
    go_ = descriptor(go[1]), said_ = descriptor(said[0]);
    ::close(go[0]), ::close(said[1]);
  }
  half_way(const half_way&) = delete;
  half_way& operator=(const half_way&) = delete;
  ~half_way() { ::kill(process_, SIGKILL), ::waitpid(process_, nullptr, 0); }

  /// Starts it; returns "begun", or the error.
  std::string begin() {
    (void)!::write(go_.number(), "", 1);
    char text[1000];
    const ssize_t n = ::read(said_.number(), text, sizeof text);
    return std::string(text, static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  }

 private:
  pid_t process_;
  descriptor go_, said_;
};
/// Something other than a file at `path`, and its name.
const std::pair<const char*, void (*)(const std::string&)> others[] = {
    {"a folder", [](const std::string& path) { fs::create_directory(path); }},
    {"a FIFO", [](const std::string& path) { ::mkfifo(path.c_str(), 0600); }},
    {"a device", [](const std::string& path) { fs::create_symlink("/dev/zero", path); }},
    {"a symbolic link", [](const std::string& path) { fs::create_symlink(path + "-elsewhere", path); }}};
}  // namespace

TEST_CASE("a file is read, what is none is named at once") {
  const folder f;
  CHECK(has(failure([&] { io::input_file(f / "none"); }),
            f / "none" + ": cannot be opened: No such file or directory"));
  for (const auto& [name, make] : others) {
    make(f / "x");
    const std::string said = failure([&] { io::input_file(f / "x"); });
    CAPTURE(said);
    CHECK(has(said, f / "x"));
    CHECK((has(said, std::string("is ") + name + ", not a file") || has(said, "No such file")));
    fs::remove(f / "x");
  }
  CHECK(failure([] { io::input_file(""); }) == "weft: the path of a file to be read is empty");
  CHECK(failure([] { io::replace_file(io::system_calls(), "", {"x"}); }) ==
        "weft: the path of a file to be written is empty");
  std::ofstream(f / "x") << "0123456789";
  const io::input_file in(f / "x");
  char four[4];
  in.read(6, four, 4);
  CHECK(std::string(four, 4) == "6789");
  CHECK(in.text() == "0123456789");
  CHECK(has(failure([&] { in.read(7, four, 4); }), "ends early"));
  CHECK(has(failure([&] { in.read(~std::uint64_t{0}, four, 4); }), "ends early"));
  CHECK(has(failure([&] { in.text(9); }), "has 10 bytes, but at most 9"));
  fs::resize_file(f / "x", 3);
  CHECK(has(failure([&] { in.text(); }), "became shorter"));
}

TEST_CASE("a file is replaced whole, and only a file") {
  const folder f;
  const auto replace = [&](const char* name, const char* text) {
    return failure([&] { io::replace_file(io::system_calls(), f / name, {text, "!"}); });
  };
  CHECK(replace("x", "one") == "");
  CHECK(replace("x", "two") == "");
  CHECK(io::input_file(f / "x").text() == "two!");
  for (const auto& [name, make] : others) {
    make(f / "y");
    CHECK((has(replace("y", "text"), std::string("is ") + name) ||
           has(replace("y", "text"), "is a symbolic link")));
    fs::remove(f / "y");
    if (std::string(name) == "a folder") continue;
    make(f / "y.partial");  // neither blocks the write nor is followed
    CHECK(replace("y", "text") == "");
    CHECK(fs::is_regular_file(fs::symlink_status(f / "y")));
    CHECK(!fs::exists(f / "y.partial-elsewhere"));
    fs::remove(f / "y");
  }
  fs::create_directory(f / "y.partial");
  CHECK(has(replace("y", "text"), f / "y.partial" + ": is in the way: Is a directory"));
  CHECK(has(replace("none/x", "text"), "cannot be written: No such file or directory"));
  CHECK(has(replace(std::string(250, 'n').c_str(), "text"),
            "n.partial: cannot be written: File name too long"));
  CHECK(std::distance(fs::directory_iterator(f.path), {}) == 2);  // x and y.partial: no leftovers
}

TEST_CASE("a file that is replaced keeps its permissions") {
  const folder f;
  const auto mode = [&](const char* name) { return static_cast<int>(fs::status(f / name).permissions()); };
  for (const int kept : {0600, 0640, 0666, 0444}) {
    CAPTURE(kept);
    fs::remove(f / "x");
    io::replace_file(io::system_calls(), f / "x", {"one"});
    fs::permissions(f / "x", static_cast<fs::perms>(kept));
    io::replace_file(io::system_calls(), f / "x", {"two"});
    CHECK(mode("x") == kept);
    CHECK(io::input_file(f / "x").text() == "two");
  }
}

TEST_CASE("threads that replace one file wait for each other, and the last one remains") {
  const folder f;
  std::vector<std::string> failures(4), texts;
  for (int i = 0; i < 4; ++i) texts.push_back(std::string(100'000, static_cast<char>('a' + i)));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < 25 && failures[i].empty(); ++round)
        failures[i] =
            failure([&] { io::replace_file(io::system_calls(), f / (i % 2 ? "x" : ".//x"), {texts[i]}); });
    });
  for (std::thread& t : threads) t.join();
  for (const std::string& of_thread : failures) CHECK(of_thread == "");
  const std::string left = io::input_file(f / "x").text();
  CHECK(std::count(texts.begin(), texts.end(), left) == 1);
  CHECK(std::distance(fs::directory_iterator(f.path), {}) == 1);
}

TEST_CASE("a process that replaces a file which another one replaces gets an error, and destroys nothing") {
  const folder f;
  const auto replace = [&](const char* text) {
    return failure([&] { io::replace_file(io::system_calls(), f / "x", {text}); });
  };
  const std::string in_use = ": another process is replacing it: it has locked " + f / "x.partial";
  CHECK(replace("old") == "");
  {
    half_way first(f / "x"), second(f / "./x");
    CHECK(first.begin() == "begun");
    CHECK(has(second.begin(), "./x: another process is replacing it"));
    CHECK(replace("new") == "weft: " + f / "x" + in_use);
    CHECK(io::input_file(f / "x").text() == "old");
  }
  CHECK(fs::exists(f / "x.partial"));  // of the killed process
  CHECK(replace("new") == "");
  CHECK(io::input_file(f / "x").text() == "new");
  {
    half_way other(f / "x");
    io::replacement_file file(io::system_calls(), f / "x");
    file.append("whole");
    CHECK(has(other.begin(), in_use));
    file.finish();
  }
  CHECK(io::input_file(f / "x").text() == "whole");
  {
    io::replacement_file file(io::system_calls(), f / "x");
    fs::remove(f / "x.partial");
    std::ofstream(f / "x.partial") << "another";
    CHECK(has(failure([&] { file.finish(); }), "x.partial: was deleted or replaced while it was written"));
  }
  CHECK(io::input_file(f / "x").text() == "whole");
  CHECK(io::input_file(f / "x.partial").text() == "another");
  fs::permissions(f / "x.partial", fs::perms::owner_read);
  CHECK(replace("new") == "");
  CHECK(std::distance(fs::directory_iterator(f.path), {}) == 1);
}

TEST_CASE("folders are made, trees deleted, links in them not followed") {
  const folder f;
  io::make_folders(io::system_calls(), f / "a/b/c");
  io::make_folders(io::system_calls(), f / "a/b/c/");
  CHECK(fs::is_directory(f / "a/b/c"));
  std::ofstream(f / "a/file") << "x";
  CHECK(has(failure([&] { io::make_folders(io::system_calls(), f / "a/file"); }), "is a file, not a folder"));
  CHECK(has(failure([&] { io::make_folders(io::system_calls(), f / "a/file/b"); }), "a/file"));
  fs::create_directories(f / "kept/below");
  fs::create_directory_symlink(f / "kept", f / "a/b/link");
  io::remove_tree(io::system_calls(), f / "a");
  CHECK(!fs::exists(f / "a"));
  CHECK(fs::exists(f / "kept/below"));
  io::remove_tree(io::system_calls(), f / "a");
}

TEST_CASE("a log: lines whole or not, errors named") {
  const folder f;
  line_log().line("nowhere");
  {
    line_log log(f / "log", false);
    log.line("one");
    log.line("two");
  }
  line_log(f / "log", true).line("three");
  CHECK(io::input_file(f / "log").text() == "one\ntwo\nthree\n");
  line_log(f / "log", false).line("four");
  CHECK(io::input_file(f / "log").text() == "four\n");
  std::ofstream(f / "log", std::ios::app) << "torn";  // by a crash
  {
    line_log log(f / "log", true);
    CHECK(io::input_file(f / "log").text() == "four\ntorn");
    log.line("five");
    log.line("six");
  }
  CHECK(io::input_file(f / "log").text() == "four\ntorn\nfive\nsix\n");
  line_log(f / "log", false).line("four");
  CHECK(io::input_file(f / "log").text() == "four\n");
  CHECK(failure([] { line_log("", true); }) == "weft: line_log: the path is empty");
  CHECK(has(failure([&] { line_log("/dev/full", true).line("x"); }),
            "/dev/full: a line cannot be written: No space left on device"));
  CHECK(has(failure([&] { line_log(f.path.string(), true); }), "cannot be written: Is a directory"));
  ::mkfifo((f / "fifo").c_str(), 0600);
  CHECK(has(failure([&] { line_log(f / "fifo", true); }),
            "fifo: cannot be written: "));  // without a reader, fails at once
  descriptor reader(::open((f / "fifo").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  line_log fifo(f / "fifo", true);
  fifo.line("read");
  reader = descriptor();
  CHECK(has(failure([&] { fifo.line("read by nobody"); }), "fifo: a line cannot be written: Broken pipe"));
  struct rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  line_log log(f / "log", true);
  const struct rlimit small{12, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  CHECK(has(failure([&] { log.line("longer than that"); }), "log: a line cannot be written: "));
  CHECK(has(failure([&] { io::replace_file(io::system_calls(), f / "x", {"longer than that"}); }),
            "x.partial: writing failed: File too large"));
  ::setrlimit(RLIMIT_FSIZE, &before);
  CHECK(!fs::exists(f / "x.partial"));
  CHECK(io::input_file(f / "log").text() == "four\n");  // nothing of it
  log.line("five");
  CHECK(io::input_file(f / "log").text() == "four\nfive\n");
}
