// SPDX-License-Identifier: MIT
// Definitions of <weft/run/specialization.hpp>: what executes a program.
#pragma once

#include <algorithm>
#include <utility>

#include <weft/base/config.hpp>
#include <weft/run/specialization.hpp>

namespace weft {
namespace runtime {

WEFT_DEFINE void* specialization::memory_of(const frame& f, const source& s) const {
  char* p = nullptr;
  switch (s.from) {
    case source::leaf: p = static_cast<char*>(leaves_[s.index]); break;
    case source::output: p = static_cast<char*>(outputs_[s.index].data); break;
    case source::arena: p = static_cast<char*>(f.arena); break;
  }
  return p + s.bytes;
}

WEFT_DEFINE std::span<const strided> specialization::placed_operands(const frame& f,
                                                                     const lower::step_entry& s) {
  const int first = s.first_operand, count = s.inputs + s.outputs;
  for (int i = first; i < first + count; ++i) {
    tensors_[i].pointer = memory_of(f, sources_[i]);
    tensors_[i].adds = sources_[i].from == source::output && outputs_[sources_[i].index].adds;
  }
  return {tensors_.begin() + first, static_cast<std::size_t>(count)};
}

template <class Begin, class Compute>
void specialization::observed(const frame& f, Begin begin, Compute compute) {
  if (!f.observer) return compute();
  begin(*f.observer);
  try {
    compute();
  } catch (...) {
    f.observer->end(nullptr);
    throw;
  }
  f.observer->end(&f.device);
}

WEFT_DEFINE void specialization::launch(const frame& f, const prepared& first) const {
  const std::span steps(&first, static_cast<std::size_t>(first.together));
  std::span<const kernel_call* const> calls{kernels_.begin() + first.number, steps.size()};
  recycled_vector<const kernel_call*> left;
  if (std::any_of(steps.begin(), steps.end(), [](const prepared& s) { return s.done; })) {
    for (const prepared& s : steps)
      if (!s.done) left.push_back(&s.call);
    calls = {left.data(), left.size()};
  }
  if (calls.empty()) return;
  observed(
      f, [&](step_observer& o) { o.begin_launch(calls); },
      [&] {
        if (calls.size() == 1) f.device.launch(*calls[0]);
        else f.device.launch_together(calls);
      });
}

WEFT_DEFINE void specialization::run(const frame& f) {
  const detail::exchange_guard guard(f.hooks);
  const prepared* first_kernel = nullptr;  // of the current launch
  const prepared* before = nullptr;        // the last step that was executed
  for (prepared& s : steps_) s.done = false;
  for (prepared& s : steps_) {
    if (s.is_elided) continue;
    if (f.hooks) f.hooks->poll();
    const int first = s.entry->first_operand, count = s.entry->inputs + s.entry->outputs;
    if constexpr (weft::detail::poisons) {
      if (f.device.host_accessible()) {
        if (!before) weft::detail::poison(f.arena, arena_.bytes);
        else forbid_operands(f, static_cast<int>(before - steps_.begin()));
        allow_operands(f, *s.entry);
      }
    }
    before = &s;
    if (s.entry->kind == step_kind::kernel) {
      place_arguments(f, s);
      for (int i = 0; i < s.entry->arguments; ++i)
        s.call.args.number[i] =
            number(plan_.operands[static_cast<std::size_t>(first + count + i)], f.numbers);
      s.call.scratch = static_cast<char*>(f.arena) + arena_.bytes + s.scratch;
      if (s.together > 0) first_kernel = &s;
      if (!f.collector) {
        if (&s - first_kernel == first_kernel->together - 1) launch(f, *first_kernel);
      } else if (!s.done) {
        f.collector->collect(s.call);
      }
      continue;
    }
    const std::span<const strided> t = placed_operands(f, *s.entry);
    if (s.entry->kind == step_kind::arrival) {
      if (f.hooks) f.hooks->wait_for(operands_of(*s.entry).back());
    } else if (s.slices > 1 && f.hooks) {
      if (s.entry->kind == step_kind::contraction)
        observed(
            f, [&](step_observer& o) { o.begin_product(t); }, [&] { multiply_in_slices(f, s, (&s)[1]); });
    } else if (s.entry->kind == step_kind::exchange && !s.code.cpu && f.hooks) {
      f.hooks->exchange(s.entry->op, s.at, t[0], t[1], operands_of(*s.entry).back());
    } else {
      const auto inputs = static_cast<std::size_t>(s.entry->inputs);
      const bool is_product = s.entry->kind == step_kind::contraction;
      observed(
          f,
          [&](step_observer& o) {
            if (is_product) o.begin_product(t);
            else o.begin_native(s.entry->op, s.code, s.at, t.first(inputs), t.subspan(inputs));
          },
          [&] {
            if (!is_product || !multiply_joined(f, s, t)) run_step(f, s, t);
          });
    }
  }
}

WEFT_DEFINE void specialization::multiply_in_slices(const frame& f, const prepared& product,
                                                    const prepared& sent) {
  const std::span<const strided> t = placed_operands(f, *product.entry);
  const strided& out = placed_operands(f, *sent.entry)[1];
  if constexpr (weft::detail::poisons) allow_operands(f, *sent.entry);
  const int dim = sliced_dim(t[2].extents);
  const bool of_rows = dim == t[2].extents.order - 2;
  for (int k = 0; k < product.slices; ++k) {
    const index_t all = t[2].extents[dim], start = all * k / product.slices,
                  rows = all * (k + 1) / product.slices - start;
    const auto slice = [&](const strided& of) { return part_of(of, dim, start, rows, 1); };
    f.device.multiply(product.code, slice(t[0]), of_rows ? t[1] : slice(t[1]), slice(t[2]));
    f.hooks->poll();
    f.hooks->exchange(sent.entry->op, sent.at, slice(t[2]), slice(out), operands_of(*sent.entry).back());
  }
}

WEFT_DEFINE specialization::memory_range specialization::arena_range(const frame& f, int base) const {
  const auto first = reinterpret_cast<std::uintptr_t>(f.arena) + arena_.offsets[base];
  const index_t bytes = layout_of(base).extents.size() * size_of(value(base).result.type);
  return {first, first + static_cast<std::uintptr_t>(bytes)};
}

WEFT_DEFINE bool specialization::is_exchanged(int base, int step) const {
  for (int from = 0; from <= step; ++from) {
    const lower::step_entry& e = *steps_[from].entry;
    if (e.kind != step_kind::exchange || !is_started(e.native->messages)) continue;
    const bool is_apart = e.native->messages == weft::exchange::apart;
    bool is_used = false, is_over = false;
    for (int id : operands_of(e).last(is_apart ? 2 : 1)) is_used = is_used || base_of(id) == base;
    for (int at = from + 1; at <= step; ++at) {
      const lower::step_entry& other = *steps_[at].entry;
      is_over = is_over ||
                (other.kind == step_kind::arrival && operands_of(other).back() == operands_of(e).back());
    }
    if (is_used && !is_over) return true;
  }
  return false;
}

WEFT_DEFINE void specialization::forbid_operands(const frame& f, int step) const {
  const lower::step_entry& s = *steps_[step].entry;
  for (int i = s.first_operand; i < s.first_operand + s.inputs + s.outputs; ++i) {
    const int base = base_of(plan_.operands[static_cast<std::size_t>(i)]);
    if (sources_[i].from != source::arena || is_exchanged(base, step)) continue;
    const memory_range m = arena_range(f, base);
    weft::detail::poison(reinterpret_cast<const void*>(m.first), m.last - m.first);
  }
}

WEFT_DEFINE void specialization::allow_operands(const frame& f, const lower::step_entry& s) const {
  for (int i = s.first_operand; i < s.first_operand + s.inputs + s.outputs; ++i) {
    if (sources_[i].from != source::arena) continue;
    const memory_range m = arena_range(f, base_of(plan_.operands[static_cast<std::size_t>(i)]));
    weft::detail::unpoison(reinterpret_cast<const void*>(m.first), m.last - m.first);
  }
}

WEFT_DEFINE void specialization::run_step(const frame& f, const prepared& s,
                                          std::span<const strided> t) const {
  backend& device = f.device;
  const lower::step_entry& e = *s.entry;
  const auto inputs = static_cast<std::size_t>(e.inputs);
  if (e.kind == step_kind::contraction) {
    device.multiply(s.code, t[0], t[1], t[2]);
  } else if (e.kind == step_kind::native) {
    void* const scratch = s.has_scratch ? static_cast<char*>(f.arena) + arena_.bytes : nullptr;
    device.call_native(e.op, s.code, {t.first(inputs), t.subspan(inputs), s.at, f.random, scratch});
  } else if (e.kind == step_kind::exchange && s.code.cpu) {  // one rank can compute it
    const native_operands o{t.first(inputs), t.subspan(inputs), s.at, f.random};
    if (!f.hooks || !f.hooks->attend(e.op, o)) device.call_native(e.op, s.code, o);
  } else if (e.kind == step_kind::exchange) {  // one rank
    device.copy(t[0], t[1]);
  } else if (e.kind == step_kind::tap) {
    device.copy(t[0], t[1]);
    show(f, reinterpret_cast<const char*>(s.at[0]), t[1]);
  } else if (e.kind == step_kind::concat) {
    const strided& out = t[inputs];
    const int dim = normalized_dim(s.at[0], out.extents.order);
    index_t start = 0;
    recycled_vector<strided> from, to;
    for (std::size_t k = 0; k < inputs; ++k) {
      const index_t count = t[k].extents[dim];
      if (!is_elsewhere(operands_of(e)[k])) {
        from.push_back(t[k]);
        to.push_back(part_of(out, dim, start, count, 1));
      }
      start += count;
    }
    device.copy_together({from.data(), from.size()}, {to.data(), to.size()});
  } else {
    device.fill_zero(t[1].pointer, static_cast<std::size_t>(t[1].size() * size_of(t[1].type)));
    strided inside = t[1];
    for (int p = 0; p < s.at.count; p += 3) {
      const int dim = static_cast<int>(s.at[p]);
      inside = part_of(inside, dim, s.at[p + 1], t[0].extents[dim], s.at[p + 2]);
    }
    device.copy(t[0], inside);
  }
}

WEFT_DEFINE void specialization::show(const frame& f, const char* name, const strided& t) {
  if (f.device.is_recording())
    refuse<usage_error>({"weft: tap: \"", name,
                         "\" is in a step that is recorded (.graph = true): the host would have to wait"});
  recycled_vector<char> host(static_cast<std::size_t>(t.size() * size_of(t.type)));
  f.device.download(host.data(), t.pointer, host.size());
  f.on_tap({name, t.type, t.extents, host.data()});
}

WEFT_DEFINE strided specialization::part_of(strided t, int dim, index_t start, index_t count, index_t step) {
  t.pointer = static_cast<char*>(t.pointer) + start * t.stride[dim] * size_of(t.type);
  t.extents[dim] = count;
  t.stride[dim] *= step;
  return t;
}

}  // namespace runtime
}  // namespace weft
