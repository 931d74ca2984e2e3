// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/first_values.hpp>.
#pragma once

#include <numeric>
#include <optional>

#include <weft/base/config.hpp>
#include <weft/parallel/first_values.hpp>

namespace weft {
namespace parallel {
namespace detail {

WEFT_DEFINE initializer_fields fields_of(const tensor_state& t) {
  return {static_cast<std::int64_t>(t.init.kind),
          std::bit_cast<std::int64_t>(t.init.scale),
          static_cast<std::int64_t>(t.init.seed),
          static_cast<std::int64_t>(t.init.stream),
          t.init.zeros_begin,
          t.init.zeros_end};
}

WEFT_DEFINE std::uint64_t digest(const tensor_state& t) {
  std::vector<std::int64_t> form{static_cast<std::int64_t>(t.type), t.is_deferred(), t.extents.order};
  for (int d = 0; d < t.extents.order; ++d) form.push_back(t.extents[d]);
  std::uint64_t sum = xxh64(bytes_in(form));
  if (t.is_deferred()) return xxh64(bytes_in(fields_of(t)), sum);
  if (!t.where->computes()) return sum;
  const auto* const elements = static_cast<const char*>(t.memory.data());
  if (t.where->host_accessible()) {
    t.where->synchronize();
    return xxh64({elements, t.bytes()}, sum);
  }
  std::vector<char> part;
  for (std::size_t at = 0; at < t.bytes(); at += part.size()) {
    part.resize(std::min<std::size_t>(t.bytes() - at, first_values_bytes));
    t.where->download(part.data(), elements + at, part.size());
    sum = xxh64({part.data(), part.size()}, sum);
  }
  return sum;
}

WEFT_DEFINE std::string described(const std::string& name, const tensor_state& t) {
  return weft::detail::joined({name, ", ", name_of(t.type), " ", t.extents});
}

WEFT_DEFINE void require_same_model(communicator& ranks, const comm_options& o, const state_dict_t& tensors) {
  std::vector<std::uint64_t> forms;
  for (const auto& [name, t] : tensors) forms.push_back(xxh64(described(name, *t)));
  const auto all = static_cast<std::int64_t>(xxh64(bytes_in(forms)));
  if (!same_on_all(ranks, {all}, o)[0]) refuse_other_models(ranks, o, tensors, forms);
}

WEFT_DEFINE void refuse_other_models(communicator& ranks, const comm_options& o, const state_dict_t& tensors,
                                     const std::vector<std::uint64_t>& forms) {
  const auto size = static_cast<std::size_t>(ranks.size());
  rank_counts counts(size);
  const auto own_count = static_cast<index_t>(forms.size());
  ranks.all_gather(std::span(&own_count, 1), std::span(counts), {}, o).wait();
  // With one additional number, so that every rank sends something.
  std::vector<std::int64_t> own(forms.begin(), forms.end()), all;
  own.push_back(0);
  rank_counts sent = counts;
  for (index_t& n : sent) all.resize(all.size() + static_cast<std::size_t>(++n));
  ranks.all_gather(own, all, sent, o).wait();
  const auto form = [&](int r,
                        index_t i) -> std::optional<std::int64_t> {  // of tensor i of rank r, if any
    if (i >= counts[static_cast<std::size_t>(r)]) return {};
    const index_t at = std::accumulate(sent.begin(), sent.begin() + r, index_t{0}) + i;
    return all[static_cast<std::size_t>(at)];
  };
  int other = 0;
  index_t first = 0;
  for (;; ++first) {
    for (other = 1; other < ranks.size() && form(other, first) == form(0, first);) ++other;
    if (other < ranks.size()) break;
  }
  const auto text_of = [&](int r) {
    std::string text = first >= counts[static_cast<std::size_t>(r)] ? "missing" : "";
    if (r == ranks.rank() && text.empty()) {
      const auto& [name, t] = tensors[static_cast<std::size_t>(first)];
      text = described(name, *t);
    }
    return shared_text(ranks, std::move(text), r, o);
  };
  const std::string of_first = text_of(0), of_other = text_of(other);
  refuse<usage_error>({"weft: bind: the ranks have different models: parameter or buffer ", first, " is ",
                       of_first, " on rank 0, and ", of_other, " on rank ", other});
}

WEFT_DEFINE void take_elements(communicator& ranks, const comm_options& o, const device& messages,
                               const state_ptr& t) {
  const index_t size = size_of(t->type), most = first_values_bytes / size, count = t->extents.size();
  const bool direct = t->where == messages || t->where->holds_messages();
  for (index_t at = 0; at < count; at += most) {
    const index_t n = std::min(most, count - at);
    const state_ptr part = direct ? part_of(*t, at, shape{1, {n}}) : flat(messages, n, t->type);
    if (!direct && ranks.rank() == 0) copy_rows(part, 0, t, at, n);
    ranks.broadcast(elements_of(*part), 0, o).wait();
    if (!direct) copy_rows(t, at, part, 0, n);
  }
  ++t->version();
}

WEFT_DEFINE void take_initializers(communicator& ranks, const comm_options& o,
                                   const tensor_list& parameters) {
  std::vector<std::int64_t> all;
  for (const state_ptr& p : parameters) {
    const initializer_fields f = fields_of(*p);
    all.insert(all.end(), f.begin(), f.end());
  }
  if (all.empty()) return;
  ranks.broadcast(all, 0, o).wait();
  const std::int64_t* f = all.data();
  for (const state_ptr& p : parameters) {
    p->init = {static_cast<initializer::distribution>(f[0]),
               std::bit_cast<double>(f[1]),
               static_cast<std::uint64_t>(f[2]),
               static_cast<std::uint64_t>(f[3]),
               f[4],
               f[5]};
    f += std::tuple_size_v<initializer_fields>;
  }
}

WEFT_DEFINE void require_elements_here(const std::string& name, const tensor_state& t) {
  weft::detail::await_elements(t);
  if (t.divided && !t.is_part_of_layer())
    refuse<value_error>(
        {"weft: bind: parameter ", name, " is divided among the ranks of another run, which holds its rows"});
  if (t.rows_in_run) weft::detail::refuse_second_run(name);
}

}  // namespace detail

WEFT_DEFINE void begin_as_first(communicator& ranks, comm_options o, const device& where,
                                const state_dict_t& tensors) {
  for (const auto& [name, t] : tensors) detail::require_elements_here(name, *t);
  if (ranks.size() == 1) return;
  o.label = "names and shapes";
  detail::require_same_model(ranks, o, tensors);
  if (tensors.empty()) return;
  std::vector<std::int64_t> digests;
  for (const auto& [name, t] : tensors) digests.push_back(static_cast<std::int64_t>(detail::digest(*t)));
  o.label = "digests";
  const std::vector<bool> same = same_on_all(ranks, digests, o);
  std::vector<std::size_t> differ;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (!same[i]) differ.push_back(i);
  if (differ.empty()) return;
  std::vector<std::int64_t> deferred;  // for each: deferred on some rank; with elements on some rank
  for (const std::size_t i : differ)
    for (const bool is : {tensors[i].second->is_deferred(), !tensors[i].second->is_deferred()})
      deferred.push_back(is);
  ranks.all_reduce(deferred, reduction::maximum, o).wait();
  for (std::size_t k = 0; k < differ.size(); ++k)
    if (deferred[2 * k] && deferred[2 * k + 1])
      refuse<usage_error>({"weft: bind: parameter ", tensors[differ[k]].first,
                           " was created on a deferred device by some ranks, and with elements by others"});
  const device messages = message_device(where, &ranks);
  tensor_list without_elements;
  for (const std::size_t i : differ) {
    const state_ptr& t = tensors[i].second;
    o.label = tensors[i].first;
    if (t->is_deferred()) without_elements.push_back(t);
    else detail::take_elements(ranks, o, messages, t);
  }
  o.label = "initializers";
  detail::take_initializers(ranks, o, without_elements);
}

}  // namespace parallel
}  // namespace weft
