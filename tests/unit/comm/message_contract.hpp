// SPDX-License-Identifier: MIT
// The contract of all communicators for messages: each queue of (sender, receiver, tag) progresses
// independently, even while collectives are in flight, and so does each group. contract.hpp calls this on
// each rank.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <weft/comm/communicator.hpp>

namespace contract {

using namespace weft;

/// Longest wait of these tests: a message that never comes fails a test instead of blocking it forever.
inline comm_options soon() { return {.timeout = std::chrono::seconds(60)}; }

inline std::vector<float> letter(int rank, int number, std::size_t count) {
  std::vector<float> v(count);
  std::iota(v.begin(), v.end(), static_cast<float>(1000 * rank + number));
  return v;
}

constexpr std::size_t copied = 100,  // floats: a message that threads and MPI copy
    above_64k = 50'000,              // a message that they hand over in place
    above_1m = 400'000;

/// A receive that is posted first is answered last, on both sides; later operations progress meanwhile.
inline void early_receives(communicator& ranks) {
  const int n = ranks.size(), own = ranks.rank(), after = (own + 1) % n, before = (own + n - 1) % n;
  for (const std::size_t count : {copied, above_64k, above_1m}) {
    std::vector<float> late(count), soon_here(count);
    const work last = ranks.receive(late, before, 9, soon());
    const auto x = letter(own, 1, count), y = letter(own, 2, count);
    const work sent = ranks.send(x, after, 1, soon());
    const work received = ranks.receive(soon_here, before, 1, soon());
    sent.wait();
    received.wait();
    CHECK(soon_here == letter(before, 1, count));
    CHECK(!last.is_completed());  // no rank sends before all have arrived
    ranks.barrier(soon()).wait();
    ranks.send(y, after, 9, soon()).wait();
    last.wait();
    CHECK(late == letter(before, 2, count));
  }
}

/// Both sides of each pair send before they receive, and wait for the send first.
inline void crossing_sends(communicator& ranks) {
  const int n = ranks.size(), own = ranks.rank();
  for (const std::size_t count : {copied, above_64k, above_1m}) {
    std::vector<std::vector<float>> out, in;
    std::vector<work> sends, receives;
    for (int r = 0; r < n; ++r) {
      out.push_back(letter(own, r, count));
      in.emplace_back(count);
    }
    for (int r = 0; r < n; ++r)
      if (r != own) sends.push_back(ranks.send(out[static_cast<std::size_t>(r)], r, 4, soon()));
    for (int r = 0; r < n; ++r)
      if (r != own) receives.push_back(ranks.receive(in[static_cast<std::size_t>(r)], r, 4, soon()));
    for (const auto* all : {&sends, &receives})
      for (const work& w : *all) w.wait();
    for (int r = 0; r < n; ++r)
      if (r != own) CHECK(in[static_cast<std::size_t>(r)] == letter(r, own, count));
  }
}

/// Each side posts tags, and waits for them, in its own order; messages of a tag arrive in order.
inline void many_tags(communicator& ranks) {
  const int n = ranks.size(), own = ranks.rank(), after = (own + 1) % n, before = (own + n - 1) % n;
  constexpr std::size_t tags = 24, each = 3;
  const auto size_of_letter = [](std::size_t i) { return i % 5 == 0 ? above_64k : 1 + i; };
  std::vector<std::vector<float>> out, in;
  for (std::size_t i = 0; i < tags * each; ++i) {
    out.push_back(letter(own, static_cast<int>(i), size_of_letter(i)));
    in.emplace_back(size_of_letter(i));
  }
  std::vector<work> receives(tags * each), sends(tags * each);
  for (std::size_t k = 0; k < each; ++k)
    for (std::size_t t = 0; t < tags; ++t) {
      const std::size_t tag = t * 7 % tags, i = each * tag + k;
      receives[i] = ranks.receive(in[i], before, static_cast<int>(tag), soon());
    }
  for (std::size_t t = tags; t-- > 0;)
    for (std::size_t k = 0; k < each; ++k)
      sends[each * t + k] = ranks.send(out[each * t + k], after, static_cast<int>(t), soon());
  for (std::size_t t = 0; t < tags; ++t)
    for (std::size_t k = each; k-- > 0;) receives[each * (t * 11 % tags) + k].wait();
  for (const work& w : sends) w.wait();
  for (std::size_t i = 0; i < tags * each; ++i)
    CHECK(in[i] == letter(before, static_cast<int>(i), size_of_letter(i)));
}

/// Messages of one tag in quick succession, which arrive at any time while the receiver polls.
inline void bursts(communicator& ranks) {
  const int n = ranks.size(), own = ranks.rank(), after = (own + 1) % n, before = (own + n - 1) % n;
  bool in_order = true;
  for (int round = 0; round < 300; ++round) {
    float out[4], in[4] = {};
    std::vector<work> all;
    for (float& x : in) all.push_back(ranks.receive(elements(&x, 1, dtype::f32), before, 2, soon()));
    for (int i = 0; i < 4; ++i) {
      out[i] = static_cast<float>(10 * round + i);
      all.push_back(ranks.send(const_elements(&out[i], 1, dtype::f32), after, 2, soon()));
    }
    for (int polls = 0; polls < 1000 && !all[3].is_completed(); ++polls) {
    }
    for (const work& w : all) w.wait();
    for (int i = 0; i < 4; ++i) in_order = in_order && in[i] == static_cast<float>(10 * round + i);
  }
  CHECK(in_order);
}

/// Rank 0 has posted receives from all other ranks, which send one after the other, the last first.
inline void receives_of_all(communicator& ranks) {
  const int n = ranks.size(), own = ranks.rank();
  for (const std::size_t count : {copied, above_1m}) {
    if (own == 0) {
      std::vector<std::vector<float>> in(static_cast<std::size_t>(n), std::vector<float>(count));
      std::vector<work> receives(static_cast<std::size_t>(n));
      for (int r = 1; r < n; ++r)
        receives[static_cast<std::size_t>(r)] = ranks.receive(in[static_cast<std::size_t>(r)], r, 0, soon());
      for (int r = n - 1; r > 0; --r) {
        ranks.send(std::vector<float>{1}, r, 1, soon()).wait();  // now it sends
        receives[static_cast<std::size_t>(r)].wait();
        CHECK(in[static_cast<std::size_t>(r)] == letter(r, 3, count));
      }
    } else {
      std::vector<float> now(1);
      ranks.receive(now, 0, 1, soon()).wait();
      ranks.send(letter(own, 3, count), 0, 0, soon()).wait();
    }
  }
}

/// Messages that are posted before collectives and answered after them, and the other way round.
inline void messages_beside_collectives(communicator& ranks) {
  const int n = ranks.size(), own = ranks.rank(), after = (own + 1) % n, before = (own + n - 1) % n;
  for (const std::size_t count : {copied, above_1m}) {
    std::vector<float> in(count), sum(count, 1.0f), more(count, 2.0f);
    const work received = ranks.receive(in, before, 5, soon());
    ranks.all_reduce(sum, reduction::sum, soon()).wait();
    CHECK(sum[count - 1] == static_cast<float>(n));
    const auto x = letter(own, 6, count);
    const work reduced = own % 2 ? ranks.all_reduce(more, reduction::sum, soon()) : work();
    const work sent = ranks.send(x, after, 5, soon());
    received.wait();
    CHECK(in == letter(before, 6, count));
    if (own % 2 == 0) ranks.all_reduce(more, reduction::sum, soon()).wait();
    reduced.wait();
    sent.wait();
    CHECK(more[0] == static_cast<float>(2 * n));
  }
}

/// A wait in one group progresses the other groups, in any order; equal tags in different groups do not
/// match.
inline void groups_side_by_side(communicator& ranks) {
  const int n = ranks.size(), own = ranks.rank(), after = (own + 1) % n, before = (own + n - 1) % n;
  const auto one = ranks.split(0), two = ranks.split(0);
  std::vector<float> x(above_64k, 1.0f), y(above_64k, 2.0f);
  communicator &first = own % 2 ? *two : *one, &second = own % 2 ? *one : *two;
  const work in_first = first.all_reduce(own % 2 ? y : x, reduction::sum, soon());
  const work in_second = second.all_reduce(own % 2 ? x : y, reduction::sum, soon());
  in_first
      .wait();  // even ranks wait in `one`, odd ranks in `two`: each needs what the other does not wait for
  in_second.wait();
  CHECK(x[above_64k - 1] == static_cast<float>(n));
  CHECK(y[0] == static_cast<float>(2 * n));
  std::vector<float> from_one(above_64k), from_two(above_64k);
  const auto a = letter(own, 1, above_64k), b = letter(own, 2, above_64k);
  const work r1 = one->receive(from_one, before, 7, soon()), r2 = two->receive(from_two, before, 7, soon());
  const work s2 = two->send(b, after, 7, soon()), s1 = one->send(a, after, 7, soon());
  for (const work* w : {&s1, &s2, &r1, &r2}) w->wait();
  CHECK(from_one == letter(before, 1, above_64k));
  CHECK(from_two == letter(before, 2, above_64k));
}

inline void messages_of_all_kinds(communicator& ranks) {
  if (ranks.size() == 1) return;
  early_receives(ranks);
  crossing_sends(ranks);
  many_tags(ranks);
  bursts(ranks);
  receives_of_all(ranks);
  messages_beside_collectives(ranks);
  groups_side_by_side(ranks);
}

/// The error on a rank after a mismatched message from rank 0 to rank 1, in a group in reverse order. `how`:
/// 0: it is shorter than expected, 1: longer, 2: of another type. The communicator is unusable afterwards.
inline std::string wrong_message(communicator& ranks, int how) {
  std::vector<float> sent(above_64k), received(how == 0 ? above_64k + 1 : above_64k - 1);
  std::vector<std::int32_t> integers(above_64k);
  const int sender = ranks.size() - 1, receiver = sender - 1;  // of the group: ranks 0 and 1 of the world
  try {  // a rank that is still in the split gets the error there
    const auto reversed = ranks.split(0, -ranks.rank());
    if (reversed->rank() == sender) reversed->send(sent, receiver, 17, soon()).wait();
    if (reversed->rank() == receiver)
      reversed->receive(how == 2 ? elements(integers) : elements(received), sender, 17, soon()).wait();
    ranks.barrier(soon()).wait();
  } catch (const comm_error& e) { return e.what(); }
  return "";
}
/// What the error's text must contain.
inline std::vector<std::string> wrong_message_says(int ranks, int how) {
  const std::string sender = std::to_string(ranks - 1), receiver = std::to_string(ranks - 2);
  const char* const expected[] = {"f32 x 50001", "f32 x 49999", "i32 x 50000"};
  return {"weft: rank 0 called send(f32 x 50000, to " + receiver + ", tag 17)",
          "but rank 1 called receive(" + std::string(expected[how]) + ", from " + sender + ", tag 17)"};
}

/// The error on a rank after an all_to_all in which rank 0 sends less to rank 1 than rank 1 expects. The
/// communicator is unusable afterwards.
inline std::string wrong_part(communicator& ranks) {
  const int n = ranks.size(), own = ranks.rank();
  rank_counts sent(static_cast<std::size_t>(n), 3), expected = sent;
  if (own == 0) sent[1] = 2;
  const std::vector<float> out(static_cast<std::size_t>(3 * n - (own == 0)));
  std::vector<float> in(static_cast<std::size_t>(3 * n));
  try {
    ranks.all_to_all(out, in, sent, expected, soon()).wait();
    ranks.barrier(soon()).wait();
  } catch (const comm_error& e) {
    std::fill(in.begin(), in.end(), 7.0f);  // the buffer belongs to the caller again
    for (int i = 0; i < 100; ++i, std::this_thread::sleep_for(std::chrono::milliseconds(1))) ranks.failure();
    return in == std::vector<float>(in.size(), 7.0f) ? e.what() : "received after the failure";
  }
  return "";
}
inline constexpr const char* wrong_part_says =
    "weft: all_to_all: rank 0 sends 2 elements to rank 1, which expects 3";

}  // namespace contract
