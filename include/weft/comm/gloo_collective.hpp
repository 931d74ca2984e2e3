// SPDX-License-Identifier: MIT
// Collectives of a group over Gloo, as lists of transfers. Ranks exchange descriptions of the operation, then
// parts of the data; each rank reduces its part in the order of reduce.hpp, and the results are exchanged.
#pragma once

#include <weft/comm/fingerprint.hpp>
#include <weft/comm/gloo_group.hpp>
#include <weft/comm/reduce.hpp>
#include <weft/comm/traffic.hpp>

namespace weft::detail {

class gloo_collective : public gloo_operation {
 public:
  gloo_collective(const gloo_group& g, operation o) : group_(g), what_(std::move(o)) {}

  queue_key queue() const override { return {static_cast<std::int64_t>(group_.number), -1, 0, 0}; }
  std::string text() const override { return what_.text(); }
  std::string doing() const override { return "#" + std::to_string(number_) + " " + text(); }
  rank_wait waits_in() const override {
    return {group_.id, static_cast<std::int64_t>(number_), group_.members, doing()};
  }
  void begin(gloo_mesh& mesh) override { number_ = mesh.count(group_.id); }

  void perform(gloo_mesh& mesh) override {
    agree(mesh);
    if (what_.agrees_only) return;
    if (is_reduction(what_.kind)) reduce(mesh);
    else exchange(mesh, 1, moves(what_, group_.rank, group_.size()));
  }

 private:
  void exchange(gloo_mesh& mesh, std::uint32_t step, std::vector<transfer> transfers) {
    for (transfer& t : transfers) t.peer = group_.members[static_cast<std::size_t>(t.peer)];
    const auto steps = static_cast<std::uint32_t>(4 * number_);  // wraps around after 2^30
    mesh.exchange(gloo_slot::of(gloo_slot::collective, group_.number, steps + step), transfers, *this);
  }

  /// Each rank sends a description of its operation to every other rank; all must be equal.
  void agree(gloo_mesh& mesh) {
    const bool parts_differ = what_.kind == collective::all_to_all;
    std::vector<transfer> all;
    meant_.resize(group_.members.size());
    for (int r = 0; r < group_.size(); ++r)
      if (parts_differ || r == 0) mine_.emplace_back(what_, r);
    for (int r = 0; r < group_.size(); ++r) {
      const auto at = static_cast<std::size_t>(r);
      fingerprint& mine = mine_[parts_differ ? at : 0];
      if (r == group_.rank) meant_[at] = mine;
      else {
        all.push_back({r, false, &meant_[at], sizeof(fingerprint)});
        all.push_back({r, true, &mine, sizeof(fingerprint)});
      }
    }
    exchange(mesh, 0, all);
    if (const std::string wrong = disagreement_of(what_, meant_, group_.members, group_.rank, number_);
        !wrong.empty())
      throw comm_error(wrong);
  }

  void reduce(gloo_mesh& mesh) {
    const auto size = static_cast<std::size_t>(size_of(what_.type()));
    const rank_counts shares =
        what_.in_counts.empty() ? even_parts(what_.out.count, group_.size()) : what_.in_counts;
    const index_t mine = shares[static_cast<std::size_t>(group_.rank)];
    const auto part = static_cast<std::size_t>(mine) * size;
    char* const sums = allocate(part);
    add_up(mesh, shares, sums);
    // Send the results to the ranks that need them.
    const bool all = what_.kind == collective::all_reduce,
               wants = all || (what_.kind == collective::reduce && what_.root == group_.rank);
    char* to = static_cast<char*>(what_.out.data);
    if (what_.kind == collective::reduce_scatter) {
      copy_bytes(to, sums, part);
      return;
    }
    std::vector<transfer> to_all;
    for (int r = 0; r < group_.size(); ++r) {
      const auto bytes = static_cast<std::size_t>(shares[static_cast<std::size_t>(r)]) * size;
      if (r == group_.rank && wants) copy_bytes(to, sums, part);
      if (r != group_.rank && (all || r == what_.root)) add_transfer(to_all, r, true, sums, part);
      if (r != group_.rank && wants) add_transfer(to_all, r, false, to, bytes);
      to += bytes;
    }
    exchange(mesh, 2, to_all);
  }
  /// Exchanges the parts and reduces the part of this rank.
  void add_up(gloo_mesh& mesh, const rank_counts& shares, char* sums) {
    const auto size = static_cast<std::size_t>(size_of(what_.type()));
    const index_t mine = shares[static_cast<std::size_t>(group_.rank)];
    const auto part = static_cast<std::size_t>(mine) * size;
    char* received = allocate(part * group_.members.size());
    char* from = const_cast<char*>(static_cast<const char*>(what_.in.data));
    std::vector<transfer> to_adders;
    std::vector<const void*> sources;
    for (int r = 0; r < group_.size(); ++r, received += part) {
      const auto bytes = static_cast<std::size_t>(shares[static_cast<std::size_t>(r)]) * size;
      if (r != group_.rank) {
        add_transfer(to_adders, r, true, from, bytes);
        add_transfer(to_adders, r, false, received, part);
      }
      sources.push_back(r == group_.rank ? from : received);
      from += bytes;
    }
    exchange(mesh, 1, to_adders);
    visit_type(what_.type(), [&]<class T>(T) {
      reduce_ranks<T>(sources, 0, mine, what_.op, reinterpret_cast<T*>(sums));
    });
  }

  const gloo_group& group_;
  operation what_;
  std::uint64_t number_ = 0;
  std::vector<fingerprint> mine_, meant_;  // by rank; mine_ is one for all if that is enough
};

}  // namespace weft::detail
