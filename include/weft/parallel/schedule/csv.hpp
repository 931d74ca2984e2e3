// SPDX-License-Identifier: MIT
// Schedules as CSV text, in the format of the pipelining schedules of PyTorch.
//
// One line for each stage, in order; one cell for each step: the number of the chunk, the kind, and the
// number of the micro-batch, counted from 0. Kinds: F forward, B backward, I and W the input and weight parts
// of a backward step; SEND_F, RECV_F, SEND_B, RECV_B messages of activations and gradients, which may be
// omitted for all stages together. Empty cells are ignored. A line that starts with # is a comment.
//
//   0F0,0F1,0B0,0B1
//   1F0,1B0,1F1,1B1
//
// The text is not trusted: time and memory are bounded by its length.
#pragma once

#include <limits>
#include <string_view>

#include <weft/parallel/schedule/schedule.hpp>

namespace weft::pipeline {

namespace detail {
struct kind_name {
  std::string_view text;
  step_kind kind;
};
inline constexpr kind_name kind_names[] = {
    {"F", step_kind::forward},
    {"B", step_kind::backward},
    {"I", step_kind::backward_input},
    {"W", step_kind::backward_weight},
    {"SEND_F", step_kind::send_activation},
    {"RECV_F", step_kind::receive_activation},
    {"SEND_B", step_kind::send_gradient},
    {"RECV_B", step_kind::receive_gradient},
};

class schedule_reader {
 public:
  schedule_reader(std::string_view text, std::string_view name) : text_(text), name_(name) {}

  schedule read();

 private:
  [[noreturn]] void fail(std::size_t line, std::size_t column, const std::string& what) const;

  void read_line(std::string_view line);

  void read_cell(std::string_view line, std::size_t begin, std::size_t end);

  std::size_t read_number(std::string_view cell, std::size_t i, std::size_t begin, int& number,
                          const char* what);
  step_kind kind_of(std::string_view text, std::size_t column) const;

  /// Determines the stage of each chunk. Every pair of a chunk and a micro-batch has a forward step, so
  /// neither of their numbers can reach the number of cells, nor their product exceed it.
  void find_chunks();

  struct place {
    std::size_t line, column;
  };
  void hold(int stage, const step& e, const place& p);

  std::string_view text_, name_;
  std::size_t line_ = 0;
  schedule s_{};
  std::vector<place> places_{};  // of all steps, in order
};
}  // namespace detail

/// The schedule that `text` describes; messages have size 1. Does not verify that the schedule can run; see
/// `check`. Throws io_error with `name`, line and column (in characters, from 1) for invalid text. Cost:
/// linear in the length of the text.
inline schedule schedule_from_csv(std::string_view text, std::string_view name = "schedule") {
  return detail::schedule_reader(text, name).read();
}

/// Writes the same format; sizes of messages are omitted.
std::string to_csv(const schedule& s);

}  // namespace weft::pipeline

#ifndef WEFT_COMPILED
#include <weft/parallel/schedule/impl/csv.ipp>
#endif
