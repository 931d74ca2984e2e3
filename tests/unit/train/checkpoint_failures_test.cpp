// SPDX-License-Identifier: MIT
// Saves that fail: the error messages, and what remains in the folder.
#include <doctest/doctest.h>

#include <pthread.h>

#include <set>

#include "../../checkpoints.hpp"
#include "../../stderr_of.hpp"

using namespace weft;
using namespace weft::test;

namespace {

/// A disk on which files with `part` in their path cannot be renamed, or not be synced afterwards.
struct failing_disk : io::file_calls {
  std::string part;
  std::atomic<bool> fails = false, fails_later = false, renamed = false;

  int rename(const std::string& from, const std::string& to) override {
    renamed = has(to, part);
    if (fails && renamed) return failure();
    return file_calls::rename(from, to);
  }
  int sync_folder(const std::string& path) override {
    return fails_later && renamed ? failure() : file_calls::sync_folder(path);
  }
  static int failure() {
    errno = EIO;
    return -1;
  }
};

/// While one exists, no thread can be started: the address space is smaller than a stack.
class no_threads {
 public:
  no_threads() {
    ::pthread_attr_t huge;
    ::pthread_getattr_default_np(&before_);
    ::pthread_getattr_default_np(&huge);
    ::pthread_attr_setstacksize(&huge, std::size_t{1} << 47);
    ::pthread_setattr_default_np(&huge);
    ::pthread_attr_destroy(&huge);
  }
  no_threads(const no_threads&) = delete;
  no_threads& operator=(const no_threads&) = delete;
  ~no_threads() {
    ::pthread_setattr_default_np(&before_);
    ::pthread_attr_destroy(&before_);
  }

 private:
  ::pthread_attr_t before_;
};

std::set<std::string> checkpoints_in(const folder& f) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(f.path))
    if (entry.is_directory()) names.insert(entry.path().filename().string());
  return names;
}

}  // namespace

TEST_CASE("a last save that failed and was not waited for is printed, also while an exception passes") {
  const folder f("weft-checkpoint-last");
  failing_disk disk;
  disk.part = "rank-1.safetensors";
  const auto save = [&](bool finishes, bool throws) {
    return stderr_of([&] {
      run_ranks(2, [&](communicator& ranks) {
        bound_net n(ranks);
        try {
          checkpointer saves(f.name(), n.run, {.timeout = std::chrono::milliseconds(300), .calls = &disk});
          saves.save({1, 1});
          if (throws) throw std::runtime_error("another error");
          if (finishes) saves.finish();
        } catch (const std::exception&) {}
      });
    });
  };
  CHECK(save(false, false) == "");
  disk.fails = true;
  for (const bool throws : {false, true}) {
    const std::string printed = save(false, throws), path = f.name() + "/step-1.2.partial/rank-1.safetensors";
    CAPTURE(printed);
    CHECK(has(printed, "weft: " + f.name() + ": the last save failed: " + path +
                           ": cannot be written: Input/output error; finish() throws this\n"));
    CHECK(has(printed, "the last save failed: " + path + ": is missing; finish() throws this\n"));
    CHECK(std::count(printed.begin(), printed.end(), '\n') == 2);  // each rank says its own
  }
  CHECK(save(true, false) == "");
}

TEST_CASE("a save for which there is no thread fails, and the next step does not wait for it") {
  const folder f("weft-checkpoint-no-thread");
  run_ranks(1, [&](communicator& ranks) {
    bound_net n(ranks);
    n.train(1);  // threads that the run needs are there
    checkpointer saves(f.name(), n.run, {.on_failure = save_failure::go_on});
    {
      const no_threads here;
      saves.save({1, 1});
    }
    n.train(1);
    saves.finish();
    CHECK(has(saves.last_failure(), "Resource temporarily unavailable"));
    saves.save({2, 2});
    saves.finish();
    CHECK(saves.last_failure() == "");
  });
}

