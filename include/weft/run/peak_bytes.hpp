// SPDX-License-Identifier: MIT
// The memory that a computation takes, known before it runs.
//
//   static_assert(peak_bytes<decltype(softmax(matmul(x, w)))>() <= 1 << 20);    // static extents
//
//   const std::size_t bytes = peak_bytes([&](const device& nowhere) {             // at run time
//     ... build the model on `nowhere`, run a step there ...
//   });
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include <weft/device/counting.hpp>
#include <weft/device/device.hpp>
#include <weft/run/concat_parts.hpp>
#include <weft/run/program.hpp>

namespace weft {

/// Device memory in bytes that evaluating an E takes in addition to its operands, as the device's allocator
/// counts it: its value, and the arena for intermediate values, which the context keeps. Valid for the CPU:
/// on GPUs, kernels need scratch memory (backend::scratch_bytes), and kernels that are launched together need
/// a larger arena. All extents must be static.
template <expression E, class Options = program_options<>>
consteval std::size_t peak_bytes() {
  constexpr lower::plan_view p = runtime::value_program<E, Options>::plan;
  static_assert(p.symbols.empty(), "weft: peak_bytes: an extent of the expression is known only at run time");
  const auto bytes_of = [&p](int value) {
    const tensor_spec f = p.values[static_cast<std::size_t>(value)].result;
    return static_cast<std::size_t>(f.extents.size() * size_of(f.type));
  };
  symbol_table numbers;
  sequence<layout> layouts;
  for (const lower::value_entry& v : p.values) {
    layouts.push_back(v.where == lower::storage::view ? layouts[v.source]
                                                      : contiguous_layout(numbers, v.result.extents));
    if (v.where == lower::storage::view) make_view(numbers, v.view, v.at, v.result.extents, layouts.back());
  }
  runtime::elided_copies elided = runtime::find_elided_copies(p, layouts);
  runtime::place_concat_parts(p, layouts, elided);
  const auto lifetime_of = [&](int v) { return runtime::steps_of(p, elided, v); };
  const std::size_t arena = runtime::plan_arena(p, bytes_of, lifetime_of).bytes;
  std::size_t bytes = arena ? caching_allocator::size_class(arena) : 0;
  for (int o : p.outputs) bytes += caching_allocator::size_class(bytes_of(o));
  return bytes;
}

/// The peak of device memory in bytes that step(device) holds, exactly. The step runs on a device that
/// computes nothing, and takes only the time for planning. `holds_messages`: whether the real device keeps
/// messages in its own memory (device/counting.hpp).
template <class Step>
std::size_t peak_bytes(Step&& step, bool holds_messages = true) {
  const device nowhere(make_recycled<counting_backend>(holds_messages));
  step(nowhere);
  return nowhere.memory().figures().peak;
}

/// A way to run a step, for `what_fits`.
struct memory_choice {
  std::string name;
  std::function<void(const device&)> step;
};

/// The peak memory of a choice.
struct memory_need {
  std::string name;
  std::size_t peak = 0;
};

/// Those of several ways to run a step that never hold more than `bytes`, in their order; computed as
/// `peak_bytes` does. After an out-of-memory error: what_fits(e.shortage.attainable(), choices).
[[gnu::cold]] std::vector<memory_need> what_fits(std::size_t bytes, std::span<const memory_choice> choices,
                                                 bool holds_messages = true);

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/run/impl/peak_bytes.ipp>
#endif
