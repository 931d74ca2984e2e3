// SPDX-License-Identifier: MIT
// Checkpoints on a hostile disk: damaged bytes, missing and foreign files, full disks, other jobs, and
// processes that are killed. Loading throws an error that names the file, or restores the saved bits.
// WEFT_TEST_LARGE=1 tries all cases.
#include <doctest/doctest.h>

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <climits>
#include <csignal>
#include <cstdlib>
#include <map>
#include <mutex>

#include "../box_run.hpp"
#include "../checkpoints.hpp"
#include "../skip.hpp"

using namespace weft;
using namespace weft::test;
using namespace std::chrono_literals;

namespace {

const bool large = std::getenv("WEFT_TEST_LARGE") != nullptr;

/// Two ranks save `count` times, once after each step; returns the values after each step.
std::vector<std::vector<float>> saved(const std::string& at, int count, checkpoint_options o = {},
                                      bool resume = false, std::uint64_t seed = 3) {
  std::vector<std::vector<float>> after;
  run_ranks(2, [&](communicator& ranks) {
    bound_net n(ranks, seed);
    checkpointer saves(at, n.run, o);
    if (resume) saves.load();
    for (int step = 1; step <= count; ++step) {
      n.train(1);
      saves.save({step, 10 * step});
      const auto v = n.values();
      if (ranks.rank() == 0) after.push_back(v);
    }
    saves.finish();
  });
  return after;
}

/// Loads repeatedly into one run.
struct loader_of {
  self_communicator alone;
  bound_net n{alone, 99};
  std::string folder;
  explicit loader_of(std::string f) : folder(std::move(f)) { n.train(1); }

  /// Sets the step, -1 if there is no checkpoint; returns the message of an error, or "".
  std::int64_t step = -1;
  std::string load() {
    step = -1;
    try {
      const auto at = checkpointer(folder, n.run, {.read_only = true}).load();
      if (at) step = at->step;
      if (at) CHECK(at->samples == 10 * at->step);
      return "";
    } catch (const io_error& e) { return e.what(); }
  }
};

/// The bytes of every file below a folder, by path.
std::map<std::string, std::string> files_in(const fs::path& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) all[entry.path().string()] = bytes_of_file(entry.path());
  return all;
}

/// Two checkpoints in a folder, the values that were saved, and a loader that checks them after damage.
struct damaged {
  test::folder f{"weft-chaos"};
  std::vector<std::vector<float>> values = saved(f.name(), 2);
  std::map<std::string, std::string> files = files_in(f.path);
  loader_of load{f.name()};
  std::string latest = f.name() + "/step-2.2/";

  /// Checks, after `path` was damaged, that an error names it or that the loaded values are right.
  void check(const std::string& path) {
    const std::string error = load.load();
    INFO(path << ": " << error);
    if (error.empty()) {
      CHECK(load.step == 2);
      CHECK(load.n.values() == values[1]);
    } else {
      CHECK(has(error, path));
    }
  }
  void restore() {
    for (const auto& [path, bytes] : files) {
      if (!fs::is_regular_file(fs::symlink_status(path)) || bytes_of_file(path) != bytes) {
        fs::remove_all(path);
        write_bytes(path, bytes);
      }
    }
  }
};

/// Changes a shard or an index and updates the checksums, as a deliberate forgery would.
void forge(
    const std::string& folder, const std::function<void(io::stored_tensors&)>& change_shard, int part,
    const std::function<std::string(std::string)>& change_index = [](std::string t) { return t; }) {
  const std::string shard = detail::path_of_shard(folder, part), path = folder + "/index.json";
  io::stored_tensors tensors = io::read_safetensors(shard);
  change_shard(tensors);
  io::write_safetensors(shard, tensors);
  detail::checkpoint_index index = detail::checkpoint_index::parsed(bytes_of_file(path), path);
  const io::input_file file(shard);
  index.shards[static_cast<std::size_t>(part)] = {static_cast<std::int64_t>(file.size()),
                                                  xxh64(io::safetensors_beginning(file))};
  const std::string text = index.text(), rest = change_index(text.substr(28, text.size() - 30));
  write_bytes(path, detail::sealed(rest));
  fs::remove(fs::path(folder).parent_path() / "latest");  // so that the newest checkpoint counts
}

