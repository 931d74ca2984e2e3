// SPDX-License-Identifier: MIT
// The CPU as a device: compiled kernels on the executor's threads, memory that the host shares.
#pragma once

#include <cstring>
#include <new>
#include <string>

#include <weft/device/backend.hpp>
#include <weft/device/cpu/executor.hpp>
#include <weft/device/cpu/gemm.hpp>

namespace weft::cpu {

/// Calls f(index) for every index of the first `dims` dims, the last one fastest.
template <class F>
void for_each_index(const shape& extents, int dims, F f) {
  index_t count = 1;
  for (int i = 0; i < dims; ++i) count *= extents[i];
  for (index_t n = 0; n < count; ++n) {
    index_t index[max_order]{};
    index_t rest = n;
    for (int i = dims; i-- > 0;) {
      index[i] = rest % extents[i];
      rest /= extents[i];
    }
    f(index);
  }
}

inline index_t offset_of(const strided& s, const index_t* index, int dims) {
  index_t offset = 0;
  for (int i = 0; i < dims; ++i) offset += index[i] * s.stride[i];
  return offset;
}

class cpu_backend : public backend {
 public:
  explicit cpu_backend(int threads = 0) : threads_(threads) {}

  const char* name() const override { return "cpu"; }
  const executor& threads() const { return threads_; }

  void* allocate(std::size_t bytes) override {
    void* memory = ::operator new(bytes, alignment, std::nothrow);
    if (!memory)
      throw device_error("weft: cpu: out of memory: could not allocate " + std::to_string(bytes) +
                         " bytes");
    return memory;
  }
  void deallocate(void* memory, std::size_t) noexcept override {
    ::operator delete(memory, alignment);
  }
  bool host_accessible() const override { return true; }
  void upload(void* to, const void* from, std::size_t bytes) override {
    if (bytes) std::memcpy(to, from, bytes);
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    if (bytes) std::memcpy(to, from, bytes);
  }
  void fill_zero(void* memory, std::size_t bytes) override { std::memset(memory, 0, bytes); }
  void synchronize() override {}

  void launch(const kernel_call& call) override {
    switch (call.division) {
      case kernel_division::elements: launch_elements(call); break;
      case kernel_division::rows: launch_rows(call); break;
      case kernel_division::columns: launch_columns(call); break;
    }
  }

  void multiply(const strided& a, const strided& b, const strided& c) override {
    if (c.type == dtype::f64) multiply_as<double>(a, b, c);
    else if (c.type == dtype::f32) multiply_as<float>(a, b, c);
    else throw device_error(std::string("weft: cpu: matmul of ") + name_of(c.type));
  }

  void copy(const strided& from, const strided& to) override {
    switch (size_of(to.type)) {
      case 8: copy_as<std::uint64_t>(from, to); break;
      case 4: copy_as<std::uint32_t>(from, to); break;
      case 2: copy_as<std::uint16_t>(from, to); break;
      default: copy_as<std::uint8_t>(from, to);
    }
  }

  void call_native(const char* op, const native_code& code, const native_operands& operands) override {
    if (!code.cpu) throw device_error(std::string("weft: ") + op + ": this op has no code for the device cpu");
    code.cpu({operands, threads_});
  }

 protected:
  static constexpr std::align_val_t alignment{64};
  /// Less work than this stays on one thread; a parallel call costs a few microseconds.
  static constexpr index_t serial_elements = 16384;

  /// Tasks for `work` elements, at most `most`.
  index_t tasks_for(index_t work, index_t most) const {
    if (threads_.threads() == 1 || work < serial_elements) return 1;
    return std::min<index_t>(most, 4 * threads_.threads());
  }

  void launch_elements(const kernel_call& call) {
    const index_t rows = call.args.rows(), size = call.args.row_size();
    const bool by_rows = rows > 1;
    const index_t most = by_rows ? rows : (size + 1023) / 1024;
    const index_t tasks = tasks_for(rows * size, most);
    threads_.parallel_for(tasks, [&](index_t t, scratch_memory&) {
      if (by_rows) {
        call.function(call.args, {rows * t / tasks, rows * (t + 1) / tasks, 0, size, nullptr});
      } else {
        const index_t begin = most * t / tasks * 1024, end = most * (t + 1) / tasks * 1024;
        call.function(call.args, {0, rows, begin, std::min(size, end), nullptr});
      }
    });
  }

  void launch_rows(const kernel_call& call) {
    const index_t rows = call.args.rows(), size = call.args.row_size();
    const index_t tasks = tasks_for(rows * size, rows);
    const auto bytes = static_cast<std::size_t>(call.scratch_rows * size * 8);
    threads_.parallel_for(tasks, [&](index_t t, scratch_memory& scratch) {
      call.function(call.args, {rows * t / tasks, rows * (t + 1) / tasks, 0, size, scratch.get(bytes)});
    });
  }

  /// Columns are folded in chunks of a fixed size, whatever the number of threads: the order of
  /// additions depends on the shape alone.
  void launch_columns(const kernel_call& call) {
    constexpr index_t chunk = 256;
    const index_t rows = call.args.rows(), size = call.args.row_size();
    const index_t chunks = (size + chunk - 1) / chunk;
    index_t folded = 1;
    for (int d = 0; d < call.args.folded; ++d) folded *= call.args.extent[call.args.order - 2 - d];
    const index_t tasks = rows * folded * size < serial_elements ? 1 : rows * chunks;
    const auto run = [&](index_t t, scratch_memory& scratch) {
      const index_t begin = t % chunks * chunk;
      call.function(call.args, {t / chunks, t / chunks + 1, begin, std::min(size, begin + chunk),
                                scratch.get(static_cast<std::size_t>(chunk * 8))});
    };
    if (tasks == 1) {
      scratch_memory& scratch = serial_scratch_;
      for (index_t t = 0; t < rows * chunks; ++t) run(t, scratch);
    } else {
      threads_.parallel_for(tasks, run);
    }
  }

  template <class T>
  void multiply_as(const strided& a, const strided& b, const strided& c) {
    const int batch = c.extents.order - 2;
    const gemm_size size{c.extents[batch], c.extents[batch + 1], a.extents.last()};
    const auto one = [&](const index_t* index, executor& on) {
      cpu::multiply<T>(size,
                       {a.data<T>() + offset_of(a, index, batch), a.stride[batch], a.stride[batch + 1]},
                       {b.data<T>() + offset_of(b, index, batch), b.stride[batch], b.stride[batch + 1]},
                       {c.data<T>() + offset_of(c, index, batch), c.stride[batch]}, false, on);
    };
    for_each_index(c.extents, batch, [&](const index_t* index) { one(index, threads_); });
  }

  template <class T>
  void copy_as(const strided& from, const strided& to) {
    const int outer = to.extents.order > 0 ? to.extents.order - 1 : 0;
    const index_t n = to.extents.last();
    const index_t from_step = outer < to.extents.order ? from.stride[outer] : 1;
    const index_t to_step = outer < to.extents.order ? to.stride[outer] : 1;
    for_each_index(to.extents, outer, [&](const index_t* index) {
      const T* source = from.data<const T>() + offset_of(from, index, outer);
      T* target = to.data<T>() + offset_of(to, index, outer);
      if (from_step == 1 && to_step == 1) std::copy(source, source + n, target);
      else
        for (index_t i = 0; i < n; ++i) target[i * to_step] = source[i * from_step];
    });
  }

  executor threads_;
  scratch_memory serial_scratch_;
};

}  // namespace weft::cpu
