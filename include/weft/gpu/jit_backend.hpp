// SPDX-License-Identifier: MIT
// Devices whose kernels are compiled from source text at run time.
//
// OpenCL and CUDA differ in memory, compiler and launch, which they implement below; kernels and their
// parameters are defined here once for both.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <weft/device/kind.hpp>
#include <weft/gpu/dialect.hpp>
#include <weft/gpu/native_ops.hpp>
#include <weft/lower/text.hpp>

namespace weft::gpu {

/// A compiled kernel in the form of its device.
struct compiled_kernel {
  virtual ~compiled_kernel() = default;
  int threads = group_size;  // of a group
};

/// Parameters of a kernel besides its pointers: 64-bit values in the order of the struct PARAMS, beginning
/// with the offsets of the pointers.
using parameters = std::vector<index_t>;

/// Base of such devices. Contexts in several threads may share one: kernels and fault flag are protected by
/// a lock, which is held until what uses them is queued.
class jit_backend : public backend {
 public:
  bool host_accessible() const override { return false; }
  void download(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) read(to, from, bytes);
    check_faults();
  }

  void synchronize() override {
    wait();
    check_faults();
  }

  std::size_t scratch_bytes(const kernel_call& call) const override { return group_scratch_bytes(call); }

  void launch(const kernel_call& call) override {
    const kernel_args& args = call.args;
    const index_t items = args.rows() * args.row_size();
    lower::text_form form = lower::text_form_of(call);
    const std::lock_guard lock(mutex_);
    switch (call.division) {
      case kernel_division::elements: queue(call, form, 1, 1, groups_for(items)); break;
      case kernel_division::rows: queue(call, form, 1, 1, row_groups(call).groups); break;
      case kernel_division::columns:
        const column_blocks by(call);
        queue(call, form, by.folded, by.blocks, groups_for(items * by.blocks));
        form.joins_blocks = true;
        if (by.blocks > 1) queue(call, form, by.folded, by.blocks, groups_for(items));
    }
    finish_launch([&] { return lower::kernel_name(call.instructions); });
  }

  void multiply(const native_code&, const strided& a, const strided& b, const strided& c) override {
    std::string key = "multiply ";
    key += name_of(a.type);
    key += name_of(c.type);
    if (c.adds) key += " adds";
    const std::lock_guard lock(mutex_);
    auto& kernel = kernels_[key];
    if (!kernel) kernel = compiled(multiply_text_of(a, c));
    const int order = c.extents.order;
    const index_t m = c.extents[order - 2], n = c.extents[order - 1], k = a.extents[order - 1];
    index_t batch = 1;
    for (int d = 0; d < order - 2; ++d) batch *= c.extents[d];
    parameters p{0, 0, 0, m, n, k, batch};
    for (const strided* t : {&a, &b, &c}) p.insert(p.end(), {t->stride[order - 2], t->stride[order - 1]});
    append_padded(p, c.extents.extent, order - 2, 1);
    for (const strided* t : {&a, &b, &c}) append_padded(p, t->stride, order - 2, 0);
    const index_t tiles = batch * ((m + 31) / 32) * ((n + 31) / 32);
    if (tiles > 0) run(*kernel, {a.pointer, b.pointer, c.pointer}, p, std::min(tiles, max_groups));
    finish_launch([] { return "matmul"; });
  }

  void copy(const strided& from, const strided& to) override {
    const index_t bytes = size_of(to.type), size = to.size();
    const std::lock_guard lock(mutex_);
    auto& kernel = kernels_["copy " + std::to_string(bytes)];
    if (!kernel) kernel = compiled(copy_text_of(bytes));
    parameters p{0, 0, size};
    append_padded(p, to.extents.extent, to.extents.order, 1, max_order);
    append_padded(p, from.stride, to.extents.order, 0, max_order);
    append_padded(p, to.stride, to.extents.order, 0, max_order);
    if (size > 0) run(*kernel, {from.pointer, to.pointer}, p, groups_for(size));
    finish_launch([] { return "copy"; });
  }

  void call_native(const char* op, const native_code& code, const native_operands& operands) override;

