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

  /// Each rank receives the operands of its part, reduces them, and sends the sums to the ranks that need
  /// them.
  void reduce(gloo_mesh& mesh) {
    const rank_counts shares =
        what_.in_counts.empty() ? even_parts(what_.out.count, group_.size()) : what_.in_counts;
    const auto own = static_cast<std::size_t>(group_.rank);
    const auto part = static_cast<std::size_t>(shares[own] * size_of(what_.type()));
    char* const sums = allocate(part);
    char* const received = allocate(part * group_.members.size());
    std::vector<const void*> operands;
    for (std::size_t r = 0; r < group_.members.size(); ++r) operands.push_back(received + r * part);
    exchange(mesh, 1,
             moves(exchange_of_parts(what_, shares, group_.rank, received), group_.rank, group_.size(),
                   [&](void*, const void* mine, std::size_t) { operands[own] = mine; }));
    visit_type(what_.type(), [&]<class T>(T) {
      reduce_ranks<T>(operands, 0, shares[own], what_.op, reinterpret_cast<T*>(sums));
    });
    if (what_.kind == collective::reduce_scatter) return copy_bytes(what_.out.data, sums, part);
    exchange(mesh, 2,
             moves(gathering_of_sums(what_, shares, group_.rank, sums), group_.rank, group_.size()));
  }

  const gloo_group& group_;
  operation what_;
  std::uint64_t number_ = 0;
  std::vector<fingerprint> mine_, meant_;  // by rank; mine_ has one element if all ranks get the same
};

}  // namespace weft::detail
