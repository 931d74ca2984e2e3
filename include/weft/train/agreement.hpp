// SPDX-License-Identifier: MIT
// Errors that occur on some ranks only, reported to all: either all ranks continue, or all throw.
//
//   on_all_ranks(ranks, o, [&] { read my file; });     // io_error on every rank if it throws on one
#pragma once

#include <string>
#include <vector>

#include <weft/base/error.hpp>
#include <weft/comm/communicator.hpp>

namespace weft {

namespace detail {

/// The text of rank `root`, returned on all ranks. Collective.
inline std::string text_of_rank(communicator& ranks, std::string text, int root, const comm_options& o) {
  if (ranks.size() == 1) return text;
  std::vector<std::int64_t> size{static_cast<std::int64_t>(text.size())};
  ranks.broadcast(size, root, o).wait();
  std::vector<std::uint8_t> bytes(text.begin(), text.end());
  bytes.resize(static_cast<std::size_t>(size[0]));
  if (!bytes.empty()) ranks.broadcast(bytes, root, o).wait();
  return {bytes.begin(), bytes.end()};
}

/// The numbers of all ranks, in the order of ranks; each rank passes the same count. Collective.
inline std::vector<std::int64_t> of_all_ranks(communicator& ranks, const std::vector<std::int64_t>& own,
                                              const comm_options& o) {
  if (ranks.size() == 1) return own;
  std::vector<std::int64_t> all(own.size() * static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(own, all, {}, o).wait();
  return all;
}

/// A message without its prefix "weft: ".
inline std::string without_prefix(const std::string& message) {
  return message.starts_with("weft: ") ? message.substr(6) : message;
}

/// The message of the lowest rank that has one, returned on all ranks with the rank; empty if none has.
/// Collective.
inline std::string agree(communicator& ranks, const std::string& message, const comm_options& o) {
  if (ranks.size() == 1) return message;
  std::vector<std::int32_t> first{message.empty() ? 0 : ranks.size() - ranks.rank()};
  ranks.all_reduce(first, reduction::maximum, o).wait();
  if (first[0] == 0) return {};
  const int rank = ranks.size() - first[0];
  return "weft: rank " + std::to_string(rank) + ": " + without_prefix(text_of_rank(ranks, message, rank, o));
}

/// The message of the exception that f throws; empty if it does not throw.
template <class F>
std::string message_of(F f) {
  try {
    f();
    return {};
  } catch (const std::exception& e) {
    return e.what()[0] ? e.what() : "weft: failed";
  }
}

}  // namespace detail

/// Calls f() on every rank; if it throws on one, throws io_error with that rank's message on all. f must not
/// communicate. Collective.
template <class F>
void on_all_ranks(communicator& ranks, const comm_options& o, F f) {
  const std::string message = detail::agree(ranks, detail::message_of(f), o);
  if (!message.empty()) throw io_error(message);
}

}  // namespace weft
