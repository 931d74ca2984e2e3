// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/nccl.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/gpu/nccl.hpp>

namespace weft {

WEFT_DEFINE std::shared_ptr<communicator> nccl_communicator::divide(int color, int key, comm_options o) {
  o.control = true;
  barrier(o).wait();  // advances what others may wait for until all ranks are here
  std::shared_ptr<communicator> part = group_->host->split(color, key, std::move(o));
  if (!part) return nullptr;
  return std::shared_ptr<communicator>(
      new nccl_communicator(std::make_shared<gpu::nccl_group>(group_->owner, std::move(part))));
}

WEFT_DEFINE void nccl_communicator::abort(const std::string& reason) {
  group_->host->abort(reason);
  if (const auto failed = group_->host->failure()) group_->owner->fail(failed);
}

WEFT_DEFINE work nccl_communicator::start(operation o) {
  if (const auto& failed = group_->owner->failure()) std::rethrow_exception(failed);
  const auto limit = o.timeout;
  std::shared_ptr<gpu::nccl_operation> posted;
  if (o.space() == memory_space::host || o.agrees_only) posted = on_host(std::move(o));
  else if (is_message(o.kind)) posted = std::make_shared<gpu::nccl_message>(group_, std::move(o));
  else posted = std::make_shared<gpu::nccl_collective>(group_, std::move(o));
  group_->owner->add(posted);
  group_->owner->progress();
  return work(std::move(posted), limit);
}

WEFT_DEFINE std::shared_ptr<gpu::nccl_operation> nccl_communicator::on_host(operation o) {
  const bool message = is_message(o.kind);
  std::string doing = (message ? "" : "#" + std::to_string(group_->posted) + " ") + o.text();
  if (!message) ++group_->posted;
  return std::make_shared<gpu::nccl_host_operation>(group_->owner, group_->host->pass_on(std::move(o)),
                                                    std::move(doing));
}

WEFT_DEFINE std::shared_ptr<gpu::nccl_group> nccl_communicator::world(communicator& host, const device& where,
                                                                      const nccl_options& o,
                                                                      std::chrono::milliseconds limit) {
  const comm_options with{.label = "ranks over NCCL", .timeout = limit, .control = true};
  const auto owner = std::make_shared<gpu::nccl_rank>(host.split(0, host.rank(), with), where, o);
  auto group = std::make_shared<gpu::nccl_group>(owner, owner->host);
  group->await_collectives(limit);
  return group;
}

}  // namespace weft
