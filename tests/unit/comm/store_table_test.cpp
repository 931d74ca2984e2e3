// SPDX-License-Identifier: MIT
// The server of a TCP store without sockets: every resource is counted, and released.
#include <doctest/doctest.h>

#include <weft/comm/store_table.hpp>

using namespace weft;
using namespace weft::detail;

namespace {

frame_writer request(store_operation what) {
  frame_writer w;
  w.number(7).byte(static_cast<std::uint8_t>(what));
  return w;
}
std::string set(const std::string& key, const std::string& value) {
  return request(store_operation::set).text(key).text(value).take();
}
std::string push(const std::string& key, const std::string& value) {
  return request(store_operation::push).text(key).text(value).take();
}
std::string compare_set(const std::string& key, const std::string& from, const std::string& to) {
  return request(store_operation::compare_set).text(key).text(from).text(to).take();
}
std::string add(const std::string& key, std::int64_t n) {
  return request(store_operation::add).text(key).number(n).take();
}
std::string delete_key(const std::string& key) {
  return request(store_operation::delete_key).text(key).take();
}
std::string pop(const std::string& queue) { return request(store_operation::pop).text(queue).take(); }
std::string wait(const std::vector<std::string>& keys) {
  return request(store_operation::wait).texts(keys).take();
}

/// The status and text of the single answer.
std::pair<store_status, std::string> answer(const std::vector<store_reply>& replies) {
  REQUIRE(replies.size() == 1);
  REQUIRE(replies[0].head);
  frame_reader r(*replies[0].head + (replies[0].body ? replies[0].body->bytes : ""));
  r.number();
  const auto status = static_cast<store_status>(r.byte());
  const std::string text = r.text();
  CHECK(r.at_end());
  return {status, text};
}
bool good(const std::vector<store_reply>& replies) { return answer(replies).first == store_status::ok; }

constexpr std::size_t overhead = tcp_store_limits::overhead;

}  // namespace

TEST_CASE("what a store holds is counted, whatever put it there, and given back when it goes") {
  store_table t({.bytes = 1000});
  const std::string value(300, 'x');
  for (int i = 0; i < 300; ++i) CHECK(good(t.handle(1, set("k", value))));  // one key, again and again
  CHECK(t.memory().used() == 1 + 300 + overhead);
  CHECK(good(t.handle(1, compare_set("c", "", value))));
  CHECK(t.memory().used() == 2 * (1 + 300 + overhead));
  for (const std::string& r :
       {compare_set("d", "", value), set("d", value), push("d", value), set("k", std::string(800, 'x'))}) {
    const auto [status, text] = answer(t.handle(1, r));
    CHECK(status == store_status::wrong);
    CHECK(text.find(" of 1000 are in use (tcp_store_limits::bytes)") != text.npos);
  }
  CHECK(good(t.handle(1, set("k", std::string(400, 'y')))));  // the replaced value makes room for it
  CHECK(good(t.handle(1, delete_key("k"))));
  CHECK(good(t.handle(1, add("n", 5))));
  CHECK(good(t.handle(1, push("q", "1"))));
  CHECK(t.memory().used() == 1 + 300 + overhead + 2 * (1 + 1 + overhead));
  CHECK(good(t.handle(1, set("f", std::string(180, 'f')))));
  CHECK_FALSE(good(t.handle(1, add("m", 1))));  // sums count, too
  CHECK(good(t.handle(1, delete_key("f"))));
  CHECK(answer(t.handle(1, pop("q"))).second == "1");
  for (const char* key : {"c", "n"}) CHECK(good(t.handle(1, delete_key(key))));
  CHECK(t.memory().used() == 0);
}

TEST_CASE("refusals name the operation, the key and the size") {
  store_table t({.bytes = 100, .waiting = 200});
  CHECK(
      answer(t.handle(1, set("rank0/address", std::string(50, 'x')))).second ==
      "weft: store: set rank0/address: 191 bytes do not fit: 0 of 100 are in use (tcp_store_limits::bytes)");
  CHECK(answer(t.handle(1, wait({"a", "b"}))).second ==
        "weft: store: wait a: 258 bytes do not fit: 0 of 200 are in use (tcp_store_limits::waiting)");
}

TEST_CASE("a value that is on its way counts until it has arrived") {
  store_table t;
  CHECK(good(t.handle(1, set("k", "value"))));
  std::vector<store_reply> on_its_way = t.handle(2, request(store_operation::get).texts({"k"}).take());
  CHECK(good(t.handle(1, delete_key("k"))));
  CHECK(t.memory().used() == 1 + 5 + overhead);
  on_its_way.clear();
  CHECK(t.memory().used() == 0);
}

TEST_CASE("a client waits for one thing at most, and for nothing when it is gone") {
  store_table t;
  for (int i = 0; i < 1000; ++i) {
    const auto replies = t.handle(1, pop("q"));
    CHECK(replies.size() == (i ? 1 : 0));  // the one before is answered: late
    if (i) CHECK(answer(replies).first == store_status::late);
  }
  CHECK(t.waiters() == 1);
  CHECK(t.waiting_bytes() == 1 + overhead);
  CHECK(t.handle(2, wait({"a", "b"})).empty());
  t.forget(1);
  t.forget(2);
  t.forget(3);
  CHECK(t.waiters() == 0);
  CHECK(t.waiting_bytes() == 0);
  CHECK(good(t.handle(3, push("q", "1"))));  // for nobody: it stays
  CHECK(answer(t.handle(1, pop("q"))).second == "1");
}

TEST_CASE("who waits for several keys is answered when all are there at once") {
  store_table t;
  CHECK(good(t.handle(1, set("b", ""))));
  CHECK(t.handle(2, wait({"a", "b", "c"})).empty());
  CHECK(good(t.handle(1, set("a", ""))));
  CHECK(good(t.handle(1, delete_key("a"))));
  CHECK(good(t.handle(1, set("c", ""))));
  CHECK(t.waiters() == 1);
  const auto replies = t.handle(1, set("a", ""));
  REQUIRE(replies.size() == 2);
  CHECK(replies[0].client == 1);
  CHECK(replies[1].client == 2);
}

TEST_CASE("a queue serves in the order in which clients came") {
  store_table t;
  CHECK(t.handle(2, pop("q")).empty());
  CHECK(t.handle(3, pop("q")).empty());
  CHECK(t.handle(1, push("q", "x"))[1].client == 2);
  CHECK(t.handle(2, pop("q")).empty());
  CHECK(t.handle(1, push("q", "y"))[1].client == 3);
  t.forget(2);
  CHECK(t.handle(1, push("q", "z")).size() == 1);
}

TEST_CASE("bytes that are no request end the connection") {
  store_table t;
  for (const std::string& bytes :
       {std::string(), std::string(9, '\xff'), request(store_operation::wait).texts({}).take(),
        set("k", "v") + "x", request(store_operation::get).length(1u << 30).take()}) {
    const auto replies = t.handle(1, bytes);
    REQUIRE(replies.size() == 1);
    CHECK_FALSE(replies[0].head);
  }
  CHECK(t.memory().used() == 0);
}
