// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <thread>

#include <weft/comm/tcp_store.hpp>

#include "raw_client.hpp"
#include "store_contract.hpp"

using namespace weft;
using namespace std::chrono_literals;

namespace {

std::string hex(const digest& d) {
  std::string t;
  for (std::uint8_t b : d) {
    t += "0123456789abcdef"[b >> 4];
    t += "0123456789abcdef"[b & 15];
  }
  return t;
}

}  // namespace

TEST_CASE("SHA-256 and HMAC: the vectors of FIPS 180-4 and RFC 4231") {
  CHECK(hex(sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hex(hmac_sha256("Jefe", "what do ya want for nothing?")) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(
      hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")) ==
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("store over TCP") {
  tcp_store_server server("127.0.0.1", 0, "secret");
  tcp_store here("127.0.0.1", server.port(), "secret"), there("127.0.0.1", server.port(), "secret");
  check_contract(here, there);
  CHECK_THROWS_WITH_AS(here.get("late", 20ms), "weft: store: nobody has set late within 20 ms",
                       timeout_error);
  there.set("late", "x");
  there.set("other", "y");
  CHECK(here.get("other", 60s) == "y");  // not the answer that came too late
}

TEST_CASE("who does not know the token is refused, both ways") {
  tcp_store_server server("127.0.0.1", 0, "secret");
  CHECK_THROWS_WITH_AS(tcp_store("127.0.0.1", server.port(), "guess"),
                       doctest::Contains("refuses this rank: is WEFT_JOB_TOKEN"), comm_error);
  CHECK_THROWS_AS(tcp_store("127.0.0.1", server.port(), ""), comm_error);
  CHECK_THROWS_WITH_AS(tcp_store_server("0.0.0.0", 0, ""), doctest::Contains("needs a token"), usage_error);
  CHECK_THROWS_WITH_AS(tcp_store("127.0.0.1", 1, "", 50ms),
                       doctest::Contains("nobody answers at 127.0.0.1:1"), timeout_error);
  CHECK_THROWS_WITH_AS(tcp_store_server("127.0.0.1", server.port(), "x"), doctest::Contains("cannot listen"),
                       usage_error);
}

TEST_CASE("what was sent to prove the token proves nothing on another connection, or to the other side") {
  tcp_store_server server("127.0.0.1", 0, "secret");
  const std::string mine(detail::nonce_bytes, 'n');
  raw_client member(server.port());
  const std::string theirs = member.read(detail::nonce_bytes),
                    recorded = mine + detail::proof("secret", "client", theirs + mine);
  member.write(recorded);
  const std::string answer = member.read(detail::proof_bytes);
  CHECK(answer == detail::proof("secret", "server", theirs + mine));
  raw_client replays(server.port()), reflects(server.port());
  CHECK(replays.read(detail::nonce_bytes) != theirs);
  replays.write(recorded);
  CHECK(replays.read(detail::proof_bytes) == detail::refused_token);
  const std::string again = reflects.read(detail::nonce_bytes);
  reflects.write(mine + detail::proof("secret", "server", again + mine));
  CHECK(reflects.read(detail::proof_bytes) == detail::refused_token);
}

TEST_CASE("a server listens on its address alone") {
  tcp_store_server server("127.0.0.1", 0, "secret");
  CHECK_THROWS_WITH_AS(tcp_store("127.0.0.2", server.port(), "secret", 50ms),
                       doctest::Contains("nobody answers at 127.0.0.2"), timeout_error);
}

TEST_CASE("malformed and hostile bytes end a connection and nothing else") {
  tcp_store_server server("127.0.0.1", 0, "secret", {.clients = 8}),
      impatient("127.0.0.1", 0, "secret", {.handshake = 1s});
  raw_client liar(server.port());
  CHECK(liar.write(std::string(64, 'x')));
  CHECK(liar.read(96).substr(32) == detail::refused_token);  // a challenge, then no proof
  CHECK(raw_client(impatient.port()).read(64).size() == 32);  // silence: dropped after the handshake's limit
  raw_client member(server.port(), "secret");
  CHECK(member.write_frame("no request"));
  CHECK(member.ended());
  tcp_store store("127.0.0.1", server.port(), "secret");
  store.set("still", "here");
  CHECK(store.get("still") == "here");
  CHECK_THROWS_AS(store.set("k", std::string(17 << 20, 'x')), value_error);
  CHECK(store.get("still") == "here");
}

TEST_CASE("what is over a limit is refused by name, and the connection goes on") {
  tcp_store_server server("127.0.0.1", 0, "secret", {.clients = 3, .bytes = 3 << 20, .request = 2 << 20});
  tcp_store store("127.0.0.1", server.port(), "secret");
  CHECK_THROWS_WITH_AS(
      store.set("big", std::string(3 << 20, 'x')),
      "weft: store: set big: 3145748 bytes, and a request has at most 2097152 (tcp_store_limits::request)",
      value_error);
  store.set("a", std::string(1 << 20, 'x'));
  CHECK_THROWS_WITH_AS(store.push("b", std::string((2 << 20) - 100, 'y')),
                       doctest::Contains("weft: store: push b: 2097070 bytes do not fit: 1048705 of 3145728 "
                                         "are in use (tcp_store_limits::bytes)"),
                       value_error);
  for (int i = 0; i < 300; ++i)
    store.set("b", std::string(1 << 19, static_cast<char>(i)));  // what is replaced is given back
  CHECK(store.get("a").size() == 1 << 20);
  CHECK(store.delete_key("a"));
  store.set("a", std::string((1 << 20) + 1, 'z'));

  tcp_store second("127.0.0.1", server.port(), "secret");
  auto third = std::make_unique<tcp_store>("127.0.0.1", server.port(), "secret");
  CHECK_THROWS_WITH_AS(tcp_store("127.0.0.1", server.port(), "secret"),
                       doctest::Contains("accepts no more clients (tcp_store_limits::clients)"), comm_error);
  third.reset();
  for (;;) try {  // when the server has seen that it is gone
      tcp_store fourth("127.0.0.1", server.port(), "secret");
      break;
    } catch (const comm_error&) {
    }
}

TEST_CASE("a connection that is lost stays lost") {
  auto server = std::make_unique<tcp_store_server>("127.0.0.1", 0, "secret");
  tcp_store store("127.0.0.1", server->port(), "secret");
  server.reset();
  for (int i = 0; i < 2; ++i)
    CHECK_THROWS_WITH_AS(store.set("k", "v"), doctest::Contains("is lost"), comm_error);
  CHECK_THROWS_AS(store.pop("q"), comm_error);
}

TEST_CASE("a server that dies is an error for those who wait") {
  auto server = std::make_unique<tcp_store_server>("127.0.0.1", 0, "secret");
  tcp_store store("127.0.0.1", server->port(), "secret");
  std::thread killer([&] {
    std::this_thread::sleep_for(50ms);
    server.reset();
  });
  CHECK_THROWS_WITH_AS(store.get("never", 60s), doctest::Contains("is lost"), comm_error);
  killer.join();
}

TEST_CASE("a thousand clients") {
  tcp_store_server server("127.0.0.1", 0, "secret");
  std::vector<std::unique_ptr<tcp_store>> clients;
  for (int i = 0; i < 1000; ++i)
    clients.push_back(std::make_unique<tcp_store>("127.0.0.1", server.port(), "secret"));
  for (auto& c : clients) c->add("count", 1);
  CHECK(clients[0]->get("count") == "1000");
}
