// SPDX-License-Identifier: MIT
// A device that allocates and computes nothing: a program that runs on it shows, to the byte, the memory it
// would take on a real device, and its amount of work.
//
//   const auto counts = std::make_shared<counting_backend>();
//   const device nowhere(counts);
//   ... build the model and run a step there ...
//   nowhere.memory().figures().peak; counts->work().operations
//
// It represents a device that keeps messages between ranks in its own memory, as CPUs do, or, with `false`,
// one whose messages are kept on the host, as for GPUs.
#pragma once

#include <cstring>

#include <weft/device/backend.hpp>
#include <weft/device/group_scratch.hpp>

namespace weft {

/// Amount of work requested of a device so far.
struct device_work {
  double operations = 0;  // multiplications and additions of matrix products
  double bytes =
      0;  // read and written, with no caching between calls; kernel elements count as four

  friend device_work operator-(const device_work& a, const device_work& b) {
    return {a.operations - b.operations, a.bytes - b.bytes};
  }
};

/// The counting device; downloads are zeros.
class counting_backend : public backend, private mapped_memory {
 public:
  explicit counting_backend(bool holds_messages = true) : holds_messages_(holds_messages) {}

  const char* name() const override { return "nowhere"; }
  bool computes() const override { return false; }
  bool host_accessible() const override { return false; }
  bool holds_messages() const override { return holds_messages_; }
  index_t elements_at_once() const override {
    return holds_messages_ ? backend::elements_at_once() : gpu_elements_at_once;
  }

  void* allocate(std::size_t bytes) override {
    const std::uintptr_t address = next_;
    next_ += (bytes + 63) / 64 * 64;
    return reinterpret_cast<void*>(address);
  }
  void deallocate(void*, std::size_t) noexcept override {}
  mapped_memory* mapped() override { return holds_messages_ ? nullptr : this; }
  void upload(void*, const void*, std::size_t) override {}
  void download(void* to, const void*, std::size_t bytes) override {
    if (bytes) std::memset(to, 0, bytes);
  }

  const device_work& work() const { return work_; }

  std::size_t scratch_bytes(const kernel_call& call) const override {
    return holds_messages_ ? 0 : group_scratch_bytes(call);
  }
  std::size_t native_scratch_bytes(const native_code& code, const native_operands& operands) const override {
    return holds_messages_ ? 0 : group_scratch_bytes(code, operands);
  }

  bool launches_together() const override { return !holds_messages_; }
  bool multiplies_merged() const override { return holds_messages_; }

  void launch(const kernel_call& call) override {
    for (int i = 0; i < call.args.arguments; ++i)
      touch(4, {call.args.extent, static_cast<std::size_t>(call.args.order)}, call.args.stride[i]);
  }
  void multiply(const native_code&, const strided& a, const strided& b, const strided& c) override {
    work_.operations += 2 * static_cast<double>(c.size()) * static_cast<double>(a.extents.last());
    for (const strided* t : {&a, &b, &c}) touch(*t);
    if (c.adds) touch(c);
  }
  void copy(const strided& from, const strided& to) override {
    touch(from);
    touch(to);
  }
  void fill_zero(void*, std::size_t bytes) override { work_.bytes += static_cast<double>(bytes); }
  void call_native(const char*, const native_code&, const native_operands& operands) override {
    for (const strided& t : operands.in) touch(t);
    for (const strided& t : operands.out)
      if (!t.adds) touch(t);
      else for (const strided& x : operands.in) touch(x);  // adds as many elements as the operands have
  }
  void synchronize() override {}

 private:
  std::size_t page_bytes() const override { return std::size_t{20} << 20; }  // as those of NVIDIA GPUs
  std::size_t capacity() const override { return std::size_t{1} << 50; }
  void* reserve(std::size_t bytes) override { return allocate(bytes); }
  void unreserve(void*, std::size_t) noexcept override {}
  void map(void*, std::size_t) override {}
  void unmap(void*, std::size_t) noexcept override {}

  /// Elements along dims with stride 0 are one element and are counted once.
  void touch(double bytes, std::span<const index_t> extents, const index_t* stride) {
    for (std::size_t d = 0; d < extents.size(); ++d)
      if (stride[d] != 0) bytes *= static_cast<double>(extents[d]);
    work_.bytes += bytes;
  }
  void touch(const strided& t) {
    touch(static_cast<double>(size_of(t.type)), {t.extents.extent, static_cast<std::size_t>(t.extents.order)},
          t.stride);
  }

  bool holds_messages_;
  std::uintptr_t next_ = 4096;
  device_work work_;
};

}  // namespace weft
