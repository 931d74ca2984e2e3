// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/ring_attention.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/parallel/ring_attention.hpp>

namespace weft {
namespace parallel {
namespace detail {

WEFT_DEFINE strided tensor_at(void* memory, const strided& like, index_t positions) {
  strided t{memory, like.type, like.extents};
  t.extents[1] = positions;
  set_contiguous(t);
  return t;
}

WEFT_DEFINE key_block::key_block(char* memory, const strided& like, index_t positions)
    : k(tensor_at(memory, like, positions)),
      v(tensor_at(memory + bytes_of(like, positions), like, positions)) {}

}  // namespace detail

WEFT_DEFINE bool ring_attention::attend(const device& where, std::string_view op, const native_operands& o,
                                        const comm_options& with) {
  if (size() == 1) return false;
  const strided &q = o.in[0], &k = o.in[1];
  check("attention", where, q.extents, q.extents[1]);
  check("attention", where, k.extents, k.extents[1]);
  if (o.at[1] != 0) throw usage_error("weft: attention: over the positions of several ranks, with an offset");
  if (is_narrow(q.type))
    throw usage_error(std::string("weft: attention: over the positions of several ranks, of ") +
                      name_of(q.type) + ": it would be rounded once for each of them");
  options_ = with;
  device_ = &*where;
  const bool backward = op == "context_attention_backward";
  const index_t most = division().most(), block = 2 * detail::bytes_of(k, most);
  // Two blocks, one being sent, one arriving; in backward as many of cotangents, and those that arrive.
  const index_t own = detail::bytes_of(q, most) + q.size() * size_of(q.type);
  memory_ = memory(where, (backward ? 5 : 2) * block + own);
  backward ? attend_backward(o, block) : attend_forward(o, block);
  return true;
}

WEFT_DEFINE ring_attention::met ring_attention::met_with(int from, bool causal) const {
  const index_t own_early = division().early(rank()).count, own = division().count(rank());
  if (causal && from < rank()) return {{0, own}, {0, division().early(from).count}};
  if (causal) return {{own_early, own - own_early}, {0, division().count(from)}};
  return {{0, own}, {0, division().count(from)}};
}

WEFT_DEFINE void ring_attention::attend_forward(const native_operands& o, index_t block) {
  const strided &q = o.in[0], &y = o.out[0], &log_sum = o.out[1];
  const bool causal = o.at[0] != 0;
  char* const part = memory_ + 2 * block;
  const auto own = [&] { call<native_op::attention>("attention", o.in, o.out, causal); };
  around(o.in[1], o.in[2], block, own, [&](int hop, const detail::key_block& other) {
    const met m = met_with(source(hop), causal);
    if (m.queries.count == 0 || m.keys.count == 0) return;
    const std::array in{range_of(q, m.queries), range_of(other.k, m.keys), range_of(other.v, m.keys)};
    const strided result = detail::tensor_at(part, q, m.queries.count);
    strided sums{part + detail::bytes_of(q, m.queries.count), log_sum.type, log_sum.extents};
    sums.extents[2] = m.queries.count;
    set_contiguous(sums);
    const std::array out{result, sums};
    call<native_op::attention>("attention", in, out, false);
    const std::array whole{range_of(y, m.queries), range_of(log_sum, m.queries, 2)};
    call<native_op::merge_attention>("merge_attention", out, whole, false);
  });
}

WEFT_DEFINE void ring_attention::attend_backward(const native_operands& o, index_t block) {
  const strided &q = o.in[0], &k = o.in[1];
  const bool causal = o.at[0] != 0;
  const int last = size() - 1;
  char* const part = memory_ + 5 * block;
  const auto sum_of = [&](int hop) {  // cotangents of the block that is here
    return detail::key_block(memory_ + (2 + hop % 2) * block, k, division().count(source(hop)));
  };
  const auto arriving = [&](int hop) {
    return detail::key_block(memory_ + 4 * block, k, division().count(source(hop)));
  };
  work sent, arrives;
  const auto receive = [&](int hop) {
    arrives = ranks().receive(arriving(hop).message(), previous(), 1, labelled("cotangents of keys"));
  };
  const auto own = [&] { call<native_op::attention_backward>("attention_backward", o.in, o.out, causal); };
  around(k, o.in[2], block, own, [&](int hop, const detail::key_block& other) {
    if (hop > 1) receive(hop);
    const detail::key_block sum = sum_of(hop);
    const met m = met_with(source(hop), causal);
    add_block(o, m, other, sum, detail::tensor_at(part, q, m.queries.count));
    if (hop > 1) {
      arrives.wait();
      add(arriving(hop).k, sum.k);
      add(arriving(hop).v, sum.v);
      sent.wait();
    }
    sent = ranks().send(sum.message(), next(), 1, labelled("cotangents of keys"));
  });
  receive(last + 1);
  arrives.wait();
  add(arriving(last + 1).k, o.out[1]);
  add(arriving(last + 1).v, o.out[2]);
  sent.wait();
}

WEFT_DEFINE void ring_attention::add_block(const native_operands& o, const met& m,
                                           const detail::key_block& other, const detail::key_block& sum,
                                           const strided& dq) const {
  device_->fill_zero(sum.k.pointer, static_cast<std::size_t>(2 * sum.k.size() * size_of(sum.k.type)));
  if (m.queries.count == 0 || m.keys.count == 0) return;
  const std::array in{range_of(o.in[0], m.queries),    range_of(other.k, m.keys),
                      range_of(other.v, m.keys),       range_of(o.in[3], m.queries),
                      range_of(o.in[4], m.queries, 2), range_of(o.in[5], m.queries)};
  const std::array out{dq, range_of(sum.k, m.keys), range_of(sum.v, m.keys)};
  call<native_op::attention_backward>("attention_backward", in, out, false);
  add(dq, range_of(o.out[0], m.queries));
}

}  // namespace parallel
}  // namespace weft