TEST_CASE("an exception after save leaves the checkpoint if all ranks have written their files") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const folder f("weft-checkpoint-thrown");
    const std::string printed = stderr_of([&] {
      run_ranks(ranks, [&](communicator& r) {
        bound_net n(r);
        try {
          checkpointer saves(f.name(), n.run);
          saves.save({3, 5});
          const fs::path last = "rank-" + std::to_string(ranks - 1) + ".safetensors";
          while (ranks > 1 && !fs::exists(f.path / "step-3.1.partial" / last) &&
                 !fs::exists(f.path / "step-3.1"))
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          throw std::runtime_error("another error");
        } catch (const std::runtime_error&) {}
      });
    });
    CHECK(printed == "");
    CHECK(checkpoints_in(f) == std::set<std::string>{"step-3.1"});
    run_ranks(1, [&](communicator& r) {
      bound_net n(r);
      CHECK(checkpointer(f.name(), n.run).load().value_or(run_position{}).samples == 5);
    });
  }
}

TEST_CASE("a checkpoint that `latest` cannot name is deleted, one that it may name stays") {
  const folder f("weft-checkpoint-latest");
  using names = std::set<std::string>;
  failing_disk disk;
  disk.part = "/latest";
  self_communicator alone;
  bound_net n(alone);
  checkpointer saves(f.name(), n.run, {.keep = 1, .on_failure = save_failure::go_on, .calls = &disk});
  const auto save = [&](int step) {
    saves.save({step, 0});
    saves.finish();
    return saves.last_failure();
  };
  disk.fails = true;
  CHECK(has(save(1), "/latest: cannot be replaced: Input/output error"));
  CHECK(checkpoints_in(f) == names{});
  disk.fails = false;
  CHECK(save(2) == "");
  disk.fails = true;
  for (int step = 3; step < 6; ++step) {
    CHECK(has(save(step), "/latest: cannot be replaced"));
    CHECK(checkpoints_in(f) == names{"step-2.2"});
    CHECK(saves.load()->step == 2);
  }
  disk.fails = false;
  disk.fails_later = true;
  CHECK(has(save(6), "cannot be synced"));
  CHECK(checkpoints_in(f) == names{"step-2.2", "step-6.6"});
  CHECK(saves.load()->step == 6);
  disk.fails_later = false;
  CHECK(save(7) == "");
  CHECK(checkpoints_in(f) == names{"step-7.7"});
}

TEST_CASE("a checkpoint that another job deletes while it is loaded: the newer one is") {
  const folder f("weft-checkpoint-deleted");
  self_communicator alone;
  bound_net writer(alone);
  checkpointer saves(f.name(), writer.run, {.keep = 1});
  const auto save = [&](int step) {
    saves.save({step, 0});
    saves.finish();
  };
  save(1);
  run_ranks(2, [&](communicator& ranks) {
    bound_net n(ranks);
    checkpointer reader(f.name(), n.run, {.read_only = true});
    if (ranks.rank() == 1) {  // rank 0 has read the index, and waits for this rank
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      save(2);
    }
    CHECK(reader.load().value_or(run_position{}).step == 2);
  });
  std::atomic<bool> ended = false;
  std::string failure;
  int loaded = 0;
  std::thread other([&] {
    self_communicator also_alone;
    bound_net n(also_alone);
    while (!ended && failure.empty())
      failure = weft::detail::message_of([&] {
        loaded +=
            checkpointer(f.name(), n.run, {.read_only = true}).load().value_or(run_position{}).step >= 2;
      });
  });
  for (int step = 3; step < 200; ++step) save(step);
  ended = true;
  other.join();
  CHECK(failure == "");
  CHECK(loaded > 0);
  fs::remove(f.path / "step-199.199" /
             "rank-0.safetensors");  // not deleted by another job: there is no newer
  bound_net n(alone);
  CHECK_THROWS_WITH_AS(checkpointer(f.name(), n.run, {.read_only = true}).load(),
                       doctest::Contains("rank-0.safetensors: cannot be opened"), io_error);
}
