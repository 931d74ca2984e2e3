// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <limits>
#include <string>

#include <weft/parallel/schedule/timeline.hpp>
#include <weft/parallel/schedule/zero_bubble.hpp>

#include "../../comma_locale.hpp"

using namespace weft::pipeline;

namespace {
std::size_t count(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (std::size_t i = text.find(what); i != std::string::npos; i = text.find(what, i + 1)) ++n;
  return n;
}
/// The classes of boxes begin with the letter of their kind.
std::size_t boxes(const std::string& svg, char kind) {
  std::size_t n = 0;
  for (int h = 0; h < 8; ++h) n += count(svg, std::string("<rect class='") + kind + std::to_string(h) + "'");
  return n;
}
/// The value of `name='...'` after `from`.
double value_after(const std::string& svg, std::size_t from, const std::string& name) {
  const std::size_t begin = svg.find(' ' + name + "='", from) + name.size() + 3;
  return std::stod(svg.substr(begin));
}
}  // namespace

TEST_CASE("timeline: one box for each step, one more in the legend, one line for each message") {
  const int p = 3, m = 4;
  const std::string svg = timeline_svg(simulate(zb_h1(p, m)).records, {.title = "a < b & c"});
  CHECK(boxes(svg, 'f') == p * m + 1);
  CHECK(boxes(svg, 'i') == p * m + 1);
  CHECK(boxes(svg, 'w') == p * m + 1);
  CHECK(boxes(svg, 'b') == 0);
  CHECK(count(svg, "<rect class='w'") == p * m + 1);  // hatched
  CHECK(count(svg, "class='mail'") == (p - 1) * m);
  CHECK(count(svg, "class='mail back'") == (p - 1) * m);
  CHECK(count(svg, ">stage ") == p);
  CHECK(count(svg, "class='idle'") == p + 1);
  CHECK(count(svg, "a &lt; b &amp; c") == 1);
  CHECK(count(svg, "prefers-color-scheme:dark") == 1);
  CHECK(count(svg, "<rect") == count(svg, "/>") - count(svg, "<path") - count(svg, "<circle"));
  CHECK(svg.ends_with("</svg>\n"));
  const std::string plain = timeline_svg(simulate(zb_h1(p, m)).records, {.messages = false});
  CHECK(count(plain, "class='mail") == 0);
}

TEST_CASE("timeline: the same in every locale") {
  const auto svg = [] { return timeline_svg(simulate(zb_h1(3, 4)).records, {.time_scale = 0.3}); };
  const std::string expected = svg();
  const weft::test::comma_locale locale;
  CHECK((svg() == expected));
}

TEST_CASE("timeline: boxes stand where and as long as their times say") {
  const std::vector<record> measured = {{0, step_kind::forward, 0, 0, 100.0, 101.0},
                                        {1, step_kind::backward, 1, 0, 103.0, 105.0}};
  const std::string svg = timeline_svg(measured, {.unit = "ms", .time_scale = 1000});
  const std::size_t first = svg.find("<rect class='f0'"), second = svg.find("<rect class='b0'");
  const double unit = value_after(svg, first, "width") + 0.6;
  CHECK(value_after(svg, second, "width") + 0.6 == doctest::Approx(2 * unit).epsilon(0.01));
  CHECK(value_after(svg, second, "x") - value_after(svg, first, "x") ==
        doctest::Approx(3 * unit).epsilon(0.01));
  CHECK(value_after(svg, second, "y") > value_after(svg, first, "y") + value_after(svg, first, "height"));
  CHECK(count(svg, "time, ms") == 1);
  CHECK(count(svg, ">5000</text>") == 1);  // the end of the axis
}

TEST_CASE("timeline: a line above the chunks of a stage after its first, wherever they are placed") {
  const std::string legend = ">line above: a later chunk</text>";
  for (const std::vector<int>& stage_of :
       {std::vector{0, 1, 0, 1}, std::vector{0, 1, 1, 0}, std::vector{0, 0, 1, 1}}) {
    std::vector<record> records;
    for (int c = 3; c >= 0; --c)
      records.push_back({stage_of[std::size_t(c)], step_kind::forward, c, c, 1.0 * c, c + 1.0});
    const std::string svg = timeline_svg(records);
    CHECK(count(svg, "class='late'") == 2);
    CHECK(count(svg, legend) == 1);
    std::size_t last_on[2] = {};
    for (std::size_t c = 0; c < 4; ++c) last_on[std::size_t(stage_of[c])] = c;
    for (std::size_t c = 0; c < 4; ++c) {
      const std::size_t box = svg.find("<rect class='f" + std::to_string(c) + "'");
      const bool has_line = svg.compare(svg.find("/>", box) + 2, 5, "<path") == 0;
      CHECK(has_line == (last_on[std::size_t(stage_of[c])] == c));
    }
  }
  CHECK(count(timeline_svg(simulate(one_f_one_b(2, 2)).records), legend) == 0);
}

TEST_CASE("timeline: 8 stages and 32 micro-batches have room for every number") {
  const std::string svg = timeline_svg(simulate(one_f_one_b(8, 32), {.send = 0.3}).records);
  CHECK(count(svg, "class='n'") == 8 * 32 + 1);
  CHECK(count(svg, "class='n d'") == 8 * 32 + 1);
  CHECK(svg.size() < 100'000);
}

TEST_CASE("timeline: empty, instantaneous and impossible records") {
  CHECK(timeline_svg({}).ends_with("</svg>\n"));
  const std::vector<record> instant = {{0, step_kind::forward, 0, 0, 1.0, 1.0}};
  CHECK(boxes(timeline_svg(instant), 'f') == 2);
  const std::vector<record> denormal = {
      {0, step_kind::forward, 0, 0, 0, std::numeric_limits<double>::denorm_min()}};
  CHECK(boxes(timeline_svg(denormal), 'f') == 2);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const record& r :
       {record{0, step_kind::forward, 0, 0, 2, 1}, record{0, step_kind::forward, 0, 0, nan, 1},
        record{-1, step_kind::forward, 0, 0, 0, 1}, record{0, step_kind::forward, 0, -1, 0, 1}})
    CHECK_THROWS_AS(timeline_svg(std::vector{r}), weft::value_error);
}
