// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/jit_backend.hpp>.
#pragma once

#include <atomic>
#include <bit>
#include <system_error>
#include <thread>

#include <weft/base/config.hpp>
#include <weft/gpu/jit_backend.hpp>

namespace weft {
namespace gpu {

WEFT_DEFINE std::array<jit_backend::part, 2> jit_backend::parts_of(const kernel_call& call) const {
  if (!has_f64())
    lower::for_each_instruction(call.instructions, [&](const lower::instruction& w) {
      if (w.type == dtype::f64) refuse_f64(lower::kernel_name(call.instructions));
    });
  const index_t items = call.args.rows() * call.args.row_size();
  const int threads = limits().threads;
  part first{lower::text_form_of(call, threads)}, second;
  const index_t width = first.form.width;
  if (call.column_folds > 0) {
    first.folded = call.args.folded_rows();
    first.blocks = column_blocks(call).blocks;
  }
  const bool by_rows = call.division == kernel_division::rows;
  first.groups = by_rows ? row_groups(call, threads).groups : groups_for(items * first.blocks / width);
  if (call.column_folds > 0 && (by_rows || first.blocks > 1)) {
    second = first;
    second.form.division = kernel_division::columns;
    second.form.width = 1;
    second.form.joins_blocks = true;
    second.form.pieces = 0;
    second.form.items = group_size;
    second.groups = groups_for(items * (group_size / column_blocks::joined_columns));
  }
  return {first, second};
}

WEFT_DEFINE void jit_backend::refuse_f64(const std::string& op) const {
  refuse<device_error>(
      {"weft: ", op, ": the device ", name(), " (", description(), ") does not compute in f64"});
}

WEFT_DEFINE void jit_backend::prepare(std::span<const kernel_call* const> kernels) {
  const std::lock_guard lock(mutex_);
  struct wanted_source {
    std::string text;
    int threads;
  };
  std::map<std::string, wanted_source> sources;
  const auto want = [&](std::string key, int threads, const auto& text) {
    if (!kernels_.contains(key) && !sources.contains(key))
      sources.emplace(std::move(key), wanted_source{source_of(text(), threads), threads});
  };
  for (std::size_t first = 0, end = 0; first < kernels.size(); first = end) {
    for (end = first + 1; end < kernels.size() && kernels[end]->joins;) ++end;
    for (const auto& wave : waves_of(kernels.subspan(first, end - first))) {
      if (wave.size() > 1 && reads_pointers()) {
        joint_launch joint = joint_launch_of(wave);
        want(std::move(joint.key), group_size, [&] { return lower::joint_text(joint.parts, joint.inside); });
        continue;
      }
      for (const auto& [call, by] : wave)
        want(key_of(call->instructions, by.form), by.form.items,
             [&] { return lower::kernel_text(call->instructions, by.form); });
    }
  }
  std::vector<std::pair<const std::string, wanted_source>*> wanted;
  for (auto& source : sources) wanted.push_back(&source);
  std::vector<std::shared_ptr<compiled_kernel>> made(wanted.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i; (i = next++) < wanted.size();) try {
        made[i] = loaded_or_compiled(wanted[i]->second.text);
      } catch (...) {  // the launch tries again and reports the reason
      }
  };
  const std::size_t most = std::min<std::size_t>(wanted.size(), std::thread::hardware_concurrency());
  {
    std::vector<std::jthread> others;
    try {
      while (others.size() + 1 < most) others.emplace_back(work);
    } catch (const std::system_error&) {  // use fewer threads
    }
    work();
  }
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (!made[i]) continue;
    made[i]->threads = wanted[i]->second.threads;
    if (made[i]->key) unkept_.push_back(made[i]);
    kernels_[wanted[i]->first] = std::move(made[i]);
  }
}

WEFT_DEFINE void jit_backend::launch(const kernel_call& call) {
  const std::array<part, 2> parts = parts_of(call);
  const std::lock_guard lock(mutex_);
  for (const part& by : parts)
    if (by.groups > 0) queue(call, by);
  finish_launch([&] { return lower::kernel_name(call.instructions); });
}