  /// Whether every launch is waited for, so that what fails is reported by the call that failed, with the ops
  /// of its kernel: slow, to find a kernel that reads or writes where it must not. By default if the
  /// environment variable WEFT_CHECK_LAUNCHES is set to something else than 0.
  void check_launches(bool on) { checks_launches_ = on; }

 protected:
  static constexpr index_t max_groups = 4096;

  // Called under the lock, except `read` and `allocate`, which are also called without it.
  /// Compiles source text that defines one function weft_kernel. Throws device_error with the compiler's
  /// messages.
  virtual std::shared_ptr<compiled_kernel> compile(const std::string& text) = 0;
  /// Queues `groups` groups of kernel.threads items. Device pointers can be offsets into an object; if the
  /// device's kernels need the offset separately, it is passed in the first parameters.
  virtual void run(compiled_kernel& kernel, const std::vector<void*>& pointers, parameters& p,
                   index_t groups) = 0;
  /// Bytes of memory that a group can share.
  virtual index_t group_memory() const { return index_t{48} << 10; }
  /// The dialect's definitions in the device's language.
  virtual const char* dialect() const = 0;

  /// Waits for what is queued. Throws device_error if something of it has failed.
  virtual void wait() = 0;

  /// To be called after a launch: see check_launches.
  template <class Name>
  void finish_launch(Name name) {
    if (!checks_launches_) return;
    try {
      wait();
    } catch (const device_error& e) {
      throw device_error(std::string(e.what()) + ": in the " + name() + " just launched");
    }
  }

  /// Throws value_error if a kernel has reported an invalid operand; to be called when the host waits.
  void check_faults() {
    const std::lock_guard lock(mutex_);
    if (!fault_ || !natives_pending_) return;
    natives_pending_ = false;
    std::int32_t code = 0;
    read(&code, fault_, sizeof code);
    if (code == 0) return;
    fill_zero(fault_, sizeof code);
    throw value_error("weft: " + faults_[static_cast<std::size_t>(code - 1)]);
  }
  /// Copies to the host after everything queued before.
  virtual void read(void* to, const void* from, std::size_t bytes) = 0;

  /// Frees memory and kernels; to be called while the device still exists.
  [[gnu::cold]] void release() noexcept {
    kernels_.clear();
    if (fault_) deallocate(fault_, sizeof(std::int32_t));
    fault_ = nullptr;
  }

