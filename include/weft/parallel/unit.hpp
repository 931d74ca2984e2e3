// SPDX-License-Identifier: MIT
// A unit: parameters that are sent together, and how their elements are divided among ranks.
//
// Parameters are sharded along their first dim, in whole rows. Elements of a unit are sent in the order
// (part, parameter, row), so that the part of a rank is contiguous.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <weft/comm/traffic.hpp>
#include <weft/device/counting.hpp>
#include <weft/parallel/held_tensor.hpp>
#include <weft/parallel/strategy.hpp>
#include <weft/nn/module.hpp>
#include <weft/run/convert.hpp>

namespace weft::runtime {
class expert_ranks;
}

namespace weft::parallel {

/// A shared tensor.
using state_ptr = std::shared_ptr<tensor_state>;

/// One parameter of a unit.
struct member {
  std::string name;
  int number = 0;        // index among all parameters
  state_ptr whole;       // the parameter of the model
  state_ptr local;       // the rows that this rank updates; `whole` itself without sharding
  bool seen = false;     // has had a gradient since the last step
  bool reduced = false;  // its gradient has been delivered
  bool moved = false;    // may differ between ranks, because of local steps

  index_t rows() const { return in_rows(whole->extents)[0]; }
  index_t row_size() const { return rows() > 0 ? whole->extents.size() / rows() : 0; }
  /// The index of the first element of part p; elements begin(p) to begin(p + 1) - 1 are part p.
  index_t begin(int part, int parts) const { return even_begin(rows(), parts, part) * row_size(); }
  index_t size(int part, int parts) const { return even_part(rows(), parts, part) * row_size(); }
};

/// Elements that are contiguous in a parameter and in a message.
struct piece {
  int member;
  index_t at, count, in_message;
};

/// The layout of some members of a unit in one message.
struct message_layout {
  std::vector<piece> pieces;  // by part, then by member
  std::vector<int> first;     // index of the first piece of each part, and the end
  rank_counts counts;         // elements by part
  index_t count = 0;

  message_layout(const std::vector<member>& members, const std::vector<int>& chosen, int parts);
  std::span<const piece> part(int p) const;
  /// The pieces by member, then by part; the pieces of a member are at equal distances if parts have the same
  /// size.
  std::vector<piece> by_member() const;
};

/// A new one-dimensional tensor of `count` elements.
inline state_ptr flat(const device& where, index_t count, dtype type = dtype::f32) {
  return make_state(where, shape{1, {count}}, type);
}
/// A tensor of the type, shape and placement of `t`, on `where`.
state_ptr state_like(const tensor_state& t, const device& where);
/// The same, filled with zeros.
state_ptr zeros_like(const tensor_state& t);
/// The device on which messages among `ranks` for parameters on `where` are kept: `where` if they can access
/// it, otherwise host memory, which is counted separately. Null: any ranks.
device message_device(const device& where, const communicator* ranks = nullptr);
/// For the message of an exception: on which devices ranks can divide layers or positions, and what remains.
inline constexpr const char* divided_devices =
    "only on devices whose memory messages can use: the CPU, and CUDA with NCCL. On others, policies with "
    "pp, "
    "dp, fsdp and ep work";
/// The memory space of messages on `where`, for communicators; arbitrary on a device that only counts.
inline memory_space message_space(const backend& where) {
  return where.holds_messages() || !where.computes() ? memory_space::host : memory_space::device;
}
/// Throws usage_error, naming the option, unless `t` is f32, bf16 or f16.
void check_message_type(const char* option, dtype t);
/// The elements of `t` converted to another floating type; `t` itself if it has that type.
state_ptr in_type(dtype type, const state_ptr& t);
/// The elements of `t` as an argument of communicators.
elements elements_of(const tensor_state& t);

/// Copies between views of one dtype on one device, executed together.
class view_copies {
 public:
  void add(const strided& from, const strided& to) {
    if (from.size() == 0) return;
    from_.push_back(from);
    to_.push_back(to);
  }
  void make(backend& on) const {
    if (!from_.empty()) on.copy_together(from_, to_);
  }

