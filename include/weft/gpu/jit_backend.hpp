// SPDX-License-Identifier: MIT
// Devices whose kernels are compiled from source text at run time.
//
// OpenCL and CUDA differ in memory, compiler and launch, which they implement in derived classes; kernels and
// their parameters are defined here once for both.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <weft/device/kind.hpp>
#include <weft/device/group_scratch.hpp>
#include <weft/gpu/copies.hpp>
#include <weft/gpu/dialect.hpp>
#include <weft/gpu/kernel_cache.hpp>
#include <weft/gpu/native_ops.hpp>
#include <weft/gpu/products.hpp>
#include <weft/gpu/report_words.hpp>
#include <weft/gpu/staging.hpp>
#include <weft/lower/text.hpp>

namespace weft::gpu {

/// A compiled kernel in the form of its device.
struct compiled_kernel {
  virtual ~compiled_kernel() = default;
  int threads = group_size;  // of a group
  int fault = 0;             // number of the message for operands that a native op refuses
  index_t group_bytes = 0;   // of GROUP_MEMORY
  std::optional<digest> key{};  // under which the cache keeps it
};

/// Parameters of a kernel, apart from its pointers: 64-bit values in the order of the struct PARAMS,
/// beginning with the offsets of the pointers.
using parameters = std::vector<index_t>;

/// Base of devices that compile kernels at run time. Contexts in several threads may share one: a lock
/// protects kernels and reports of invalid operands, and is held until the work that uses them is queued.
class jit_backend : public backend {
 public:
  bool host_accessible() const override { return false; }
  /// Elements are copied to staging memory, from which the device reads them after the work queued before.
  /// The call waits only if they do not fit there.
  void upload(void* to, const void* from, std::size_t bytes) override;
  /// Waits once. Throws value_error if a kernel of this thread has reported an invalid operand since the
  /// thread's last wait, or one of a thread that has ended without a wait.
  void download(void* to, const void* from, std::size_t bytes) override {
    const host_copy one{to, from, bytes};
    finish({&one, 1});
  }
  void download_together(std::span<const host_copy> all) override { finish(all); }
  void synchronize() override { finish({}); }

  std::size_t scratch_bytes(const kernel_call& call) const override {
    return group_scratch_bytes(call, limits().threads);
  }
  std::size_t native_scratch_bytes(const native_code& code, const native_operands& operands) const override {
    return group_scratch_bytes(code, operands);
  }

  void prepare(std::span<const kernel_call* const> kernels) override;

  void launch(const kernel_call& call) override;
  /// One launch, or two if columns are folded in blocks, provided that kernels can read addresses from
  /// memory.
  void launch_together(std::span<const kernel_call* const> calls) override;
  bool launches_together() const override { return true; }
  index_t elements_at_once() const override { return gpu_elements_at_once; }

  void multiply(const native_code&, const strided& a, const strided& b, const strided& c) override;

  void copy(const strided& from, const strided& to) override;
  void copy_together(std::span<const strided> from, std::span<const strided> to) override;

  void call_native(const char* op, const native_code& code, const native_operands& operands) override;

  /// Whether to wait for every launch, so that a failure is reported by the call that failed, with the ops of
  /// its kernel: slow, for finding a kernel that accesses invalid memory. On by default if the environment
  /// variable WEFT_CHECK_LAUNCHES is set to anything but 0.
  void check_launches(bool on) { checks_launches_ = on; }

  /// The kernel of this text, compiled and kept on disk like the others of the device, which owns it.
  [[gnu::cold]] compiled_kernel& kernel_of(const std::string& text);
  /// The number of groups for items each of which computes elements in turn.
  static index_t groups_for(index_t items) {
    return std::min((items + group_size - 1) / group_size, max_groups);
  }

  bool is_recording() const override { return recorder_.load() == std::this_thread::get_id(); }

 protected:
  static constexpr index_t max_groups = row_groups::most;

