// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/communicator.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/base/record_function.hpp>
#include <weft/comm/communicator.hpp>

namespace weft {

WEFT_DEFINE work communicator::all_gather(const_elements mine, elements all, rank_counts counts,
                                          comm_options o) {
  if (counts.empty()) counts = even(all.count, "all_gather");
  return begin({.kind = collective::all_gather, .in = mine, .out = all, .out_counts = std::move(counts)}, o);
}

WEFT_DEFINE work communicator::gather(const_elements mine, elements all, int root, rank_counts counts,
                                      comm_options o) {
  if (counts.empty()) counts = rank_counts(static_cast<std::size_t>(size()), mine.count);
  return begin(
      {.kind = collective::gather, .in = mine, .out = all, .out_counts = std::move(counts), .root = root}, o);
}

WEFT_DEFINE work communicator::scatter(const_elements all, elements mine, int root, rank_counts counts,
                                       comm_options o) {
  if (counts.empty()) counts = rank_counts(static_cast<std::size_t>(size()), mine.count);
  return begin(
      {.kind = collective::scatter, .in = all, .out = mine, .in_counts = std::move(counts), .root = root}, o);
}

WEFT_DEFINE work communicator::reduce_scatter(const_elements all, elements mine, reduction op,
                                              rank_counts counts, comm_options o) {
  if (counts.empty()) counts = even(all.count, "reduce_scatter");
  return begin(
      {.kind = collective::reduce_scatter, .in = all, .out = mine, .in_counts = std::move(counts), .op = op},
      o);
}

WEFT_DEFINE work communicator::all_to_all(const_elements in, elements out, rank_counts sent,
                                          rank_counts received, comm_options o) {
  if (sent.empty()) sent = even(in.count, "all_to_all");
  if (received.empty()) received = even(out.count, "all_to_all");
  return begin({.kind = collective::all_to_all,
                .in = in,
                .out = out,
                .in_counts = std::move(sent),
                .out_counts = std::move(received)},
               o);
}

WEFT_DEFINE std::shared_ptr<communicator> communicator::split(int color, int key, comm_options o) {
  const std::string label = o.label;
  return recorded(divide(color, key, std::move(o)), label, color);
}

WEFT_DEFINE std::shared_ptr<communicator> communicator::split_by(const std::function<int(int rank)>& color,
                                                                 comm_options o) {
  const std::string label = o.label;
  return recorded(divide_by(color, std::move(o)), label, color(rank()));
}

WEFT_DEFINE std::shared_ptr<communicator> communicator::recorded(std::shared_ptr<communicator> part,
                                                                 const std::string& label, int color) {
  const std::uint64_t number = splits_++;
  if (!part || !recorder_) return part;
  part->record_in(recorder_,
                  detail::joined({recorded_as_, "/", label.empty() ? "split" : label, number, ".", color}));
  // A rank that never begins an operation of the group can be recognized as behind.
  recorder_->end(recorder_->begin(part->recorded_as_, detail::flight_record::no_number, "formation"));
  return part;
}

WEFT_DEFINE std::shared_ptr<communicator> communicator::axis(int count, int stride, comm_options o) {
  if (count < 1 || stride < 1 || count > size() / stride || size() % (count * stride))
    refuse<value_error>({"weft: axis: ", size(), " ranks cannot be divided into groups of ", count,
                         " ranks that are ", stride, " apart"});
  return split_by([&](int r) { return r / (stride * count) * stride + r % stride; }, std::move(o));
}

WEFT_DEFINE double communicator::waited_ms() const {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::duration(*waited_)).count();
}

WEFT_DEFINE rank_counts communicator::even(index_t count, const char* what) const {
  if (count % size())
    throw value_error(std::string("weft: ") + what + ": " + std::to_string(count) +
                      " elements cannot be divided equally among " + std::to_string(size()) +
                      " ranks; give the counts");
  return rank_counts(static_cast<std::size_t>(size()), count / size());
}

WEFT_DEFINE work communicator::begin(operation o, comm_options& with) {
  o.label = std::move(with.label);
  o.timeout = with.timeout;
  o.step = with.step;
  check(o);
  if (const collectives_refused* const in = collectives_refused::current(); in && size() > 1)
    if (std::find(in->alike_.begin(), in->alike_.end(), this) == in->alike_.end())
      throw usage_error("weft: rank " + std::to_string(this->rank()) + ": " + o.text() + " in " + in->where_);
  const index_t bytes = sent_by(o, rank(), size()) * size_of(o.type());
  const record_function range([&o] { return o.text(); }, bytes);
  (with.control ? sent_.control : sent_.bytes[static_cast<int>(o.kind)]) += bytes;
  const std::uint64_t number =
      is_message(o.kind) ? detail::flight_record::no_number : collectives_++;  // as backends count
  const std::uint64_t record = recorder_ ? recorder_->begin(recorded_as_, number, o.text()) : 0;
  work w = start(std::move(o));
  w.count_waiting(waited_);
  if (recorder_) w.record_in(recorder_, record);
  return w;
}

WEFT_DEFINE void communicator::check(const operation& o) const {
  const auto fail = [&](const std::string& why) {
    throw value_error("weft: rank " + std::to_string(rank()) + ": " + o.text() + ": " + why);
  };
  const auto own = static_cast<std::size_t>(rank());
  if (o.space() == memory_space::device && !reaches() && !o.agrees_only)
    fail(std::string("the communicator ") + name() + " cannot access this memory");
  if (o.root < 0 || o.root >= size()) fail("there is no rank " + std::to_string(o.root));
  if (is_message(o.kind) && o.root == rank()) fail("a rank cannot send to itself");
  if (is_message(o.kind) && o.tag < 0) fail("the tag is negative");
  for (const rank_counts* counts : {&o.in_counts, &o.out_counts}) {
    if (counts->empty()) continue;
    if (counts->size() != static_cast<std::size_t>(size())) fail("there must be a count for each rank");
    for (index_t c : *counts)
      if (c < 0) fail("a count is negative");
  }
  if (o.in.count && o.out.count && o.in.type != o.out.type)
    fail("the operand and the result have different types");
  const auto expect = [&](const char* side, index_t has, index_t needs) {
    if (has != needs)
      fail(std::string(side) + " has " + std::to_string(has) + " elements, not " + std::to_string(needs));
  };
  switch (o.kind) {
    case collective::all_gather:
      expect("the result", o.out.count, operation::sum_of(o.out_counts));
      expect("the operand", o.in.count, o.out_counts[own]);
      break;
    case collective::gather:
      if (o.root == rank()) expect("the result", o.out.count, operation::sum_of(o.out_counts));
      expect("the operand", o.in.count, o.out_counts[own]);
      break;
    case collective::scatter:
      if (o.root == rank()) expect("the operand", o.in.count, operation::sum_of(o.in_counts));
      expect("the result", o.out.count, o.in_counts[own]);
      break;
    case collective::reduce_scatter:
      expect("the operand", o.in.count, operation::sum_of(o.in_counts));
      expect("the result", o.out.count, o.in_counts[own]);
      break;
    case collective::all_to_all:
      expect("the operand", o.in.count, operation::sum_of(o.in_counts));
      expect("the result", o.out.count, operation::sum_of(o.out_counts));
      break;
    default: break;
  }
  const bool reduces = is_reduction(o.kind);
  if (reduces && o.type() == dtype::boolean && o.op != reduction::minimum && o.op != reduction::maximum)
    fail("bool supports only minimum and maximum");
  if (reduces && !is_floating(o.type()) && o.op == reduction::average)
    fail("average is not supported for integers");
}

}  // namespace weft
