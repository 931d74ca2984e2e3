// SPDX-License-Identifier: MIT
// The contract of all communicators. The test program of a backend calls check_contract with a function that
// runs ranks: run(n, f) calls f(communicator&) on each of n ranks.
#pragma once

#include <doctest/doctest.h>

#include <numeric>
#include <string>
#include <vector>

#include <weft/base/dtype.hpp>
#include <weft/comm/communicator.hpp>

#include "message_contract.hpp"

namespace contract {

using namespace weft;

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }
/// The message of the exception that f threw; empty if none.
template <class F>
std::string failure(F f) {
  try {
    f();
  } catch (const error& e) {
    return e.what();
  }
  return "";
}

/// Whether a sum of numbers that do not add exactly has the bits of the fixed tree over ranks: neighbors are
/// added in pairs, then neighboring pairs, and so on; an odd one out waits: ((0 1) (2 3)) ((4 5) 6).
inline bool sums_follow_the_tree(communicator& ranks) {
  const auto number = [](int r) { return 1.0f / static_cast<float>(3 + r) * (r % 2 ? -1e4f : 1.0f); };
  std::vector<float> x(5, number(ranks.rank())), sums;
  for (int r = 0; r < ranks.size(); ++r) sums.push_back(number(r));
  while (sums.size() > 1) {
    std::vector<float> pairs;
    for (std::size_t i = 0; i < sums.size(); i += 2)
      pairs.push_back(i + 1 < sums.size() ? sums[i] + sums[i + 1] : sums[i]);
    sums = pairs;
  }
  ranks.all_reduce(x).wait();
  return x == std::vector<float>(5, sums[0]);
}

/// Element i of rank r, small enough that sums are exact in every type.
template <class T>
T value(int r, index_t i) {
  if constexpr (std::is_same_v<T, bool>) return (r + i) % 3 == 0;
  else return static_cast<T>(static_cast<float>((r * 7 + i * 3) % 11));
}
template <class T>
std::vector<T> values(int r, index_t n) {
  std::vector<T> v;
  for (index_t i = 0; i < n; ++i) v.push_back(value<T>(r, i));
  return v;
}
template <class T>
std::vector<double> numbers(const std::vector<T>& v) {
  std::vector<double> d;
  for (T x : v) d.push_back(static_cast<double>(static_cast<float>(x)));
  return d;
}
template <class T, class F>
std::vector<double> folded(int n, index_t count, F f) {
  std::vector<double> all;
  for (index_t i = 0; i < count; ++i) {
    double x = static_cast<double>(static_cast<float>(value<T>(0, i)));
    for (int r = 1; r < n; ++r) x = f(x, static_cast<double>(static_cast<float>(value<T>(r, i))));
    all.push_back(x);
  }
  return all;
}