/// Runs f in a separate process; returns an exit code: 0 for the text "", `skipped` for "skip", otherwise 1.
int exit_code_of(const std::function<std::string()>& f) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string said = f();
    if (!said.empty()) std::fprintf(stderr, "%s\n", said.c_str());
    ::_exit(said.empty() ? 0 : said == "skip" ? skipped : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/// Kills its process at one of the calls that change files, while the other rank goes on.
class dies_at : public io::file_calls {
 public:
  enum moment { before, after, halfway };  // halfway: in the middle of a write
  dies_at(int call, moment when) : call_(call), when_(when) {}
  int done() const { return done_; }

  int create(const std::string& path) override {
    return at([&] { return file_calls::create(path); });
  }
  ssize_t write(int file, const char* from, std::size_t bytes) override {
    const bool now = ++done_ == call_;
    if (now && when_ == before) die();
    const ssize_t n = file_calls::write(file, from, now && when_ == halfway ? bytes / 2 : bytes);
    if (now) die();
    return n;
  }
  int make_folder(const std::string& path) override {
    return at([&] { return file_calls::make_folder(path); });
  }
  int rename(const std::string& from, const std::string& to) override {
    return at([&] { return file_calls::rename(from, to); });
  }
  int remove(const std::string& path) override {
    return at([&] { return file_calls::remove(path); });
  }
  int remove_folder(const std::string& path) override {
    return at([&] { return file_calls::remove_folder(path); });
  }

 private:
  template <class Call>
  int at(Call does) {
    const bool now = ++done_ == call_;
    if (now && when_ == before) die();
    const int result = does();
    if (now) die();
    return result;
  }
  [[noreturn]] static void die() {
    ::kill(::getpid(), SIGKILL);
    for (;;) ::pause();
  }

  int call_;
  moment when_;
  std::atomic<int> done_ = 0;
};

/// A disk that is full for certain files.
struct full_disk : io::file_calls {
  std::string part;  // of the paths of these files
  std::atomic<bool> full = false;
  std::mutex held;
  std::map<int, std::string> open;

  bool fails(const std::string& path) {
    const bool f = full && has(path, part);
    if (f) errno = ENOSPC;
    return f;
  }
  int create(const std::string& path) override {
    const int file = file_calls::create(path);
    const std::lock_guard lock(held);
    open[file] = path;
    return file;
  }
  ssize_t write(int file, const char* from, std::size_t bytes) override {
    const std::lock_guard lock(held);
    return fails(open[file]) ? -1 : file_calls::write(file, from, bytes);
  }
  int rename(const std::string& from, const std::string& to) override {
    return fails(to) ? -1 : file_calls::rename(from, to);
  }
};

}  // namespace

TEST_CASE("a flipped bit anywhere is found, or changes nothing") {
  damaged d;
  int found = 0, tries = 0;
  std::mt19937 random(1);
  for (const auto& [path, bytes] : d.files) {
    for (std::size_t i = 0; i < bytes.size(); ++i)
      for (int bit = 0; bit < 8; ++bit) {
        if (!large && random() % 64) continue;
        std::string flipped = bytes;
        flipped[i] = static_cast<char>(flipped[i] ^ 1 << bit);
        write_bytes(path, flipped);
        ++tries;
        d.check(path);
        const bool counts = path.starts_with(d.latest) || path.ends_with("/latest");
        found += d.load.step != 2;
        CHECK((d.load.step != 2) == counts);  // checksums cover every bit that is read
      }
    write_bytes(path, bytes);
  }
  MESSAGE(tries, " bits flipped, ", found, " in what is read, all found");
  CHECK(found > 100);
}