WEFT_DEFINE void jit_backend::launch_together(std::span<const kernel_call* const> calls) {
  if (checks_launches_ || !reads_pointers()) return backend::launch_together(calls);
  const std::lock_guard lock(mutex_);
  for (const auto& wave : waves_of(calls))
    if (wave.size() == 1) queue(*wave[0].call, wave[0].by);
    else queue(wave);
}

WEFT_DEFINE std::vector<std::vector<jit_backend::one_of_joint>> jit_backend::waves_of(
    std::span<const kernel_call* const> calls) const {
  std::array<std::vector<one_of_joint>, 2> joint;
  std::vector<std::vector<one_of_joint>> waves;
  for (const kernel_call* call : calls) {
    const std::array<part, 2> parts = parts_of(*call);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].groups == 0) continue;
      if (parts[i].form.items == group_size) joint[i].push_back({call, parts[i]});
      else waves.push_back({{call, parts[i]}});
    }
  }
  for (auto& wave : joint)
    if (!wave.empty()) waves.push_back(std::move(wave));
  return waves;
}

WEFT_DEFINE jit_backend::joint_launch jit_backend::joint_launch_of(const std::vector<one_of_joint>& calls) {
  joint_launch joint;
  std::vector<std::string> keys;
  parameters ends, records;
  joint.calls = static_cast<index_t>(calls.size());
  for (const auto& [call, by] : calls) {
    std::string key = key_of(call->instructions, by.form);
    const auto known = std::find(keys.begin(), keys.end(), key);
    ends.insert(ends.end(), {static_cast<index_t>(records.size()), known - keys.begin()});
    if (known == keys.end()) {
      joint.parts.push_back({call->instructions, by.form});
      keys.push_back(std::move(key));
    }
    for (const void* pointer : pointers_of(*call, by)) records.push_back(address_of(pointer));
    append_parameters(*call, by, records);
    joint.table.push_back(joint.groups);
    joint.groups += by.groups;
  }
  joint.table.push_back(joint.groups);
  const auto head = static_cast<index_t>(joint.table.size() + ends.size());
  for (std::size_t i = 0; i < ends.size(); i += 2) ends[i] += head;
  joint.table.insert(joint.table.end(), ends.begin(), ends.end());
  joint.table.insert(joint.table.end(), records.begin(), records.end());
  constexpr index_t step = 64, most = 448;  // kernels take 4 KiB of parameters
  if (const auto size = static_cast<index_t>(joint.table.size()); size <= most)
    joint.inside = (size + step - 1) / step * step;
  joint.key = weft::detail::joined({"joint ", joint.inside});
  for (const std::string& key : keys)
    joint.key += weft::detail::joined({" ", static_cast<index_t>(key.size()), " ", key});
  return joint;
}

WEFT_DEFINE void jit_backend::queue(const std::vector<one_of_joint>& calls) {
  for (const auto& [call, by] : calls) check_scratch(*call, by);
  joint_launch joint = joint_launch_of(calls);
  auto& kernel = kernels_[joint.key];
  if (!kernel) kernel = compiled(lower::joint_text(joint.parts, joint.inside));
  if (joint.inside > 0) {
    joint.table.resize(static_cast<std::size_t>(joint.inside));
    joint.table.insert(joint.table.begin(), joint.calls);
    return run(*kernel, {}, joint.table, joint.groups);
  }
  const std::size_t bytes = joint.table.size() * sizeof(index_t);
  if (tables_.empty() || bytes > tables_.back().second)
    tables_.emplace_back(allocate(std::bit_ceil(bytes)), std::bit_ceil(bytes));
  void* const table = tables_.back().first;
  upload(table, joint.table.data(), bytes);
  parameters p{0, joint.calls};
  run(*kernel, {table}, p, joint.groups);
}

