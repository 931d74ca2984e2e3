// SPDX-License-Identifier: MIT
// Definitions of <weft/run/specialization.hpp>.
#pragma once

#include <algorithm>
#include <utility>

#include <weft/base/config.hpp>
#include <weft/run/specialization.hpp>

namespace weft {
namespace runtime {

WEFT_DEFINE specialization::specialization(const plan_view& p, std::span<const kernel_function> kernels,
                                           const symbol_values& symbols, backend& device)
    : plan_(p),
      symbols_(symbols),
      leaves_(p.leaves, nullptr),
      outputs_(count_of(p.outputs), {}),
      layouts_(count_of(p.values), {}),
      elided_(count_of(p.values), -1),
      sources_(count_of(p.operands), {}),
      tensors_(count_of(p.operands), {}),
      steps_(count_of(p.steps), {}) {
  lay_out();
  if (device.multiplies_merged()) {
    elided_ = find_elided_copies(p, layouts_);
    if (std::any_of(elided_.begin(), elided_.end(), [](int id) { return id >= 0; }))
      merged_ = sequence<merged_dims>(count_of(p.operands), {});
  }
  place_concat_parts(p, layouts_, elided_);
  for (int i = 0; i < layouts_.size(); ++i)
    if (value(i).where == storage::leaf) reads_.push_back(reach(i));
  for (int o : p.outputs) writes_.push_back(o < 0 ? reached_bytes{} : reach(o));
  for (int s = 0; s < steps_.size(); ++s) {
    steps_[s].entry = &p.steps[static_cast<std::size_t>(s)];
    steps_[s].is_elided = is_elided(*steps_[s].entry);
  }
  if (device.launches_together()) {
    find_launches();
    for (int s = 0; s < steps_.size(); ++s)
      if (steps_[s].entry->kind == step_kind::contraction && !steps_[s].entry->in_slices)
        steps_[s].joined = joined_product_of(
            p, s, s + 1 < steps_.size() && steps_[s + 1].together == 1 && !steps_[s + 1].is_elided);
  }
  sequence<int> launch_of(steps_.size(), 0);
  for (int s = 1; s < steps_.size(); ++s)
    launch_of[s] = launch_of[s - 1] + (steps_[s].together > 0 && !steps_[s - 1].joined.next.found());
  arena_ = plan_arena(
      p, [&](int id) { return weft::bytes_of(layout_of(id).extents, value(id).result.type); },
      [&](int id) {
        const lifetime steps = steps_of(p, elided_, id);
        return steps.first < 0 ? steps : lifetime{launch_of[steps.first], launch_of[steps.last]};
      });
  for (int s = 0; s < steps_.size(); ++s) prepare(*steps_[s].entry, kernels, steps_[s]);
  for (int s = 0; s < steps_.size(); ++s)
    if (steps_[s].entry->in_slices)
      steps_[s].slices = steps_[s + 1].slices = slices_of(*steps_[s].entry, device);
  prepare_launches(device);
}

WEFT_DEFINE int specialization::slices_of(const lower::step_entry& product, const backend& device) const {
  constexpr index_t shortest = index_t{1} << 19, most = 4;  // bytes; messages
  if (!device.host_accessible()) return 1;
  const int result = operands_of(product).back();
  const shape& extents = layout_of(result).extents;
  const index_t bytes = extents.size() * size_of(value(result).result.type);
  return static_cast<int>(
      std::clamp<index_t>(std::min(bytes / shortest, extents[sliced_dim(extents)]), 1, most));
}

WEFT_DEFINE bool specialization::is_elided(const lower::step_entry& s) const {
  const auto is_copied = [&](int id) { return is_elsewhere(id); };
  const std::span<const int> all = operands_of(s), in = all.first(static_cast<std::size_t>(s.inputs));
  if (s.kind == step_kind::kernel) return std::any_of(all.begin(), all.end(), is_copied);
  return s.kind == step_kind::concat && std::all_of(in.begin(), in.end(), is_copied);
}

WEFT_DEFINE void specialization::find_launches() {
  for (int s = 0; s < steps_.size(); s += steps_[s].together) {
    const auto joins = [&](int next) {
      for (int other = s; other < next; ++other)
        if (!are_independent(other, next)) return false;
      return true;
    };
    int end = s + 1;
    if (is_launched(s))
      for (; end < steps_.size() && is_launched(end) && joins(end); ++end) steps_[end].together = 0;
    steps_[s].together = end - s;
  }
}

WEFT_DEFINE void specialization::prepare_launches(backend& device) {
  std::size_t scratch = 0;  // of the launch
  for (int s = 0; s < steps_.size(); ++s) {
    if (!is_kernel(s)) {
      const lower::step_entry& e = *steps_[s].entry;
      if (e.kind != step_kind::native) continue;
      const strided* const in = tensors_.begin() + e.first_operand;
      const auto inputs = static_cast<std::size_t>(e.inputs), outputs = static_cast<std::size_t>(e.outputs);
      const std::size_t bytes =
          device.native_scratch_bytes(steps_[s].code, {{in, inputs}, {in + inputs, outputs}, steps_[s].at});
      steps_[s].has_scratch = bytes > 0;
      scratch_bytes_ = std::max(scratch_bytes_, (bytes + 63) / 64 * 64);
      continue;
    }
    steps_[s].call.joins = steps_[s].together == 0;
    if (!steps_[s].call.joins) scratch = 0;
    steps_[s].number = kernels_.size();
    kernels_.push_back(&steps_[s].call);
    steps_[s].scratch = scratch;
    scratch += (device.scratch_bytes(steps_[s].call) + 63) / 64 * 64;
    scratch_bytes_ = std::max(scratch_bytes_, scratch);
  }
  device.prepare({kernels_.begin(), static_cast<std::size_t>(kernels_.size())});
}

WEFT_DEFINE bool specialization::are_independent(int a, int b) const {
  const auto writes_for = [&](const lower::step_entry& writer, const lower::step_entry& other) {
    for (int id : operands_of(writer).last(static_cast<std::size_t>(writer.outputs)))
      for (int accessed : operands_of(other))
        if (base_of(id) == base_of(accessed)) return true;
    return false;
  };
  return !writes_for(*steps_[a].entry, *steps_[b].entry) && !writes_for(*steps_[b].entry, *steps_[a].entry);
}

WEFT_DEFINE bool specialization::reads_extents(int number, const shape& extents) const {
  for (const reached_bytes& r : reads_)
    if (r.source == number && !(layout_of(r.id).extents == extents)) return false;
  return true;
}

WEFT_DEFINE bool specialization::can_overwrite() const {
  for (int o = 0; o < outputs_.size(); ++o) {
    if (!outputs_[o].data) continue;
    const memory_range written = writes_[o].from(outputs_[o].data);
    for (int other = 0; other < o; ++other)
      if (outputs_[other].data && written.overlaps(writes_[other].from(outputs_[other].data))) return false;
    for (const reached_bytes& leaf : reads_) {
      const void* const read = leaves_[leaf.source];
      if (written.overlaps(leaf.from(read)) && !reads_what_it_writes(leaf.id, read, o, outputs_[o].data))
        return false;
    }
  }
  return true;
}

WEFT_DEFINE bool specialization::is_one_kernel_of_elements() const {
  return steps_.size() == 1 && steps_[0].entry->kind == step_kind::kernel &&
         steps_[0].call.division == kernel_division::elements;
}

WEFT_DEFINE specialization::memory_range specialization::reached_bytes::from(const void* data) const {
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  return {at + static_cast<std::uintptr_t>(first), at + static_cast<std::uintptr_t>(last)};
}

WEFT_DEFINE specialization::reached_bytes specialization::reach(int id) const {
  const element_range r = range_of(layout_of(id));
  const index_t bytes = size_of(value(id).result.type);
  return {id, value(id).source, r.first * bytes, r.last * bytes};
}

WEFT_DEFINE bool specialization::reads_what_it_writes(int leaf, const void* read, int o,
                                                      const void* written) const {
  if (!is_one_kernel_of_elements()) return false;
  const prepared& s = steps_[0];
  const kernel_args& args = s.call.args;
  const memory_range all_written = writes_[o].from(written);
  int out = s.entry->inputs;
  while (sources_[out].index != o) ++out;
  for (int a = 0; a < s.entry->inputs; ++a) {
    const int id = plan_.operands[static_cast<std::size_t>(a)];
    if (base_of(id) != leaf || !reach(id).from(read).overlaps(all_written)) continue;
    bool same = static_cast<const char*>(read) + sources_[a].bytes == written &&
                size_of(value(id).result.type) == size_of(output_type(o));
    for (int d = 0; d < args.order; ++d)
      same = same && (args.extent[d] <= 1 || args.stride[a][d] == args.stride[out][d]);
    if (!same) return false;
  }
  return true;
}

WEFT_DEFINE attributes specialization::resolved(attributes at, unsigned extents) const {
  for (int i = 0; i < at.count; ++i)
    if ((extents >> i & 1) && symbol_table::is_symbol(at[i])) at[i] = number_of_extent(at[i]);
  return at;
}

WEFT_DEFINE any_number specialization::number(int id, const recycled_vector<any_number>& numbers) const {
  const lower::value_entry& v = value(id);
  if (v.given) return numbers[static_cast<std::size_t>(v.at[0])];
  return any_number::of(v.result.type, number_of_extent(v.at[0]));
}

WEFT_DEFINE void specialization::lay_out() {
  symbol_table numbers;  // without symbols: all extents are known
  detail::check_slices(plan_, symbols_);
  for (int i = 0; i < layouts_.size(); ++i) {
    const lower::value_entry& v = value(i);
    const shape extents = resolved(v.result.extents);
    if (!extents.is_static())
      refuse<shape_error>({"weft: ", v.op, ": an extent of the result would be negative"});
    layouts_[i] = v.where == storage::view ? layout_of(v.source) : contiguous_layout(numbers, extents);
    if (v.where != storage::view) continue;
    if (!make_view(numbers, v.view, resolved(v.at, v.extents), extents, layouts_[i]))
      refuse<error>({"weft: reshape of ", layout_of(v.source).extents, " to ", extents, " cannot be a view"});
    const element_range reached = range_of(layouts_[i]);
    if (reached.first < 0 || reached.last > layout_of(base_of(i)).extents.size())
      refuse<shape_error>({"weft: ", v.op, " of ", layout_of(v.source).extents, ": outside its operand"});
  }
}

WEFT_DEFINE specialization::source specialization::source_of(int id) const {
  const int base = base_of(id);
  const lower::value_entry& v = value(base);
  const auto bytes = static_cast<std::ptrdiff_t>(layout_of(id).offset * size_of(v.result.type));
  if (v.where == storage::leaf) return {source::leaf, v.source, bytes};
  if (v.output >= 0) return {source::output, v.output, bytes};
  return {source::arena, 0, static_cast<std::ptrdiff_t>(arena_.offsets[base]) + bytes};
}

WEFT_DEFINE strided specialization::tensor_of(int id) const {
  strided s;
  s.type = value(id).result.type;
  s.extents = layout_of(id).extents;
  for (int d = 0; d < s.extents.order; ++d) s.stride[d] = layout_of(id).stride[d].times;
  return s;
}

WEFT_DEFINE strided specialization::copied_view(void* leaf) const {
  const int id = operands_of(*steps_[0].entry).front();
  strided s = tensor_of(id);
  s.pointer = static_cast<char*>(leaf) + source_of(id).bytes;
  return s;
}

WEFT_DEFINE void specialization::read_where_copied(int i) {
  const int id = plan_.operands[static_cast<std::size_t>(i)], copied = elided_[lower::base_of(plan_, id)];
  const merged_operand m = merge_operand(layout_of(id), layout_of(copied));
  sources_[i] = source_of(copied);
  std::copy_n(m.stride, tensors_[i].extents.order, tensors_[i].stride);
  merged_[i] = m.dims;
  tensors_[i].merged = &merged_[i];
}

WEFT_DEFINE void specialization::prepare(const lower::step_entry& s, std::span<const kernel_function> kernels,
                                         prepared& ready) {
  ready.at = resolved(s.at, s.extents);
  if (s.native) ready.code = *s.native;
  if (s.function) ready.code.cpu = s.function;
  for (int i = s.first_operand; i < s.first_operand + s.inputs + s.outputs; ++i) {
    const int id = plan_.operands[static_cast<std::size_t>(i)];
    sources_[i] = source_of(id);
    if (s.kind != step_kind::kernel) tensors_[i] = tensor_of(id);
    if (is_elsewhere(id) && s.kind == step_kind::contraction) read_where_copied(i);
  }
  if (s.kind == step_kind::kernel)
    prepare_kernel(s, plan_.operands.subspan(static_cast<std::size_t>(s.first_operand)), kernels, ready.call);
}

WEFT_DEFINE specialization::access_list specialization::accesses(std::span<const std::uint64_t> code) {
  access_list result{};  // all contiguous
  lower::for_each_instruction(code, [&](const lower::instruction& w) {
    const auto a = static_cast<std::size_t>(w.a);
    if (w.op == lower::load && w.b) result[a] = access::strided;
    if (w.op == lower::load_row || w.op == lower::store_row) result[a] = access::per_row;
  });
  return result;
}

WEFT_DEFINE void specialization::prepare_kernel(const lower::step_entry& s, std::span<const int> operands,
                                                std::span<const kernel_function> kernels,
                                                kernel_call& call) const {
  const lower::kernel_entry& k = plan_.kernels[static_cast<std::size_t>(s.kernel)];
  call.instructions = plan_.instructions.subspan(static_cast<std::size_t>(k.first_instruction),
                                                 static_cast<std::size_t>(k.instructions));
  call.function = kernels.empty() ? nullptr : kernels[static_cast<std::size_t>(s.kernel)];
  call.division = k.division;
  call.scratch_rows = k.scratch_rows;
  call.sweeps = k.sweeps;
  call.folds = k.folds;
  call.column_folds = k.column_folds;
  kernel_args& args = call.args;
  args.arguments = s.inputs + s.outputs;
  shape space = resolved(s.space);
  if (space.order == 0) space.append(1);
  args.order = space.order;
  for (int d = 0; d < space.order; ++d) args.extent[d] = space[d];
  for (int a = 0; a < args.arguments; ++a) {
    const layout& l = layout_of(operands[static_cast<std::size_t>(a)]);
    for (int d = 0; d < space.order; ++d) {
      const int own = d - (space.order - l.extents.order);
      const bool repeated = own < 0 || (l.extents[own] == 1 && space[d] != 1);
      args.stride[a][d] = repeated ? 0 : l.stride[own].times;
    }
  }
  const access_list how = accesses(call.instructions);
  check_accesses(args, how);
  int kept_end = args.order - 1;  // dims before this one count rows
  int row_begin = args.order - 1;  // dims from this one on are the row
  if (k.division == kernel_division::columns) {
    const int first = static_cast<int>(s.at[0]), last = static_cast<int>(s.at[1]);
    for (int d = args.order - 2; d >= last; --d)
      if (merge_into_last(args, d, how)) row_begin = d;
    args.move_before_last(first, last);
    kept_end = args.order - 1 - (last - first);
    merge_rows(args, kept_end, args.order - 1);
    args.folded = args.order - 1 - kept_end;
  } else if (k.division == kernel_division::elements && !k.uses_coordinate) {
    for (int d = args.order - 2; d >= 0 && merge_into_last(args, d, how); --d) row_begin = d;
    kept_end = args.order - 1;
  }
  merge_rows(args, 0, kept_end);
  if (k.division == kernel_division::rows && k.column_folds > 0) args.folded = args.order - 1;
  call.fixed_row = true;
  for (int d = row_begin; d < s.space.order; ++d) call.fixed_row = call.fixed_row && s.space[d] >= 0;
}

WEFT_DEFINE void specialization::check_accesses(const kernel_args& args, const access_list& how) {
  const int last = args.order - 1;
  for (int a = 0; a < args.arguments; ++a)
    if (how[static_cast<std::size_t>(a)] == access::contiguous && args.extent[last] > 1 &&
        args.stride[a][last] != 1)
      refuse<error>({"weft: a kernel reads an operand as contiguous that is not"});
}

WEFT_DEFINE bool specialization::merged_strides(const kernel_args& args, int d, index_t* merged) {
  for (int a = 0; a < args.arguments; ++a)
    if (!merge_strides(args.extent[d], args.stride[a][d], args.extent[d + 1], args.stride[a][d + 1],
                       merged[a]))
      return false;
  return true;
}

WEFT_DEFINE void specialization::merge(kernel_args& args, int d, const index_t* merged) {
  args.extent[d] *= args.extent[d + 1];
  for (int a = 0; a < args.arguments; ++a) args.stride[a][d] = merged[a];
  for (int i = d + 1; i + 1 < args.order; ++i) {
    args.extent[i] = args.extent[i + 1];
    for (int a = 0; a < args.arguments; ++a) args.stride[a][i] = args.stride[a][i + 1];
  }
  --args.order;
}

WEFT_DEFINE bool specialization::merge_into_last(kernel_args& args, int d, const access_list& how) {
  index_t merged[max_arguments];
  if (d != args.order - 2 || !merged_strides(args, d, merged)) return false;
  for (int a = 0; a < args.arguments; ++a) {
    const access h = how[static_cast<std::size_t>(a)];
    if ((h == access::contiguous && merged[a] != 1) || (h == access::per_row && merged[a] != 0)) return false;
  }
  merge(args, d, merged);
  return true;
}

WEFT_DEFINE void specialization::merge_rows(kernel_args& args, int begin, int end) {
  index_t merged[max_arguments];
  for (int d = end - 2; d >= begin; --d)
    if (merged_strides(args, d, merged)) merge(args, d, merged);
}

WEFT_DEFINE int specialization::sliced_dim(const shape& extents) {
  int d = 0;
  while (d < extents.order - 2 && extents[d] == 1) ++d;
  return d;
}

}  // namespace runtime
}  // namespace weft
