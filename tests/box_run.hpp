// SPDX-License-Identifier: MIT
// Runs whose ranks hold arbitrary boxes of tensors, as future strategies may shard them. They have only what
// checkpoints and weight files need of a run.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/train/checkpoint.hpp>
#include <weft/train/weights.hpp>

#include "boxes.hpp"

namespace weft::test {

/// The tensors of a model: type, shape and elements (random bits) of each.
struct box_model {
  struct entry {
    std::string name;
    tensor_spec whole;
    bool is_buffer = false, has_state = false;
    std::map<std::string, std::string> bytes;  // by kind of optimizer state; "": the tensor itself
  };
  std::vector<entry> tensors;

  static box_model random(random_source& random, int tensors, int buffers) {
    constexpr dtype types[] = {dtype::f32, dtype::f64, dtype::bf16, dtype::f16,
                               dtype::i32, dtype::i64, dtype::u8,   dtype::boolean};
    box_model m;
    for (int i = 0; i < tensors + buffers; ++i) {
      entry e{"t" + std::to_string(i) + ".weight",
              {types[below(random, 8)], random_shape(random)},
              i >= tensors,
              false,
              {}};
      e.has_state = !e.is_buffer && e.whole.extents.size() > 0 && below(random, 3) > 0;
      for (const char* kind : {"", "exp_avg", "exp_avg_sq"}) {
        if (*kind && !e.has_state) continue;
        std::string& all = e.bytes[kind];
        all.resize(bytes_of(e.whole.extents, e.whole.type));
        for (char& c : all) c = static_cast<char>(e.whole.type == dtype::boolean ? random() % 2 : random());
      }
      m.tensors.push_back(std::move(e));
    }
    return m;
  }
  /// The elements of a box.
  static std::string chosen(const entry& e, const std::string& kind, const box& b) {
    std::string bytes;
    const auto size = static_cast<std::size_t>(size_of(e.whole.type));
    for (const index_t i : elements_of(b, parallel::in_rows(e.whole.extents)))
      bytes += e.bytes.at(kind).substr(static_cast<std::size_t>(i) * size, size);
    return bytes;
  }
};

/// For each tensor of a model, the box of each owner; a rank without a box holds no part of the tensor.
using box_plan = std::vector<std::map<int, box>>;

/// Random boxes that tile each tensor. Buffers are whole on every rank.
inline box_plan random_plan(random_source& random, const box_model& m, int owners) {
  box_plan plan;
  for (const box_model::entry& e : m.tensors) {
    const box whole = whole_box(parallel::in_rows(e.whole.extents));
    std::vector<int> ranks;
    for (int r = 0; r < owners; ++r) ranks.push_back(r);
    std::shuffle(ranks.begin(), ranks.end(), random);
    std::vector<box> boxes;
    int times = 0;
    while (2 << times <= owners) ++times;
    cut(random, whole, static_cast<int>(below(random, times + 1)), boxes);
    plan.emplace_back();
    if (e.is_buffer)
      for (const int r : ranks) plan.back()[r] = whole;
    else
      for (std::size_t i = 0; i < boxes.size(); ++i) plan.back()[ranks[i]] = boxes[i];
  }
  return plan;
}

class box_run {
 public:
  struct optimizer_type {
    optimizer_state state{};
    std::int64_t steps = 0;
  };
  struct groups_type {
    std::shared_ptr<communicator> owners_, replicas_;
    communicator& owners() const { return *owners_; }
    bool is_first_copy() const { return replicas_->rank() == 0; }
    comm_options labelled(const std::string& label, bool control) const {
      return {label, std::chrono::seconds(60), control};
    }
  };

  /// `ranks` form `replicas` replicas of equal size. Elements are the model's if `with_elements`, otherwise
  /// zero.
  box_run(communicator& ranks, int replicas, const box_model& m, const box_plan& plan, bool with_elements,
          const device& where)
      : ranks_(&ranks) {
    const int owners = ranks.size() / replicas, own = ranks.rank() % owners;
    groups_ = {ranks.split(ranks.rank() / owners), ranks.split(own)};
    for (std::size_t i = 0; i < m.tensors.size(); ++i) {
      const box_model::entry& e = m.tensors[i];
      held_tensor h{e.name, e.whole, {}, nullptr, false, e.is_buffer};
      if (const auto mine = plan[i].find(own); mine != plan[i].end()) {
        const box part = mine->second;
        h.parts = {part};
        h.local = made(e, "", part, with_elements, where);
        h.saves = ranks.rank() / owners == 0 && (!e.is_buffer || own == 0);
        if (with_elements && e.has_state && part.size() > 0)
          for (const char* kind : {"exp_avg", "exp_avg_sq"})
            optimizer_.state.set(kind, e.name, made(e, kind, part, true, where));
      }
      held_.push_back(std::move(h));
    }
  }

  communicator& ranks() const { return *ranks_; }
  const groups_type& groups() const { return groups_; }
  const parallel_options& options() const { return options_; }
  optimizer_type& optimizer() { return optimizer_; }
  const loss_scaler& scaler() const { return scaler_; }
  void set_scaler(const loss_scaler& s) { scaler_ = s; }
  const context::random_state& randomness() const { return random_; }
  void set_randomness(const context::random_state& r) { random_ = r; }
  void begin_step(std::uint64_t step) { random_ = {random_.seed, step, 0}; }
  std::vector<held_tensor> held_tensors() const { return held_; }
  void before_update(std::function<void()>) {}  // changes nothing
  void reload(bool) {}
  void reset_hook() {}

  /// Whether this rank has the elements of the model, and no further optimizer state.
  bool has(const box_model& m, bool with_state) const {
    const auto is = [](const tensor_state& t, const std::string& bytes) {
      return t.bytes() == bytes.size() && std::memcmp(t.memory.data(), bytes.data(), bytes.size()) == 0;
    };
    bool all = true;
    for (std::size_t i = 0; i < held_.size(); ++i) {
      const held_tensor& h = held_[i];
      if (h.local) all = all && is(*h.local, box_model::chosen(m.tensors[i], "", h.parts[0].where));
      for (const char* kind : {"exp_avg", "exp_avg_sq"}) {
        const auto t = optimizer_.state.find(kind, h.name);
        const bool expected = with_state && h.local && m.tensors[i].has_state;
        if (expected) all = all && t && is(*t, box_model::chosen(m.tensors[i], kind, h.parts[0].where));
        else all = all && !t;
      }
    }
    return all;
  }

 private:
  static std::shared_ptr<tensor_state> made(const box_model::entry& e, const char* kind, const box& b,
                                            bool with_elements, const device& where) {
    auto t = make_state(where, b.extents, e.whole.type);
    std::memset(t->memory.data(), 0, t->bytes());
    if (with_elements) std::memcpy(t->memory.data(), box_model::chosen(e, kind, b).data(), t->bytes());
    return t;
  }

  communicator* ranks_;
  groups_type groups_;
  parallel_options options_{.timeout = std::chrono::seconds(60)};
  optimizer_type optimizer_;
  loss_scaler scaler_;
  context::random_state random_;
  std::vector<held_tensor> held_;
};

}  // namespace weft::test
