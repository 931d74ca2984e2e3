// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/chunks.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/comm/chunks.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE chunked_collective::chunked_collective(const recycled_vector<operation>& posted)
    : posted_(posted), ranks_(static_cast<int>(posted.size())) {
  switch (first().kind) {
    case collective::all_reduce:
    case collective::reduce: add_reduction(0, first().out.count, -1); break;
    case collective::reduce_scatter: {
      index_t begin = 0;
      for (int r = 0; r < ranks_; ++r) {
        add_reduction(begin, first().in_counts[static_cast<std::size_t>(r)], r);
        begin += first().in_counts[static_cast<std::size_t>(r)];
      }
      break;
    }
    case collective::broadcast: {
      const operation& root = of(first().root);
      for (int r = 0; r < ranks_; ++r)
        if (r != root.root) add_copy(of(r).out, 0, root.in, 0, root.in.count);
      break;
    }
    case collective::all_gather:
    case collective::gather: {
      const bool all = first().kind == collective::all_gather;
      for (int to = 0; to < ranks_; ++to) {
        if (!all && to != first().root) continue;
        index_t at = 0;
        for (int r = 0; r < ranks_; ++r) {
          const operation& o = of(r);
          add_copy(of(to).out, at, o.in, 0, o.in.count);
          at += o.in.count;
        }
      }
      break;
    }
    case collective::scatter: {
      const operation& root = of(first().root);
      index_t at = 0;
      for (int r = 0; r < ranks_; ++r) {
        const operation& o = of(r);
        add_copy(o.out, 0, root.in, at, o.out.count);
        at += o.out.count;
      }
      break;
    }
    case collective::all_to_all: add_exchange(); break;
    default: break;
  }
}

WEFT_DEFINE void chunked_collective::add_copy(const elements& to, index_t to_at, const const_elements& from,
                                              index_t from_at, index_t count) {
  const index_t size = size_of(from.type), step = chunk_elements * 8 / size;
  for (index_t i = 0; i < count; i += step) {
    char* target = static_cast<char*>(to.data) + (to_at + i) * size;
    const char* source = static_cast<const char*>(from.data) + (from_at + i) * size;
    if (target != source)
      chunks_.push_back({.to = target, .from = source, .count = std::min(step, count - i) * size});
  }
}

WEFT_DEFINE void chunked_collective::add_reduction(index_t begin, index_t count, int only) {
  for (index_t i = begin; i < begin + count; i += chunk_elements)
    chunks_.push_back({.begin = i,
                       .count = std::min(chunk_elements, begin + count - i),
                       .part = only < 0 ? 0 : begin,
                       .only = only});
}

WEFT_DEFINE void chunked_collective::add_exchange() {
  for (int to = 0; to < ranks_; ++to) {
    index_t at = 0;
    for (int from = 0; from < ranks_; ++from) {
      const operation &a = of(from), &b = of(to);
      index_t source_at = 0;
      for (int r = 0; r < to; ++r) source_at += a.in_counts[static_cast<std::size_t>(r)];
      const index_t sent = a.in_counts[static_cast<std::size_t>(to)],
                    received = b.out_counts[static_cast<std::size_t>(from)];
      if (const std::string wrong = part_disagreement(from, sent, to, received); !wrong.empty())
        throw comm_error(wrong);
      add_copy(b.out, at, a.in, source_at, sent);
      at += received;
    }
  }
}

WEFT_DEFINE void run(const chunk& c, const recycled_vector<operation>& posted) {
  if (c.to) return void(std::memmove(c.to, c.from, static_cast<std::size_t>(c.count)));
  const operation& first = posted[0];
  const auto wants = [&](int rank) {
    return c.only >= 0 ? rank == c.only : first.kind == collective::all_reduce || rank == first.root;
  };
  recycled_vector<const void*> sources;
  for (const operation& o : posted) sources.push_back(o.in.data);
  visit_type(first.type(), [&]<class T>(T) {
    reduce_ranks<T>(sources, c.begin, c.count, first.op, [&](index_t i, const T* reduced, index_t n) {
      for (int r = 0; r < static_cast<int>(posted.size()); ++r)
        if (wants(r))
          std::memmove(static_cast<T*>(posted[static_cast<std::size_t>(r)].out.data) + (c.begin - c.part + i),
                       reduced,
                       static_cast<std::size_t>(n) * sizeof(T));  // one rank only: may be in place
    });
  });
}

}  // namespace detail
}  // namespace weft