WEFT_DEFINE void jit_backend::multiply(const native_code&, const strided& a, const strided& b,
                                       const strided& c) {
  if (!has_f64() && c.type == dtype::f64) refuse_f64("matmul");
  const int order = c.extents.order;
  const index_t m = c.extents[order - 2], n = c.extents[order - 1], k = a.extents[order - 1];
  index_t batch = 1;
  for (int d = 0; d < order - 2; ++d) batch *= c.extents[d];
  const product_tiles by = product_tiles::choose(m, n, batch, a.type, limits());
  const std::string key = weft::detail::joined(
      {"multiply ", name_of(a.type), " ", name_of(c.type), c.adds ? " adds " : " ", by.tile});
  const std::lock_guard lock(mutex_);
  auto& kernel = kernels_[key];
  if (!kernel) kernel = compiled(by.source(a, c), by.threads());
  parameters p{0, 0, 0, m, n, k, batch};
  for (const strided* t : {&a, &b, &c}) p.insert(p.end(), {t->stride[order - 2], t->stride[order - 1]});
  append_padded(p, c.extents.extent, order - 2, 1);
  for (const strided* t : {&a, &b, &c}) append_padded(p, t->stride, order - 2, 0);
  const index_t tiles = by.count(m, n) * batch;
  if (tiles > 0) run(*kernel, {a.pointer, b.pointer, c.pointer}, p, std::min(tiles, max_groups));
  finish_launch([] { return "matmul"; });
}

WEFT_DEFINE void jit_backend::copy(const strided& from, const strided& to) {
  const copy_form by(from, to);
  copy_text_form form;
  form.add(by);
  const std::lock_guard lock(mutex_);
  auto& kernel = kernels_["copy " + form.key()];
  if (!kernel) kernel = compiled(form.source(copy_text));
  parameters p{0, 0, by.size()};
  for (const index_t* values : {by.extent, by.from, by.to}) p.insert(p.end(), values, values + by.order);
  if (by.size() > 0) run(*kernel, {from.pointer, to.pointer}, p, groups_for(by.size()));
  finish_launch([] { return "copy"; });
}

WEFT_DEFINE void jit_backend::upload(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  if (is_recording()) {
    const auto own = recorded_->uploads.lock();
    char* const kept = recorded_->uploads.part(bytes, [this](std::size_t n) { return allocate_staging(n); });
    if (!kept) refuse_recording("uploads more than 4 MiB");
    std::memcpy(kept, from, bytes);
    return write(to, kept, bytes);
  }
  {
    const auto own = staging_.lock();
    if (char* const staged = staging_.part(bytes, [this](std::size_t n) { return allocate_staging(n); })) {
      std::memcpy(staged, from, bytes);
      return write(to, staged, bytes);
    }
  }
  staging_memory::waiting now(staging_);
  {
    const auto own = staging_.lock();
    now.begin();
    write(to, from, bytes);
  }
  wait();  // the host may free it
}

WEFT_DEFINE void jit_backend::copy_together(std::span<const strided> from, std::span<const strided> to) {
  if (checks_launches_ || !reads_pointers() || from.size() == 1) return backend::copy_together(from, to);
  const std::lock_guard lock(mutex_);
  constexpr auto most = static_cast<std::size_t>(most_copies);
  for (std::size_t first = 0; first < from.size(); first += most) {
    const std::size_t end = std::min(from.size(), first + most);
    copy_text_form form;
    for (std::size_t i = first; i < end; ++i) form.add(copy_form(from[i], to[i]));
    index_t size = 0;
    parameters p{0, static_cast<index_t>(end - first)};
    for (std::size_t i = first; i < end; ++i) {
      const copy_form by(from[i], to[i], form.unit);
      p.insert(p.end(), {size, address_of(from[i].pointer), address_of(to[i].pointer)});
      const auto ones = static_cast<std::size_t>(form.order - by.order);
      for (const index_t* values : {by.extent, by.from, by.to}) {
        p.insert(p.end(), ones, 1);
        p.insert(p.end(), values, values + by.order);
      }
      size += by.size();
    }
    form.narrow = form.narrow && size <= index_t{1} << 30;
    p[0] = size;
    p.resize(2 + most * static_cast<std::size_t>(3 + 3 * form.order));
    auto& kernel = kernels_["copies " + form.key()];
    if (!kernel) kernel = compiled(form.source(copies_text));
    if (size > 0) run(*kernel, {}, p, groups_for(size));
  }
}

