// SPDX-License-Identifier: MIT
// The ranks described by the environment variables of a launcher, over TCP. Rank 0 serves the store through
// which all ranks connect.
//
//   gloo_world world(launch_from_environment());
//   communicator& ranks = world.ranks();
#pragma once

#include <weft/comm/environment.hpp>
#include <weft/comm/gloo.hpp>
#include <weft/comm/tcp_store.hpp>

namespace weft {

/// The communicator of a process started by a launcher such as torchrun, with the store and, on rank 0, the
/// server that it needs.
class gloo_world {
 public:
  /// Uses MASTER_ADDR, MASTER_PORT, WEFT_JOB_TOKEN and GLOO_SOCKET_IFNAME. Without GLOO_SOCKET_IFNAME, ranks
  /// use the network on which they reach MASTER_ADDR. Throws usage_error if rank 0 cannot listen at that
  /// address, if there is no such interface, or if MASTER_ADDR or MASTER_PORT is not set and there is more
  /// than one rank.
  explicit gloo_world(const launch& me, std::chrono::milliseconds limit = default_timeout,
                      const variable_lookup& look_up = [](const char* n) { return std::getenv(n); }) {
    const auto text = [&](const char* name) { return std::string(look_up(name) ? look_up(name) : ""); };
    gloo_network network{.interface = text("GLOO_SOCKET_IFNAME")};
    if (me.size == 1) {
      store_ = std::make_shared<memory_store>();
    } else {
      if (me.address.empty() || me.port == 0)
        throw usage_error("weft: gloo: MASTER_ADDR and MASTER_PORT must be set to where rank 0 listens");
      const std::string token = text("WEFT_JOB_TOKEN");
      if (me.rank == 0) server_ = std::make_unique<tcp_store_server>(me.address, me.port, token);
      const auto client = connect(me, token, limit);
      network.address = client->local_address();
      network.token = token;
      store_ = client;
    }
    ranks_ = std::make_unique<gloo_communicator>(store_, me.rank, me.size, network, limit);
  }
  gloo_world(const gloo_world&) = delete;
  gloo_world& operator=(const gloo_world&) = delete;

  communicator& ranks() { return *ranks_; }

 private:
  static std::shared_ptr<tcp_store> connect(const launch& me, const std::string& token,
                                            std::chrono::milliseconds limit) {
    try {
      return std::make_shared<tcp_store>(me.address, me.port, token, limit);
    } catch (const timeout_error& e) {
      throw timeout_error(std::string("weft: rank 0, which serves the store: ") + e.what());
    } catch (const comm_error& e) {
      throw comm_error(std::string("weft: rank 0, which serves the store: ") + e.what());
    }
  }

  std::unique_ptr<tcp_store_server> server_;
  std::shared_ptr<store> store_;
  std::unique_ptr<gloo_communicator> ranks_;
};

}  // namespace weft
