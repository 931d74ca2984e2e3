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

#include <algorithm>
#include <charconv>
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

  schedule read() {
    while (!text_.empty()) {
      const std::size_t end = std::min(text_.find('\n'), text_.size());
      ++line_;
      read_line(text_.substr(0, end));
      text_.remove_prefix(std::min(end + 1, text_.size()));
    }
    find_chunks();
    return std::move(s_);
  }

 private:
  [[noreturn]] void fail(std::size_t line, std::size_t column, const std::string& what) const {
    throw io_error(std::string(name_) + ", line " + std::to_string(line) + ", column " +
                   std::to_string(column) + ": " + what);
  }

  void read_line(std::string_view line) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) return;
    s_.steps.emplace_back();
    for (std::size_t begin = 0; begin <= line.size();) {
      const std::size_t end = std::min(line.find(',', begin), line.size());
      read_cell(line, begin, end);
      begin = end + 1;
    }
    if (s_.steps.back().empty()) fail(line_, 1, "a stage without steps");
  }

  void read_cell(std::string_view line, std::size_t begin, std::size_t end) {
    while (begin < end && line[begin] == ' ') ++begin;
    while (begin < end && line[end - 1] == ' ') --end;
    if (begin == end) return;
    const std::string_view cell = line.substr(begin, end - begin);
    step e;
    std::size_t i = read_number(cell, 0, begin, e.chunk, "chunk");
    const std::size_t kind = i;
    while (i < cell.size() && (cell[i] == '_' || (cell[i] >= 'A' && cell[i] <= 'Z'))) ++i;
    e.kind = kind_of(cell.substr(kind, i - kind), begin + kind + 1);
    if (is_message(e.kind)) e.size = 1;
    i = read_number(cell, i, begin, e.micro_batch, "micro-batch");
    if (i < cell.size())
      fail(line_, begin + i + 1, "the cell goes on after its micro-batch; cells are divided by commas");
    s_.steps.back().push_back(e);
    places_.push_back({line_, begin + 1});
  }

  std::size_t read_number(std::string_view cell, std::size_t i, std::size_t begin, int& number,
                          const char* what) {
    const auto [end, status] = std::from_chars(cell.data() + i, cell.data() + cell.size(), number);
    if (status == std::errc::invalid_argument || number < 0)
      fail(line_, begin + i + 1, std::string("here must be the number of a ") + what + ", as in 0F12");
    if (status == std::errc::result_out_of_range)
      fail(line_, begin + i + 1, std::string("the number of the ") + what + " is too large");
    return static_cast<std::size_t>(end - cell.data());
  }
  step_kind kind_of(std::string_view text, std::size_t column) const {
    for (const auto& [known, kind] : kind_names)
      if (text == known) return kind;
    fail(line_, column,
         "unknown kind of step \"" + std::string(text.substr(0, 20)) +
             "\": must be F, B, I, W, SEND_F, RECV_F, SEND_B or RECV_B");
  }

  /// Determines the stage of each chunk. Every pair of a chunk and a micro-batch has a forward step, so
  /// neither of their numbers can reach the number of cells, nor their product exceed it.
  void find_chunks() {
    std::size_t i = 0;
    const std::size_t cells = places_.size();
    int chunks = 0;
    for (const auto& list : s_.steps)
      for (const step& e : list) {
        const place& p = places_[i++];
        if (static_cast<std::size_t>(std::max(e.chunk, e.micro_batch)) >= cells)
          fail(p.line, p.column, "\"" + to_text(e) + "\": the schedule has fewer steps than that");
        chunks = std::max(chunks, e.chunk + 1);
        s_.micro_batches = std::max(s_.micro_batches, e.micro_batch + 1);
      }
    if (static_cast<std::size_t>(chunks) * static_cast<std::size_t>(s_.micro_batches) > cells)
      fail(line_, 1,
           "the schedule ends with " + std::to_string(cells) + " steps, but names " + std::to_string(chunks) +
               " chunks and " + std::to_string(s_.micro_batches) +
               " micro-batches, each of which needs a forward");
    s_.stage_of.assign(static_cast<std::size_t>(chunks), -1);
    i = 0;
    for (int stage = 0; stage < s_.stages(); ++stage)
      for (const step& e : at(s_.steps, stage)) hold(stage, e, places_[i++]);
    for (int c = 0; c < chunks; ++c)
      if (at(s_.stage_of, c) < 0)
        fail(line_, 1, "the schedule ends without a step of chunk " + std::to_string(c));
    if (chunks == 0) fail(line_, 1, "the schedule has no steps");
  }

  struct place {
    std::size_t line, column;
  };
  void hold(int stage, const step& e, const place& p) {
    int& holder = at(s_.stage_of, e.chunk);
    if (holder >= 0 && holder != stage)
      fail(p.line, p.column,
           "chunk " + std::to_string(e.chunk) + " is on stage " + std::to_string(holder) +
               " already; a chunk has one stage");
    holder = stage;
  }

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
inline std::string to_csv(const schedule& s) {
  std::string text;
  for (const auto& list : s.steps) {
    for (const step& e : list) {
      if (&e != list.data()) text += ',';
      text += std::to_string(e.chunk);
      for (const auto& [name, kind] : detail::kind_names)
        if (kind == e.kind) text += name;
      text += std::to_string(e.micro_batch);
    }
    text += '\n';
  }
  return text;
}

}  // namespace weft::pipeline