TEST_CASE("a flipped bit anywhere in a checkpoint of boxes is found") {
  std::mt19937 random(7);
  box_model m;
  m.tensors.push_back({"w", {dtype::f32, {2, {3, 4}}}, false, true, {}});
  m.tensors.push_back({"v", {dtype::bf16, {3, {2, 3, 2}}}, false, false, {}});
  for (box_model::entry& e : m.tensors)
    for (const char* kind : {"", "exp_avg", "exp_avg_sq"}) {
      e.bytes[kind].resize(bytes_of(e.whole.extents, e.whole.type));
      for (char& c : e.bytes[kind]) c = static_cast<char>(random());
    }
  const box_plan plan{
      {{0, {{2, {0, 0}}, {2, {3, 1}}}}, {1, {{2, {0, 1}}, {2, {1, 3}}}}, {2, {{2, {1, 1}}, {2, {2, 3}}}}},
      {{2, {{3, {0, 0, 0}}, {3, {2, 3, 1}}}}, {0, {{3, {0, 0, 1}}, {3, {2, 3, 1}}}}}};
  box_plan everything;
  for (const box_model::entry& e : m.tensors) everything.push_back({{0, whole_box(e.whole.extents)}});
  const device where(std::make_shared<cpu::cpu_backend>(1));
  const test::folder f("weft-chaos-boxes");
  run_ranks(3, [&](communicator& ranks) {
    box_run run(ranks, 1, m, plan, true, where);
    checkpointer saves(f.name(), run);
    saves.save({1, 10});
    saves.finish();
  });
  self_communicator alone;
  box_run run(alone, 1, m, everything, false, where);
  int tries = 0;
  for (const auto& [path, bytes] : files_in(f.path)) {
    if (fs::path(path).filename() == "lock") continue;
    for (std::size_t i = 0; i < bytes.size(); ++i)
      for (int bit = 0; bit < 8; ++bit) {
        if (!large && random() % 32) continue;
        std::string flipped = bytes;
        flipped[i] = static_cast<char>(flipped[i] ^ 1 << bit);
        write_bytes(path, flipped);
        CHECK_THROWS_WITH_AS(checkpointer(f.name(), run, {.read_only = true}).load(),
                             doctest::Contains(path.c_str()), io_error);
        ++tries;
      }
    write_bytes(path, bytes);
  }
  MESSAGE(tries, " bits flipped");
  CHECK(tries > 300);
  CHECK(checkpointer(f.name(), run, {.read_only = true}).load()->samples == 10);
  CHECK(run.has(m, true));
}

TEST_CASE("files cut, grown, emptied, deleted, exchanged or of another kind are named, or change nothing") {
  damaged d;
  std::mt19937 random(2);
  for (const auto& [path, bytes] : d.files) {
    for (std::size_t n = 0; n < bytes.size(); n += large ? 1 : 1 + random() % 100) {
      write_bytes(path, bytes.substr(0, n));
      d.check(path);
      if (path.starts_with(d.latest)) CHECK(d.load.step == -1);
    }
    for (const std::string& more : {std::string(1, '\0'), std::string(" "), std::string("\n{}"), bytes}) {
      write_bytes(path, bytes + more);
      d.check(path);
    }
    fs::remove(path);
    d.check(path);
    fs::create_directory(path);
    d.check(path);
    fs::remove(path);
    ::mkfifo(path.c_str(), 0600);
    d.check(path);  // at once
    fs::remove(path);
    for (const char* to : {"/dev/zero", "/nonexistent", "/"}) {
      fs::create_symlink(to, path);
      d.check(path);
      fs::remove(path);
    }
    write_bytes(path, bytes);
    for (const auto& [other, others] : d.files) {  // replaced by a file that is valid in its own place
      if (other == path || fs::path(path).filename() == "lock" || fs::path(other).filename() == "lock")
        continue;
      write_bytes(path, others);
      write_bytes(other, bytes);
      const std::string error = d.load.load();
      INFO(path << " and " << other << ": " << error);
      if (error.empty()) CHECK(d.load.n.values() == d.values[1]);
      else CHECK((has(error, path) || has(error, other)));
      d.restore();
    }
  }
  for (const char* added : {"step-2.2/rank-2.safetensors", "step-2.2/rank-0.safetensors.partial",
                            "step-9.9.partial", "nonsense", "step-9", "latest.partial"}) {
    write_bytes(d.f.path / added, "something");
    CHECK(d.load.load() == "");
    CHECK(d.load.n.values() == d.values[1]);
    fs::remove(d.f.path / added);
  }
  fs::rename(d.f.path / "step-2.2", d.f.path / "elsewhere");
  CHECK(has(d.load.load(), "step-2.2/index.json: cannot be opened: No such file"));
}

TEST_CASE("shards and indices of another run, attempt, step or folder are refused, as good as they are") {
  damaged d;
  const test::folder again("weft-chaos-again"), resumed("weft-chaos-resumed");
  saved(again.name(), 2);  // the same tensors, another run
  fs::copy(d.f.path, resumed.path, fs::copy_options::recursive);
  saved(resumed.name(), 2, {.keep = 9}, true);  // the same run, another attempt: step-1.3, step-2.4
  for (const std::string& from :
       {again.name() + "/step-2.2/", resumed.name() + "/step-2.4/", d.f.name() + "/step-1.1/"})
    for (const char* name : {"index.json", "rank-0.safetensors", "rank-1.safetensors"}) {
      write_bytes(d.latest + name, bytes_of_file(from + name));
      const std::string error = d.load.load();
      INFO(from << name << ": " << error);
      CHECK(has(error, d.latest + name));
      d.restore();
    }
  write_bytes(d.f.path / "latest", bytes_of_file(again.path / "latest"));
  CHECK(has(d.load.load(), "step-2.2/index.json: is not the index that `latest` names"));
}

