// SPDX-License-Identifier: MIT
// What the NCCL groups of one rank share: the libraries, the device, the operations in progress, and the
// failure that ends them all. Waiting and polling advance the operations of all groups.
#pragma once

#include <algorithm>
#include <optional>

#include <weft/comm/communicator.hpp>
#include <weft/device/device.hpp>
#include <weft/gpu/nccl_channel.hpp>
#include <weft/gpu/rank_sums.hpp>

namespace weft {

/// How a communicator over NCCL works; must be equal on all ranks.
struct nccl_options {
  /// Sums of floating types follow the tree over ranks that all communicators use, and are bitwise identical
  /// to theirs: ranks exchange parts, add them, and gather the sums. If false, NCCL adds and multiplies; its
  /// order, and its roundings of bf16 and f16, depend on its version and on how the devices are connected.
  /// Minima and maxima are the same either way: a NaN wins.
  bool fixed_order = true;
  /// Ranks agree on each collective through the host group before data moves. If false, ranks that call
  /// different operations are not detected: they wait until the time-out, or receive elements of another
  /// operation.
  bool agrees = true;
};

}  // namespace weft

namespace weft::gpu {

class nccl_rank;

/// An operation in progress.
class nccl_operation : public work::state {
 public:
  explicit nccl_operation(std::shared_ptr<nccl_rank> r) : rank_(std::move(r)) {}
  bool poll() override;
  /// If nothing else needs this rank, waits in the host group, whose report names the ranks that are missing.
  void wait(std::chrono::milliseconds limit) override;
  std::exception_ptr failure() const override;

  /// Does what is possible now. Throws the operation's error if it has failed.
  virtual void advance() = 0;
  virtual bool is_over() const = 0;
  /// Whether the rest needs no further calls by this rank.
  virtual bool is_queued() const { return is_over(); }
  /// A description for messages to users.
  virtual std::string doing() const = 0;
  /// The operation of the host group that it waits for; null if it waits for the device.
  virtual const work* host_work() const = 0;

 protected:
  std::shared_ptr<nccl_rank> rank_;
};

/// A part of a rank that has operations in progress.
class nccl_part {
 public:
  virtual ~nccl_part() = default;
  virtual void advance() = 0;
  virtual void abort() noexcept = 0;
};

/// What the groups of one rank share.
class nccl_rank {
 public:
  /// Throws usage_error if `on` is not a CUDA device, and device_error if NCCL is not installed.
  [[gnu::cold]] nccl_rank(std::shared_ptr<communicator> ranks, const device& on, const nccl_options& o)
      : host(std::move(ranks)), options(o), where(on), gpu(backend_of(on)), sums(gpu) {}
  nccl_rank(const nccl_rank&) = delete;
  nccl_rank& operator=(const nccl_rank&) = delete;

  const std::shared_ptr<communicator> host;  // of all ranks
  const nccl_options options;
  const device where;
  cuda_backend& gpu;
  const nccl_functions nccl;
  rank_sums sums;

  void add(nccl_part& part) { parts_.push_back(&part); }
  void remove(nccl_part& part) { std::erase(parts_, &part); }
  void add(std::shared_ptr<nccl_operation> o) { under_way_.push_back(std::move(o)); }

  void progress();
  /// Whether an operation other than `one` needs calls by this rank.
  bool is_needed_beside(const nccl_operation& one) const;

  const std::exception_ptr& failure() const { return failure_; }
  /// Fails all operations, on all ranks.
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

/// An operation with elements in host memory, executed by the host group.
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
