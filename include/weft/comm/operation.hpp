// SPDX-License-Identifier: MIT
// Operations of communicators as values: executed by backends, printed in reports, compared between ranks.
#pragma once

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <vector>

#include <weft/base/dtype.hpp>
#include <weft/base/error.hpp>
#include <weft/base/recycled.hpp>

namespace weft {

namespace detail {

/// `text`; if it has more than `most` characters, its beginning, a checksum of it and its end, so that
/// different texts remain different. `most` must be at least 30.
std::string shortened(const std::string& text, std::size_t most);

}  // namespace detail

/// The kinds of operations.
enum class collective : std::uint8_t {
  all_reduce,
  broadcast,
  reduce,
  all_gather,
  gather,
  scatter,
  reduce_scatter,
  all_to_all,
  barrier,
  split,
  send,
  receive
};
/// Number of kinds.
inline constexpr int collective_count = static_cast<int>(collective::receive) + 1;
/// How elements of several ranks are combined; average is the sum divided by the number of ranks.
enum class reduction : std::uint8_t { sum, average, product, minimum, maximum };

/// Whether `c` is a point-to-point message.
constexpr bool is_message(collective c) { return c == collective::send || c == collective::receive; }
/// Whether `c` combines elements of several ranks.
constexpr bool is_reduction(collective c) {
  return c == collective::all_reduce || c == collective::reduce || c == collective::reduce_scatter;
}

/// Name as in reports.
constexpr const char* name_of(collective c) {
  constexpr const char* names[] = {"all_reduce", "broadcast", "reduce",         "all_gather",
                                   "gather",     "scatter",   "reduce_scatter", "all_to_all",
                                   "barrier",    "split",     "send",           "receive"};
  return names[static_cast<int>(c)];
}
constexpr const char* name_of(reduction r) {
  constexpr const char* names[] = {"sum", "average", "product", "minimum", "maximum"};
  return names[static_cast<int>(r)];
}

/// Where elements are: in host memory, or in memory of the device that the communicator can access.
enum class memory_space : std::uint8_t { host, device };

/// Contiguous elements that an operation reads.
struct const_elements {
  const void* data = nullptr;
  index_t count = 0;
  dtype type = dtype::f32;
  memory_space space = memory_space::host;

  const_elements() = default;
  const_elements(const void* d, index_t n, dtype t, memory_space s = memory_space::host)
      : data(d), count(n), type(t), space(s) {}
  template <class T, std::size_t N>
  requires element<std::remove_const_t<T>> const_elements(std::span<T, N> s)
      : data(s.data()), count(static_cast<index_t>(s.size())), type(dtype_of<std::remove_const_t<T>>) {}
  template <element T>
  const_elements(const std::vector<T>& v) : const_elements(std::span<const T>(v)) {}
  index_t bytes() const { return count * size_of(type); }
};

/// Contiguous elements that an operation writes.
struct elements {
  void* data = nullptr;
  index_t count = 0;
  dtype type = dtype::f32;
  memory_space space = memory_space::host;

  elements() = default;
  elements(void* d, index_t n, dtype t, memory_space s = memory_space::host)
      : data(d), count(n), type(t), space(s) {}
  template <element T, std::size_t N>
  elements(std::span<T, N> s) : data(s.data()), count(static_cast<index_t>(s.size())), type(dtype_of<T>) {}
  template <element T>
  elements(std::vector<T>& v) : elements(std::span<T>(v)) {}
  operator const_elements() const { return {data, count, type, space}; }
};

/// Number of elements by rank, if ranks have different numbers.
using rank_counts = recycled_vector<index_t>;

/// Time-out of operations that specify none: 10 minutes.
inline constexpr std::chrono::milliseconds default_timeout{600'000};

/// One operation with its arguments.
struct operation {
  collective kind{};
  const_elements in{};
  elements out{};
  rank_counts in_counts{}, out_counts{};  // by rank: how `in` is divided, how `out` is composed
  reduction op = reduction::sum;
  int root = 0;  // also the peer of a message
  int tag = 0;   // of a message; the color of a split
  int key = 0;   // of a split
  std::string label{};  // its purpose: module path and op
  std::int64_t step = -1;  // the training step, if known
  std::chrono::milliseconds timeout = default_timeout;
  bool agrees_only = false;  // ranks only agree on the operation; its data moves by other means

  dtype type() const { return in.data || in.count ? in.type : out.type; }
  memory_space space() const {
    return in.space == memory_space::device ? memory_space::device : out.space;
  }

  /// For example "all_reduce(sum, f32 x 1024) for h.0.mlp in step 12"; equal on ranks that call the same
  /// operation. Shortened to `most_text` characters.
  std::string text() const;
  static constexpr std::size_t most_text = 200;

  /// Whether text() would be equal, without composing it.
  bool means_what(const operation& other) const;

  static index_t sum_of(const rank_counts& counts) {
    index_t n = 0;
    for (index_t c : counts) n += c;
    return n;
  }

 private:
  std::string amount(index_t n) const { return std::string(name_of(type())) + " x " + std::to_string(n); }
  /// For example " = 3+1", or " = 64 x 3+1" with more than 3 equal counts in a row.
  static std::string parts(const rank_counts& counts);
};

/// The error for a message whose two sides do not agree; ranks are numbered as in the world.
std::string message_disagreement(int sender, const std::string& sent, int receiver,
                                 const std::string& received);

/// The error for a part of an all_to_all whose two sides do not agree; empty if they agree.
std::string part_disagreement(int sender, index_t sent, int receiver, index_t expected);

/// The error naming the ranks whose operation `number` differs from that of most ranks, from the texts of all
/// `members`, numbered as in the world; empty if all agree.
std::string disagreement(const std::vector<std::string>& texts, const std::vector<int>& members,
                         std::uint64_t number);

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/comm/impl/operation.ipp>
#endif
