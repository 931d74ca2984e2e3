// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/nccl_group.hpp>.
#pragma once

#include <thread>

#include <weft/base/config.hpp>
#include <weft/base/deadline.hpp>
#include <weft/gpu/nccl_group.hpp>

namespace weft {
namespace gpu {

WEFT_DEFINE nccl_group::nccl_group(std::shared_ptr<nccl_rank> of, std::shared_ptr<communicator> ranks)
    : owner(std::move(of)),
      host(std::move(ranks)),
      letters(host->split(0)),
      rank(host->rank()),
      size(host->size()),
      collectives_(owner->nccl, owner->gpu, owner->where, rank, size) {
  std::vector<std::int32_t> mine{owner->host->rank()}, all(static_cast<std::size_t>(size));
  host->all_gather(mine, all, {}, {.label = "members of a group over NCCL", .control = true}).wait();
  members.assign(all.begin(), all.end());
  owner->add(*this);
}

WEFT_DEFINE nccl_channel& nccl_group::collectives() {
  if (collectives_.is_joined() || joining_) return collectives_;
  if (rank == 0) owner->nccl.check(owner->nccl.new_id(&id_), "ncclGetUniqueId", nullptr);
  joining_.emplace(host->broadcast(elements(&id_, sizeof id_, dtype::u8), 0,
                                   {.label = "the identifier for NCCL", .control = true}));
  return collectives_;
}

WEFT_DEFINE void nccl_group::await_collectives(std::chrono::milliseconds limit) {
  const auto deadline = deadline_after(limit);
  collectives();
  try {
    joining_->wait(limit);
    advance();
    while (!is_formed()) {
      if (const auto failed = host->failure()) std::rethrow_exception(failed);
      if (std::chrono::steady_clock::now() > deadline)
        throw timeout_error("weft: rank " + std::to_string(owner->host->rank()) + " waited " +
                            std::to_string(limit.count()) + " ms for NCCL to connect " +
                            std::to_string(size) + " ranks; all ranks are there");
      std::this_thread::yield();
    }
  } catch (...) {
    owner->fail(std::current_exception());
    throw;
  }
}

WEFT_DEFINE nccl_group::pair_state& nccl_group::pair(int peer) {
  pair_state& p = pairs_[peer];
  if (!p.channel)
    p.channel = std::make_unique<nccl_channel>(owner->nccl, owner->gpu, owner->where, rank < peer ? 0 : 1, 2);
  return p;
}

WEFT_DEFINE void nccl_group::advance() {
  if (joining_ && !collectives_.is_joined() && joining_->is_completed()) {
    joining_->wait();  // throws its failure
    collectives_.join(id_);
  }
  collectives_.advance();
  for (auto& [peer, p] : pairs_) p.channel->advance();
}

WEFT_DEFINE std::shared_ptr<nccl_task> nccl_group::new_task(const operation& o) const {
  const auto current = owner->gpu.queue().use();
  auto task = std::make_shared<nccl_task>(owner->gpu);
  task->ready.record(owner->gpu.queue().stream);
  const void *const in = o.in.data, *const out = o.out.data;
  for (const void* operand : {in, in == out ? nullptr : out})
    if (operand) owner->where.memory().record_use(operand, std::make_shared<nccl_use>(task));
  return task;
}

WEFT_DEFINE nccl_collective::nccl_collective(std::shared_ptr<nccl_group> g, operation o)
    : nccl_operation(g->owner), group_(std::move(g)), what_(std::move(o)), number_(group_->posted++) {
  channel_ = &group_->collectives();
  if (group_->owner->options.agrees) {
    operation agreed = what_;
    agreed.agrees_only = true;
    agreement_.emplace(group_->host->pass_on(std::move(agreed)));
  }
  task_ = group_->new_task(what_);
  if (is_reduction(what_.kind)) plan_reduction();
  else plan(what_);
  channel_->push(task_);
}

WEFT_DEFINE void nccl_collective::advance() {
  if (task_->may_start) return;
  if (agreement_ && !agreement_->is_completed()) return;
  if (agreement_) agreement_->wait();  // throws its failure
  task_->may_start = true;
}

WEFT_DEFINE void nccl_collective::plan(const operation& o) {
  if (o.kind == collective::all_gather && is_even(o.out_counts)) return plan_gather(o);
  if (o.kind == collective::broadcast) return plan_broadcast(o);
  then([this, o] { exchange(o); });
}

WEFT_DEFINE void nccl_collective::plan_gather(const operation& o) {
  then([this, o] {
    if (o.in.count == 0) return;
    channel_->call("ncclAllGather", [&](auto comm, CUstream stream) {
      return nccl().all_gather(o.in.data, o.out.data, bytes(o.in.count), nccl_bytes, comm, stream);
    });
  });
}

WEFT_DEFINE void nccl_collective::plan_broadcast(const operation& o) {
  then([this, o] {
    if (o.out.count == 0) return;
    channel_->call("ncclBroadcast", [&](auto comm, CUstream stream) {
      return nccl().broadcast(o.in.data, o.out.data, bytes(o.out.count), nccl_bytes, o.root, comm, stream);
    });
  });
}

WEFT_DEFINE void nccl_collective::exchange(const operation& o) {
  const auto parts =
      weft::detail::moves(o, group_->rank, group_->size,
                          [&](void* to, const void* from, std::size_t n) { channel_->copy(to, from, n); });
  if (parts.empty()) return;
  channel_->call("ncclGroupEnd", [&](auto comm, CUstream stream) {
    nccl().check(nccl().begin_group(), "ncclGroupStart", comm);
    for (const weft::detail::transfer& t : parts) {
      const auto result = t.sends ? nccl().send(t.data, t.bytes, nccl_bytes, t.peer, comm, stream)
                                  : nccl().receive(t.data, t.bytes, nccl_bytes, t.peer, comm, stream);
      nccl().check(result, t.sends ? "ncclSend" : "ncclRecv", comm);
    }
    return nccl().end_group();
  });
}

WEFT_DEFINE void nccl_collective::plan_reduction() {
  const dtype type = what_.type();
  const bool is_extremum = what_.op == reduction::minimum || what_.op == reduction::maximum;
  const bool is_any_order =
      !is_floating(type) || (!group_->owner->options.fixed_order && !is_extremum);  // NCCL's extrema drop NaN
  if (is_any_order && type != dtype::boolean && is_even(what_.in_counts)) return plan_reduction_of_nccl();
  shares_ = what_.in_counts.empty() ? even_parts(what_.out.count, group_->size) : what_.in_counts;
  mine_ = shares_[static_cast<std::size_t>(group_->rank)];
  then([this] { send_parts(); });
  then([this] { add_parts(); });
  if (what_.kind != collective::reduce_scatter) then([this] { send_sums(); });
}

WEFT_DEFINE void nccl_collective::plan_reduction_of_nccl() {
  then([this] {
    const operation& o = what_;
    const auto count = static_cast<std::size_t>(o.out.count);
    const int type = nccl_type(o.type()), op = nccl_reduction(o.op);
    if (count == 0) return;
    channel_->call(name_of(o.kind), [&](auto comm, CUstream stream) {
      if (o.kind == collective::all_reduce)
        return nccl().all_reduce(o.in.data, o.out.data, count, type, op, comm, stream);
      if (o.kind == collective::reduce)
        return nccl().reduce(o.in.data, o.out.data, count, type, op, o.root, comm, stream);
      return nccl().reduce_scatter(o.in.data, o.out.data, count, type, op, comm, stream);
    });
  });
}

WEFT_DEFINE void nccl_collective::send_parts() {
  if (what_.in.count == 0) return;
  exchange(weft::detail::exchange_of_parts(what_, shares_, group_->rank, mine_ ? parts() : nullptr));
}

WEFT_DEFINE void nccl_collective::add_parts() {
  if (mine_ == 0) return;
  void* const to = what_.kind == collective::reduce_scatter ? what_.out.data : sums();
  group_->owner->sums.queue(what_.type(), what_.op, group_->size, parts(), to, mine_, channel_->stream());
}

WEFT_DEFINE void nccl_collective::send_sums() {
  if (what_.in.count == 0) return;
  exchange(weft::detail::gathering_of_sums(what_, shares_, group_->rank, mine_ ? sums() : nullptr));
}

WEFT_DEFINE nccl_message::nccl_message(std::shared_ptr<nccl_group> g, operation o)
    : nccl_operation(g->owner), group_(std::move(g)), what_(std::move(o)), own_(what_, what_.root) {
  const bool sends = what_.kind == collective::send;
  leads_ = group_->rank < what_.root;
  const int tag = 2 * what_.tag + (sends == leads_ ? 1 : 0);
  task_ = group_->new_task(what_);
  task_->may_start = true;
  task_->stages.emplace_back([this, sends] {
    nccl_channel& over = *group_->pair(what_.root).channel;
    const auto bytes = static_cast<std::size_t>(sends ? what_.in.bytes() : const_elements(what_.out).bytes());
    const int peer = leads_ ? 1 : 0;
    over.call(name_of(what_.kind), [&](auto comm, CUstream stream) {
      const nccl_functions& nccl = group_->owner->nccl;
      return sends ? nccl.send(what_.in.data, bytes, nccl_bytes, peer, comm, stream)
                   : nccl.receive(what_.out.data, bytes, nccl_bytes, peer, comm, stream);
    });
  });
  const comm_options with{.label = what_.text(), .timeout = what_.timeout, .control = true};
  if (leads_) {
    receive_ = group_->letters->receive(bytes_of(others_), what_.root, tag, with);
  } else {
    send_ = group_->letters->send(bytes_of(own_), what_.root, tag, with);
    receive_ = group_->letters->receive(bytes_of(answer_), what_.root, tag, with);
  }
  tag_ = tag;
  group_->pair(what_.root).unmet[tag].push_back(this);
}

WEFT_DEFINE void nccl_message::advance() {
  if (has_met_) return;
  auto& queue = group_->pair(what_.root).unmet[tag_];
  if (queue.front() != this || !receive_.is_completed()) return;
  receive_.wait();  // throws its failure
  queue.pop_front();
  has_met_ = true;
  if (leads_) answer();
  queue_up();
}

WEFT_DEFINE void nccl_message::answer() {
  if (!own_.same_message(others_)) {
    const int own = group_->members[static_cast<std::size_t>(group_->rank)],
              other = group_->members[static_cast<std::size_t>(what_.root)];
    const bool sends = what_.kind == collective::send;
    throw comm_error(sends ? message_disagreement(own, what_.text(), other, others_.words())
                           : message_disagreement(other, others_.words(), own, what_.text()));
  }
  nccl_group::pair_state& with = group_->pair(what_.root);
  answer_.number = with.next;
  if (!is_empty()) ++with.next;
  if (!is_empty() && answer_.number == 0)
    rank_->nccl.check(rank_->nccl.new_id(&answer_.id), "ncclGetUniqueId", nullptr);
  send_ = group_->letters->send(bytes_of(answer_), what_.root, tag_,
                                {.label = what_.text(), .timeout = what_.timeout, .control = true});
}

WEFT_DEFINE void nccl_message::queue_up() {
  if (is_empty()) return;
  nccl_group::pair_state& with = group_->pair(what_.root);
  if (answer_.number == 0) with.channel->join(answer_.id);
  if (leads_) return with.channel->push(task_);
  with.later.emplace(answer_.number, task_);
  while (!with.later.empty() && with.later.begin()->first == with.next) {
    with.channel->push(with.later.begin()->second);
    with.later.erase(with.later.begin());
    ++with.next;
  }
}

}  // namespace gpu
}  // namespace weft