 private:
  std::vector<strided> from_, to_;
};

/// `count` elements of `from`, from index `from_at` on, and where in `to` they are copied.
struct row_copy {
  const tensor_state& to;
  index_t to_at;
  const tensor_state& from;
  index_t from_at, count;
};
/// Makes copies of one dtype, all between the same two devices, which must not overlap; between devices
/// through the host. On one device, consecutive copies at equal distances become one.
void copy_rows(std::span<const row_copy> all);
inline void copy_rows(const state_ptr& to, index_t to_at, const state_ptr& from, index_t from_at,
                      index_t count) {
  const row_copy one{*to, to_at, *from, from_at, count};
  copy_rows({&one, 1});
}

/// `t` in memory that messages can use: `t` itself, or a copy on `messages`.
state_ptr reachable(const device& messages, const state_ptr& t);

/// Sets the elements of `t` to those of rank `from`. Collective.
void share_elements(communicator& ranks, const state_ptr& t, int from, const comm_options& o);
/// The text passed by rank `from`. Collective.
std::string shared_text(communicator& ranks, std::string text, int from, const comm_options& o);
/// For each number, whether it is the same on all ranks. Collective.
std::vector<bool> same_on_all(communicator& ranks, const std::vector<std::int64_t>& numbers,
                              const comm_options& o);

/// Parameters that are sent together.
struct unit {
  std::string name;
  std::vector<member> members;
  std::vector<int> everything;  // 0, 1, ...: all members
  message_layout message;       // of all members
  communicator* shards;         // the ranks that shard its parameters
  communicator* replicas;       // the ranks that have the same rows as this one
  bool stays = false;           // gathered parameters are kept between forward and backward

  int part() const { return shards->rank(); }
  int parts() const { return shards->size(); }
  /// The number of elements that this rank updates.
  index_t own_count() const { return message.counts[static_cast<std::size_t>(part())]; }
  member& at(int m) { return members[static_cast<std::size_t>(m)]; }
};

/// The unit of a parameter and its number in it. Throws value_error if there is no parameter of this name.
struct member_place {
  int unit, member;
};
[[gnu::cold]] member_place place_of(const std::vector<unit>& units, const std::string& name);

/// "h.3" for "h.3.attn.c_attn.bias": the path to the first number; empty for a name without a number.
[[gnu::cold]] std::string block_of(const std::string& name);

/// The parameter numbers of each unit; units are in the order in which the backward pass completes them.
/// `chunks`: the pipeline chunk of each parameter; a unit has parameters of one chunk. Empty: one chunk for
/// all.
[[gnu::cold]] std::vector<std::vector<int>> divided_into_units(const state_dict_t& parameters,
                                                               const parallel_options& o,
                                                               const std::vector<int>& chunks);

/// How ranks that process different data divide the experts of a model: `among` divide the experts; of the
/// ranks that have the same experts, `shards` shard their rows and `replicas` hold the same rows.
struct expert_division {
  struct place {
    state_ptr parameter;
    int owner;
  };
  std::vector<place> places{};  // the parameters of all experts, each with the rank of `among` that has it
  std::shared_ptr<communicator> among{}, shards{}, replicas{};
  std::shared_ptr<runtime::expert_ranks> exchange{};  // exchanges rows; null if one rank has all experts

  /// The rank of `among` that has `p`; every_rank if `p` is not a parameter of an expert.
  int owner_of(const tensor_state& p) const;
};

/// The units of these parameters, which are sharded among `shards`, named by block, by options.unit or by
/// their parameters.
[[gnu::cold]] std::vector<unit> units_of(const state_dict_t& parameters, const parallel_options& o,
                                         communicator& shards, communicator& replicas,
                                         const std::vector<int>& chunks = {});

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/unit.ipp>
#endif
