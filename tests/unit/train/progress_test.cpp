// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <fcntl.h>
#include <stdlib.h>

#include <algorithm>
#include <functional>

#include <weft/base/descriptor.hpp>
#include <weft/train/progress.hpp>

#include "../../skip.hpp"
#include "../../stderr_of.hpp"

using namespace weft;

namespace {

/// The other end of a terminal; empty if the system has none.
descriptor new_screen() {
  descriptor screen(::posix_openpt(O_RDWR | O_NOCTTY));
  const bool works = screen && ::grantpt(screen.number()) == 0 && ::unlockpt(screen.number()) == 0;
  return works ? std::move(screen) : descriptor();
}

/// What f() writes to stderr, a terminal.
std::string on_terminal(const std::function<void()>& f) {
  const descriptor screen = new_screen();
  const descriptor terminal(::open(::ptsname(screen.number()), O_RDWR | O_NOCTTY));
  REQUIRE(terminal);
  {
    const stderr_in there(terminal.number());
    f();
  }
  std::string text(4096, '\0');
  const auto n = ::read(screen.number(), text.data(), text.size());
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  return text;
}

}  // namespace

TEST_CASE("progress of no steps, and of more than all, is a full bar") {
  if (!new_screen()) return test::skip("terminal", "the system has no pseudo terminals");
  const std::string full = "[" + std::string(24, '#') + "]";
  CHECK(on_terminal([] { progress(0).show(1, 0.5, 10); }).find(full + " 1/0") != std::string::npos);
  CHECK(on_terminal([] { progress(3).show(7, 0.5, 10); }).find(full + " 7/3") != std::string::npos);
  CHECK(on_terminal([] { progress(4).show(3, 0.5, 10); }).find("[" + std::string(18, '#') + "......]") !=
        std::string::npos);
}

TEST_CASE("progress counts from the step that is shown first") {
  const auto lines = [](std::int64_t first) {
    return stderr_of([first] {
      progress p(100);
      for (std::int64_t s = first; s < first + 3; ++s) p.show(s, 0.5, 10);
    });
  };
  for (const std::int64_t first : {1, 2, 50}) {
    const std::string text = lines(first);
    CHECK(text.find("step " + std::to_string(first) + "/100") == 0);
    CHECK(std::count(text.begin(), text.end(), '\n') == 1);  // the next comes seconds later
  }
}
