// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/threads.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/base/deadline.hpp>
#include <weft/comm/threads.hpp>

namespace weft {

WEFT_DEFINE std::shared_ptr<communicator> threads_communicator::divide(int color, int key, comm_options o) {
  const work agreed = begin({.kind = collective::split, .tag = color, .key = key}, o);
  agreed.wait();
  detail::rendezvous& m = group_->last_of(rank_);
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
  group_->world().give_up("weft: " + group_->name(rank_) + " gave up: " + reason);
}

WEFT_DEFINE work threads_communicator::start(operation o) {
  const auto limit = o.timeout;
  const auto posted = [&](const auto& state) {
    state->post(std::move(o));
    return work(state, limit);
  };
  if (is_message(o.kind))
    return posted(std::make_shared<detail::message_state>(group_, o.kind == collective::send, rank_));
  return posted(make_recycled<detail::collective_state>(group_, rank_));
}

namespace detail {

WEFT_DEFINE rank_threads::rank_threads(int n, std::function<void(communicator&)> body)
    : body_(std::move(body)) {
  if (n < 1) throw usage_error("weft: run_ranks: " + std::to_string(n) + " ranks: expected 1 or more");
  if (is_rank) throw usage_error("weft: run_ranks: called by a rank; use ranks.split() to make groups");
  auto world = std::make_shared<thread_world>();
  const auto group = std::make_shared<thread_group>(world, n);
  threads_.reserve(static_cast<std::size_t>(n));
  started_ = static_cast<std::size_t>(n);
  try {
    for (int r = 0; r < n; ++r) threads_.emplace_back([this, group, r] { run(group, r); });
  } catch (const std::exception& e) {  // no thread, or no memory for one
    const std::string why = "weft: run_ranks: rank " + std::to_string(threads_.size()) + " of " +
                            std::to_string(n) + " could not be started: " + e.what();
    keep(std::make_exception_ptr(comm_error(why)));
    {
      const std::lock_guard lock(mutex_);
      started_ = threads_.size();
    }
    const std::lock_guard lock(world->mutex);
    world->give_up(why);
  }
}

WEFT_DEFINE void rank_threads::run(const std::shared_ptr<thread_group>& group, int rank) {
  is_rank = true;
  {
    threads_communicator ranks(group, rank);
    try {
      body_(ranks);
    } catch (...) {
      keep(std::current_exception());
    }
  }
  const std::lock_guard lock(mutex_);
  ++ended_;
  changed_.notify_all();
}

WEFT_DEFINE std::exception_ptr rank_threads::first_failure() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return first_ || ended_ == started_; });
  return first_;
}

WEFT_DEFINE bool rank_threads::end_within(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline_after(limit), [&] { return ended_ == started_; });
}

}  // namespace detail
}  // namespace weft
