// SPDX-License-Identifier: MIT
// Every schedule with one entry swapped, dropped, duplicated or resized is refused, or runs on an executor
// that shares no code with the check. WEFT_TEST_LARGE adds larger schedules.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <utility>

#include <weft/parallel/schedule/check.hpp>
#include <weft/parallel/schedule/handing.hpp>
#include <weft/parallel/schedule/zero_bubble.hpp>

#include "schedule_oracle.hpp"

namespace {
using namespace weft::pipeline;
using weft::test::runs;
using weft::test::transport;

struct tally {
  long mutations = 0, accepted = 0, wrong = 0;
  std::string first{};
};

/// Compares the verdict of check with the executor's behavior.
void judge(const schedule& s, bool has_messages, tally& t, const char* what) {
  const auto f = check(s);
  const bool ran = runs(s, has_messages ? transport::blocking : transport::implied);
  ++t.mutations;
  t.accepted += !f;
  bool agrees = ran == !f;
  if (agrees && ran && has_messages) agrees = runs(s, transport::buffered);
  if (agrees && f && f->kind == mistake::deadlock_of_blocking_sends) agrees = runs(s, transport::buffered);
  if (agrees && f && f->kind == mistake::deadlock && has_messages) agrees = !runs(s, transport::buffered);
  if (agrees) return;
  if (t.wrong++ == 0) t.first = std::string(what) + ": " + (f ? to_text(*f) : "accepted");
}

void mutate(schedule s, tally& t, auto judge) {
  const bool m = s.has_messages();
  for (std::size_t stage = 0; stage < s.steps.size(); ++stage) {
    auto& list = s.steps[stage];
    for (std::size_t i = 0; i < list.size(); ++i) {
      const step e = list[i];
      const auto place = list.begin() + std::ptrdiff_t(i);
      list.erase(place);
      judge(s, m, t, "drop");
      list.insert(list.begin() + std::ptrdiff_t(i), e);
      list.insert(list.begin() + std::ptrdiff_t(i), e);
      judge(s, m, t, "duplicate");
      list.erase(list.begin() + std::ptrdiff_t(i));
      if (is_message(e.kind)) {
        ++list[i].size;
        judge(s, m, t, "resize");
        --list[i].size;
      }
      for (std::size_t k = i + 1; k < list.size(); ++k) {
        std::swap(list[i], list[k]);
        judge(s, m, t, "swap");
        std::swap(list[i], list[k]);
      }
      if (stage + 1 < s.steps.size() && i < s.steps[stage + 1].size()) {
        std::swap(list[i], s.steps[stage + 1][i]);
        judge(s, m, t, "swap between stages");
        std::swap(list[i], s.steps[stage + 1][i]);
      }
    }
  }
}

/// The same for passing on gradients, if these chunks read one parameter; returns how many are refused for
/// it.
long mutate_tied(const schedule& s, const std::vector<int>& chunks) {
  std::vector<handing> handed;
  for (std::size_t i = 1; i < chunks.size(); ++i) handed.push_back({chunks[i - 1], chunks[i]});
  long refused = 0;
  const auto judge_tied = [&](const schedule& one, bool, tally& t, const char* what) {
    if (check(one)) return;
    const auto f = check_handing(one, handed);
    ++t.mutations;
    refused += f.has_value();
    if (runs(one, transport::buffered, chunks) == !f) return;
    if (t.wrong++ == 0) t.first = std::string(what) + ": " + (f ? to_text(*f) : "accepted");
  };
  tally t;
  judge_tied(with_messages(s), true, t, "none");
  mutate(with_messages(s), t, judge_tied);
  CHECK_MESSAGE(t.wrong == 0, (std::to_string(t.wrong) + " wrong, the first: " + t.first));
  return refused;
}

void mutate_all(int p, int m) {
  const auto one = [&](const char* name, const schedule& s) {
    tally t;
    mutate(s, t, judge);
    mutate(with_messages(s), t, judge);
    const std::string where =
        std::string(name) + ", " + std::to_string(p) + " stages, " + std::to_string(m) + " micro-batches: ";
    CHECK_MESSAGE(t.wrong == 0, (where + std::to_string(t.wrong) + " wrong, the first: " + t.first));
    CHECK_MESSAGE(t.accepted < t.mutations, (where + "nothing is refused"));
  };
  one("gpipe", gpipe(p, m));
  one("1f1b", one_f_one_b(p, m));
  one("breadth-first", breadth_first(p, m, 2));
  if (m % p == 0) one("interleaved", interleaved_1f1b(p, m, 2));
  one("zb-h1", zb_h1(p, m));
  one("zb-v", zb_v(p, m));
  if (m >= 2 * p) one("dual-pipe-v", dual_pipe_v(p, m));
}
}  // namespace

TEST_CASE(
    "mutations: up to 4 stages and 8 micro-batches, none that fails is accepted, none that runs refused") {
  for (int p = 2; p <= 4; ++p)
    for (int m = 1; m <= 8; ++m) mutate_all(p, m);
}

TEST_CASE("mutations: gradients of tied parameters neither wait in a cycle nor are taken for each other") {
  for (const int p : {2, 3})
    for (const int m : {2, 3, 6}) {
      long refused = 0;
      for (const schedule& s : {one_f_one_b(p, m), zb_h1(p, m), zb_v(p, m), breadth_first(p, m, 2)}) {
        std::vector<int> all;
        for (int c = 0; c < s.chunks(); ++c) all.push_back(c);
        refused += mutate_tied(s, {0, s.chunks() - 1}) + mutate_tied(s, all);
      }
      CHECK(refused > 0);
    }
}

TEST_CASE("mutations: 8 stages and 16 micro-batches" *
          doctest::skip(std::getenv("WEFT_TEST_LARGE") == nullptr)) {
  mutate_all(8, 16);
}