  /// Maximum number of random keys of recorded work.
  static constexpr std::size_t most_keys = 8192;
  /// What recorded work refers to apart from memory of tensors.
  struct recorded_parts {
    staging_memory uploads{};  // read by every execution
    // Device memory that is written before each execution: which word reports invalid operands, then keys.
    void* numbers = nullptr;
    bool draws = false;    // whether kernels read keys
    bool reports = false;  // whether native ops may report an invalid operand
  };
  /// For devices that record: begin_recording calls this before, and end_recording calls end_parts after, the
  /// driver's calls.
  [[gnu::cold]] void begin_parts();
  std::unique_ptr<recorded_parts> end_parts() noexcept {
    const std::lock_guard lock(mutex_);
    recorder_ = std::thread::id();
    return std::move(recorded_);
  }
  /// Waits, and frees what the recorded work referred to.
  [[gnu::cold]] void release(recorded_parts& parts) noexcept;
  /// Called before recorded work is queued: passes on its keys. What its native ops refuse is reported to
  /// this thread, which may be another one than the recorder.
  void begin_replay(const recorded_parts& parts, std::span<const std::uint64_t> keys);
  /// Throws usage_error if this thread is recording.
  void refuse_in_recording(const char* what) const {
    if (is_recording()) refuse_recording(what);
  }

  // Called with the lock held, except `read`, `write`, `wait` and the functions for memory, which are also
  // called without it. Several threads may be in `compile`, `load` and `code_identity` at the same time.
  /// Compiles source text that defines one function weft_kernel. Throws device_error with the compiler's
  /// messages.
  virtual std::shared_ptr<compiled_kernel> compile(const std::string& text) = 0;
  /// What the machine code of a kernel depends on apart from its text: name, driver and architecture of the
  /// device, compiler and its options. Empty if kernels of this device cannot be kept (kernel_cache.hpp).
  virtual std::string code_identity() const { return {}; }
  /// The machine code of a kernel that was compiled and has run (some drivers compile at the first run);
  /// empty if the driver does not provide it.
  virtual std::vector<char> code_of(compiled_kernel&) const { return {}; }
  /// Creates a kernel from machine code. Throws device_error if the driver refuses it.
  virtual std::shared_ptr<compiled_kernel> load(std::span<const char> code);
  /// Queues `groups` groups of kernel.threads items. Device pointers can be offsets into an object; if the
  /// device's kernels need the offset separately, it is passed in the first parameters.
  virtual void run(compiled_kernel& kernel, const std::vector<void*>& pointers, parameters& p,
                   index_t groups) = 0;
  /// Whether kernels can use pointers that they read from memory.
  virtual bool reads_pointers() const { return false; }
  /// The limits on what groups of threads can share.
  virtual group_limits limits() const { return {}; }
  /// The dialect's definitions in the device's language.
  virtual const char* dialect() const = 0;

  /// Waits for all queued work. Throws device_error if any of it has failed.
  virtual void wait() = 0;

  /// Must be called after a launch: see check_launches.
  template <class Name>
  void finish_launch(Name name) {
    if (!checks_launches_) return;
    try {
      wait();
    } catch (const device_error& e) {
      throw device_error(std::string(e.what()) + ": in the " + name() + " just launched");
    }
  }

  /// Queues a copy to or from the host. The host memory must stay unchanged until `wait` returns.
  virtual void read(void* to, const void* from, std::size_t bytes) = 0;
  virtual void write(void* to, const void* from, std::size_t bytes) = 0;

  /// Host memory that the device reads and writes fastest. Throws out_of_memory_error.
  [[gnu::cold]] virtual void* allocate_staging(std::size_t bytes) { return ::operator new(bytes); }
  [[gnu::cold]] virtual void free_staging(void* memory) noexcept { ::operator delete(memory); }

  /// Waits for all queued work, and frees memory and kernels; must be called while the device still exists.
  [[gnu::cold]] void release() noexcept {
    try {
      wait();  // copies from staging memory may be queued
    } catch (const device_error&) {  // what was queued will not run
    }
    unkept_.clear();
    kernels_.clear();
    if (faults_) deallocate(faults_, fault_bytes);
    faults_ = nullptr;
    for (const auto& [memory, bytes] : tables_) deallocate(memory, bytes);
    tables_.clear();
    if (void* const memory = staging_.released()) free_staging(memory);
  }

