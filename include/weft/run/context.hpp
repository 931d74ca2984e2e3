// SPDX-License-Identifier: MIT
// A context: the mutable state of one run, which consists of device, random state, and the specializations of
// the programs it has executed.
//
// Nothing else in weft is mutable and shared, so two contexts are independent runs. A context runs one
// program at a time; each thread needs its own. Functions that are not given one use a default context for
// the CPU.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <memory>

#include <weft/base/philox.hpp>
#include <weft/device/device.hpp>
#include <weft/run/choices.hpp>
#include <weft/run/specialization.hpp>

namespace weft {

namespace runtime {
class expert_ranks;
}

/// Device, random state and cached programs of one run. Not copyable. Use by two threads at the same time
/// throws usage_error.
class context {
 public:
  using programs = program_options<>;  // the options with which its programs are compiled

  explicit context(const device& where = default_device()) : device_(where) {}
  context(const context&) = delete;
  context& operator=(const context&) = delete;

  const device& where() const { return device_; }

  /// Called with the values of `tap`; prints by default.
  tap_handler on_tap = print_tapped;

  /// Runs programs on another backend that can access the device's memory, such as the reference backend for
  /// debugging (train/inspect.hpp). Null: the device itself.
  void set_backend(backend* other) { engine_ = other; }
  backend& engine() const { return engine_ ? *engine_ : *device_; }

  /// How many programs of a tape, counted from the first, save only their operands and recompute the rest in
  /// the backward pass: less memory for about a third more time, with bitwise identical results. Recomputing
  /// the last program of a pass saves no memory, since the backward pass reads its values immediately.
  int recompute_programs = 0;
  static constexpr int every_program = std::numeric_limits<int>::max();

  /// Factor on the cotangent with which backward passes start at a scalar loss. It scales all gradients, so
  /// that small ones do not underflow in f16.
  double loss_scale = 1;
  /// Weight of the losses that are evaluated from here on: 0 for a batch that is computed only to keep ranks
  /// in step.
  double loss_weight = 1;

  /// Seed of the random numbers of this context's programs, such as those of dropout.
  std::uint64_t seed = 0;

  /// Sets the step, on which random numbers depend. Within a step, each executed program draws different
  /// numbers; equal steps that run equal programs draw equal numbers, so a run can be repeated.
  void begin_step(std::uint64_t step) { begin_micro_batch(step, 0); }
  /// The same for one micro-batch of a step, so that its numbers do not depend on the batches that this rank
  /// has computed before.
  void begin_micro_batch(std::uint64_t step, std::uint64_t batch) {
    step_ = mix(mix(0, step), batch);
    programs_ = 0;
  }
  std::uint64_t next_random() {
    if (draws_) return number_of_draw();
    return random_key(randomness(), programs_++);
  }

  /// The random state: restore it to draw the same numbers again.
  struct random_state {
    std::uint64_t seed = 0, step = 0, programs = 0;
  };
  random_state randomness() const { return {seed, step_, programs_}; }
  /// The key with which program number `program` of a step draws.
  static std::uint64_t random_key(const random_state& r, std::uint64_t program) {
    return mix(mix(mix(0, r.seed), r.step), program);
  }
  /// From now on, and until it is called with null, programs get numbers instead of keys, and the random
  /// states that they would have drawn from are appended to `to`: for work that is recorded.
  void number_draws(std::vector<random_state>* to) { draws_ = to; }
  void set_randomness(const random_state& r) {
    seed = r.seed;
    step_ = r.step;
    programs_ = r.programs;
  }
  /// Sets the random state, and restores the previous one at the end of its lifetime.
  class randomness_scope {
   public:
    randomness_scope(context& c, const random_state& r) : of_(c), before_(c.randomness()) {
      c.set_randomness(r);
    }
    randomness_scope(const randomness_scope&) = delete;
    randomness_scope& operator=(const randomness_scope&) = delete;
    ~randomness_scope() { of_.set_randomness(before_); }

   private:
    context& of_;
    random_state before_;
  };

  /// Number of backward passes so far; a step without one is reported as an error.
  std::uint64_t backward_passes() const { return backward_passes_; }
  void begin_backward() { ++backward_passes_; }

