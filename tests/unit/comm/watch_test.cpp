// SPDX-License-Identifier: MIT
// Which ranks are gone: the conclusions from the reports of ranks, and the connections that carry the
// reports.
#include <doctest/doctest.h>

#include <poll.h>

#include <weft/comm/operation.hpp>
#include <weft/comm/watch.hpp>

using namespace weft;
using namespace weft::detail;
using namespace std::chrono_literals;

namespace {

rank_wait in_group(const std::string& group, std::int64_t number, std::vector<int> members) {
  return {group, number, std::move(members), "#" + std::to_string(number) + " barrier()"};
}
rank_standing stands(std::map<std::string, std::int64_t> posted, std::optional<rank_wait> waits = {}) {
  return {std::move(posted), std::move(waits), "last"};
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

watch_judge three_ranks() {
  watch_judge j(3);
  for (int r = 0; r < 3; ++r) j.comes(r, 3);
  return j;
}

/// The verdict that a rank is told.
struct listener : watched_group {
  std::mutex mutex;
  std::condition_variable changed;
  std::string told;
  void describe(rank_standing& s) override { s.posted["world"] = 1; }
  void fail(const watch_verdict& v) override {
    const std::lock_guard lock(mutex);
    told = v.text;
    changed.notify_all();
  }
  std::string wait() {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, 60s, [&] { return !told.empty(); });
    return told;
  }
};

/// The next frame of a connection.
std::string next_of(frame_socket& s) {
  for (;;) {
    if (const auto frame = s.next()) return *frame;
    REQUIRE(s.receive());
    std::this_thread::sleep_for(1ms);
  }
}

}  // namespace

TEST_CASE("who waits for whom ends at the rank that waits for nobody") {
  const auto world = [](std::int64_t n) { return in_group("world", n, {0, 1, 2, 3}); };
  const auto pair = in_group("pair", 0, {2, 3});
  // 0 waits only for 2, as 1 has arrived. 2 waits for 3 in another group. 3 computes.
  CHECK(keep_waiting(world(4), 0,
                     {stands({{"world", 5}}, world(4)), stands({{"world", 5}}, world(4)),
                      stands({{"world", 4}, {"pair", 1}}, pair), stands({{"world", 4}})}) == std::vector{3});
  // It has posted in the pair, and not in the world.
  CHECK(keep_waiting(world(4), 0,
                     {stands({{"world", 5}}, world(4)), stands({{"world", 5}}),
                      stands({{"world", 4}, {"pair", 1}}, pair), stands({{"world", 4}, {"pair", 1}})})
            .empty() == false);
  // In a cycle: the ranks that it waits for itself.
  CHECK(keep_waiting(in_group("a", 0, {0, 1}), 0,
                     {stands({{"a", 1}}, in_group("a", 0, {0, 1})), stands({}, in_group("b", 0, {0, 1}))}) ==
        std::vector{1});
  // All have come.
  CHECK(keep_waiting(
            world(4), 0,
            {stands({{"world", 5}}), stands({{"world", 5}}), stands({{"world", 5}}), stands({{"world", 5}})})
            .empty());
  // A group that is being made, and a message.
  CHECK(keep_waiting(in_group("new", rank_wait::connecting, {0, 1}), 0, {stands({{"new", 0}}), stands({})}) ==
        std::vector{1});
  CHECK(keep_waiting(in_group("world", rank_wait::message, {1}), 0, {stands({}), stands({{"world", 7}})}) ==
        std::vector{1});
}

TEST_CASE("standings are what they were after a journey as bytes") {
  const rank_standing s = stands({{"world", 3}, {"world/split0.1", 0}}, in_group("world", 2, {0, 2}));
  frame_writer w;
  write(w, s);
  frame_reader r(w.take());
  const rank_standing t = read_standing(r);
  CHECK(r.at_end());
  CHECK((t.posted == s.posted && t.last == s.last && t.waits && t.waits->members == s.waits->members &&
         t.waits->number == 2 && t.waits->doing == s.waits->doing));
}

TEST_CASE("a connection that is closed without a farewell is a rank that has ended") {
  watch_judge j = three_ranks();
  j.leaves(1);
  j.closes(1);
  CHECK(!j.verdict());
  j.closes(2);
  REQUIRE(j.verdict());
  CHECK(j.verdict()->text == "weft: rank 2 is gone: its process has ended");
  j.closes(0);
  j.gives_up("later");
  CHECK(has(j.verdict()->text, "rank 2"));  // there is one verdict
}

