// SPDX-License-Identifier: MIT
// The work of a collective among ranks that share memory, divided into chunks that any thread may
// run in any order.
//
//   chunked_collective c(posted);        // one operation a rank, in the order of ranks
//   for (auto& chunk : c.take()) chunk();
//
// Throws comm_error if the parts of an all_to_all do not fit.
#pragma once

#include <functional>
#include <memory>

#include <weft/comm/reduce.hpp>

namespace weft::detail {

class chunked_collective {
 public:
  explicit chunked_collective(const std::vector<operation>& posted)
      : posted_(posted), ranks_(static_cast<int>(posted.size())) {
    switch (first().kind) {
      case collective::all_reduce: case collective::reduce: add_reduction(0, first().out.count, -1); break;
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
      case collective::all_gather: case collective::gather: {
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

  /// What to run; empty if nothing moves.
  std::vector<std::function<void()>> take() { return std::move(chunks_); }

 private:
  const operation& first() const { return posted_[0]; }
  const operation& of(int rank) const { return posted_[static_cast<std::size_t>(rank)]; }

  static constexpr index_t chunk_elements = 1 << 14;

  void add_copy(const elements& to, index_t to_at, const const_elements& from, index_t from_at, index_t count) {
    const index_t size = size_of(from.type), step = chunk_elements * 8 / size;
    for (index_t i = 0; i < count; i += step) {
      char* target = static_cast<char*>(to.data) + (to_at + i) * size;
      const char* source = static_cast<const char*>(from.data) + (from_at + i) * size;
      const auto bytes = static_cast<std::size_t>(std::min(step, count - i) * size);
      if (target != source) chunks_.push_back([=] { std::memmove(target, source, bytes); });
    }
  }

  /// Reduces elements [begin, begin + count) for rank `only`, or for those that want all of it.
  void add_reduction(index_t begin, index_t count, int only) {
    auto sources = std::make_shared<std::vector<const void*>>();
    for (const operation& o : posted_) sources->push_back(o.in.data);
    const operation& first = this->first();
    std::vector<void*> targets;
    for (int r = 0; r < ranks_; ++r) {
      const bool wants = only >= 0 ? r == only : first.kind == collective::all_reduce || r == first.root;
      if (wants) targets.push_back(of(r).out.data);
    }
    const index_t offset = only >= 0 ? begin : 0;
    for (index_t i = begin; i < begin + count; i += chunk_elements) {
      const index_t n = std::min(chunk_elements, begin + count - i);
      chunks_.push_back([=, op = first.op, type = first.type()] {
        visit_type(type, [&]<class T>(T) {
          const std::unique_ptr<T[]> reduced(new T[static_cast<std::size_t>(n)]);
          reduce_ranks<T>(*sources, i, n, op, reduced.get());
          for (void* to : targets)
            std::memcpy(static_cast<T*>(to) + (i - offset), reduced.get(), static_cast<std::size_t>(n) * sizeof(T));
        });
      });
    }
  }

  void add_exchange() {
    for (int to = 0; to < ranks_; ++to) {
      index_t at = 0;
      for (int from = 0; from < ranks_; ++from) {
        const operation &a = of(from), &b = of(to);
        index_t source_at = 0;
        for (int r = 0; r < to; ++r) source_at += a.in_counts[static_cast<std::size_t>(r)];
        const index_t sent = a.in_counts[static_cast<std::size_t>(to)], received = b.out_counts[static_cast<std::size_t>(from)];
        if (sent != received)
          throw comm_error("weft: all_to_all: rank " + std::to_string(from) + " sends " + std::to_string(sent) + " elements to rank " +
                          std::to_string(to) + ", which expects " + std::to_string(received));
        add_copy(b.out, at, a.in, source_at, sent);
        at += received;
      }
    }
  }

  const std::vector<operation>& posted_;
  int ranks_;
  std::vector<std::function<void()>> chunks_;
};

}  // namespace weft::detail
