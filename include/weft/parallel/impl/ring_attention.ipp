// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/ring_attention.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/parallel/ring_attention.hpp>

namespace weft {
namespace parallel {
namespace detail {

WEFT_DEFINE scratch_tensor::scratch_tensor(const device& where, const strided& like, int dim, index_t count)
    : elements{nullptr, like.type, like.extents} {
  elements.extents[dim] = count;
  set_contiguous(elements);
  memory = where.allocate(bytes_of(elements.extents, elements.type));
  elements.pointer = memory.data();
}

WEFT_DEFINE key_block::key_block(const device& where, const strided& like, index_t positions)
    : k{nullptr, like.type, like.extents} {
  k.extents[1] = positions;
  set_contiguous(k);
  v = k;
  const std::size_t bytes = bytes_of(k.extents, k.type);
  memory = where.allocate(2 * bytes);
  k.pointer = memory.data();
  v.pointer = memory.part(bytes).data();
}

}  // namespace detail

WEFT_DEFINE bool ring_attention::attend(const device& where, std::string_view op, const native_operands& o,
                                        const comm_options& with) {
  if (size() == 1) return false;
  const strided &q = o.in[0], &k = o.in[1];
  check("attention", where, q.extents, q.extents[1]);
  check("attention", where, k.extents, k.extents[1]);
  if (o.at[1] != 0)
    throw usage_error("weft: attention: an offset is not supported where ranks divide positions (axis cp)");
  options_ = with;
  device_ = &where;
  op == "context_attention_backward" ? attend_backward(o) : attend_forward(o);
  return true;
}

WEFT_DEFINE ring_attention::met ring_attention::met_with(int from, bool causal) const {
  const index_t own_early = division().early(rank()).count, own = division().count(rank());
  if (causal && from < rank()) return {{0, own}, {0, division().early(from).count}};
  if (causal) return {{own_early, own - own_early}, {0, division().count(from)}};
  return {{0, own}, {0, division().count(from)}};
}

WEFT_DEFINE void ring_attention::attend_forward(const native_operands& o) {
  const strided &q = o.in[0], &y = o.out[0], &log_sum = o.out[1];
  const bool causal = o.at[0] != 0;
  const auto own = [&] { call<native_op::attention>("attention", o.in, o.out, causal); };
  around(o.in[1], o.in[2], own, [&](int hop, const detail::key_block& other) {
    const met m = met_with(source(hop), causal);
    if (m.queries.count == 0 || m.keys.count == 0) return;
    const std::array in{range_of(q, m.queries), range_of(other.k, m.keys), range_of(other.v, m.keys)};
    const detail::scratch_tensor part(*device_, q, 1, m.queries.count),
        sums(*device_, log_sum, 2, m.queries.count);
    const std::array out{part.elements, sums.elements};
    call<native_op::attention>("attention", in, out, false);
    const std::array whole{range_of(y, m.queries), range_of(log_sum, m.queries, 2)};
    call<native_op::merge_attention>("merge_attention", out, whole, false);
  });
}

WEFT_DEFINE void ring_attention::attend_backward(const native_operands& o) {
  const strided& k = o.in[1];
  const bool causal = o.at[0] != 0;
  const auto receive = [&](const detail::key_block& to) {
    return ranks().receive(to.message(**device_), previous(), 1, labelled("cotangents of keys"));
  };
  const auto add_arrived = [&](const detail::key_block& from, const strided& dk, const strided& dv) {
    add(from.k, dk);
    add(from.v, dv);
  };
  detail::key_block leaving;
  work sent;
  const auto own = [&] { call<native_op::attention_backward>("attention_backward", o.in, o.out, causal); };
  around(k, o.in[2], own, [&](int hop, const detail::key_block& other) {
    detail::key_block sum = block(k, hop), arriving;
    work arrives;
    if (hop > 1) arrives = receive(arriving = block(k, hop));
    add_block(o, met_with(source(hop), causal), other, sum);
    arrives.wait();
    if (hop > 1) add_arrived(arriving, sum.k, sum.v);
    sent.wait();
    leaving = std::move(sum);
    sent = ranks().send(leaving.message(**device_), next(), 1, labelled("cotangents of keys"));
  });
  const detail::key_block arriving = block(k, size());  // this rank's own
  receive(arriving).wait();
  add_arrived(arriving, o.out[1], o.out[2]);
  sent.wait();
}

WEFT_DEFINE void ring_attention::add_block(const native_operands& o, const met& m,
                                           const detail::key_block& other,
                                           const detail::key_block& sum) const {
  (*device_)->fill_zero(sum.k.pointer, 2 * bytes_of(sum.k.extents, sum.k.type));
  if (m.queries.count == 0 || m.keys.count == 0) return;
  const std::array in{range_of(o.in[0], m.queries),    range_of(other.k, m.keys),
                      range_of(other.v, m.keys),       range_of(o.in[3], m.queries),
                      range_of(o.in[4], m.queries, 2), range_of(o.in[5], m.queries)};
  const detail::scratch_tensor dq(*device_, o.in[0], 1, m.queries.count);
  const std::array out{dq.elements, range_of(sum.k, m.keys), range_of(sum.v, m.keys)};
  call<native_op::attention_backward>("attention_backward", in, out, false);
  add(dq.elements, range_of(o.out[0], m.queries));
}

}  // namespace parallel
}  // namespace weft