WEFT_DEFINE void jit_backend::begin_parts() {
  if (checks_launches_) refuse_recording("waits after each launch, because WEFT_CHECK_LAUNCHES is set");
  auto parts = std::make_unique<recorded_parts>();
  parts->numbers = allocate(number_bytes);
  try {
    parts->uploads.part(1, [this](std::size_t n) { return allocate_staging(n); });
  } catch (...) {
    release(*parts);
    throw;
  }
  const std::lock_guard lock(mutex_);
  if (recorded_) {
    release(*parts);
    throw device_error(std::string("weft: ") + name() + ": another thread is recording work of this device");
  }
  recorded_ = std::move(parts);
  recorder_ = std::this_thread::get_id();
}

WEFT_DEFINE void jit_backend::release(recorded_parts& parts) noexcept {
  try {
    wait();  // it may be under way
  } catch (const device_error&) {  // what was queued will not run
  }
  if (parts.numbers) deallocate(std::exchange(parts.numbers, nullptr), number_bytes);
  if (void* const memory = parts.uploads.released()) free_staging(memory);
}

WEFT_DEFINE void jit_backend::begin_replay(const recorded_parts& parts, std::span<const std::uint64_t> keys) {
  std::vector<std::uint64_t> numbers{0};
  if (parts.draws) {
    if (keys.size() > most_keys)
      refuse<usage_error>({"weft: ", name(), ": recorded work draws random numbers and runs ", keys.size(),
                           " programs, but at most ", most_keys, " are supported"});
    numbers.insert(numbers.end(), keys.begin(), keys.end());
  }
  if (parts.reports) {
    const std::lock_guard lock(mutex_);
    numbers[0] = reports_.own();
  }
  if (parts.draws || parts.reports)
    upload(parts.numbers, numbers.data(), numbers.size() * sizeof(std::uint64_t));
}

WEFT_DEFINE void jit_backend::abandon_copies() noexcept {
  try {
    wait();
  } catch (const device_error&) {  // what was queued will not run
  }
}

WEFT_DEFINE void jit_backend::finish(std::span<const host_copy> copies) {
  refuse_in_recording("waits for the device, to read elements on the host");
  staging_memory::waiting now(staging_);
  std::vector<std::size_t> words;
  {
    const std::lock_guard lock(mutex_);
    words = reports_.asked();
  }
  std::vector<std::int32_t> codes(words.size());
  std::vector<std::pair<host_copy, const char*>> staged;  // to be copied further, and from where
  try {
    const auto own = staging_.lock();
    const auto begin = [&](const host_copy& c) {
      if (c.bytes == 0) return;
      char* const kept = staging_.part(c.bytes, [this](std::size_t n) { return allocate_staging(n); });
      if (kept) staged.emplace_back(c, kept);
      read(kept ? kept : c.to, c.from, c.bytes);
    };
    for (std::size_t i = 0; i < words.size(); ++i)
      begin({&codes[i], fault_word(words[i]), sizeof(std::int32_t)});
    for (const host_copy& c : copies) begin(c);
    now.begin();
  } catch (...) {
    abandon_copies();
    throw;
  }
  wait();
  for (const auto& [c, kept] : staged) std::memcpy(c.to, kept, c.bytes);
  const std::lock_guard lock(mutex_);
  for (const auto& kernel : std::exchange(unkept_, {}))
    if (const std::vector<char> machine = code_of(*kernel); !machine.empty())
      cache_.keep(*kernel->key, machine);
  std::int32_t refused = 0;
  for (std::size_t i = 0; i < words.size(); ++i)
    if (codes[i] != 0) {
      fill_zero(fault_word(words[i]), sizeof(std::int32_t));
      refused = codes[i];
    }
  reports_.give_back(words);
  if (refused != 0) throw value_error("weft: " + refusals_[static_cast<std::size_t>(refused - 1)]);
}

WEFT_DEFINE void jit_backend::queue(const kernel_call& call, const part& by) {
  auto& kernel = kernels_[key_of(call.instructions, by.form)];
  if (!kernel) kernel = compiled(lower::kernel_text(call.instructions, by.form), by.form.items);
  parameters p;
  append_parameters(call, by, p);
  check_scratch(call, by);
  run(*kernel, pointers_of(call, by), p, by.groups);
}

