// SPDX-License-Identifier: MIT
// Saves that fail: what is said, and what stays in the folder.
#include <doctest/doctest.h>

#include "../../checkpoints.hpp"
#include "../../stderr_of.hpp"

using namespace weft;
using namespace weft::test;

namespace {

/// A disk on which files with `part` in their path cannot be renamed.
struct failing_disk : io::file_calls {
  std::string part;
  std::atomic<bool> fails = false;

  int rename(const std::string& from, const std::string& to) override {
    if (!fails || !has(to, part)) return file_calls::rename(from, to);
    errno = EIO;
    return -1;
  }
};

}  // namespace

TEST_CASE("a last save that failed and was not waited for is printed, but not while an exception passes") {
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
  const std::string printed = save(false, false), path = f.name() + "/step-1.2.partial/rank-1.safetensors";
  CAPTURE(printed);
  CHECK(has(printed, "weft: " + f.name() + ": the last save failed: " + path +
                         ": cannot be written: Input/output error; finish() throws this\n"));
  CHECK(has(printed, "the last save failed: " + path + ": is not there; finish() throws this\n"));
  CHECK(std::count(printed.begin(), printed.end(), '\n') == 2);  // each rank says its own
  CHECK(save(true, false) == "");
  CHECK(save(false, true) == "");
}