 private:
  /// Queues one text of a kernel.
  void queue(const kernel_call& call, const lower::text_form& form, index_t folded, index_t blocks,
             index_t groups) {
    if (groups == 0) return;
    const kernel_args& args = call.args;
    auto& kernel = kernels_[key_of(call.instructions, form)];
    if (!kernel) kernel = compiled(lower::kernel_text(call.instructions, form));
    std::vector<void*> pointers(args.pointer, args.pointer + args.arguments);
    if (form.scratch_rows > 0 || form.division == kernel_division::columns)
      pointers.push_back(call.scratch ? call.scratch : args.pointer[0]);  // not accessed by a single block
    parameters p(pointers.size(), 0);
    p.insert(p.end(), {args.rows(), args.row_size(), folded, blocks});
    p.insert(p.end(), args.extent, args.extent + args.order);
    for (int a = 0; a < args.arguments; ++a) p.insert(p.end(), args.stride[a], args.stride[a] + args.order);
    append_numbers(call, form, p);
    run(*kernel, pointers, p, groups);
  }
  static std::string key_of(std::span<const std::uint64_t> instructions, const lower::text_form& form) {
    std::string key(reinterpret_cast<const char*>(instructions.data()), instructions.size_bytes());
    for (int part : {static_cast<int>(form.division), form.order, form.folded, int{form.joins_blocks}})
      key += static_cast<char>(part);
    return key;
  }
  [[gnu::cold]] static std::string multiply_text_of(const strided& a, const strided& c) {
    using namespace lower::detail;
    return std::string("#define T ") + register_name(a.type) + "\n#define OPERAND " + memory_name(a.type) +
           "\n#define RESULT " + memory_name(c.type) + "\n#define LOADED(x) " + loaded(a.type, "x") +
           "\n#define STORE(to, x) to = " +
           stored(c.type, c.adds ? "(" + loaded(c.type, "to") + " + (x))" : "(x)") +
           "\ntypedef struct { long at[3], m, n, k, batch, a0, a1, b0, b1, c0, c1,"
           " batches[4], batch_a[4], batch_b[4], batch_c[4]; } PARAMS;\n" +
           multiply_text;
  }
  [[gnu::cold]] static std::string copy_text_of(index_t bytes) {
    constexpr const char* types[] = {"", "uchar", "ushort", "", "uint", "", "", "", "ulong"};
    return std::string("#define T ") + types[bytes] +
           "\ntypedef struct { long at[2], size, extent[6], from[6], to[6]; } PARAMS;\n" + copy_text;
  }
  [[gnu::cold]] std::shared_ptr<compiled_kernel> compiled(const std::string& text, int threads = group_size) {
    auto kernel = compile(std::string(dialect()) + "#define GROUP_SIZE " + std::to_string(threads) +
                          common_vocabulary + text);
    kernel->threads = threads;
    return kernel;
  }
  void run_native(const char* op, const char* fault, const native_text& by, const native_operands& operands);
  static index_t groups_for(index_t items) {
    return std::min((items + group_size - 1) / group_size, max_groups);
  }
  static void append_padded(parameters& p, const index_t* values, int count, index_t pad, int to = 4) {
    for (int i = 0; i < to; ++i) p.push_back(i < count ? values[i] : pad);
  }
  static void append_numbers(const kernel_call& call, const lower::text_form& form, parameters& p) {
    const std::size_t first = p.size();
    p.resize(first + static_cast<std::size_t>(form.numbers));
    for (std::size_t i = 0; i < call.instructions.size(); ++i) {
      const lower::instruction w = lower::instruction::decoded(call.instructions[i]);
      if (w.op == lower::constant) ++i;
      if (w.op != lower::scalar_argument) continue;
      const any_number x = call.args.number[w.a];
      const bool is_float = lower::register_type(w.type) == dtype::f32;
      p[first + static_cast<std::size_t>(w.a)] =
          is_float ? std::bit_cast<std::int32_t>(x.as<float>()) : x.bits;
    }
  }
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<compiled_kernel>> kernels_;
  void* fault_ = nullptr;
  bool natives_pending_ = false;
  bool checks_launches_ = [] {
    const char* const set = std::getenv("WEFT_CHECK_LAUNCHES");
    return set && *set && std::strcmp(set, "0") != 0;
  }();
  std::vector<std::string> faults_;  // messages by fault number less 1
};

/// Operand `k` of a call; results follow the inputs.
inline const strided& operand(const native_operands& operands, int k) {
  const auto i = static_cast<std::size_t>(k), in = operands.in.size();
  return i < in ? operands.in[i] : operands.out[i - in];
}