TEST_CASE("who does not answer outranks who computes, and time passes only while the judge is awake") {
  watch_judge j = three_ranks();
  j.is_late(0, in_group("world", 0, {0, 1, 2}), 100);
  CHECK(j.asks());
  j.answers(0, stands({{"world", 1}}, in_group("world", 0, {0, 1, 2})));
  j.answers(1, stands({}));  // has not come either, but lives
  j.passes(999ms);
  CHECK(!j.verdict());
  j.passes(1ms);
  REQUIRE(j.verdict());
  CHECK(j.verdict()->late);
  CHECK(has(j.verdict()->text,
            "rank 0 waited 100 ms in #0 barrier(); not there: rank 2, which does not answer: stopped or cut "
            "off\n"));
  j.leaves(0);
  j.leaves(1);
  CHECK(j.all_have_left());  // no rank stays because of one that does not answer
}

TEST_CASE("nobody stays for a rank that answers and keeps the others waiting") {
  watch_judge j = three_ranks();
  const rank_wait w = in_group("world", 0, {0, 1, 2});
  j.is_late(0, w, 100);
  j.answers(0, stands({{"world", 1}}, w));
  j.answers(2, stands({{"world", 1}}, w));
  j.answers(1, stands({}));
  REQUIRE(j.verdict());
  CHECK(has(j.verdict()->text, "; not there: rank 1\n"));
  j.leaves(2);
  CHECK_FALSE(j.all_have_left());
  j.leaves(0);
  CHECK(j.all_have_left());
}

TEST_CASE("a broken connection: the peer has ended, has left, does not answer, or neither") {
  const rank_wait w = in_group("world", 0, {0, 1, 2});
  watch_judge ended = three_ranks();
  ended.has_lost(0, 2, w);
  ended.closes(2);
  CHECK(has(ended.verdict()->text, "rank 2 is gone: its process has ended"));
  watch_judge left = three_ranks();
  left.has_lost(0, 2, w);
  left.leaves(2);
  CHECK(has(left.verdict()->text, "rank 2 is gone: it has left while rank 0 waits for it in #0 barrier()"));
  watch_judge silent = three_ranks();
  silent.has_lost(0, 1, w);  // 1 closed it for another reason
  silent.answers(0, stands({}));
  silent.answers(1, stands({}));
  silent.passes(2s);
  CHECK(has(silent.verdict()->text, "weft: rank 2 does not answer"));
  watch_judge neither = three_ranks();
  neither.has_lost(0, 2, w);
  for (int r = 0; r < 3; ++r) neither.answers(r, stands({}));
  CHECK(has(neither.verdict()->text,
            "the connection between rank 0 and rank 2 is lost, though both are there"));
}

TEST_CASE("a rank that has not been started is named") {
  watch_judge j(3);
  j.comes(0, 3);
  j.comes(2, 3);
  j.is_late(2, in_group("", rank_wait::connecting, {0, 1, 2}), 50);
  j.answers(0, stands({}));
  j.answers(2, stands({}));
  CHECK(has(j.verdict()->text, "not there: rank 1, which has not been started"));
}

TEST_CASE("strangers at the door of the watch change nothing; one verdict reaches all ranks") {
  memory_store meet;
  std::vector<std::unique_ptr<rank_watch>> watches(3);
  std::vector<listener> groups(3);
  std::vector<std::thread> ranks;
  ranks.emplace_back([&] { watches[0] = std::make_unique<rank_watch>(meet, 0, 3, "127.0.0.1", 60s); });
  frame_reader where(meet.get("watch", 60s));
  where.text();
  const std::string port = where.text();
  CHECK_THROWS_AS(connect_to("127.0.0.2", port, 60s), comm_error);  // it listens on its address alone
  std::vector<frame_socket> strangers;
  const auto come = [](int rank, const std::string& proof) {
    return frame_writer().byte(0).number(rank).text(proof).number(3).take();
  };
  for (const std::string& says : {std::string("x"), std::string(300, 'x'), come(1, std::string(32, '\0')),
                                  come(1, ""), come(-1, ""), come(99, "x"), std::string()}) {
    strangers.emplace_back(connect_to("127.0.0.1", port, 60s));
    strangers.back().send(says);
  }
  for (int i = 0; i < 100; ++i)
    strangers.emplace_back(connect_to("127.0.0.1", port, 60s));  // that say nothing
  for (const int r : {1, 2})
    ranks.emplace_back(
        [&, r] { watches[static_cast<std::size_t>(r)] = std::make_unique<rank_watch>(meet, r, 3, "", 60s); });
  for (std::thread& t : ranks) t.join();
  for (std::size_t r = 0; r < 3; ++r) watches[r]->add(groups[r]);
  watches[1]->report_late(in_group("world", 1, {0, 1, 2}), 10ms);
  const std::string told = groups[1].wait();
  CHECK(has(told, "rank 1 waited 10 ms"));
  for (listener& g : groups) CHECK(g.wait() == told);
  for (std::size_t r : {1u, 2u, 0u}) watches[r]->remove(groups[r]);
  for (std::size_t r : {1u, 2u, 0u}) watches[r].reset();
}

