// SPDX-License-Identifier: MIT
// The server of a TCP store under attack, on loopback: floods of foreign connections, exhausted descriptors
// and memory, clients that stop in the middle, machines that vanish. Bounded in count; takes at most a
// minute. The server runs in a separate process, whose descriptors and memory are checked.
#include <doctest/doctest.h>

#include <sys/resource.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>

#include <weft/comm/tcp_store.hpp>

#include "../skip.hpp"
#include "../unit/comm/raw_client.hpp"

using namespace weft;
using namespace weft::detail;
using namespace std::chrono_literals;

namespace {

/// A server in a child process, until this object is destroyed.
class server_process {
 public:
  explicit server_process(const tcp_store_limits& limits, const std::function<void()>& before = [] {}) {
    int up[2], down[2];
    REQUIRE(::pipe(up) == 0);
    REQUIRE(::pipe(down) == 0);
    std::cout.flush();
    child_ = ::fork();
    if (child_ == 0) {
      ::close(up[0]), ::close(down[1]);
      before();
      int code = 1;
      {
        tcp_store_server server("127.0.0.1", 0, "secret", limits);
        const int port = server.port();
        code = ::write(up[1], &port, sizeof port) != sizeof port;
        char end;
        code |= ::read(down[0], &end, 1) != 0;  // until the parent closes it
      }
      ::_exit(code);
    }
    ::close(up[1]), ::close(down[0]);
    hold_ = down[1];
    REQUIRE(::read(up[0], &port_, sizeof port_) == sizeof port_);
    ::close(up[0]);
  }
  /// Checks that the server is alive, and that it ends when told to.
  ~server_process() {
    ::close(hold_);
    int status = 1;
    ::waitpid(child_, &status, 0);
    CHECK(status == 0);
  }

  int port() const { return port_; }
  tcp_store client() const { return tcp_store("127.0.0.1", port_, "secret", 60s); }
  std::size_t descriptors() const {
    const std::filesystem::directory_iterator all("/proc/" + std::to_string(child_) + "/fd");
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
  }
  std::size_t memory() const {  // bytes in use
    std::ifstream in("/proc/" + std::to_string(child_) + "/statm");
    std::size_t size = 0, resident = 0;
    in >> size >> resident;
    return resident * 4096;
  }
  double cpu_seconds() const {
    std::ifstream in("/proc/" + std::to_string(child_) + "/stat");
    std::string text((std::istreambuf_iterator<char>(in)), {});
    std::istringstream fields(text.substr(text.rfind(')') + 2));
    std::string skipped;
    double user = 0, system = 0;
    for (int i = 0; i < 11; ++i) fields >> skipped;
    fields >> user >> system;
    return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  }

 private:
  pid_t child_;
  int port_ = 0, hold_;
};

/// Connects endlessly and sends nothing, or something, holding a given number of connections at a time.
class flood {
 public:
  flood(int port, std::size_t held, std::string bytes = "") : thread_([=, this](const std::stop_token& stop) {
    std::deque<std::unique_ptr<raw_client>> open;
    while (!stop.stop_requested()) try {
        open.push_back(std::make_unique<raw_client>(port));
        if (!bytes.empty()) open.back()->write(bytes);
        ++made;
        if (open.size() > held) open.pop_front();
      } catch (const std::exception&) {  // the server's queue is full
      }
  }) {}
  std::atomic<std::size_t> made = 0;

