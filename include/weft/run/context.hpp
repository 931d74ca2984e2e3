// SPDX-License-Identifier: MIT
// All state of one run: the device, the random state, and instances of the programs it has seen.
//
// Nothing else in weft is mutable and shared, so two contexts are two runs that know nothing of
// each other. It runs one program at a time; threads make their own. Functions that take none use
// a default one for the CPU.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include <weft/base/philox.hpp>
#include <weft/device/device.hpp>
#include <weft/run/choices.hpp>
#include <weft/run/specialization.hpp>

namespace weft {

class context {
 public:
  using programs = program_options<>;  // for which the programs run in it are compiled

  explicit context(const device& where = default_device()) : device_(where) {}
  context(const context&) = delete;
  context& operator=(const context&) = delete;

  const device& where() const { return device_; }

  /// What happens with values that pass a `tap`.
  tap_handler on_tap = print_tapped;

  /// Plays programs on another back end that can read the device's memory: on the reference back
  /// end, to look closely (train/inspect.hpp). Null: on the device itself.
  void set_backend(backend* other) { engine_ = other; }
  backend& engine() const { return engine_ ? *engine_ : *device_; }

  /// How many programs of a tape, the first ones, keep only their operands and compute the rest again
  /// in backward: less memory for up to a third more time, the same bits. The last program of a pass
  /// gains nothing, its values are read at once.
  int recompute_programs = 0;
  static constexpr int every_program = std::numeric_limits<int>::max();

  /// What backward passes begin with where the loss is a scalar. Gradients are larger by it, so that
  /// small ones do not vanish in f16.
  double loss_scale = 1;
  /// Which part of a gradient counts: none of a batch that is computed for the sake of other ranks.
  double loss_weight = 1;

  std::uint64_t seed = 0;

  /// Random numbers of a step differ from those of the next. Within a step each program that is
  /// run has its own; the same steps run the same programs, so a run can be repeated.
  void begin_step(std::uint64_t step) { begin_micro_batch(step, 0); }
  /// The same for one of the batches whose gradients a step adds up, so that its numbers do not
  /// depend on how many batches the rank has seen before.
  void begin_micro_batch(std::uint64_t step, std::uint64_t batch) {
    step_ = mix(mix(0, step), batch);
    programs_ = 0;
  }
  std::uint64_t next_random() { return mix(mix(mix(0, seed), step_), programs_++); }

  /// Where the random numbers of the run stand: set it to compute with the same ones again.
  struct random_state {
    std::uint64_t seed = 0, step = 0, programs = 0;
  };
  random_state randomness() const { return {seed, step_, programs_}; }
  void set_randomness(const random_state& r) {
    seed = r.seed;
    step_ = r.step;
    programs_ = r.programs;
  }

  /// How many backward passes have begun: none since the last step is a mistake.
  std::uint64_t backward_passes() const { return backward_passes_; }
  void begin_backward() { ++backward_passes_; }

  /// Who brings parameters and takes gradients: a parallel strategy, or nobody.
  run::execution_hooks* hooks() const { return hooks_; }

  /// The instance of a plan for these symbol values, made when they are first seen.
  run::specialization& specialization_of(const lower::plan_view& plan, const void* identity,
                             std::span<const kernel_function> kernels, const run::symbol_values& symbols) {
    auto at =
        std::partition_point(specializations_.begin(), specializations_.end(),
                             [&](const known_instance& i) { return std::less<>()(i.identity, identity); });
    for (; at != specializations_.end() && at->identity == identity; ++at)
      if (at->made->symbols() == symbols) return *at->made;
    return *specializations_
                .insert(at, {identity, std::make_unique<run::specialization>(plan, kernels, symbols)})
                ->made;
  }

  /// Memory for the values inside a program while it runs.
  void* arena(std::size_t bytes) {
    if (bytes > arena_bytes_) {
      arena_ = {};
      arena_ = device_.allocate(bytes);
      arena_bytes_ = bytes;
    }
    return arena_.data();
  }

  /// Held by a thread while it works with the context or a tape in it; again by what it calls, a hook that
  /// evaluates for example. Throws usage_error if another thread holds it: before anything is touched, so
  /// that there is no race.
  class use {
   public:
    explicit use(context& c) : of_(c) {
      const void* holder = nullptr;
      if (c.user_.compare_exchange_strong(holder, &this_thread, std::memory_order_acquire)) return;
      if (holder != &this_thread) throw refusal("another thread is at work in it");
      first_ = false;
    }
    use(const use&) = delete;
    use& operator=(const use&) = delete;
    ~use() {
      if (first_) of_.user_.store(nullptr, std::memory_order_release);
    }

   private:
    context& of_;
    bool first_ = true;
  };

  /// Held while a program runs. Throws usage_error if another does.
  class turn {
   public:
    explicit turn(context& c) : use_(c), of_(c) {
      if (c.executing_) throw refusal("is running a program");
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
  run::execution_hooks* hooks_ = nullptr;

 private:
  static inline thread_local const char this_thread = 0;  // its address tells threads apart

  [[gnu::cold]] static usage_error refusal(const std::string& why) {
    return usage_error("weft: a context runs one program at a time, and " + why +
                       ": threads, and taps that evaluate, need one of their own: context c; eval(e, c)");
  }

  device device_;
  backend* engine_ = nullptr;
  std::atomic<const void*> user_ = nullptr;
  bool executing_ = false;
  std::uint64_t step_ = 0, programs_ = 0, backward_passes_ = 0;
  struct known_instance {
    const void* identity;
    std::unique_ptr<run::specialization> made;
  };
  std::vector<known_instance> specializations_;  // by identity
  buffer arena_;
  std::size_t arena_bytes_ = 0;
};

template <class Options>
class context_for : public context {
 public:
  using programs = Options;
  using context::context;
};
/// A context whose programs are compiled for other choices.
///   context_in<precision::bf16> c;
///   tape steps(c);
template <program_choice... Choices>
using context_in = context_for<options_of<Choices...>>;

/// What is evaluated in without another.
inline context& default_context() {
  static context* c = new context();
  return *c;
}

}  // namespace weft
