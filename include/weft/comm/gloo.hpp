// SPDX-License-Identifier: MIT
// Communicator of processes connected over TCP, on Gloo (Debian's libgloo-dev).
//
//   auto store = std::make_shared<tcp_store>(address, port, token);
//   gloo_communicator ranks(store, rank, size);
#pragma once

#include <weft/comm/communicator.hpp>
#include <weft/comm/gloo_collective.hpp>
#include <weft/comm/gloo_message.hpp>
#include <weft/comm/gloo_proof.hpp>
#include <weft/comm/split.hpp>

namespace weft {

/// Communicator of processes connected over TCP by Gloo. All its ranks must construct it, with the same
/// store.
class gloo_communicator : public communicator {
 public:
  /// Connects to the other ranks, found through `s`. Throws comm_error or timeout_error, and usage_error if
  /// this machine does not have the network.
  gloo_communicator(std::shared_ptr<store> s, int rank, int size, const gloo_network& network = {},
                    std::chrono::milliseconds limit = default_timeout)
      : group_(world(*s, rank, size, network, limit)) {}

  const char* name() const override { return "gloo"; }
  int rank() const override { return group_->rank; }
  int size() const override { return group_->size(); }

  void abort(const std::string& reason) override {
    group_->mesh->give_up("weft: rank " + std::to_string(group_->own()) + " gave up: " + reason);
  }
  std::exception_ptr failure() const override { return group_->mesh->failure(); }

 protected:
  /// Ranks only exchange the membership: groups use the existing connections.
  std::shared_ptr<communicator> divide(int color, int key, comm_options o) override {
    detail::split_of_ranks ranks(*this, group_->members, color, key,
                                 rank() == 0 ? group_->mesh->new_group() : 0, std::move(o));
    const std::string name = "/split" + std::to_string(splits_++) + "." + std::to_string(color);
    if (color < 0) return nullptr;
    return std::shared_ptr<communicator>(new gloo_communicator(std::make_shared<detail::gloo_group>(
        group_->mesh, group_->id + name, ranks.number, std::move(ranks.members), ranks.rank)));
  }
  work start(operation o) override {
    const auto limit = o.timeout;
    std::shared_ptr<detail::gloo_operation> posted;
    if (is_message(o.kind)) posted = std::make_shared<detail::gloo_message>(*group_, std::move(o));
    else posted = std::make_shared<detail::gloo_collective>(*group_, std::move(o));
    auto handle = std::make_shared<detail::gloo_state>(group_, posted);  // first, as its buffers need one
    group_->mesh->post(posted);
    return work(std::move(handle), limit);
  }

 private:
  explicit gloo_communicator(std::shared_ptr<detail::gloo_group> group) : group_(std::move(group)) {}

  static std::shared_ptr<detail::gloo_group> world(store& s, int rank, int size, const gloo_network& network,
                                                   std::chrono::milliseconds limit) {
    const auto device = detail::device_on(network);
    const auto watch =
        std::make_shared<detail::rank_watch>(s, rank, size, detail::address_on(network), limit);
    const auto mesh = std::make_shared<detail::gloo_mesh>(s, watch, rank, size, device, limit);
    const auto proof = std::make_shared<detail::gloo_proof>(network.token, rank);
    mesh->at_start(limit, [&] { proof->exchange_nonces(s, *mesh, limit); });
    const auto world =
        std::make_shared<detail::gloo_group>(mesh, "world", 0, mesh->connecting().members, rank);
    mesh->post(proof);
    detail::gloo_state all_prove(world, proof);
    all_prove.wait(limit);
    if (const auto failed = all_prove.failure()) std::rethrow_exception(failed);
    return world;
  }

  std::shared_ptr<detail::gloo_group> group_;
  int splits_ = 0;
};

}  // namespace weft