/// The source of a kernel of a native op for operands of these orders and types.
[[gnu::cold]] inline std::string native_source(const native_text& by, const native_operands& operands) {
  const int in = static_cast<int>(operands.in.size()), out = static_cast<int>(operands.out.size());
  std::string fields =
      "typedef struct {\n  long at[" + std::to_string(in + out + 1) + "], items, v[6];\n  ulong key;\n";
  std::string names, arguments;
  for (int k = 0; k < in + out; ++k) {
    const strided& t = operand(operands, k);
    const std::string n = (k < in ? "in" : "out") + std::to_string(k < in ? k : k - in),
                      p = std::to_string(k);
    const std::string order = std::to_string(std::max(t.extents.order, 1));
    const std::string type = lower::detail::memory_name(t.type);
    const std::string element = "((GLOBAL " + type + "*)(p" + p + " + P.at[" + p + "]))[";
    fields += "  long " + n + "_e[" + order + "], " + n + "_s[" + order + "];\n";
    names += "#define " + n + "_load(i) " + lower::detail::loaded(t.type, element + "i]") + "\n";
    names +=
        "#define " + n + "_store(i, x) (" + element + "i] = " + lower::detail::stored(t.type, "(x)") + ")\n";
    names += "#define " + n + "_extent(d) P." + n + "_e[d]\n#define " + n + "_stride(d) P." + n + "_s[d]\n";
    names += "#define " + n + "_offset(i) element_offset(i, " + order + ", P." + n + "_e, P." + n + "_s)\n";
    names += "#define " + n + "_size element_count(" + order + ", P." + n + "_e)\n";
    names += "#define " + n + "_order " + std::to_string(t.extents.order) + "\n";
    if (k >= in) names += "#define " + n + "_adds " + std::to_string(t.adds) + "\n";
    names += "typedef " + std::string(lower::detail::register_name(t.type)) + " " + n + "_t;\n";
    arguments += "GLOBAL char* p" + p + ", ";
  }
  const auto fault = std::to_string(in + out);
  names += "#define attribute(k) P.v[k]\n#define random P.key\n#define tasks P.items\n";
  names += "#define fault() (*(GLOBAL int*)(p" + fault + " + P.at[" + fault + "]) = FAULT)\n";
  names +=
      "#define NATIVE_KERNEL KERNEL weft_kernel(" + arguments + "GLOBAL char* p" + fault + ", PARAMS P)\n";
  const std::string all = by.definitions + fields + "} PARAMS;\n" + names;
  if (by.threads > 0) return all + by.text;
  return all + "NATIVE_KERNEL {\nfor (long item = GLOBAL_ID; item < P.items; item += GLOBAL_SIZE) {\n" +
         by.text + "\n}\n}\n";
}

/// Runs a native op by its texts, compiled at the first call for these types and orders. Throws device_error
/// if it has none.
inline void jit_backend::call_native(const char* op, const native_code& code,
                                     const native_operands& operands) {
  const std::vector<native_text> texts = native_texts_of(code, operands, group_memory());
  if (texts.empty())
    throw device_error(std::string("weft: ") + op + ": this op has no code for the device " + name());
  op = code.name(op, operands.at);
  const std::lock_guard lock(mutex_);
  if (!fault_) {
    fault_ = allocate(sizeof(std::int32_t));
    fill_zero(fault_, sizeof(std::int32_t));
  }
  for (const native_text& by : texts)
    run_native(op, code.fault ? code.fault : "an index is out of range", by, operands);
  finish_launch([op] { return op; });
}

/// Queues one kernel of a native op.
inline void jit_backend::run_native(const char* op, const char* fault, const native_text& by,
                                    const native_operands& operands) {
  const int count = static_cast<int>(operands.in.size() + operands.out.size());
  std::string key = std::string("native ") + op + by.definitions + by.text;
  for (int k = 0; k < count; ++k) {
    const strided& t = operand(operands, k);
    key += " ";  // one by one: g++ 12 warns falsely of overlapping copies
    key += name_of(t.type);
    key += std::to_string(t.extents.order);
    if (t.adds) key += " adds";
  }
  auto& kernel = kernels_[key];
  if (!kernel) {
    faults_.push_back(std::string(op) + ": " + fault);
    kernel = compiled("#define FAULT " + std::to_string(faults_.size()) + "\n" + native_source(by, operands),
                      by.threads > 0 ? by.threads : group_size);
  }
  std::vector<void*> pointers;
  parameters p(static_cast<std::size_t>(count + 1), 0);
  p.push_back(by.items);
  append_padded(p, operands.at.v, max_order, 0, max_order);
  p.push_back(static_cast<index_t>(operands.random));
  for (int k = 0; k < count; ++k) {
    const strided& t = operand(operands, k);
    pointers.push_back(t.pointer);
    const int order = std::max(t.extents.order, 1);
    append_padded(p, t.extents.extent, t.extents.order, 1, order);
    append_padded(p, t.stride, t.extents.order, 0, order);
  }
  pointers.push_back(fault_);
  natives_pending_ = true;
  if (by.items == 0) return;
  run(*kernel, pointers, p, by.threads > 0 ? std::min(by.items, max_groups) : groups_for(by.items));
}

}  // namespace weft::gpu
