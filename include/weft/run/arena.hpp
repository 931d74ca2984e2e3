// SPDX-License-Identifier: MIT
// The arena of a program: memory for its intermediate values. Values with disjoint lifetimes share memory.
// Even a value without elements has an address.
//
//   const arena_plan a = plan_arena(plan, [&](int value) { return bytes_of(value); },
//                                   [&](int value) { return lifetime_of(value); });
//   arena_base + a.offsets[value];
#pragma once

#include <algorithm>

#include <weft/lower/plan.hpp>

namespace weft::runtime {

/// The first and the last launch that access a value; -1 if none does.
struct lifetime {
  int first = -1, last = -1;
};

/// The offsets of the values in the arena, and the size of the arena; both in bytes.
struct arena_plan {
  sequence<std::size_t> offsets;  // by value, for values in the arena
  std::size_t bytes = 0;
};

namespace detail {
/// The memory of a value from the first to the last launch that accesses it.
struct arena_block {
  int value;
  std::size_t bytes;
  int first, last;
  std::size_t offset = 0;
  bool placed = false;
};

constexpr sequence<arena_block> arena_blocks(const lower::plan_view& p, const auto& bytes_of,
                                             const auto& lifetime_of) {
  sequence<arena_block> blocks;
  for (int i = 0; i < static_cast<int>(p.values.size()); ++i) {
    const lower::value_entry& v = p.values[static_cast<std::size_t>(i)];
    const lifetime live = lifetime_of(i);
    if (v.where == lower::storage::computed && live.first >= 0 && v.output < 0)
      blocks.push_back({i, (std::max<std::size_t>(bytes_of(i), 1) + 63) / 64 * 64, live.first, live.last});
  }
  return blocks;
}

/// Places the largest blocks first, each at the lowest offset that is free during its lifetime.
[[gnu::cold]] constexpr arena_plan place(sequence<arena_block> blocks, int values) {
  arena_plan plan{sequence<std::size_t>(values, 0)};
  sequence<const arena_block*> placed(blocks.size(), nullptr);  // ordered by offset
  for (int count = 0; count < blocks.size(); ++count) {
    arena_block* b = nullptr;
    for (arena_block& candidate : blocks)
      if (!candidate.placed && (!b || candidate.bytes > b->bytes)) b = &candidate;
    b->placed = true;
    for (int i = 0; i < count; ++i) {
      const arena_block& other = *placed[i];
      const bool together = other.first <= b->last && b->first <= other.last;
      if (!together) continue;
      if (b->offset + b->bytes <= other.offset) break;
      b->offset = std::max(b->offset, other.offset + other.bytes);
    }
    plan.offsets[b->value] = b->offset;
    plan.bytes = std::max(plan.bytes, b->offset + b->bytes);
    int at = count;
    for (; at > 0 && placed[at - 1]->offset > b->offset; --at) placed[at] = placed[at - 1];
    placed[at] = b;
  }
  return plan;
}
}  // namespace detail

/// Plans the arena of a program; bytes_of(i) is the size of value i in bytes, lifetime_of(i) its lifetime.
/// Quadratic in the number of values.
template <class BytesOf, class LifetimeOf>
constexpr arena_plan plan_arena(const lower::plan_view& p, const BytesOf& bytes_of,
                                const LifetimeOf& lifetime_of) {
  return detail::place(detail::arena_blocks(p, bytes_of, lifetime_of), static_cast<int>(p.values.size()));
}

}  // namespace weft::runtime