  /// Callbacks of a parallel strategy around programs, which gather parameters and reduce gradients; null if
  /// there is none.
  runtime::execution_hooks* hooks() const { return hooks_; }
  /// The ranks that divide experts with this one (run/experts.hpp); null if there are none.
  runtime::expert_ranks* experts() const { return experts_; }
  /// This rank among those that divide layers with it; the only one if the strategy does not divide layers.
  const runtime::layer_rank& layer_rank() const { return layer_rank_; }

  /// The specialization of a plan for these symbol values; made at the first request, and kept until
  /// `most_kept` later ones of the same plan have been made, so that the sizes of experts, which differ from
  /// step to step, do not fill the memory. Valid until the next one is made. Throws usage_error while a
  /// program is running, because its own might be dropped.
  runtime::specialization& specialization_of(const lower::plan_view& plan, const void* identity,
                                             std::span<const kernel_function> kernels,
                                             const runtime::symbol_values& symbols);

  /// Memory for the intermediate values of a program while it runs; grows as needed and is kept.
  void* arena(std::size_t bytes);
  /// The memory of the arena.
  const buffer& arena_memory() const { return arena_; }

  /// Held by a thread while it works with the context or a tape in it; can be nested, for example in hooks
  /// that evaluate. Throws usage_error if another thread holds it, before any state is touched, so that there
  /// is no data race.
  class use {
   public:
    explicit use(context& c);
    use(const use&) = delete;
    use& operator=(const use&) = delete;
    ~use() {
      if (first_) of_.user_.store(nullptr, std::memory_order_release);
    }

   private:
    context& of_;
    bool first_ = true;
  };

  /// Held while a program runs. Throws usage_error if another one is running.
  class turn {
   public:
    explicit turn(context& c) : use_(c), of_(c) {
      if (c.executing_) refuse_running();
      c.executing_ = true;
    }
    turn(const turn&) = delete;
    turn& operator=(const turn&) = delete;
    ~turn() { of_.executing_ = false; }

   private:
    use use_;
    context& of_;
  };

 protected:
  runtime::execution_hooks* hooks_ = nullptr;
  runtime::expert_ranks* experts_ = nullptr;
  runtime::layer_rank layer_rank_;

 private:
  [[gnu::cold]] std::uint64_t number_of_draw();
  static inline thread_local const char this_thread = 0;  // its address identifies the thread

  [[noreturn, gnu::cold]] static void refuse_use(const char* why);
  [[noreturn, gnu::cold]] static void refuse_running();

  struct known_specialization {
    const void* identity = nullptr;
    std::unique_ptr<runtime::specialization> made;
  };
  static constexpr int most_kept = 256;
  /// Inserts `s` after those with the same identity, the first of which is the oldest.
  [[gnu::cold]] runtime::specialization& add(known_specialization s, int at);

  device device_;
  backend* engine_ = nullptr;
  std::atomic<const void*> user_ = nullptr;
  bool executing_ = false;
  std::uint64_t step_ = 0, programs_ = 0, backward_passes_ = 0;
  std::vector<random_state>* draws_ = nullptr;
  sequence<known_specialization> specializations_;  // ordered by identity
  buffer arena_;
  std::size_t arena_bytes_ = 0;
};

/// A context with the compile options `Options`.
template <class Options, class Device = void>
class context_for : public context {
 public:
  using programs = Options;
  using context::context;
};
/// The same on a device of the kind that `Device` chooses, by default its first one.
template <class Options, device_choice Device>
class context_for<Options, Device> : public context {
 public:
  using programs = Options;
  /// Throws device_error if the device does not exist.
  explicit context_for(const device_options& o = {}) : context(Device::where(o)) {}
};
/// A context whose programs are compiled with other than the default choices, and which may choose the
/// device. It moves nothing there: use `to(model, c.where())` for a model, and create data on c.where().
///   context_in<precision::bf16> c;
///   context_in<on<cuda>, precision::bf16> second({.device = 1});
///   tape steps(c);
template <class... Choices>
  requires((program_choice<Choices> || device_choice<Choices>) && ...)
using context_in = context_for<options_of<Choices...>, typename detail::chosen_device<Choices...>::type>;

/// The context of functions that are not given one: on the CPU, created at the first call and never
/// destroyed. Shared by all threads, only one of which may use it at a time, and, like default_device, by
/// shared libraries.
[[gnu::visibility("default")]] context& default_context();

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/run/impl/context.ipp>
#endif
