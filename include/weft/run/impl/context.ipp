// SPDX-License-Identifier: MIT
// Definitions of <weft/run/context.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/run/context.hpp>

namespace weft {

WEFT_DEFINE runtime::specialization& context::specialization_of(const lower::plan_view& plan,
                                                                const void* identity,
                                                                std::span<const kernel_function> kernels,
                                                                const runtime::symbol_values& symbols) {
  if (executing_) refuse_running();
  int at = 0;
  for (int end = specializations_.size(); at < end;) {
    const int middle = at + (end - at) / 2;
    if (std::less<>()(specializations_[middle].identity, identity)) at = middle + 1;
    else end = middle;
  }
  for (; at < specializations_.size() && specializations_[at].identity == identity; ++at)
    if (specializations_[at].made->symbols() == symbols) return *specializations_[at].made;
  return add({identity, std::make_unique<runtime::specialization>(plan, kernels, symbols, *device_)}, at);
}

WEFT_DEFINE std::uint64_t context::number_of_draw() {
  const random_state now = randomness();
  ++programs_;
  const auto known = std::find_if(draws_->begin(), draws_->end(), [&](const random_state& r) {
    return r.seed == now.seed && r.step == now.step && r.programs == now.programs;
  });
  const auto number = static_cast<std::uint64_t>(known - draws_->begin());
  if (known == draws_->end()) draws_->push_back(now);
  return number;
}

WEFT_DEFINE void* context::arena(std::size_t bytes) {
  if (bytes > arena_bytes_) {
    arena_ = {};
    arena_bytes_ = 0;  // if there is not enough memory
    arena_ = device_.allocate(bytes, "arena of programs");
    arena_bytes_ = bytes;
  }
  return arena_.data();
}

WEFT_DEFINE context::use::use(context& c) : of_(c) {
  const void* holder = nullptr;
  if (c.user_.compare_exchange_strong(holder, &this_thread, std::memory_order_acquire)) return;
  if (holder != &this_thread) refuse_use("another thread is using this one");
  first_ = false;
}

WEFT_DEFINE void context::refuse_use(const char* why) {
  refuse<usage_error>({"weft: a context runs one program at a time, but ", why,
                       ": threads, and taps that evaluate, need their own: context c; eval(e, c)"});
}

WEFT_DEFINE void context::refuse_running() { refuse_use("this one is running a program"); }

WEFT_DEFINE runtime::specialization& context::add(known_specialization s, int at) {
  runtime::specialization& made = *s.made;
  if (at >= most_kept && specializations_[at - most_kept].identity == s.identity) {
    // Each one of its identity replaces the one before it; the first of them is dropped.
    for (int i = at - most_kept; i < at - 1; ++i) specializations_[i] = std::move(specializations_[i + 1]);
    specializations_[at - 1] = std::move(s);
  } else {
    specializations_.push_back({});
    for (int i = specializations_.size() - 1; i > at; --i)
      specializations_[i] = std::move(specializations_[i - 1]);
    specializations_[at] = std::move(s);
  }
  return made;
}

// Not inlined, so that in one program units with and without weft::compiled share its variable.
[[gnu::noinline]] WEFT_DEFINE context& default_context() {
  static context* c = new context();
  return *c;
}

}  // namespace weft
