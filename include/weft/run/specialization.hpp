// SPDX-License-Identifier: MIT
// Specialization: a plan whose extents are known. Layouts, kernel arguments and the memory plan are computed
// once; a run only fills in pointers.
//
//   specialization s(plan, kernels, symbol_values);
//   s.set_leaf(0, x); s.set_output(0, {y});
//   s.run({device, arena, numbers, random, on_tap, hooks});
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <weft/base/poison.hpp>
#include <weft/device/backend.hpp>
#include <weft/lower/plan.hpp>
#include <weft/run/execution_hooks.hpp>
#include <weft/run/joined_product.hpp>
#include <weft/run/concat_parts.hpp>
#include <weft/run/step_observer.hpp>
#include <weft/run/symbols.hpp>
#include <weft/run/tapped.hpp>
#include <weft/shape/layout.hpp>
#include <weft/tensor/tensor.hpp>

namespace weft::runtime {

using lower::step_kind;
using lower::storage;

/// The memory of an output, and whether the program adds to its contents.
struct output_memory {
  void* data = nullptr;
  bool adds = false;
};

class specialization;

/// Interface for collecting programs of one kernel, to launch them together (run/joint_launch.hpp).
class launch_collector {
 public:
  /// Whether the kernel of `p` is to be collected and not launched.
  virtual bool collects(const specialization& p) const = 0;
  virtual void collect(const kernel_call& kernel) = 0;
  /// Keeps tensors alive until the launch.
  virtual void keep(const tensor_list& some) = 0;

 protected:
  ~launch_collector() = default;
};

/// The arguments of one execution of a program, in addition to its leaves and outputs.
struct frame {
  backend& device;
  void* arena;
  const recycled_vector<any_number>& numbers;
  std::uint64_t random;
  const tap_handler& on_tap;
  execution_hooks* hooks;  // polled between steps; may be null
  launch_collector* collector = nullptr;  // if set, takes the kernels, which are then not launched
  step_observer* observer = detail::steps_go_to;  // may be null
};

namespace detail {
/// At the end of a program, including by an error, waits for its collectives, which use its memory.
struct exchange_guard {
  execution_hooks* hooks;
  explicit exchange_guard(execution_hooks* h) : hooks(h) {}
  exchange_guard(const exchange_guard&) = delete;
  exchange_guard& operator=(const exchange_guard&) = delete;
  ~exchange_guard() {
    if (hooks) hooks->abandon();
  }
};
}  // namespace detail

/// A plan for specific values of its symbolic extents, ready to be executed repeatedly.
class specialization {
 public:
  /// `device`: the device on which it will run, which may need scratch memory in the arena and time to
  /// prepare.
  [[gnu::cold]] specialization(const plan_view& p, std::span<const kernel_function> kernels,
                               const symbol_values& symbols, backend& device);
  specialization(const specialization&) = delete;  // kernels_ points into steps_
  specialization& operator=(const specialization&) = delete;

  /// The symbol values that this specialization was made for.
  const symbol_values& symbols() const { return symbols_; }
  /// The memory for intermediate values, followed by the scratch memory of one launch at a time.
  std::size_t arena_bytes() const { return arena_.bytes + scratch_bytes_; }
  /// Whether the program can add this output to the contents of the output's memory.
  bool can_add(int output) const {
    return value(base_of(plan_.outputs[static_cast<std::size_t>(output)])).adds;
  }
  std::size_t output_count() const { return plan_.outputs.size(); }
  /// Whether the program computes this output.
  bool has_output(int output) const { return plan_.outputs[static_cast<std::size_t>(output)] >= 0; }
  const shape& output_extents(int output) const {
    return layouts_[plan_.outputs[static_cast<std::size_t>(output)]].extents;
  }

  /// Whether the program reads leaf `number` with these extents, or does not read it at all.
  bool reads_extents(int number, const shape& extents) const;

  dtype output_type(int output) const {
    return value(plan_.outputs[static_cast<std::size_t>(output)]).result.type;
  }

  /// The op that computes the output; for a fused kernel, its last op.
  const char* output_op(int output) const {
    return value(plan_.outputs[static_cast<std::size_t>(output)]).op;
  }

  /// The device memory of leaf `l` in the next runs.
  void set_leaf(std::size_t l, void* memory) { leaves_[static_cast<int>(l)] = memory; }
  /// The device memory of output `o` in the next runs.
  void set_output(std::size_t o, output_memory memory) { outputs_[static_cast<int>(o)] = memory; }

  /// Whether the program may write its outputs to the memory given for them (null for outputs in other
  /// memory): true if it does not read this memory, or if a single kernel reads each element immediately
  /// before it writes the same element.
  [[gnu::cold]] bool can_overwrite() const;
  /// Whether the program is a single element-wise kernel, which reads all of its operands before anything can
  /// fail.
  bool is_one_kernel_of_elements() const;

