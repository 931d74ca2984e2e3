// SPDX-License-Identifier: MIT
// Communicator over NCCL, for ranks with an NVIDIA GPU each, in addition to a group that connects their
// hosts.
//
//   run_world(argc, argv, [](communicator& host) {                   // threads, Gloo or MPI
//     const device where = on<cuda>::where({.local_rank = local_rank_of(host)});
//     nccl_communicator ranks(host, where);
//     auto run = bind<policy<on<cuda>, strategy::fully_sharded<>>>(model, optimizer, ranks);
//     ...
//
// NCCL sends elements in device memory, on a stream of its own; the host group sends those in host memory.
// The host group also detects ranks that are late, lost, or disagree, and names them.
#pragma once

#include <weft/gpu/nccl_group.hpp>

namespace weft {

/// Communicator over NCCL. All operations of a rank, in all its groups, must be called by one thread. Each
/// message in device memory is matched by two messages between the hosts.
class nccl_communicator : public communicator {
 public:
  /// Connects the devices of all ranks of `host`, from which it derives groups of its own; `where` is the
  /// device of this rank, and no other rank may use it. Collective. Throws usage_error if it is not a CUDA
  /// device, device_error if NCCL 2.14 or newer is not installed, and comm_error or timeout_error if ranks
  /// cannot be connected.
  nccl_communicator(communicator& host, const device& where, const nccl_options& o = {},
                    std::chrono::milliseconds limit = default_timeout)
      : group_(world(host, where, o, limit)) {}

  const char* name() const override { return "nccl"; }
  int rank() const override { return group_->rank; }
  int size() const override { return group_->size; }
  const backend* reaches() const override { return &*group_->owner->where; }

  void abort(const std::string& reason) override;
  std::exception_ptr failure() const override {
    return group_->owner->failure() ? group_->owner->failure() : group_->host->failure();
  }

 protected:
  /// An NCCL communicator for the new group is formed when it is first needed.
  std::shared_ptr<communicator> divide(int color, int key, comm_options o) override;
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