TEST_CASE("ranks that do not come are named by those that do") {
  memory_store meet;
  CHECK_THROWS_WITH_AS(rank_watch(meet, 0, 2, "127.0.0.1", 50ms),
                       doctest::Contains("not there: rank 1, which has not been started"), timeout_error);
  CHECK_THROWS_WITH_AS(rank_watch(meet, 1, 2, "", 50ms), doctest::Contains("rank 0 is not there"),
                       comm_error);
}

TEST_CASE("ranks that were told different sizes say so") {
  const char* const why = "weft: WORLD_SIZE is 2 on rank 0 and 3 on rank 1";
  for (int i = 0; i < 100; ++i) {  // the rank that is told last must not start before
    memory_store meet;
    std::thread first(
        [&] { CHECK_THROWS_WITH_AS(rank_watch(meet, 0, 2, "127.0.0.1", 60s), why, comm_error); });
    CHECK_THROWS_WITH_AS(rank_watch(meet, 1, 3, "", 60s), why, comm_error);
    CHECK_THROWS_WITH_AS(rank_watch(meet, 2, 3, "", 60s), "weft: WORLD_SIZE is 2 on rank 0 and 3 on rank 2",
                         usage_error);
    first.join();
  }
}

TEST_CASE("a process whose rank another process has is refused, at whatever time it comes") {
  memory_store meet;
  std::vector<std::unique_ptr<rank_watch>> watches(2);
  listener groups[2];
  const auto refuses = [&](int rank) {
    CHECK_THROWS_WITH_AS(
        rank_watch(meet, rank, 2, "127.0.0.1", 60s),
        doctest::Contains(("another process of this job is rank " + std::to_string(rank)).c_str()),
        usage_error);
  };
  std::thread first([&] { watches[0] = std::make_unique<rank_watch>(meet, 0, 2, "127.0.0.1", 60s); });
  meet.get("watch", 60s);
  refuses(0);
  watches[1] = std::make_unique<rank_watch>(meet, 1, 2, "", 60s);
  first.join();
  for (const int r : {0, 1}) refuses(r);
  for (std::size_t r : {0u, 1u}) watches[r]->add(groups[r]);
  for (const auto& w : watches) CHECK(!w->verdict());  // the other ranks are not affected
  for (std::size_t r : {1u, 0u}) watches[r]->remove(groups[r]);
  for (std::size_t r : {1u, 0u}) watches[r].reset();
}