TEST_CASE(
    "rows that are missing, there twice or outside, and numbers out of range, are refused though all "
    "checksums are right") {
  damaged d;
  const std::string place = d.latest.substr(0, d.latest.size() - 1);
  const auto refused =
      [&](
          const std::string& words, int part, const std::function<void(io::stored_tensors&)>& change,
          const std::function<std::string(std::string)>& change_index = [](std::string t) { return t; }) {
        forge(place, change, part, change_index);
        const std::string error = d.load.load();
        INFO(words << "; " << error);
        CHECK(has(error, words));
        CHECK(has(error, place));
        d.restore();
      };
  const auto note = [](io::stored_tensors& t, auto change) {
    auto n = *detail::piece_note::parsed(t.metadata["model.table"]);
    change(n);
    t.metadata["model.table"] = n.text();
  };
  const auto none = [](io::stored_tensors&) {};
  // Part 0 has rows 0 and 1 of the table, part 1 has row 2.
  refused("rank-0.safetensors: tensor model.table: [1:2, 0:2] is also in " + d.latest + "rank-1.safetensors",
          1, [&](auto& t) { note(t, [](auto& n) { n.offset[0] = 1; }); });
  refused(": tensor model.table: [2:3, 0:2] of [3, 2] is in no shard", 1,
          [&](auto& t) { t.tensors.erase("model.table"); });
  refused("rank-1.safetensors: tensor model.table: [3:4, 0:2] is outside of [3, 2]", 1,
          [&](auto& t) { note(t, [](auto& n) { n.offset[0] = 3; }); });
  refused("rank-1.safetensors: tensor model.table: is a piece of f32 [4, 2], in ", 1,
          [&](auto& t) { note(t, [](auto& n) { n.whole[0] = 4; }); });
  refused("rank-1.safetensors: tensor model.table: [2:3, 1:3] is outside of [3, 2]", 1,
          [&](auto& t) { note(t, [](auto& n) { n.offset = {2, {2, 1}}, n.whole = {2, {3, 2}}; }); });
  refused(
      "rank-1.safetensors: tensor model.table: the size of [9007199254740992, 9007199254740992] overflows", 1,
      [&](auto& t) {
        note(t,
             [](auto& n) { n.offset = {2, {2, 0}}, n.whole = {2, {detail::max_count, detail::max_count}}; });
      });
  for (const char* bad :
       {"0/3 12", "0/3", "/ 0123456789abcdef", "0,0/3 0123456789abcdef", "0,/3,2 0123456789abcdef",
        "0,0,0/3,2,1 0123456789abcdef", "0/3 0123456789abcdef 0123456789abcdef", "0/3 0123456789abcdef ",
        "0/3  123456789abcdef"})
    refused("rank-1.safetensors: tensor model.table: does not say which part of the whole it is", 1,
            [&](auto& t) { t.metadata["model.table"] = bad; });
  refused("rank-1.safetensors: tensor model.table: does not say which part of the whole it is", 1,
          [&](auto& t) { t.metadata.erase("model.table"); });
  refused("rank-1.safetensors: is part 0/2, not 1/2", 1, [](auto& t) { t.metadata["weft.part"] = "0/2"; });
  refused("rank-1.safetensors: belongs to another checkpoint: no checkpoint", 1,
          [](auto& t) { t.metadata.clear(); });
  refused("rank-0.safetensors: tensor model.table is damaged", 0,
          [](auto& t) { t.tensors["model.table"].bytes[3] ^= 1; });
  refused("this one has no optimizer.exp_avg.other", 0, [](auto& t) {
    t.tensors["optimizer.exp_avg.other"] = t.tensors["model.seen"];
    t.metadata["optimizer.exp_avg.other"] = t.metadata["model.seen"];
  });
  const auto number = [&](const char* key, const char* value) {
    refused(std::string("index.json: ") + key + " is " + value, 0, none, [=](const std::string& text) {
      const std::string name = std::string("\"") + key + "\": ";
      const std::size_t at = text.find(name) + name.size();
      return text.substr(0, at) + value + text.substr(text.find_first_of(",}", at));
    });
  };
  for (const char* key : {"version", "step", "serial", "samples", "optimizer_steps", "loss_scale_log2",
                          "growth_tracker", "bytes"})
    for (const char* value : {"-70", "9007199254740993", "99999999999999999999999", "1.0", "1e2", "null"})
      number(key, value);
  refused("index.json: was written by an earlier version of weft: format 1", 0, none,
          [](std::string text) { return text.replace(text.find("\"version\": 3") + 11, 1, "1"); });
  refused("index.json: has no samples", 0, none,
          [](std::string text) { return text.replace(text.find("samples"), 7, "sampels"); });
  refused("duplicate key \"step\"", 0, none, [](const std::string& text) { return text + ", \"step\": 2"; });
  refused("index.json: has no list of 1 to", 0, none,
          [](const std::string& text) { return text.substr(0, text.find("\"shards\"")) + "\"shards\": []"; });
  refused("rank-0.safetensors: is part 0/2, not 0/1", 0, none,
          [](const std::string& text) { return text.substr(0, text.rfind(", {")) + "]"; });
}

