// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/schedule/csv.hpp>.
#pragma once

#include <algorithm>
#include <charconv>

#include <weft/base/config.hpp>
#include <weft/parallel/schedule/csv.hpp>

namespace weft {
namespace pipeline {
namespace detail {

WEFT_DEFINE schedule schedule_reader::read() {
  while (!text_.empty()) {
    const std::size_t end = std::min(text_.find('\n'), text_.size());
    ++line_;
    read_line(text_.substr(0, end));
    text_.remove_prefix(std::min(end + 1, text_.size()));
  }
  find_chunks();
  return std::move(s_);
}

WEFT_DEFINE void schedule_reader::fail(std::size_t line, std::size_t column, const std::string& what) const {
  throw io_error(std::string(name_) + ", line " + std::to_string(line) + ", column " +
                 std::to_string(column) + ": " + what);
}

WEFT_DEFINE void schedule_reader::read_line(std::string_view line) {
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

WEFT_DEFINE void schedule_reader::read_cell(std::string_view line, std::size_t begin, std::size_t end) {
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

WEFT_DEFINE std::size_t schedule_reader::read_number(std::string_view cell, std::size_t i, std::size_t begin,
                                                     int& number, const char* what) {
  const auto [end, status] = std::from_chars(cell.data() + i, cell.data() + cell.size(), number);
  if (status == std::errc::invalid_argument || cell[i] == '-')
    fail(line_, begin + i + 1, std::string("expected the number of a ") + what + " here, as in 0F12");
  if (status == std::errc::result_out_of_range)
    fail(line_, begin + i + 1, std::string("the number of the ") + what + " is too large");
  return static_cast<std::size_t>(end - cell.data());
}

WEFT_DEFINE step_kind schedule_reader::kind_of(std::string_view text, std::size_t column) const {
  for (const auto& [known, kind] : kind_names)
    if (text == known) return kind;
  fail(line_, column,
       "unknown kind of step \"" + std::string(text.substr(0, 20)) +
           "\": must be F, B, I, W, SEND_F, RECV_F, SEND_B or RECV_B");
}

WEFT_DEFINE void schedule_reader::find_chunks() {
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

WEFT_DEFINE void schedule_reader::hold(int stage, const step& e, const place& p) {
  int& holder = at(s_.stage_of, e.chunk);
  if (holder >= 0 && holder != stage)
    fail(p.line, p.column,
         "chunk " + std::to_string(e.chunk) + " is on stage " + std::to_string(holder) +
             " already; a chunk has one stage");
  holder = stage;
}

}  // namespace detail

WEFT_DEFINE std::string to_csv(const schedule& s) {
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

}  // namespace pipeline
}  // namespace weft
