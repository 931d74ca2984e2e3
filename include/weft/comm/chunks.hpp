// SPDX-License-Identifier: MIT
// The work of a collective among ranks that share memory, divided into chunks that any thread can run in any
// order.
//
//   recycled_vector<chunk> chunks = chunks_of(posted);   // one operation per rank, in rank order
//   for (const chunk& c : chunks) run(c, posted);
//
// Throws comm_error if the parts of an all_to_all do not fit.
#pragma once

#include <cstring>

#include <weft/comm/reduce.hpp>

namespace weft::detail {

/// Bytes to copy, or elements to reduce, for one rank or for all ranks that receive the whole result.
struct chunk {
  char* to = nullptr;  // null: a reduction
  const char* from = nullptr;
  index_t begin = 0, count = 0;
  index_t part = 0;  // index at which the part of `only` begins
  int only = -1;
  bool taken = false;  // set by the thread that runs it
};

class chunked_collective {
 public:
  explicit chunked_collective(const recycled_vector<operation>& posted);

  /// The chunks, ordered by receiving rank where there is one; empty if no data moves.
  recycled_vector<chunk> take() { return std::move(chunks_); }

 private:
  const operation& first() const { return posted_[0]; }
  const operation& of(int rank) const { return posted_[static_cast<std::size_t>(rank)]; }

  static constexpr index_t chunk_elements = 1 << 14;

  void add_copy(const elements& to, index_t to_at, const const_elements& from, index_t from_at,
                index_t count);

  /// Reduces elements begin to begin + count - 1, for rank `only`, or for all ranks that receive the whole.
  void add_reduction(index_t begin, index_t count, int only);

  void add_exchange();

  const recycled_vector<operation>& posted_;
  int ranks_;
  recycled_vector<chunk> chunks_;
};

inline recycled_vector<chunk> chunks_of(const recycled_vector<operation>& posted) {
  return chunked_collective(posted).take();
}

/// Runs one chunk of the collective described by `posted`.
void run(const chunk& c, const recycled_vector<operation>& posted);

}  // namespace weft::detail

#ifndef WEFT_COMPILED
#include <weft/comm/impl/chunks.ipp>
#endif