  /// Whether the program is a single kernel that needs no arena memory, so that it can be collected.
  bool is_one_kernel() const {
    return steps_.size() == 1 && steps_[0].entry->kind == step_kind::kernel && arena_bytes() == 0;
  }

  /// For a program that only copies a view of a leaf: the elements of the view, in the leaf's memory.
  strided copied_view(void* leaf) const;

  /// Executes the steps.
  void run(const frame& f);

  /// The dims along which other ranks held other positions, for operands and result (run/placed.hpp).
  struct positions_found {
    recycled_vector<positions_dims> of_leaves;
    positions_dims of_result = no_positions;
  };
  positions_found known_positions;

 private:
  struct source {
    enum { leaf, output, arena } from = leaf;
    int index = 0;
    std::ptrdiff_t bytes = 0;
  };
  struct prepared {
    const lower::step_entry* entry = nullptr;
    int together = 1;  // number of kernels launched together from this one on; 0 for those after the first
    int slices = 1;    // for a product and the exchange that follows: executed slice by slice, by the product
    attributes at{};
    native_code code{};
    kernel_call call{};
    std::size_t scratch = 0;  // where a kernel's scratch memory begins, after the arena
    int number = 0;           // of a kernel, among all kernels
    bool has_scratch = false;  // of a native op
    joined_product joined{};  // of a product
    bool is_elided = false;   // see is_elided(s)
    bool done = false;        // in this run, together with a product
  };

  /// The bytes [first, last) of memory.
  struct memory_range {
    std::uintptr_t first = 0, last = 0;
    bool overlaps(const memory_range& other) const { return first < other.last && other.first < last; }
  };

  /// The bytes that a value accesses in the memory of an output, or of leaf number `source` of the plan.
  struct reached_bytes {
    int id = 0, source = 0;
    index_t first = 0, last = 0;
    memory_range from(const void* data) const;
  };
  [[gnu::cold]] reached_bytes reach(int id) const;

  /// Whether each view of the leaf value `leaf` either has exactly the elements of output `o`, in the same
  /// order, or does not overlap them.
  [[gnu::cold]] bool reads_what_it_writes(int leaf, const void* read, int o, const void* written) const;

  template <class T>
  static int count_of(std::span<const T> s) {
    return static_cast<int>(s.size());
  }

  index_t number_of_extent(index_t e) const { return detail::number_of(symbols_, e); }
  shape resolved(const shape& s) const { return detail::resolved(symbols_, s); }
  attributes resolved(attributes at, unsigned extents) const;
  const lower::value_entry& value(int id) const { return plan_.values[static_cast<std::size_t>(id)]; }
  const layout& layout_of(int id) const { return layouts_[id]; }
  /// The value in whose memory `id` is.
  int base_of(int id) const {
    const int base = lower::base_of(plan_, id), within = elided_[base];
    return within < 0 ? base : lower::base_of(plan_, within);
  }
  /// Whether `id` has no memory of its own.
  bool is_elsewhere(int id) const { return elided_[lower::base_of(plan_, id)] >= 0; }
  any_number number(int id, const recycled_vector<any_number>& numbers) const;

  [[gnu::cold]] void lay_out();

  source source_of(int id) const;

  bool is_kernel(int step) const { return steps_[step].entry->kind == step_kind::kernel; }
  bool is_launched(int step) const { return is_kernel(step) && !steps_[step].is_elided; }
  /// Whether a step is a copy or concat that has nothing to do.
  [[gnu::cold]] bool is_elided(const lower::step_entry& s) const;
  /// The values that a step reads, and then those that it writes.
  std::span<const int> operands_of(const lower::step_entry& s) const {
    return plan_.operands.subspan(static_cast<std::size_t>(s.first_operand),
                                  static_cast<std::size_t>(s.inputs + s.outputs));
  }
  /// Computes a product together with the kernel joined to it; returns false, with nothing done, if that is
  /// impossible.
  bool multiply_joined(const frame& f, const prepared& s, std::span<const strided> t) {
    if (s.joined.step < 0) return false;
    prepared& kernel = steps_[s.joined.step];
    if (kernel.done) return false;  // another product has computed it
    place_arguments(f, kernel);
    return kernel.done = runtime::multiply_joined(f.device, t, s.joined, kernel.call.args);
  }
  /// Sets the pointers of the arguments of a kernel.
  void place_arguments(const frame& f, prepared& s) const {
    const int count = s.entry->inputs + s.entry->outputs;
    for (int i = 0; i < count; ++i)
      s.call.args.pointer[i] = memory_of(f, sources_[s.entry->first_operand + i]);
  }
  /// Whether neither of two steps writes a value that the other one accesses.
  [[gnu::cold]] bool are_independent(int a, int b) const;
  /// Finds the kernels to launch together: consecutive ones that are independent.
  [[gnu::cold]] void find_launches();
  /// The number of slices in which to compute a product whose result is sent.
  [[gnu::cold]] int slices_of(const lower::step_entry& product, const backend& device) const;
  /// Places the scratch memory of kernels and native ops, and prepares the device for the kernels.
  [[gnu::cold]] void prepare_launches(backend& device);

