// SPDX-License-Identifier: MIT
// A handle of a device: its backend, and a caching allocator for its memory.
//
//   device gpu(std::make_shared<gpu::opencl_backend>());
//   auto x = zeros<float>(extents<32, 784>{}, gpu);
#pragma once

#include <weft/device/cpu/backend.hpp>
#include <weft/device/memory.hpp>

namespace weft {

/// Which device of a kind is opened, and how.
struct device_options {
  int device = -1;      // its number among devices of its kind; by default chosen by the rank
  int local_rank = -1;  // among the ranks of this machine, which take turns where there are fewer devices; by
                        // default as the launcher of the process says (LOCAL_RANK)
  int threads = 0;      // of the CPU; 0: one per core
};

/// Shared handle; copies refer to the same device and allocator. Two handles created from one backend have
/// separate allocators and compare unequal.
class device {
 public:
  explicit device(std::shared_ptr<backend> b)
      : allocator_(make_recycled<caching_allocator>(std::move(b))) {}
  device(std::shared_ptr<backend> b, const memory_options& o)
      : allocator_(make_recycled<caching_allocator>(std::move(b), o)) {}

  backend& operator*() const { return allocator_->device(); }
  backend* operator->() const { return &allocator_->device(); }
  /// `what` names what will be kept there, in lists of memory use; a string that is never freed.
  buffer allocate(std::size_t bytes, const char* what = "") const;
  caching_allocator& memory() const { return *allocator_; }
  bool operator==(const device& other) const { return allocator_ == other.allocator_; }

  /// This device, but parameters on it are created without memory: they know how their elements are drawn,
  /// and receive their elements (or their part of them) when a model is bound to a strategy, or from
  /// `materialize`. For models that are larger than a device's memory.
  ///   auto model = gpt::create(config, where.deferred());
  ///   auto fixed = create<mlp>(where.deferred());       // sizes are in the type
  device deferred() const {
    device d = *this;
    d.defers_ = true;
    return d;
  }
  bool defers_parameters() const { return defers_; }

 private:
  std::shared_ptr<caching_allocator> allocator_;
  bool defers_ = false;
};

/// What the memory of a device is used for, as a human-readable table.
std::string memory_summary(const device& where);

/// The CPU with one thread per core. Created at the first call and never destroyed, so that tensors may be
/// static. Shared by all shared libraries of a process that export symbols to each other.
[[gnu::visibility("default")]] const device& default_device();

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/device/impl/device.ipp>
#endif
