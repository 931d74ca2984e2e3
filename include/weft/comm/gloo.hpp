// SPDX-License-Identifier: MIT
// Ranks as plain processes over TCP, on Gloo's connections (Debian's libgloo-dev).
//
//   auto store = std::make_shared<tcp_store>(address, port, token);
//   gloo_communicator ranks(store, rank, size);
#pragma once

#include <numeric>

#include <weft/comm/gloo_group.hpp>

namespace weft {

class gloo_communicator : public communicator {
 public:
  /// Meets the others in `s`. Throws comm_error or timeout_error.
  gloo_communicator(std::shared_ptr<store> s, int rank, int size, const gloo_network& network = {},
                    std::chrono::milliseconds limit = default_timeout)
      : group_(world(std::move(s), rank, size, network, limit)) {}
  explicit gloo_communicator(std::shared_ptr<detail::gloo_group> group) : group_(std::move(group)) {}

  const char* name() const override { return "gloo"; }
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }

  std::shared_ptr<communicator> split(int color, int key, comm_options o) override {
    std::vector<std::int64_t> mine{color, key}, all(2 * static_cast<std::size_t>(size()));
    o.control = true;
    const std::chrono::milliseconds limit = o.timeout;
    all_gather(mine, all, {}, std::move(o)).wait();
    const int number = splits_++;
    if (color < 0) return nullptr;
    std::vector<std::pair<std::int64_t, int>> members;  // key, rank
    for (int r = 0; r < size(); ++r)
      if (all[2 * static_cast<std::size_t>(r)] == color)
        members.emplace_back(all[2 * static_cast<std::size_t>(r) + 1], r);
    std::sort(members.begin(), members.end());
    const auto own = std::find(members.begin(), members.end(), std::pair<std::int64_t, int>(key, rank()));
    std::vector<int> in_world;
    for (const auto& [k, r] : members) in_world.push_back(group_->members()[static_cast<std::size_t>(r)]);
    const std::string name = "split" + std::to_string(number) + "." + std::to_string(color);
    return std::make_shared<gloo_communicator>(std::make_shared<detail::gloo_group>(
        std::make_shared<prefix_store>(name, group_->shared_store()), group_->watch(),
        group_->id() + "/" + name, std::move(in_world), static_cast<int>(own - members.begin()),
        group_->device(), group_->token(), limit));
  }

  void abort(const std::string& reason) override {
    group_->give_up("weft: rank " + std::to_string(in_world()) + " gave up: " + reason);
  }

 protected:
  work start(operation o) override {
    const auto limit = o.timeout;
    return work(std::make_shared<detail::gloo_state>(group_, group_->post(std::move(o))), limit);
  }

 private:
  static std::shared_ptr<detail::gloo_group> world(std::shared_ptr<store> s, int rank, int size,
                                                   const gloo_network& network,
                                                   std::chrono::milliseconds limit) {
    const auto device = detail::device_on(network);
    const auto watch =
        std::make_shared<detail::rank_watch>(*s, rank, size, detail::address_on(network), limit);
    std::vector<int> all(static_cast<std::size_t>(size));
    std::iota(all.begin(), all.end(), 0);
    return std::make_shared<detail::gloo_group>(std::move(s), watch, "world", std::move(all), rank, device,
                                                network.token, limit);
  }
  int in_world() const { return group_->members()[static_cast<std::size_t>(rank())]; }

  std::shared_ptr<detail::gloo_group> group_;
  int splits_ = 0;
};

}  // namespace weft