/// Sizes that differ between ranks; some are zero.
inline rank_counts uneven(int n) {
  rank_counts c;
  for (int r = 0; r < n; ++r) c.push_back(r % 3 == 1 ? 0 : 5 + 20'000 * (r % 2) + r);
  return c;
}

template <class T>
void reductions(communicator& ranks) {
  const int n = ranks.size();
  for (index_t count : {index_t{0}, index_t{1}, index_t{9}, index_t{20'001}}) {
    const auto plus = [](double a, double b) { return a + b; };
    auto x = values<T>(ranks.rank(), count);
    ranks.all_reduce(x).wait();
    CHECK(numbers(x) == folded<T>(n, count, plus));
    x = values<T>(ranks.rank(), count);
    ranks.all_reduce(x, reduction::maximum).wait();
    CHECK(numbers(x) == folded<T>(n, count, [](double a, double b) { return a < b ? b : a; }));
    x = values<T>(ranks.rank(), count);
    ranks.all_reduce(x, reduction::minimum).wait();
    CHECK(numbers(x) == folded<T>(n, count, [](double a, double b) { return a < b ? a : b; }));
    x = values<T>(ranks.rank(), count);
    const int root = n - 1;
    ranks.reduce(x, root).wait();
    CHECK(numbers(x) ==
          (ranks.rank() == root ? folded<T>(n, count, plus) : numbers(values<T>(ranks.rank(), count))));
  }
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    auto x = values<T>(ranks.rank(), 9);
    ranks.all_reduce(x, reduction::average).wait();
    auto mean = folded<T>(n, 9, [](double a, double b) { return a + b; });
    for (std::size_t i = 0; i < 9; ++i) CHECK(x[i] == doctest::Approx(mean[i] / n));
  }
  const rank_counts counts = uneven(n);
  const auto all = values<T>(ranks.rank(), operation::sum_of(counts));
  std::vector<T> mine(static_cast<std::size_t>(counts[static_cast<std::size_t>(ranks.rank())]));
  ranks.reduce_scatter(all, mine, reduction::sum, counts).wait();
  const auto whole = folded<T>(n, operation::sum_of(counts), [](double a, double b) { return a + b; });
  index_t begin = 0;
  for (int r = 0; r < ranks.rank(); ++r) begin += counts[static_cast<std::size_t>(r)];
  CHECK(numbers(mine) == std::vector<double>(whole.begin() + begin,
                                             whole.begin() + begin + static_cast<index_t>(mine.size())));
}

template <class T>
void movement(communicator& ranks) {
  const int n = ranks.size(), own = ranks.rank();
  for (int root = 0; root < n; ++root) {
    auto x = values<T>(own, 20'011);
    ranks.broadcast(x, root).wait();
    CHECK(x == values<T>(root, 20'011));
  }
  const rank_counts counts = uneven(n);
  const auto count = [&](int r) { return counts[static_cast<std::size_t>(r)]; };
  std::vector<T> together;
  for (int r = 0; r < n; ++r) {
    const auto part = values<T>(r, count(r));
    together.insert(together.end(), part.begin(), part.end());
  }
  std::vector<T> all(together.size());
  ranks.all_gather(values<T>(own, count(own)), all, counts).wait();
  CHECK(all == together);
  std::vector<T> at_root(own == n - 1 ? together.size() : 0);
  ranks.gather(values<T>(own, count(own)), at_root, n - 1, counts).wait();
  if (own == n - 1) CHECK(at_root == together);
  std::vector<T> mine(static_cast<std::size_t>(count(own)));
  ranks.scatter(own == 0 ? together : std::vector<T>(), mine, 0, counts).wait();
  CHECK(mine == values<T>(own, count(own)));
  // Rank i sends i + 2 j + 1 elements to rank j.
  rank_counts sent, received;
  std::vector<T> out;
  for (int j = 0; j < n; ++j) {
    sent.push_back(own + 2 * j + 1);
    received.push_back(j + 2 * own + 1);
    const auto part = values<T>(own * n + j, sent.back());
    out.insert(out.end(), part.begin(), part.end());
  }
  std::vector<T> in(static_cast<std::size_t>(operation::sum_of(received))), expected;
  for (int j = 0; j < n; ++j) {
    const auto part = values<T>(j * n + own, received[static_cast<std::size_t>(j)]);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  ranks.all_to_all(out, in, sent, received).wait();
  CHECK(in == expected);
}

inline void messages(communicator& ranks) {
  const int n = ranks.size(), own = ranks.rank();
  if (n == 1) return;
  const int after = (own + 1) % n, before = (own + n - 1) % n;
  for (index_t count : {index_t{0}, index_t{3}, index_t{100'000}}) {
    const auto x = values<float>(own, count), y = values<float>(own + 50, count);
    std::vector<float> a(x.size()), b(x.size());
    const work second = ranks.receive(b, before, 2),
               first = ranks.receive(a, before, 1);  // by tag, not by order
    const work one = ranks.send(x, after, 1), two = ranks.send(y, after, 2);
    for (const work* w : {&one, &two, &first, &second}) w->wait();
    CHECK(a == values<float>(before, count));
    CHECK(b == values<float>(before + 50, count));
  }
}

inline void groups(communicator& ranks) {
  const int n = ranks.size(), own = ranks.rank();
  const auto parity = ranks.split(own % 2, -own);  // in reverse order
  REQUIRE(parity);
  CHECK(parity->size() == (n + 1 - own % 2) / 2);
  CHECK(parity->rank() == parity->size() - 1 - own / 2);
  std::vector<std::int64_t> x{1};
  parity->all_reduce(x).wait();
  CHECK(x[0] == parity->size());
  const auto some = ranks.split(own == 0 ? -1 : 3);
  CHECK((some == nullptr) == (own == 0));
  if (some) {
    some->barrier().wait();
    const auto inner = some->split(0);
    CHECK(inner->size() == n - 1);
  }
}

/// Several operations in flight at once, completed in another order.
inline void overlap(communicator& ranks) {
  std::vector<std::vector<float>> x;
  std::vector<work> all;
  for (int i = 0; i < 20; ++i) x.push_back(values<float>(ranks.rank() + i, 1000));
  for (auto& v : x) all.push_back(ranks.all_reduce(v));
  for (std::size_t i = all.size(); i-- > 0;) {
    while (i % 2 && !all[i].is_completed()) {
    }
    all[i].wait();
    CHECK(all[i].exception() == nullptr);
    double sum = 0;
    for (int r = 0; r < ranks.size(); ++r)
      sum += static_cast<double>(value<float>(r + static_cast<int>(i), 5));
    CHECK(x[i][5] == sum);
  }
}

/// Invalid arguments are refused on the rank that passed them, before anything is sent.
inline void refusals(communicator& ranks) {
  std::vector<float> x(5);
  std::vector<double> d(5);
  CHECK_THROWS_AS(ranks.broadcast(x, ranks.size()).wait(), value_error);
  CHECK_THROWS_AS(ranks.all_gather(x, x, rank_counts(static_cast<std::size_t>(ranks.size()) + 1, 1)).wait(),
                  value_error);
  CHECK_THROWS_AS(ranks.all_gather(d, x, rank_counts(static_cast<std::size_t>(ranks.size()), 5)).wait(),
                  value_error);
  CHECK_THROWS_AS(ranks.send(x, ranks.rank()).wait(), value_error);
  CHECK_THROWS_AS(ranks.send(x, ranks.rank() == 0, -1).wait(), value_error);
  std::vector<std::int32_t> i(3);
  CHECK_THROWS_AS(ranks.all_reduce(i, reduction::average).wait(), value_error);
}

template <class Run>
void check_contract(Run run, int n) {
  run(n, [](communicator& ranks) {
    reductions<float>(ranks);
    reductions<double>(ranks);
    reductions<std::int32_t>(ranks);
    reductions<std::int64_t>(ranks);
    reductions<bfloat16>(ranks);
    reductions<float16>(ranks);
    movement<float>(ranks);
    movement<std::uint8_t>(ranks);
    movement<std::int64_t>(ranks);
    messages(ranks);
    messages_of_all_kinds(ranks);
    groups(ranks);
    overlap(ranks);
    refusals(ranks);
  });
}

}  // namespace contract