TEST_CASE("a rank says who it is before it reports, however late it is asked") {
  memory_store meet;
  int port = 0;
  const descriptor door = listen_on("127.0.0.1", port);
  frame_writer where;
  where.text("127.0.0.1").text(std::to_string(port)).text("secret").number(2);
  meet.set("watch", where.take());
  std::thread late(
      [&] { CHECK_THROWS_WITH_AS(rank_watch(meet, 1, 2, "", 10ms), "the verdict", timeout_error); });
  pollfd knocks{door.number(), POLLIN, 0};
  REQUIRE(::poll(&knocks, 1, 60'000) == 1);
  frame_socket rank_1(descriptor(::accept4(door.number(), nullptr, nullptr, SOCK_CLOEXEC)));
  std::this_thread::sleep_for(100ms);  // it waits in vain, and reports
  rank_1.send(frame_writer().byte(0).text("nonce").take());
  for (const int wanted : {0, 3}) {  // come, late
    std::optional<std::string> said;
    while (!(said = rank_1.next()) && rank_1.receive()) std::this_thread::sleep_for(1ms);
    REQUIRE(said);
    CHECK(frame_reader(*said).byte() == wanted);
  }
  rank_1.send(frame_writer().byte(3).byte(1).text("the verdict").take());
  late.join();
}

TEST_CASE("a rank that comes while others are asked for their standing is asked, too") {
  watch_server server("127.0.0.1", "secret", 3);
  const auto comes = [&](int rank) {
    frame_socket s(connect_to("127.0.0.1", std::to_string(server.port()), 60s));
    frame_reader nonce(next_of(s));
    nonce.byte();
    const std::string proof = watch_proof("secret", nonce.text(), rank);
    s.send(frame_writer().byte(0).number(rank).text(proof).number(3).take());
    return s;
  };
  frame_socket rank_0 = comes(0);
  frame_writer late = frame_writer().byte(static_cast<std::uint8_t>(watch_report::late));
  write(late, in_group("", rank_wait::connecting, {0, 1, 2}));
  rank_0.send(late.number(10).take());
  const auto where_are_you = static_cast<std::uint8_t>(watch_notice::where_are_you);
  CHECK(frame_reader(next_of(rank_0)).byte() == where_are_you);
  frame_socket rank_1 = comes(1);
  CHECK(frame_reader(next_of(rank_1)).byte() == where_are_you);
}

TEST_CASE("a frame larger than the kernel's buffers arrives whole, and so does the next one") {
  int port = 0;
  const descriptor door = listen_on("127.0.0.1", port);
  frame_socket from(connect_to("127.0.0.1", std::to_string(port), 60s));
  frame_socket to(descriptor(::accept4(door.number(), nullptr, nullptr, SOCK_CLOEXEC)));
  std::vector<std::string> sent, arrived;
  for (const std::size_t n : {1'000'000, 8, 1'000'000, 8}) {
    sent.emplace_back(n, 'v');
    from.send(sent.back());
  }
  while (arrived.size() < sent.size()) {
    if (from.events() & POLLOUT) from.flush();
    REQUIRE(to.receive());
    while (const auto frame = to.next()) arrived.push_back(*frame);
  }
  CHECK(arrived == sent);
  CHECK(from.events() == POLLIN);
}

TEST_CASE("what the watch says fits into a frame, whatever ranks do, and whatever the reason") {
  constexpr int ranks = 4096;
  std::vector<float> x(1);
  operation o{.kind = collective::all_gather,
              .in = {x.data(), 1, dtype::f32},
              .out_counts = rank_counts(std::size_t{ranks}),
              .label = std::string(10'000, 'l')};
  for (std::size_t r = 0; r < ranks; ++r) o.out_counts[r] = static_cast<index_t>(1'000'000 + r);
  watch_judge j(ranks);
  rank_wait w{"world", 5, {}, "#5 " + o.text()};
  for (int r = 0; r < ranks; ++r) {
    j.comes(r, ranks);
    w.members.push_back(r);
  }
  j.is_late(0, w, 1000);
  rank_standing s = stands({});
  s.last = w.doing;
  for (int r = 0; r < ranks; ++r) j.answers(r, s);
  REQUIRE(j.verdict());
  CHECK(j.verdict()->text.size() < 1'000'000);

  memory_store meet;
  std::unique_ptr<rank_watch> other;
  std::thread starts([&] { other = std::make_unique<rank_watch>(meet, 1, 2, "", 60s); });
  rank_watch first(meet, 0, 2, "127.0.0.1", 60s);
  starts.join();
  listener here, there;
  first.add(here);
  other->add(there);
  other->give_up("the reason " + std::string(3'000'000, 'r'));
  CHECK(has(here.wait(), "the reason rrr"));
  CHECK(here.told == there.wait());
  other->remove(there);
  first.remove(here);
  other.reset();
}

TEST_CASE("a rank that comes after a failure at the start is told of it") {
  watch_judge j(3);
  j.comes(0, 3);
  j.comes(2, 3);
  j.closes(2);
  j.leaves(0);
  CHECK_FALSE(j.all_have_left());  // rank 1 may still come
  j.comes(1, 3);
  j.leaves(1);
  CHECK(j.all_have_left());

  memory_store meet;
  std::thread first([&] {
    CHECK_THROWS_WITH_AS(rank_watch(meet, 0, 3, "127.0.0.1", 60s),
                         "weft: rank 2 is gone: its process has ended", comm_error);
  });
  {
    frame_reader where(meet.get("watch", 60s));
    const std::string host = where.text(), port = where.text(), secret = where.text();
    frame_socket rank_2(connect_to(host, port, 60s));
    std::optional<std::string> nonce;
    while (!(nonce = rank_2.next()) && rank_2.receive()) std::this_thread::sleep_for(1ms);
    REQUIRE(nonce);
    frame_reader in(*nonce);
    in.byte();
    rank_2.send(frame_writer().byte(0).number(2).text(watch_proof(secret, in.text(), 2)).number(3).take());
  }  // it ends without saying so
  std::this_thread::sleep_for(500ms);
  CHECK_THROWS_WITH_AS(rank_watch(meet, 1, 3, "", 60s), "weft: rank 2 is gone: its process has ended",
                       comm_error);
  first.join();
}
