// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/distributed_context.hpp>: whole copies of what ranks have parts of.
#pragma once

#include <algorithm>
#include <utility>

#include <weft/base/config.hpp>
#include <weft/parallel/distributed_context.hpp>

namespace weft {

namespace parallel::detail {
inline state_ptr find(const state_dict_t& all, const std::string& name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& t) { return t.first == name; });
  return found == all.end() ? nullptr : found->second;
}

/// A state tensor of an optimizer.
struct state_key {
  std::string kind, name;  // of the parameter
  dtype type;
  state_key(const std::string& key, dtype t)
      : kind(key.substr(0, key.find('.'))), name(key.substr(key.find('.') + 1)), type(t) {}
  std::string text() const { return kind + "." + name; }
};

/// The keys of rank `from`. Collective.
inline std::vector<state_key> shared_keys(communicator& ranks, int from, std::vector<state_key> own,
                                          const comm_options& o) {
  if (ranks.size() == 1) return own;
  std::string text;
  for (const state_key& k : own) text += static_cast<char>(k.type) + k.text() + '\n';
  text = shared_text(ranks, std::move(text), from, o);
  std::vector<state_key> all;
  for (auto at = text.begin(); at != text.end();) {
    const auto end = std::find(at, text.end(), '\n');
    all.emplace_back(std::string(at + 1, end), static_cast<dtype>(*at));
    at = end + 1;
  }
  return all;
}
}  // namespace parallel::detail

WEFT_DEFINE const distributed_context::model_tensor& distributed_context::distributed_tensors::named(
    const std::string& name) const {
  return *std::find_if(all.begin(), all.end(), [&](const model_tensor& t) { return t.name == name; });
}

WEFT_DEFINE state_dict_t distributed_context::full() {
  model_.require_unchanged("full");
  state_dict_t all = whole_of_held();
  for (const distributed_tensors& d : distributed_) all = shared_among(d, all);
  return all;
}

WEFT_DEFINE state_dict_t distributed_context::shared_among(const distributed_tensors& of,
                                                           const state_dict_t& held) const {
  state_dict_t all;
  for (const model_tensor& t : of.all) {
    parallel::state_ptr whole = parallel::detail::find(held, t.name);
    if (!whole) whole = make_state(where(), t.tensor->whole(), t.tensor->type);
    if (t.owner != parallel::every_rank) parallel::share_elements(*of.among, whole, t.owner, in_step(t.name));
    all.emplace_back(t.name, std::move(whole));
  }
  return all;
}

WEFT_DEFINE state_dict_t distributed_context::whole_of_held() {
  state_dict_t all;
  parallel::data_parallel_hooks& held = prepared();
  for (const auto& [name, p] : local_) all.emplace_back(name, held.whole_of(name, p));
  for (const auto& [name, b] : held.buffers()) {
    all.emplace_back(name, make_state(b->where, b->extents, b->type));
    parallel::copy_rows(all.back().second, 0, b, 0, b->extents.size());
  }
  return all;
}

WEFT_DEFINE state_dict_t distributed_context::full_optimizer() {
  state_dict_t all = whole_state_of_held();
  for (const distributed_tensors& d : distributed_) all = state_shared_among(d, all);
  return all;
}

WEFT_DEFINE state_dict_t distributed_context::state_shared_among(const distributed_tensors& of,
                                                                 const state_dict_t& held) const {
  state_dict_t all;
  for (int r = 0; r < of.among->size(); ++r) {
    std::vector<parallel::detail::state_key> keys;  // keys of the state that rank r exports
    for (const auto& [key, t] : held) {
      const parallel::detail::state_key k(key, t->type);
      const int owner = of.named(k.name).owner;
      if (owner == r || (owner == parallel::every_rank && r == 0)) keys.push_back(k);
    }
    for (const auto& k : parallel::detail::shared_keys(*of.among, r, std::move(keys), in_step("optimizer"))) {
      parallel::state_ptr whole = r == of.among->rank() ? parallel::detail::find(held, k.text()) : nullptr;
      if (!whole) whole = make_state(where(), of.named(k.name).tensor->whole(), k.type);
      parallel::share_elements(*of.among, whole, r, in_step(k.name));
      all.emplace_back(k.text(), std::move(whole));
    }
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return all;
}

WEFT_DEFINE state_dict_t distributed_context::whole_state_of_held() {
  parallel::data_parallel_hooks& held = prepared();
  state_dict_t all;
  std::vector<communicator*> groups;  // groups that shard rows: of shared parameters, then of experts
  for (const auto& [name, p] : local_)
    if (communicator* const shards = &held.shards_of(name);
        std::find(groups.begin(), groups.end(), shards) == groups.end())
      groups.push_back(shards);
  for (communicator* const shards : groups) {
    std::vector<parallel::detail::state_key> own;
    for (const auto& [key, t] : training_.state->tensors())
      if (const parallel::detail::state_key k(key, t->type); &held.shards_of(k.name) == shards)
        own.push_back(k);
    // The first rank has rows of every parameter.
    for (const auto& k : parallel::detail::shared_keys(*shards, 0, std::move(own), in_step("optimizer"))) {
      const parallel::state_ptr rows = training_.state->find(k.kind, k.name);
      all.emplace_back(k.text(), held.whole_of(k.name, rows ? rows : parallel::flat(where(), 0, k.type)));
    }
  }
  return all;
}

WEFT_DEFINE std::vector<held_tensor> distributed_context::held_tensors() const {
  std::vector<held_tensor> held = parallel().held_tensors();
  model_.require_unchanged("save or load");
  for (const distributed_tensors& d : distributed_) {
    std::vector<held_tensor> all;
    for (const model_tensor& t : d.all) {
      const auto here =
          std::find_if(held.begin(), held.end(), [&](const auto& h) { return h.name == t.name; });
      const tensor_spec whole{t.tensor->type, t.tensor->whole()};
      all.push_back(here != held.end() ? std::move(*here)
                                       : held_tensor{t.name, whole, {}, nullptr, false, t.is_buffer});
      if (t.owner != parallel::every_rank) all.back().saves = all.back().saves && t.owner == d.among->rank();
    }
    held = std::move(all);
  }
  return held;
}

}  // namespace weft
