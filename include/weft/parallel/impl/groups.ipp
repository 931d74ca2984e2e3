// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/groups.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/parallel/groups.hpp>

namespace weft {
namespace parallel {

WEFT_DEFINE mesh_sizes parameter_mesh(const parallel_options& o, int ranks) {
  mesh_sizes sizes{.pp = o.stages, .ep = o.expert_ranks, .tp = o.layer_ranks};
  const int data = std::max(1, ranks / o.stages / o.layer_ranks);
  const int of_copy = o.divide == sharding::none ? o.expert_ranks : o.shard_ranks ? o.shard_ranks : data;
  sizes.fsdp = std::max(1, of_copy / o.expert_ranks);
  sizes.dp = std::max(1, data / of_copy);
  return check_mesh(sizes, ranks);
}

WEFT_DEFINE rank_groups::rank_groups(communicator& data, const parallel_options& o,
                                     std::shared_ptr<communicator> owners)
    : data_(&data), timeout_(o.timeout) {
  const int n = data.size();
  const int group = o.divide == sharding::none ? 1 : o.shard_ranks ? o.shard_ranks : n;
  if (n % group) refuse<usage_error>({"weft: bind: groups of ", group, " ranks do not divide ", n, " ranks"});
  sizes_.dp = n / group;
  sizes_.fsdp = group;
  shards_ = along(mesh_axis::fsdp, "shards", false);
  replicas_ = along(mesh_axis::dp, "replicas", o.hook != nullptr);
  owners_ = owners ? std::move(owners) : shards_;
}

WEFT_DEFINE axis_bytes rank_groups::sent_by_axis() const {
  axis_bytes all{};
  all[static_cast<std::size_t>(mesh_axis::fsdp)] = payload(shards_->sent());
  for (const communicator* c : {replicas_.get(), data_ == replicas_.get() ? nullptr : data_})
    if (c && c != shards_.get()) all[static_cast<std::size_t>(mesh_axis::dp)] += payload(c->sent());
  if (layers_) all[static_cast<std::size_t>(mesh_axis::tp)] = payload(layers_->sent());
  for (const auto& [units, ranks] : sharing_)
    all[static_cast<std::size_t>(mesh_axis::tp)] += payload(ranks->sent());
  if (context_) all[static_cast<std::size_t>(mesh_axis::cp)] = payload(context_->ranks().sent());
  if (experts_) {
    all[static_cast<std::size_t>(mesh_axis::ep)] += payload(experts_->sent());
    all[static_cast<std::size_t>(mesh_axis::fsdp)] += payload(expert_shards_->sent());
    all[static_cast<std::size_t>(mesh_axis::dp)] += payload(expert_replicas_->sent());
  }
  return all;
}

WEFT_DEFINE void rank_groups::share_units(index_t units) {
  if (units >= layers_->size() || sharing_.contains(units)) return;
  sharing_[units] =
      layers_->split_by([&](int r) { return static_cast<int>(unit_of_rank(units, layers_->size(), r)); },
                        labelled("shared units", true));
}

WEFT_DEFINE std::shared_ptr<communicator> rank_groups::along(mesh_axis a, const char* label,
                                                             bool apart) const {
  return group_along(*data_, sizes_, a, a, labelled(label, true), apart);
}

}  // namespace parallel
}  // namespace weft
