// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/threads.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/comm/threads.hpp>

namespace weft {

WEFT_DEFINE std::shared_ptr<communicator> threads_communicator::split(int color, int key, comm_options o) {
  detail::rendezvous& m =
      group_->post(rank_, {.kind = collective::split, .tag = color, .key = key, .label = o.label});
  detail::collective_state state(group_, m, rank_);
  state.wait(o.timeout);
  if (const auto e = state.failure()) std::rethrow_exception(e);
  // The first rank to arrive divides the group for all.
  std::vector<std::pair<std::shared_ptr<detail::thread_group>, int>> groups;
  {
    const std::lock_guard lock(group_->world().mutex);
    if (!m.divided) m.divided = std::make_shared<decltype(groups)>(group_->divided(m));
    groups = *m.divided;
  }
  const auto& [group, rank] = groups[static_cast<std::size_t>(rank_)];
  return group ? std::make_shared<threads_communicator>(group, rank) : nullptr;
}

WEFT_DEFINE void threads_communicator::abort(const std::string& reason) {
  const std::lock_guard lock(group_->world().mutex);
  group_->world().give_up("weft: rank " + std::to_string(rank_) + " gave up: " + reason);
}

WEFT_DEFINE work threads_communicator::start(operation o) {
  const auto limit = o.timeout;
  if (is_message(o.kind)) {
    const bool sends = o.kind == collective::send;
    return work(std::make_shared<detail::message_state>(group_, group_->post_message(rank_, std::move(o)),
                                                        sends, rank_),
                limit);
  }
  return work(make_recycled<detail::collective_state>(group_, group_->post(rank_, std::move(o)), rank_),
              limit);
}

}  // namespace weft
