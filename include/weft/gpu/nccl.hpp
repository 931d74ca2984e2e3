// SPDX-License-Identifier: MIT
// Communicator of ranks with an NVIDIA GPU each, over NCCL, beside a group that connects their hosts.
//
//   run_world(argc, argv, [](communicator& host) {                   // threads, Gloo or MPI
//     const device where = on<cuda>::where({.local_rank = local_rank_of(host)});
//     nccl_communicator ranks(host, where);
//     auto run = bind<policy<on<cuda>, strategy::fully_sharded<>>>(model, optimizer, ranks);
//     ...
//
// Elements in the device's memory are sent by NCCL on a stream of its own, those in memory of the host by the
// host group, which also finds ranks that are late, lost, or disagree, and names them.
#pragma once

#include <weft/gpu/nccl_group.hpp>

namespace weft {

/// Communicator over NCCL. All operations of a rank, in all its groups, are called by one thread. A message
/// in device memory is matched by two messages of the hosts.
class nccl_communicator : public communicator {
 public:
  /// Connects the devices of all ranks of `host`, of which it makes groups of its own; `where` is this
  /// rank's, which no other rank uses. Collective. Throws usage_error if it is not a device of CUDA,
  /// device_error if NCCL 2.14 or newer is not installed, comm_error or timeout_error if ranks cannot be
  /// connected.
  nccl_communicator(communicator& host, const device& where, const nccl_options& o = {},
                    std::chrono::milliseconds limit = default_timeout)
      : group_(world(host, where, o, limit)) {}

  const char* name() const override { return "nccl"; }
  int rank() const override { return group_->rank; }
  int size() const override { return group_->size; }
  const backend* reaches() const override { return &*group_->owner->where; }

  /// A communicator of NCCL for the new group is formed when it is first needed.
  std::shared_ptr<communicator> split(int color, int key, comm_options o) override;

  void abort(const std::string& reason) override;
  std::exception_ptr failure() const override {
    return group_->owner->failure() ? group_->owner->failure() : group_->host->failure();
  }

 protected:
  work start(operation o) override;

 private:
  explicit nccl_communicator(std::shared_ptr<gpu::nccl_group> group) : group_(std::move(group)) {}

  std::shared_ptr<gpu::nccl_operation> on_host(operation o);

  [[gnu::cold]] static std::shared_ptr<gpu::nccl_group> world(communicator& host, const device& where,
                                                              const nccl_options& o,
                                                              std::chrono::milliseconds limit);

  std::shared_ptr<gpu::nccl_group> group_;
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/nccl.ipp>
#endif
