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
  auto at = std::partition_point(
      specializations_.begin(), specializations_.end(),
      [&](const known_specialization& i) { return std::less<>()(i.identity, identity); });
  for (; at != specializations_.end() && at->identity == identity; ++at)
    if (at->made->symbols() == symbols) return *at->made;
  return add({identity, std::make_unique<runtime::specialization>(plan, kernels, symbols, *device_)},
             at - specializations_.begin());
}

WEFT_DEFINE std::uint64_t context::number_of_draw() {
  const random_state now = randomness();
  ++programs_;
  const auto known = std::find_if(draws_->begin(), draws_->end(), [&](const random_state& r) {
    return r.step == now.step && r.programs == now.programs;
  });
  const auto number = static_cast<std::uint64_t>(known - draws_->begin());
  if (known == draws_->end()) draws_->push_back(now);
  return number;
}

WEFT_DEFINE void* context::arena(std::size_t bytes) {
  if (bytes > arena_bytes_) {
    arena_ = {};
    arena_ = device_.allocate(bytes, "arena of programs");
    arena_bytes_ = bytes;
  }
  return arena_.data();
}

WEFT_DEFINE context::use::use(context& c) : of_(c) {
  const void* holder = nullptr;
  if (c.user_.compare_exchange_strong(holder, &this_thread, std::memory_order_acquire)) return;
  if (holder != &this_thread) refuse_use("another thread is at work in it");
  first_ = false;
}

WEFT_DEFINE void context::refuse_use(const char* why) {
  refuse<usage_error>({"weft: a context runs one program at a time, and ", why,
                       ": threads, and taps that evaluate, need one of their own: context c; eval(e, c)"});
}

WEFT_DEFINE runtime::specialization& context::add(known_specialization s, std::ptrdiff_t at) {
  if (at >= most_kept) {
    const auto oldest = specializations_.begin() + (at - most_kept);
    if (oldest->identity == s.identity) {
      specializations_.erase(oldest);
      --at;
    }
  }
  return *specializations_.insert(specializations_.begin() + at, std::move(s))->made;
}

// Not inlined, so that units with and without weft::compiled in one program share its variable.
[[gnu::noinline]] WEFT_DEFINE context& default_context() {
  static context* c = new context();
  return *c;
}

}  // namespace weft
