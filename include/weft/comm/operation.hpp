// SPDX-License-Identifier: MIT
// Operations of communicators as values: executed by backends, printed in reports, compared between ranks.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <weft/base/dtype.hpp>
#include <weft/base/error.hpp>
#include <weft/base/recycled.hpp>

namespace weft {

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

/// Where elements are: in memory of the host, or in that of the device that the communicator reaches.
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
  bool agrees_only = false;  // ranks only agree on it: its data moves by other means

  dtype type() const { return in.data || in.count ? in.type : out.type; }
  memory_space space() const {
    return in.space == memory_space::device ? memory_space::device : out.space;
  }

  /// "all_reduce(sum, f32 x 1024) for h.0.mlp in step 12": equal on ranks that call the same operation.
  std::string text() const {
    std::string t = name_of(kind);
    t += "(";
    switch (kind) {
      case collective::all_reduce: t += std::string(name_of(op)) + ", " + amount(out.count); break;
      case collective::reduce:
        t += std::string(name_of(op)) + ", " + amount(out.count) + ", root " + std::to_string(root);
        break;
      case collective::reduce_scatter:
        t += std::string(name_of(op)) + ", " + amount(in.count) + parts(in_counts);
        break;
      case collective::broadcast: t += amount(out.count) + ", root " + std::to_string(root); break;
      case collective::all_gather: t += amount(out.count) + parts(out_counts); break;
      case collective::gather:
        t += amount(sum_of(out_counts)) + parts(out_counts) + ", root " + std::to_string(root);
        break;
      case collective::scatter:
        t += amount(sum_of(in_counts)) + parts(in_counts) + ", root " + std::to_string(root);
        break;
      case collective::all_to_all: t += name_of(type()); break;
      case collective::send:
        t += amount(in.count) + ", to " + std::to_string(root) + ", tag " + std::to_string(tag);
        break;
      case collective::receive:
        t += amount(out.count) + ", from " + std::to_string(root) + ", tag " + std::to_string(tag);
        break;
      default: break;
    }
    t += ")";
    if (!label.empty()) (t += " for ").append(label);
    if (step >= 0) (t += " in step ").append(std::to_string(step));
    if (space() == memory_space::device) t += ", in device memory";
    return t;
  }

  /// Whether text() would be equal, without composing it.
  bool means_what(const operation& other) const {
    const bool same = kind == other.kind && type() == other.type() && op == other.op && root == other.root &&
                      label == other.label && step == other.step && space() == other.space();
    if (!same) return false;
    switch (kind) {
      case collective::all_reduce:
      case collective::reduce:
      case collective::broadcast: return out.count == other.out.count;
      case collective::reduce_scatter: case collective::scatter: return in_counts == other.in_counts;
      case collective::all_gather: case collective::gather: return out_counts == other.out_counts;
      case collective::all_to_all: case collective::barrier: case collective::split: return true;
      default: return false;
    }
  }

  static index_t sum_of(const rank_counts& counts) {
    index_t n = 0;
    for (index_t c : counts) n += c;
    return n;
  }

 private:
  std::string amount(index_t n) const { return std::string(name_of(type())) + " x " + std::to_string(n); }
  static std::string parts(const rank_counts& counts) {
    std::string t;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      t += i ? "+" : " = ";
      t += std::to_string(counts[i]);
    }
    return t;
  }
};

/// The error for a message whose two sides do not agree; ranks are numbered as in the world.
inline std::string message_disagreement(int sender, const std::string& sent, int receiver,
                                        const std::string& received) {
  return "weft: rank " + std::to_string(sender) + " called " + sent + ", but rank " +
         std::to_string(receiver) + " called " + received;
}

/// The error for a part of an all_to_all whose two sides do not agree; empty if they do.
inline std::string part_disagreement(int sender, index_t sent, int receiver, index_t expected) {
  if (sent == expected) return "";
  return "weft: all_to_all: rank " + std::to_string(sender) + " sends " + std::to_string(sent) +
         " elements to rank " + std::to_string(receiver) + ", which expects " + std::to_string(expected);
}

/// From the texts of all `members`, numbered as in the world: which ranks call another operation `number`
/// than most ranks do; empty if all agree.
inline std::string disagreement(const std::vector<std::string>& texts, const std::vector<int>& members,
                                std::uint64_t number) {
  std::map<std::string, std::vector<int>> by_text;
  for (std::size_t r = 0; r < texts.size(); ++r) by_text[texts[r]].push_back(members[r]);
  if (by_text.size() == 1) return "";
  std::string report = "weft: ranks disagree about operation #" + std::to_string(number) + ":";
  const auto most = std::max_element(by_text.begin(), by_text.end(), [](const auto& a, const auto& b) {
    return a.second.size() != b.second.size() ? a.second.size() < b.second.size() : a.second[0] > b.second[0];
  });
  for (const auto& [text, who] : by_text) {
    report += text == most->first ? "\n  most: rank" : "\n  at fault: rank";
    for (const int r : who) (report += " ").append(std::to_string(r));
    report += " called " + text;
  }
  return report;
}

}  // namespace weft