  /// The memory of a value of the arena.
  [[gnu::cold]] memory_range arena_range(const frame& f, int base) const;
  // Tell AddressSanitizer what may be accessed: during a step only its operands; after it, only what
  // exchanges in progress access, which other threads may complete.
  [[gnu::cold]] void allow_operands(const frame& f, const lower::step_entry& s) const;
  [[gnu::cold]] void forbid_operands(const frame& f, int step) const;
  /// Whether an exchange that is in progress after step `step` accesses the value `base` of the arena.
  [[gnu::cold]] bool is_exchanged(int base, int step) const;

  strided tensor_of(int id) const;
  /// Makes operand `i` of a product refer to the source of its copy, which is not made.
  void read_where_copied(int i);

  [[gnu::cold]] void prepare(const lower::step_entry& s, std::span<const kernel_function> kernels,
                             prepared& ready);

  /// How a kernel reads an argument along a row. Merging dims must not change this.
  enum class access : std::uint8_t { contiguous, strided, per_row };

  using access_list = std::array<access, max_arguments>;

  [[gnu::cold]] static access_list accesses(std::span<const std::uint64_t> code);

  [[gnu::cold]] void prepare_kernel(const lower::step_entry& s, std::span<const int> operands,
                                    std::span<const kernel_function> kernels, kernel_call& call) const;

  /// Kernels are compiled before extents are known: checks that the arguments they assume to be contiguous
  /// are.
  [[gnu::cold]] static void check_accesses(const kernel_args& args, const access_list& how);

  /// The strides of each argument for dims d and d + 1 traversed as one dim; false if an argument has no such
  /// stride.
  [[gnu::cold]] static bool merged_strides(const kernel_args& args, int d, index_t* merged);
  /// Merges dims d and d + 1.
  [[gnu::cold]] static void merge(kernel_args& args, int d, const index_t* merged);

  /// Removes dim d by extending the last dim; false if strides or accesses do not allow it.
  [[gnu::cold]] static bool merge_into_last(kernel_args& args, int d, const access_list& how);

  /// Merges dims before `end` that every argument can traverse as one dim.
  [[gnu::cold]] static void merge_rows(kernel_args& args, int begin, int end);

  /// Sets the pointers of the operands of a step that is not a kernel.
  std::span<const strided> placed_operands(const frame& f, const lower::step_entry& s);
  void* memory_of(const frame& f, const source& s) const;
  /// Launches the kernels that are launched together with `first`, the first of them.
  void launch(const frame& f, const prepared& first) const;

  /// Computes a product in slices and starts the exchange of each.
  [[gnu::cold]] void multiply_in_slices(const frame& f, const prepared& product, const prepared& sent);

  void run_step(const frame& f, const prepared& s, std::span<const strided> t) const;

  /// Calls compute() between begin(observer) and the observer's end, if there is an observer.
  template <class Begin, class Compute>
  static void observed(const frame& f, Begin begin, Compute compute);

  [[gnu::cold]] static void show(const frame& f, const char* name, const strided& t);

  /// The dim along which a product's result is sliced: the first dim with several indices, so that slices of
  /// contiguous memory are contiguous.
  [[gnu::cold]] static int sliced_dim(const shape& extents);
  static strided part_of(strided t, int dim, index_t start, index_t count, index_t step);

  plan_view plan_;
  symbol_values symbols_;
  sequence<void*> leaves_;
  sequence<output_memory> outputs_;
  sequence<layout> layouts_;                // by value
  elided_copies elided_;
  sequence<merged_dims> merged_;            // by operand, for copies that are not made
  sequence<reached_bytes> reads_, writes_;  // per leaf that is read; per output
  arena_plan arena_;
  std::size_t scratch_bytes_ = 0;
  sequence<source> sources_;   // by operand
  sequence<strided> tensors_;  // by operand, for steps that are not kernels
  sequence<prepared> steps_;
  sequence<const kernel_call*> kernels_;
};

}  // namespace weft::runtime

#ifndef WEFT_COMPILED
#include <weft/run/impl/specialization.ipp>
#include <weft/run/impl/specialization_run.ipp>
#endif