 private:
  [[noreturn, gnu::cold]] void refuse_f64(const std::string& op) const;
  [[noreturn, gnu::cold]] void refuse_recording(const char* what) const {
    refuse<usage_error>({"weft: ", name(), ": this work cannot be recorded: it ", what});
  }
  /// Makes the given copies to the host, of which there may be none, and waits for everything queued. Keeps
  /// what was compiled since the last wait. Throws value_error if a kernel has reported an invalid operand.
  void finish(std::span<const host_copy> copies);
  /// Called if not all of these copies could be queued: waits for those that are, since the caller may free
  /// the memory to which they go.
  [[gnu::cold]] void abandon_copies() noexcept;
  /// One text of a fused kernel, and how it is launched.
  struct part {
    lower::text_form form{};
    index_t folded = 1, blocks = 1, groups = 0;
  };
  /// The texts of a call, in order. A text with no groups is not launched.
  std::array<part, 2> parts_of(const kernel_call& call) const;
  void queue(const kernel_call& call, const part& by);
  static std::string key_of(std::span<const std::uint64_t> instructions, const lower::text_form& form);
  static index_t address_of(const void* pointer) {
    return static_cast<index_t>(reinterpret_cast<std::uintptr_t>(pointer));
  }
  /// Throws device_error if a kernel that accesses scratch memory has none: it would write to its operands.
  static void check_scratch(const kernel_call& call, const part& by);
  static std::vector<void*> pointers_of(const kernel_call& call, const part& by);
  /// Appends the parameters of a call to `p`.
  static void append_parameters(const kernel_call& call, const part& by, parameters& p);
  /// One launch for several calls: its kernel, and the table that the kernel reads (lower::joint_text).
  struct joint_launch {
    std::string key;
    std::vector<lower::text_part> parts;
    parameters table;
    index_t inside = 0, calls = 0, groups = 0;  // inside: room for the table among the parameters; 0: none
  };
  struct one_of_joint {
    const kernel_call* call;
    part by;
  };
  /// The launches for these calls, one after the other. Calls whose groups have another size are launched
  /// alone.
  std::vector<std::vector<one_of_joint>> waves_of(std::span<const kernel_call* const> calls) const;
  static joint_launch joint_launch_of(const std::vector<one_of_joint>& calls);
  void queue(const std::vector<one_of_joint>& calls);
  [[gnu::cold]] std::shared_ptr<compiled_kernel> compiled(const std::string& text, int threads = group_size);
  [[gnu::cold]] std::string source_of(const std::string& text, int threads) const;
  /// The kernel of this source: loaded if it was kept, otherwise compiled, with a key if it is to be kept.
  /// Needs no lock.
  [[gnu::cold]] std::shared_ptr<compiled_kernel> loaded_or_compiled(const std::string& source);
  void run_native(const char* op, const char* fault, const native_text& by, const native_operands& operands);
  static void append_padded(parameters& p, const index_t* values, int count, index_t pad, int to = 4) {
    for (int i = 0; i < to; ++i) p.push_back(i < count ? values[i] : pad);
  }
  static void append_numbers(const kernel_call& call, const lower::text_form& form, parameters& p);
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<compiled_kernel>> kernels_;
  kernel_cache cache_;
  std::vector<std::shared_ptr<compiled_kernel>> unkept_;
  staging_memory staging_;
  static constexpr std::size_t number_bytes = (1 + most_keys) * sizeof(std::uint64_t);
  static constexpr std::size_t fault_bytes = report_words::count * sizeof(std::int32_t);
  void* fault_word(std::size_t of) const { return static_cast<std::int32_t*>(faults_) + of; }
  void* faults_ = nullptr;  // device memory
  report_words reports_;    // in which word native ops were launched that no wait has checked
  bool checks_launches_ = [] {
    const char* const set = std::getenv("WEFT_CHECK_LAUNCHES");
    return set && *set && std::strcmp(set, "0") != 0;
  }();
  // For the tables of joint launches that are not among their parameters. The last one is the largest and is
  // in use; recorded work may refer to the others.
  std::vector<std::pair<void*, std::size_t>> tables_;
  std::atomic<std::thread::id> recorder_{};
  std::unique_ptr<recorded_parts> recorded_;  // by the recorder
  std::vector<std::string> refusals_;         // messages by fault number less 1
};

/// Operand `k` of a call; results follow the inputs.
const strided& operand(const native_operands& operands, int k);

/// The source of a kernel of a native op for operands of these orders and types. `records`: whether it can be
/// part of recorded work, which has its random key and the place of its reports from memory.
[[gnu::cold]] std::string native_source(const native_text& by, const native_operands& operands, bool records);

}  // namespace weft::gpu

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/jit_backend.ipp>
#include <weft/gpu/impl/jit_backend_native.ipp>
#endif