WEFT_DEFINE void jit_backend::check_scratch(const kernel_call& call, const part& by) {
  const lower::text_form& form = by.form;
  const bool by_rows = form.division == kernel_division::rows,
             keeps_rows = by_rows && form.scratch_rows > 0 && form.pieces == 0;
  const bool adds_blocks = form.column_folds > 0 && (by_rows || form.joins_blocks || by.blocks > 1);
  if ((keeps_rows || adds_blocks) && !call.scratch)
    throw device_error("weft: the " + lower::kernel_name(call.instructions) + " has no scratch memory");
}

WEFT_DEFINE std::vector<void*> jit_backend::pointers_of(const kernel_call& call, const part& by) {
  const kernel_args& args = call.args;
  std::vector<void*> pointers(args.pointer, args.pointer + args.arguments);
  if (lower::pointers_of(by.form) > args.arguments)
    pointers.push_back(call.scratch ? call.scratch : args.pointer[0]);  // see check_scratch
  return pointers;
}

WEFT_DEFINE void jit_backend::append_parameters(const kernel_call& call, const part& by, parameters& p) {
  const kernel_args& args = call.args;
  p.insert(p.end(), static_cast<std::size_t>(lower::pointers_of(by.form)), 0);
  p.insert(p.end(), {args.rows(), args.row_size(), by.folded, by.blocks});
  p.insert(p.end(), args.extent, args.extent + args.order);
  for (int a = 0; a < args.arguments; ++a) p.insert(p.end(), args.stride[a], args.stride[a] + args.order);
  append_numbers(call, by.form, p);
}

WEFT_DEFINE std::string jit_backend::key_of(std::span<const std::uint64_t> instructions,
                                            const lower::text_form& form) {
  std::string key(reinterpret_cast<const char*>(instructions.data()), instructions.size_bytes());
  for (int part :
       {static_cast<int>(form.division), form.order, form.folded, int{form.joins_blocks}, int{form.narrow},
        form.width, int{form.aligned}, form.pieces, int{form.whole}, form.items / group_size})
    key += static_cast<char>(part);
  key += std::to_string(form.row_size);
  return key;
}

WEFT_DEFINE std::shared_ptr<compiled_kernel> jit_backend::compiled(const std::string& text, int threads) {
  auto kernel = loaded_or_compiled(source_of(text, threads));
  kernel->threads = threads;
  if (kernel->key) unkept_.push_back(kernel);
  return kernel;
}

WEFT_DEFINE compiled_kernel& jit_backend::kernel_of(const std::string& text) {
  const std::lock_guard lock(mutex_);
  auto& kernel = kernels_["text " + text];
  if (!kernel) kernel = compiled(text);
  return *kernel;
}

WEFT_DEFINE std::string jit_backend::source_of(const std::string& text, int threads) const {
  const char* const with_double = has_f64() ? "\n#define HAS_DOUBLE 1" : "";
  return "#define GROUP_SIZE " + std::to_string(threads) + with_double + dialect() + common_vocabulary + text;
}

WEFT_DEFINE std::shared_ptr<compiled_kernel> jit_backend::loaded_or_compiled(const std::string& source) {
  const std::string identity = code_identity();
  if (identity.empty() || !cache_.is_open()) return compile(source);
  const digest key = kernel_key({identity, source});
  if (const auto code = cache_.find(key)) try {
      return load(*code);
    } catch (const device_error&) {  // as if it had not been kept
    }
  auto kernel = compile(source);
  kernel->key = key;
  return kernel;
}

WEFT_DEFINE std::shared_ptr<compiled_kernel> jit_backend::load(std::span<const char>) {
  throw device_error(std::string("weft: ") + name() + ": kernels of this device cannot be loaded");
}

WEFT_DEFINE void jit_backend::append_numbers(const kernel_call& call, const lower::text_form& form,
                                             parameters& p) {
  const std::size_t first = p.size();
  p.resize(first + static_cast<std::size_t>(form.numbers));
  lower::for_each_instruction(call.instructions, [&](const lower::instruction& w) {
    if (w.op != lower::scalar_argument) return;
    const any_number x = call.args.number[w.a];
    const bool is_float = lower::register_type(w.type) == dtype::f32;
    p[first + static_cast<std::size_t>(w.a)] = is_float ? std::bit_cast<std::int32_t>(x.as<float>()) : x.bits;
  });
}

}  // namespace gpu
}  // namespace weft
