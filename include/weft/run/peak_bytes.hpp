// SPDX-License-Identifier: MIT
// Memory, known before anything runs.
//
//   static_assert(peak_bytes<decltype(softmax(matmul(x, w)))>() <= 1 << 20);    // extents in its type
//
//   const std::size_t bytes = peak_bytes([&](const device& nowhere) {             // known at run time
//     ... build the model on `nowhere`, run a step there ...
//   });
#pragma once

#include <weft/device/counting.hpp>
#include <weft/device/device.hpp>
#include <weft/run/arena.hpp>
#include <weft/run/program.hpp>

namespace weft {

/// What evaluating an E takes of a device beside its operands, in bytes as the device's memory counts them:
/// its value, and an arena for what is computed on the way, which its context keeps. All extents must be in
/// its type.
template <expression E, class Options = program_options<>>
consteval std::size_t peak_bytes() {
  constexpr lower::plan_view p = run::value_program<E, Options>::plan;
  static_assert(p.symbols.empty(), "weft: peak_bytes: an extent of the expression is known at run time only");
  const auto bytes_of = [&p](int value) {
    const tensor_spec f = p.values[static_cast<std::size_t>(value)].result;
    return static_cast<std::size_t>(f.extents.size() * size_of(f.type));
  };
  const std::size_t arena = run::plan_arena(p, bytes_of).bytes;
  std::size_t bytes = arena ? caching_allocator::size_class(arena) : 0;
  for (int o : p.outputs) bytes += caching_allocator::size_class(bytes_of(o));
  return bytes;
}

/// The most that `step(device)` ever holds of the memory of the device it is given, in bytes. That device
/// computes nothing: this takes the time of planning the step, and is exact. `holds_messages`: as of the
/// device that the step is for (device/counting.hpp).
template <class Step>
std::size_t peak_bytes(Step&& step, bool holds_messages = true) {
  const device nowhere(std::make_shared<counting_backend>(holds_messages));
  step(nowhere);
  return nowhere.memory().figures().peak;
}

}  // namespace weft