TEST_CASE("one job at a time: a second is told, and has the folder as soon as the first is gone") {
  const test::folder f("weft-chaos-lock");
  const checkpoint_options impatient{.lock_timeout = 50ms};
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    self_communicator alone;
    bound_net n(alone);
    checkpointer saves(f.name(), n.run);
    (void)!::write(ready[1], "x", 1);
    ::pause();
  }
  char c;
  REQUIRE(::read(ready[0], &c, 1) == 1);
  run_ranks(2, [&](communicator& ranks) {  // known to all ranks
    bound_net n(ranks);
    std::string said;
    try {
      checkpointer saves(f.name(), n.run, impatient);
    } catch (const io_error& e) { said = e.what(); }
    CHECK(has(said, f.name() + ": is in use by process " + std::to_string(child) + " on "));
  });
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  self_communicator alone;
  bound_net n(alone);
  {
    checkpointer saves(f.name(), n.run, impatient);
    CHECK_THROWS_AS(checkpointer(f.name(), n.run, impatient), io_error);
    fs::remove(f.path / "lock");
    CHECK_NOTHROW(checkpointer(f.name(), n.run, impatient));  // a user who deletes the lock is responsible
    saves.save({1, 1});
    CHECK_THROWS_WITH_AS(saves.finish(), doctest::Contains("lock: was deleted or replaced"), io_error);
  }
  for (const auto& put : std::initializer_list<std::function<void(const fs::path&)>>{
           [](const fs::path& p) { fs::create_directory(p); },
           [](const fs::path& p) { ::mkfifo(p.c_str(), 0600); },
           [](const fs::path& p) { fs::create_symlink("/tmp/weft-elsewhere", p); }}) {
    fs::remove(f.path / "lock");
    put(f.path / "lock");
    CHECK_THROWS_WITH_AS(checkpointer(f.name(), n.run, impatient),
                         doctest::Contains((f.name() + "/lock: ").c_str()), io_error);
  }
  CHECK(!fs::exists("/tmp/weft-elsewhere"));
}

// If the other ranks learned of the failure only through the time-out, this test would exceed CTest's.
TEST_CASE(
    "a disk that is full for one rank, at any file: all ranks know, what was there stays, and the run goes "
    "on if it may") {
  for (const char* part : {"rank-0.safetensors.partial", "rank-1.safetensors.partial", "rank-1.safetensors",
                           "index.json", "step-2.2", "latest.partial", "latest"})
    for (const bool asynchronous : {false, true}) {
      CAPTURE(part);
      const test::folder f("weft-chaos-full");
      full_disk disk;
      disk.part = part;
      run_ranks(2, [&](communicator& ranks) {
        bound_net n(ranks);
        checkpoint_options o{.asynchronous = asynchronous, .timeout = 1h, .calls = &disk};
        std::string said;
        {
          checkpointer saves(f.name(), n.run, o);
          n.train(1);
          saves.save({1, 10});
          saves.finish();
          ranks.barrier().wait();
          disk.full = true;
          try {
            n.train(1);
            saves.save({2, 20});
            n.train(1);
            saves.finish();
          } catch (const io_error& e) { said = e.what(); }
          CHECK(has(said, "No space left on device; is the disk full?"));
          CHECK(has(said, part));
        }
        ranks.barrier().wait();
        o.on_failure = save_failure::go_on;
        checkpointer saves(f.name(), n.run, o);
        const auto at = saves.load();
        CHECK((at->step == 1 || (std::string(part).starts_with("latest") && at->step == 2)));
        saves.save({3, 30});
        saves.finish();
        CHECK((saves.last_failure() == "") == (std::string(part) == "step-2.2"));
        ranks.barrier().wait();
        disk.full = false;
        saves.save({4, 40});
        saves.finish();
        CHECK(saves.last_failure() == "");
        CHECK(saves.load()->step == 4);
      });
    }
}

