// SPDX-License-Identifier: MIT
// Fuzz target for requests to a TCP store: any bytes are answered once or end their connection, limits hold,
// and nothing remains when all keys are deleted, all queues empty and all clients gone. The input repeats: a
// byte that selects the client and whether it leaves, a length byte, and that many bytes.
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include <weft/comm/store_table.hpp>

namespace {

using namespace weft::detail;

void check(bool good) {
  if (!good) __builtin_trap();
}

/// The clients' connections, with the requests that have no answer yet.
struct clients {
  store_table& server;
  std::map<std::uint64_t, std::set<std::int64_t>> open{};

  void ask(std::uint64_t client, const std::string& bytes) {
    const std::optional<store_request> q = parse_store_request(bytes);
    if (q && q->what != store_operation::withdraw) open[client].insert(q->number);
    for (const store_reply& reply : server.handle(client, bytes)) {
      if (!reply.head) {
        leave(reply.client);
        continue;
      }
      frame_reader r(*reply.head + (reply.body ? reply.body->bytes : ""));
      open[reply.client].erase(r.number());
      check(r.byte() <= static_cast<std::uint8_t>(store_status::absent));
      r.text();
      check(r.at_end() && r.good());
    }
    check(server.waiters() <= 4);
    for (const auto& [c, numbers] : open) check(numbers.size() <= 1);  // the request that waits
  }
  void leave(std::uint64_t client) {
    server.forget(client);
    open.erase(client);
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const weft::tcp_store_limits limits{.bytes = 2000, .waiting = 1000};
  store_table server(limits);
  clients all{server};
  std::set<std::string> names;
  for (std::size_t at = 0; at + 2 <= size;) {
    const std::uint64_t client = data[at] % 4;
    const bool leaves = data[at] >= 224;
    const std::size_t n = std::min<std::size_t>(data[at + 1], size - at - 2);
    const std::string bytes(reinterpret_cast<const char*>(data + at + 2), n);
    if (const auto q = parse_store_request(bytes))
      for (const std::string& text : q->texts) names.insert(text);
    leaves ? all.leave(client) : all.ask(client, bytes);
    check(server.memory().used() <= limits.bytes);
    check(server.waiting_bytes() <= limits.waiting);
    at += 2 + n;
  }
  for (std::uint64_t client = 0; client < 4; ++client) all.leave(client);
  check(server.waiters() == 0 && server.waiting_bytes() == 0);
  const auto request = [](store_operation what, const std::string& name) {
    return frame_writer().number(1).byte(static_cast<std::uint8_t>(what)).text(name).take();
  };
  for (const std::string& name : names) {
    server.handle(9, request(store_operation::delete_key, name));
    while (server.handle(9, request(store_operation::pop, name)).size() == 1) {}
    server.forget(9);
  }
  check(server.memory().used() == 0);
  return 0;
}