 private:
  std::jthread thread_;
};

#if defined(__has_feature)
#define WEFT_TEST_HAS(sanitizer) __has_feature(sanitizer)
#else
#define WEFT_TEST_HAS(sanitizer) 0
#endif
#ifdef __SANITIZE_ADDRESS__
constexpr bool addresses_checked = true;
#else
constexpr bool addresses_checked = WEFT_TEST_HAS(address_sanitizer);
#endif
#ifdef __SANITIZE_THREAD__
constexpr bool threads_checked = true;
#else
constexpr bool threads_checked = WEFT_TEST_HAS(thread_sanitizer);
#endif

void few_descriptors() {
  const rlimit files{64, 64};
  ::setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace

TEST_CASE("a flood of strangers locks nobody out") {
  const server_process server({.clients = 64, .strangers = 32});
  tcp_store early = server.client();
  const flood silent(server.port(), 200), chatty(server.port(), 100, std::string(40, 'x')),
      lying(server.port(), 100, std::string(64, 'x'));
  for (int i = 0; i < 20; ++i) {
    tcp_store late = server.client();
    late.set("key", std::to_string(i));
    CHECK(early.get("key", 60s) == std::to_string(i));
  }
  while (silent.made < 500) std::this_thread::sleep_for(1ms);
  early.set("key", "still");
  CHECK(server.descriptors() < 64 + 32 + 32);
}

TEST_CASE("a server with few descriptors serves under a flood") {
  const server_process server({}, few_descriptors);
  tcp_store early = server.client();
  const flood silent(server.port(), 300);
  while (silent.made < 300) std::this_thread::sleep_for(1ms);
  for (int i = 0; i < 10; ++i) server.client().set("key", std::to_string(i));
  CHECK(early.get("key", 60s) == "9");
}

TEST_CASE("a server without descriptors waits for one, and serves those that it has") {
  if (addresses_checked) return;  // UBSan's type checks, which go with it, need a descriptor
  const server_process server({}, few_descriptors);
  std::deque<tcp_store> members;
  std::deque<raw_client> waiting;
  while (server.descriptors() < 64) members.emplace_back("127.0.0.1", server.port(), "secret");
  for (int i = 0; i < 3; ++i)
    waiting.emplace_back(server.port());  // in the system's queue: the server does not accept them
  members.front().set("key", "here");
  const double before = server.cpu_seconds();
  std::this_thread::sleep_for(2s);
  CHECK(server.cpu_seconds() - before < 0.5);  // a busy loop takes 2
  CHECK(members.back().get("key", 60s) == "here");
  members.pop_front();  // its descriptor serves the first in the queue
  CHECK(waiting.front().read(nonce_bytes).size() == nonce_bytes);
}

TEST_CASE("clients cannot fill the memory") {
  const server_process server({.clients = 300, .bytes = 8 << 20, .request = 1 << 20, .waiting = 1 << 16});
  const std::size_t before = server.memory();
  tcp_store member = server.client();
  std::size_t refused = 0;
  const auto attempt = [&](const auto& f) {
    try {
      f();
    } catch (const value_error&) {
      ++refused;
    }
  };
  const std::string value(900 << 10, 'x');
  for (int i = 0; i < 200; ++i) {
    const std::string key = "key" + std::to_string(i);
    attempt([&] { member.set(key, value); });
    attempt([&] { member.push("queue", value); });
    attempt([&] { member.compare_set("c" + key, "", value); });
  }
  for (int i = 0; i < 100'000; ++i) attempt([&] { member.add("n" + std::to_string(i), 1); });
  CHECK(refused > 0);
  std::deque<raw_client> open;
  for (int i = 0; i < 200;
       ++i) {  // waits for many keys; a long request that stops; unread answers
    open.emplace_back(server.port(), "secret");
    if (i % 2)
      open.back().write_frame(
          raw_request(store_operation::wait).texts(std::vector<std::string>(400, "never")).take());
    else open.back().write(std::string("\0\0\x0f\0", 4) + std::string(100, 'x'));
    for (int n = 0; n < 20; ++n)
      open.back().write_frame(raw_request(store_operation::get).texts({"key0"}).take());
  }
  CHECK(member.get("key0", 60s) == value);
  CHECK(server.descriptors() < 320);
  if (!addresses_checked && !threads_checked) CHECK(server.memory() - before < (64u << 20));

  open.clear();
  for (int i = 0; i < 200; ++i) member.delete_key("key" + std::to_string(i));
  for (int i = 0; i < 100'000; ++i) member.delete_key("n" + std::to_string(i));
  while (member.pop("queue", 0ms)) {}
  member.set("all of it", value);  // there is room again
}

TEST_CASE("clients that stop in the middle are dropped, and what they hold is given back") {
  const server_process server({.bytes = 3 << 20, .request = 2 << 20, .stall = 4s});
  tcp_store member = server.client();
  const std::string value(1500 << 10, 'x');
  raw_client stops(server.port(), "secret");
  CHECK(stops.write(std::string("\0\0\x1e\0", 4) + "x"));  // of 1.9 MiB
  std::string refused;
  while (refused.empty()) try {  // until the server has read that far
      member.set("key", value);
      member.delete_key("key");
    } catch (const value_error& e) {
      refused = e.what();
    }
  CHECK(refused.find("tcp_store_limits::bytes") != std::string::npos);
  CHECK(stops.ended());
  member.set("key", value);

  std::deque<raw_client> deaf;
  for (int i = 0; i < 20; ++i) {
    deaf.emplace_back(server.port(), "secret");
    const int small = 4096;
    ::setsockopt(deaf.back().socket().native_handle(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    for (int n = 0; n < 10; ++n)
      deaf.back().write_frame(raw_request(store_operation::get).texts({"key"}).take());
  }
  CHECK(member.get("key", 60s) == value);
  while (server.descriptors() > 20) std::this_thread::sleep_for(10ms);  // until they are dropped
  member.set("key", value);
}

TEST_CASE("a machine that vanishes makes place") {
  const server_process server({.clients = 2, .probe = 1s});
  tcp_store member = server.client();
  {
    raw_client vanishes(server.port(), "secret");
    vanishes.write_frame(raw_request(store_operation::pop).text("queue").take());
    const int on = 1;  // closes the socket without telling the peer; needs CAP_NET_ADMIN
    if (::setsockopt(vanishes.socket().native_handle(), IPPROTO_TCP, 19 /* TCP_REPAIR */, &on, sizeof on) !=
        0)
      return test::skip("a socket that vanishes", "TCP_REPAIR is not permitted");
  }
  for (bool joined = false; !joined;) try {
      tcp_store next = server.client();
      joined = true;
      next.push("queue", "for nobody that is gone");
      CHECK(member.pop("queue", 60s) == "for nobody that is gone");
    } catch (const comm_error& e) {
      CHECK(std::string(e.what()).find("accepts no more clients") != std::string::npos);
      std::this_thread::sleep_for(50ms);
    }
}
