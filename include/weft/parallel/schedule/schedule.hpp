// SPDX-License-Identifier: MIT
// Pipeline schedules: for each stage, the steps that it executes, in order, as plain data.
//
// The model is divided into chunks, numbered in the order of the model; each stage holds one or more chunks.
// A step is the forward or backward computation of one chunk for one micro-batch. The messages between stages
// follow from the steps (messages.hpp). Whether a schedule can run is verified in a constant expression or at
// run time (check.hpp).
//
//   pipeline::schedule s = pipeline::one_f_one_b(4, 16);     // loops.hpp, zero_bubble.hpp, or your own
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <weft/base/error.hpp>

namespace weft::pipeline {

/// The kinds of steps. `backward` computes the gradients of the chunk's input and of its parameters;
/// `backward_input` and `backward_weight` are its two parts.
enum class step_kind : std::uint8_t {
  forward,
  backward,
  backward_input,
  backward_weight,
  send_activation,
  receive_activation,
  send_gradient,
  receive_gradient,
};

/// Whether a step sends or receives a message, and whether it sends one.
constexpr bool is_message(step_kind k) { return k >= step_kind::send_activation; }
constexpr bool is_send(step_kind k) {
  return k == step_kind::send_activation || k == step_kind::send_gradient;
}
/// Whether the step computes the gradient of the chunk's input.
constexpr bool yields_gradient(step_kind k) {
  return k == step_kind::backward || k == step_kind::backward_input;
}
/// Whether it completes the gradients of the chunk's parameters.
constexpr bool completes_gradients(step_kind k) {
  return k == step_kind::backward || k == step_kind::backward_weight;
}

/// One entry of a stage's list. For a message, `chunk` is the chunk on this stage whose output or input (or
/// its gradient) is sent or received, and `size` is its size in any unit.
struct step {
  step_kind kind{};
  int chunk = 0;
  int micro_batch = 0;
  std::int64_t size = 0;
  friend constexpr bool operator==(const step&, const step&) = default;
};

/// The steps of all stages, and the stage of each chunk. It is plain data: custom schedules can be written
/// directly.
struct schedule {
  int micro_batches = 0;
  std::vector<int> stage_of{};               // by chunk
  std::vector<std::vector<step>> steps{};    // by stage, in the order of execution
  /// Whether parameters are updated only after all micro-batches. If false, they are updated after each
  /// backward step, and a forward step and its backward step use the same stored version of the parameters
  /// (PipeDream).
  bool flush = true;

  constexpr int stages() const { return static_cast<int>(steps.size()); }
  constexpr int chunks() const { return static_cast<int>(stage_of.size()); }
  /// Whether the lists contain sends and receives.
  constexpr bool has_messages() const {
    for (const auto& list : steps)
      for (const step& e : list)
        if (is_message(e.kind)) return true;
    return false;
  }
  friend constexpr bool operator==(const schedule&, const schedule&) = default;
};

namespace detail {
/// Element `i` of a vector.
constexpr auto& at(auto& v, int i) { return v[static_cast<std::size_t>(i)]; }

/// The index of a (chunk, micro-batch) in tables.
constexpr std::size_t cell(const schedule& s, int chunk, int micro_batch) {
  return static_cast<std::size_t>(chunk) * static_cast<std::size_t>(s.micro_batches) +
         static_cast<std::size_t>(micro_batch);
}
constexpr std::size_t cells(const schedule& s) { return cell(s, s.chunks(), 0); }

/// The chunk at the other end of a message; chunks() or -1 if it does not exist.
constexpr int peer_chunk(const step& e) {
  const bool up = e.kind == step_kind::send_activation || e.kind == step_kind::receive_gradient;
  return up ? e.chunk + 1 : e.chunk - 1;
}
/// The stage at the other end of a message; -1 if its chunk does not exist.
constexpr int peer_stage(const schedule& s, const step& e) {
  const int c = peer_chunk(e);
  return c >= 0 && c < s.chunks() ? at(s.stage_of, c) : -1;
}
/// Whether two consecutive chunks are on different stages.
constexpr bool crosses(const schedule& s, int chunk, int next) {
  return next >= 0 && next < s.chunks() && at(s.stage_of, chunk) != at(s.stage_of, next);
}

/// The name of a kind of step in messages.
constexpr const char* name_of(step_kind k) {
  switch (k) {
    case step_kind::forward: return "forward";
    case step_kind::backward: return "backward";
    case step_kind::backward_input: return "backward of the input";
    case step_kind::backward_weight: return "backward of the parameters";
    case step_kind::send_activation: return "send of the activation";
    case step_kind::receive_activation: return "receive of the activation";
    case step_kind::send_gradient: return "send of the gradient";
    case step_kind::receive_gradient: return "receive of the gradient";
  }
  return "unknown step";
}
}  // namespace detail

/// For example "forward of chunk 3, micro-batch 0".
inline std::string to_text(const step& e) {
  return std::string(detail::name_of(e.kind)) + " of chunk " + std::to_string(e.chunk) + ", micro-batch " +
         std::to_string(e.micro_batch);
}

}  // namespace weft::pipeline