TEST_CASE("a rank that is lost during a save: the others end, and do not wait for its file") {
  const test::folder f("weft-chaos-lost");
  const auto values = saved(f.name(), 1);
  CHECK_THROWS(run_ranks(2, [&](communicator& ranks) {
    bound_net n(ranks);
    checkpointer saves(f.name(), n.run, {.timeout = 1h});
    n.train(2);
    if (ranks.rank() == 1) throw std::runtime_error("lost");
    saves.save({2, 20});
    saves.finish();
  }));
  loader_of load(f.name());
  CHECK(load.load() == "");
  CHECK(load.step == 1);
  CHECK(load.n.values() == values[0]);
}

TEST_CASE("a file system that is full") {
  const test::folder f("weft-chaos-tmpfs");
  fs::create_directories(f.path);
  const int code = exit_code_of([&]() -> std::string {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", f.name().c_str(), "tmpfs", 0, "size=64k") != 0)
      return "skip";
    self_communicator alone;
    bound_net n(alone);
    std::vector<float> whole;
    checkpointer saves(f.name() + "/run", n.run, {.asynchronous = false, .keep = 100});
    for (int step = 1; step < 100; ++step) {
      n.train(1);
      try {
        saves.save({step, 10 * step});
      } catch (const io_error& e) {
        if (!has(e.what(), "No space left on device; is the disk full?") || !has(e.what(), f.name()))
          return e.what();
        if (step < 3) return "full too early";
        if (saves.load()->step != step - 1 || n.values() != whole) return "not the checkpoint before";
        for (const auto& entry : fs::directory_iterator(f.path / "run"))
          if (entry.path().extension() == ".partial") return "leftovers: " + entry.path().string();
        return "";
      }
      whole = n.values();
    }
    return "the disk was never full";
  });
  if (code == skipped) skip("root", "a file system of its own cannot be mounted");
  else CHECK(code == 0);
}

TEST_CASE(
    "killed at any call that changes files, also while it writes the same steps anew: a resumed run has the "
    "bits of one that was not") {
  const test::folder undisturbed("weft-chaos-undisturbed"), f("weft-chaos-killed");
  dies_at never(INT_MAX, dies_at::before);
  const std::vector<std::vector<float>> values[] = {
      saved(undisturbed.name(), 12, {.calls = &never}), saved(undisturbed.name(), 12, {}, false, 4)};
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  int kills = 0, resumed = 0;
  loader_of load(f.name());
  for (int round = 0; round < (large ? 500 : 25);
       ++round) {  // different values in every round, so that a mix of rounds shows
    std::fflush(nullptr);
    const int call = 1 + static_cast<int>(random() % static_cast<unsigned>(never.done()));
    const auto when = static_cast<dies_at::moment>(random() % 3);
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        dies_at calls(call, when);
        saved(f.name(), 12, {.asynchronous = round % 3 == 0, .calls = &calls}, false,
              static_cast<std::uint64_t>(3 + round % 2));
      } catch (...) { ::_exit(3); }
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    kills += WIFSIGNALED(status);
    CHECK((WIFSIGNALED(status) || WEXITSTATUS(status) == 0));
    CHECK(load.load() == "");
    if (load.step < 1) continue;
    ++resumed;
    const auto at = static_cast<std::size_t>(load.step - 1);
    const auto found = load.n.values();
    const bool first = found == values[0][at];
    CHECK((first || found == values[1][at]));
    load.n.train(1);  // and training continues
    if (load.step < 12) CHECK(load.n.values() == values[first ? 0 : 1][at + 1]);
    if (round % 5 == 0) fs::remove_all(f.path);
  }
  MESSAGE(kills, " processes killed, ", resumed, " checkpoints resumed");
  CHECK(kills > 5);
  CHECK(resumed > 5);
}
