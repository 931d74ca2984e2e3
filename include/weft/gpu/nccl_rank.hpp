// SPDX-License-Identifier: MIT
// What the groups of one rank over NCCL share: the libraries, the device, the operations that are under way,
// and the failure that ends them all. Waiting and polling advance the operations of all groups.
#pragma once

#include <algorithm>
#include <optional>

#include <weft/comm/communicator.hpp>
#include <weft/device/device.hpp>
#include <weft/gpu/nccl_channel.hpp>
#include <weft/gpu/rank_sums.hpp>

namespace weft {

/// How a communicator over NCCL works; equal on all ranks.
struct nccl_options {
  /// Sums of floating types follow the tree over ranks that all communicators use, and have its bits: ranks
  /// exchange parts, add them, and gather the sums. Otherwise NCCL adds, in an order, and with roundings of
  /// bf16 and f16, that depend on its version and on how the devices are connected.
  bool fixed_order = true;
  /// Ranks agree on each collective by the host group before data moves. Otherwise ranks that call different
  /// operations are not found out: they wait until the time-out, or receive elements of something else.
  bool agrees = true;
};

}  // namespace weft

namespace weft::gpu {

class nccl_rank;

/// An operation that is under way.
class nccl_operation : public work::state {
 public:
  explicit nccl_operation(std::shared_ptr<nccl_rank> r) : rank_(std::move(r)) {}
  bool poll() override;
  void wait(std::chrono::milliseconds limit) override;
  std::exception_ptr failure() const override;

  /// Does what can be done now. Throws the failure, if it has failed.
  virtual void advance() = 0;
  virtual bool is_over() const = 0;
  /// Whether the rest needs no more calls of this rank.
  virtual bool is_queued() const { return is_over(); }
  /// For messages to people.
  virtual std::string doing() const = 0;
  /// The operation of the host group for which it waits; null if it waits for the device.
  virtual const work* host_work() const = 0;

 protected:
  std::shared_ptr<nccl_rank> rank_;
};

/// A part of a rank that has operations under way.
class nccl_part {
 public:
  virtual ~nccl_part() = default;
  virtual void advance() = 0;
  virtual void abort() noexcept = 0;
};

/// What the groups of one rank share.
class nccl_rank {
 public:
  /// Throws usage_error if `on` is not a device of CUDA; device_error if NCCL is not installed.
  [[gnu::cold]] nccl_rank(std::shared_ptr<communicator> ranks, const device& on, const nccl_options& o)
      : host(std::move(ranks)), options(o), where(on), gpu(backend_of(on)), sums(driver, gpu.queue()) {}
  nccl_rank(const nccl_rank&) = delete;
  nccl_rank& operator=(const nccl_rank&) = delete;

  const std::shared_ptr<communicator> host;  // of all ranks
  const nccl_options options;
  const device where;
  cuda_backend& gpu;
  const nccl_functions nccl;
  const cuda_functions driver;
  rank_sums sums;

  void add(nccl_part& part) { parts_.push_back(&part); }
  void remove(nccl_part& part) { std::erase(parts_, &part); }
  void add(std::shared_ptr<nccl_operation> o) { under_way_.push_back(std::move(o)); }

  void progress();
  /// Whether an operation besides `one` needs calls of this rank.
  bool is_needed_beside(const nccl_operation& one) const;

  const std::exception_ptr& failure() const { return failure_; }
  /// Fails everything, on all ranks.
  [[gnu::cold]] void fail(std::exception_ptr why);

 private:
  [[gnu::cold]] static cuda_backend& backend_of(const device& on);

  std::vector<nccl_part*> parts_;
  std::vector<std::shared_ptr<nccl_operation>> under_way_;
  std::exception_ptr failure_;
  std::uint64_t polls_ = 0;
};

inline bool nccl_operation::poll() {
  rank_->progress();
  return is_over() || rank_->failure();
}
inline std::exception_ptr nccl_operation::failure() const { return is_over() ? nullptr : rank_->failure(); }

/// Where nothing else needs this rank, it waits in the host group, whose report names the ranks that are not
/// there.
/// An operation with elements in memory of the host, by the host group.
class nccl_host_operation : public nccl_operation {
 public:
  nccl_host_operation(std::shared_ptr<nccl_rank> r, work w, std::string doing)
      : nccl_operation(std::move(r)), work_(std::move(w)), doing_(std::move(doing)) {}
  void advance() override {
    if (is_over_ || !work_.is_completed()) return;
    work_.wait();  // throws its failure
    is_over_ = true;
  }
  bool is_over() const override { return is_over_; }
  std::string doing() const override { return doing_; }
  const work* host_work() const override { return &work_; }

 private:
  work work_;
  std::string doing_;
  bool is_over_ = false;
};

}  // namespace weft::gpu

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/nccl_rank.ipp>
#endif
