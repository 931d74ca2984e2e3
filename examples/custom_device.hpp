// SPDX-License-Identifier: MIT
// A custom device: a thread that executes queued commands in order, in memory that the host cannot address,
// as accelerators do.
//
// Its kernels are the functions that weft has compiled for this CPU. A device that compiles source text
// instead inherits from gpu::jit_backend; docs/adding_a_device.md compares the approaches.
//
//   context_in<on<worker>> c;
//   auto y = eval(softmax(x), c);
#pragma once

#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include <weft/device/kind.hpp>

/// A thread as a device.
class worker_backend : public weft::backend {
 public:
  worker_backend() : thread_([this] { work(); }) {}
  worker_backend(const worker_backend&) = delete;
  worker_backend& operator=(const worker_backend&) = delete;
  ~worker_backend() override {
    queue([this] { ends_ = true; });
    thread_.join();
  }

  const char* name() const override { return "worker"; }
  std::string description() const override { return "a thread with memory of its own"; }

  // Memory. A device address is a host address plus an offset that makes it invalid on the host: pointer
  // arithmetic works, and the host cannot read device memory by mistake.

  void* allocate(std::size_t bytes) override {
    void* const memory = ::operator new(bytes, alignment, std::nothrow);
    if (!memory)
      throw weft::out_of_memory_error("weft: worker: out of memory: could not allocate " +
                                      std::to_string(bytes) + " bytes");
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(memory) + offset);
  }
  /// The allocator may reuse a block while queued commands still read it, because the commands of the next
  /// user are queued behind them. Memory that returns to the system must not be in use, hence the wait.
  void deallocate(void* memory, std::size_t) noexcept override {
    wait();
    ::operator delete(here(memory), alignment);
  }
  bool host_accessible() const override { return false; }

  /// Returns once the host memory has been read; the caller may then free it.
  void upload(void* to, const void* from, std::size_t bytes) override {
    if (bytes == 0) return;
    queue([=] { std::memcpy(here(to), from, bytes); });
    wait();
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) queue([=] { std::memcpy(to, here(from), bytes); });
    synchronize();
  }
  void fill_zero(void* memory, std::size_t bytes) override {
    if (bytes > 0) queue([=] { std::memset(here(memory), 0, bytes); });
  }

  // Kernels. Commands hold copies, because what a call refers to may have changed by the time the command is
  // executed.

  /// Scratch memory of the CPU functions: vectors for each scratch row, then for each fold of columns.
  std::size_t scratch_bytes(const weft::kernel_call& call) const override {
    return static_cast<std::size_t>(call.scratch_rows + call.column_folds) * bytes_of_row(call);
  }
  static std::size_t bytes_of_row(const weft::kernel_call& call) {
    return static_cast<std::size_t>(weft::scratch_size(call.args.row_size())) * 8;
  }

  void launch(const weft::kernel_call& call) override {
    weft::kernel_args args = call.args;
    for (int a = 0; a < args.arguments; ++a) args.pointer[a] = here(args.pointer[a]);
    const auto function = call.function;
    char* const scratch = call.scratch ? static_cast<char*>(here(call.scratch)) : nullptr;
    char* const sums = scratch + static_cast<std::size_t>(call.scratch_rows) * bytes_of_row(call);
    queue([=] {
      const weft::index_t rows = args.rows();  // of the result if columns are folded
      for (weft::index_t r = 0; r < rows; ++r)
        function(args, {r, r + 1, 0, args.row_size(), scratch, nullptr, sums});
    });
  }

  void multiply(const weft::native_code& code, const weft::strided& a, const weft::strided& b,
                const weft::strided& c) override {
    const weft::strided in[] = {a, b};
    const weft::attributes none{};
    call_native("matmul", code, {in, {&c, 1}, none, 0});
  }

  void copy(const weft::strided& from, const weft::strided& to) override {
    queue([source = mine(from), target = mine(to)] {
      const auto bytes = static_cast<std::size_t>(weft::size_of(target.type));
      const auto at = [&](const weft::strided& s, weft::index_t i) {
        return s.data<char>() + weft::element_offset(target.extents, s.stride, 0, target.extents.order, i) *
                                    static_cast<weft::index_t>(bytes);
      };
      for (weft::index_t i = 0; i < target.size(); ++i) std::memcpy(at(target, i), at(source, i), bytes);
    });
  }

  void call_native(const char* op, const weft::native_code& code,
                   const weft::native_operands& operands) override {
    if (!code.cpu)
      throw weft::device_error(std::string("weft: ") + op + ": this op has no code for the device worker");
    std::vector<weft::strided> in, out;
    for (const weft::strided& t : operands.in) in.push_back(mine(t));
    for (const weft::strided& t : operands.out) out.push_back(mine(t));
    queue([this, run = code.cpu, in = std::move(in), out = std::move(out), at = operands.at,
           random = operands.random] {
      run({{in, out, at, random}, one_thread_});
    });
  }

  /// Waits for all commands. Throws the first exception that a command has thrown since the last call, for an
  /// index out of range for example.
  void synchronize() override {
    wait();
    std::exception_ptr failed;
    {
      const std::lock_guard lock(mutex_);
      failed = std::exchange(failed_, nullptr);
    }
    if (failed) std::rethrow_exception(failed);
  }

 private:
  static constexpr std::align_val_t alignment{64};
  static constexpr std::uintptr_t offset = std::uintptr_t{1} << 62;

  static void* here(const void* address) {
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(address) - offset);
  }
  static weft::strided mine(weft::strided t) {
    t.pointer = here(t.pointer);
    return t;
  }

  void queue(std::function<void()> command) {
    {
      const std::lock_guard lock(mutex_);
      commands_.push_back(std::move(command));
    }
    changed_.notify_all();
  }
  void wait() noexcept {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return commands_.empty(); });
  }

  /// The thread's loop. A command stays in the queue until it is done.
  void work() {
    std::unique_lock lock(mutex_);
    while (!ends_) {
      changed_.wait(lock, [this] { return !commands_.empty(); });
      const std::function<void()>& next = commands_.front();
      lock.unlock();
      std::exception_ptr failed;
      try {
        next();
      } catch (...) {
        failed = std::current_exception();
      }
      lock.lock();
      if (failed && !failed_) failed_ = failed;
      commands_.pop_front();
      if (commands_.empty()) changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> commands_;  // references to elements stay valid at either end
  std::exception_ptr failed_;
  bool ends_ = false;
  weft::executor one_thread_{1};
  std::thread thread_;  // last, because it uses the other members
};

// [kind]
/// The device kind, for on<worker>.
struct worker {
  static constexpr auto name = "worker";
  static std::vector<weft::device_facts> list() { return {{"a thread with memory of its own", 0, ""}}; }
  static std::shared_ptr<weft::backend> open(int, const weft::device_options&) {
    return std::make_shared<worker_backend>();
  }
};
// [/kind]
