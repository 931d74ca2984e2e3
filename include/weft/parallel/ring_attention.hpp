// SPDX-License-Identifier: MIT
// Attention over the positions of several ranks: blocks of keys and values travel around a ring (Liu et al.,
// "Ring Attention", 2023).
//
// Each rank attends with its queries to the block that it has while the next block arrives, and merges the
// results by their log-sum-exps. In the backward pass, the cotangents of a block follow it around the ring,
// so that each rank adds its part and the last one returns them. Each of `c` ranks sends keys and values c -
// 1 times forward and c - 1 times backward, and cotangents of keys and values c - 1 times.
#pragma once

#include <array>
#include <string>

#include <weft/lower/native_code.hpp>
#include <weft/op/attention.hpp>
#include <weft/parallel/divided_positions.hpp>

namespace weft::parallel {

namespace detail {

/// A contiguous tensor like `like` with extent `count` of dim `dim`, in memory that it owns.
struct scratch_tensor {
  strided elements;
  buffer memory;
  scratch_tensor(const device& where, const strided& like, int dim, index_t count);
};
/// Keys and values of `positions` positions, or their cotangents, in one message.
struct key_block {
  strided k, v;
  buffer memory;
  key_block() = default;
  key_block(const device& where, const strided& like, index_t positions);
  elements message(const backend& where) const {
    return {k.pointer, 2 * k.size(), k.type, message_space(where)};
  }
};

}  // namespace detail

/// Ring attention on this rank.
class ring_attention : public divided_positions {
 public:
  using divided_positions::divided_positions;

  bool attend(const device& where, std::string_view op, const native_operands& o,
              const comm_options& with) override;

 private:
  int next() const { return (rank() + 1) % size(); }
  int previous() const { return (rank() + size() - 1) % size(); }
  /// The rank whose block is here after `hop` hops.
  int source(int hop) const { return (rank() - hop + size()) % size(); }
  comm_options labelled(const char* what) const {
    comm_options o = options_;
    o.label = what;
    return o;
  }

  /// The queries of this rank and the keys of `from` that attend to each other.
  struct met {
    position_range queries, keys;
  };
  met met_with(int from, bool causal) const;

  /// Memory for the block that is here after `hop` hops.
  detail::key_block block(const strided& like, int hop) const {
    return {*device_, like, division().count(source(hop))};
  }

  /// Passes keys and values around the ring: calls `own` while the first block arrives, and `visit` with the
  /// blocks of hop 1, 2, ... while the next one arrives.
  template <class Own, class Visit>
  void around(const strided& k, const strided& v, Own own, Visit visit) {
    detail::key_block here = block(k, 0), other;
    (*device_)->copy(k, here.k);
    (*device_)->copy(v, here.v);
    work sent, arrives;
    const auto start = [&](int hop) {
      other = block(k, hop);
      sent = ranks().send(here.message(**device_), next(), 0, labelled("keys and values"));
      arrives = ranks().receive(other.message(**device_), previous(), 0, labelled("keys and values"));
    };
    start(1);
    own();
    for (int hop = 1; hop < size(); ++hop) {
      arrives.wait();
      sent.wait();
      here = std::move(other);
      if (hop + 1 < size()) start(hop + 1);
      visit(hop, here);
    }
  }
  template <native_op Op>
  void call(const char* name, std::span<const strided> in, std::span<const strided> out, bool causal) const {
    const native_code code{.cpu = lower::native_function_of<Op>({Op, in[0].type}), .op = Op};
    const attributes at{{causal, 0}, 2};
    (*device_)->call_native(name, code, {in, out, at});
  }

  void attend_forward(const native_operands& o);

  void attend_backward(const native_operands& o);

  /// Adds the contribution of the keys `other` to the cotangents of this rank's queries, and sets `sum` to
  /// the cotangents of these keys.
  void add_block(const native_operands& o, const met& m, const detail::key_block& other,
                 const detail::key_block& sum) const;
  void add(const strided& x, const strided& to) const {
    call<native_op::add_positions>("add_positions", {&x, 1}, {&to, 1}, false);
  }

  comm_options options_;
  const device* device_ = nullptr;
};

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/ring_attention.ipp>
#endif
