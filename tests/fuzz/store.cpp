// SPDX-License-Identifier: MIT
// Requests to a TCP store made of arbitrary bytes: every one is answered or ends its connection,
// and none is answered twice. Frames of the input: a length byte and so many bytes.
#include <cstdint>
#include <map>

#include <weft/comm/store_protocol.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft::detail;
  store_server_state server;
  std::map<std::uint64_t, int> open;  // requests of each client that have no answer
  std::uint64_t client = 0;
  for (std::size_t at = 0; at < size;) {
    const std::size_t n = std::min<std::size_t>(data[at], size - at - 1);
    ++at;
    client = (client + 1) % 3;
    ++open[client];
    for (const auto& reply : server.handle(client, std::string(reinterpret_cast<const char*>(data + at), n))) {
      if (--open[reply.client] < 0) __builtin_trap();
      if (reply.bytes) {
        frame_reader r(*reply.bytes);
        r.number();
        r.byte();
        r.text();
        if (!r.at_end()) __builtin_trap();
      } else {
        server.forget(reply.client);
        open[reply.client] = 0;
      }
    }
    at += n;
  }
  return 0;
}
