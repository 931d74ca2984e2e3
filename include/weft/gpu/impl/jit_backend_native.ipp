// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/jit_backend.hpp>: native ops.
#pragma once

#include <weft/base/config.hpp>
#include <weft/gpu/jit_backend.hpp>

namespace weft {
namespace gpu {

WEFT_DEFINE const strided& operand(const native_operands& operands, int k) {
  const auto i = static_cast<std::size_t>(k), in = operands.in.size();
  return i < in ? operands.in[i] : operands.out[i - in];
}

WEFT_DEFINE std::string native_source(const native_text& by, const native_operands& operands, bool records) {
  const int in = static_cast<int>(operands.in.size()), out = static_cast<int>(operands.out.size());
  const auto fault = std::to_string(in + out), scratch = std::to_string(in + out + 1);
  std::string fields = "typedef struct {\n  long at[" + scratch +
                       " + 1], items, v[6], fault_code, pass;\n  ulong key, numbers;\n";
  std::string names, arguments;
  for (int k = 0; k < in + out; ++k) {
    const strided& t = operand(operands, k);
    const std::string n = (k < in ? "in" : "out") + std::to_string(k < in ? k : k - in),
                      p = std::to_string(k);
    const std::string order = std::to_string(std::max(t.extents.order, 1));
    const std::string type = lower::detail::memory_name(t.type);
    const std::string data = "((GLOBAL " + type + "*)(p" + p + " + P.at[" + p + "]))", element = data + "[";
    fields += "  long " + n + "_e[" + order + "], " + n + "_s[" + order + "];\n";
    names += "#define " + n + "_data " + data + "\n";
    names += "#define " + n + "_load(i) " + lower::detail::loaded(t.type, element + "i]") + "\n";
    names +=
        "#define " + n + "_store(i, x) (" + element + "i] = " + lower::detail::stored(t.type, "(x)") + ")\n";
    names += "#define " + n + "_extent(d) P." + n + "_e[d]\n#define " + n + "_stride(d) P." + n + "_s[d]\n";
    names += "#define " + n + "_offset(i) element_offset(i, " + order + ", P." + n + "_e, P." + n + "_s)\n";
    names += "#define " + n + "_size element_count(" + order + ", P." + n + "_e)\n";
    names += "#define " + n + "_order " + std::to_string(t.extents.order) + "\n";
    if (k >= in) names += "#define " + n + "_adds " + std::to_string(t.adds) + "\n";
    names += "typedef " + std::string(lower::detail::register_name(t.type)) + " " + n + "_t;\n";
    arguments += "GLOBAL char* p" + p + ", ";
  }
  names += "#define attribute(k) P.v[k]\n#define tasks P.items\n";
  const auto number = [&](const char* at, const char* otherwise) {
    if (!records) return std::string(otherwise);
    return std::string("(P.numbers ? ((GLOBAL const ulong*)P.numbers)[") + at + "] : " + otherwise + ")";
  };
  names += "#define random " + number("1 + P.key", "P.key") + "\n";
  names += "#define fault() (((GLOBAL int*)(p" + fault + " + P.at[" + fault + "]))[" + number("0", "0") +
           "] = (int)P.fault_code)\n";
  if (operands.scratch)
    names += "#define pass P.pass\n#define scratch (p" + scratch + " + P.at[" + scratch + "])\n";
  names += "#define NATIVE_KERNEL KERNEL weft_kernel(" + arguments + "GLOBAL char* p" + fault +
           ", GLOBAL char* p" + scratch + ", PARAMS P)\n";
  const std::string all = by.definitions + fields + "} PARAMS;\n" + names;
  if (by.threads > 0) return all + by.text;
  return all + "NATIVE_KERNEL {\nfor (long item = GLOBAL_ID; item < P.items; item += GLOBAL_SIZE) {\n" +
         by.text + "\n}\n}\n";
}

WEFT_DEFINE void jit_backend::call_native(const char* op, const native_code& code,
                                          const native_operands& operands) {
  const std::vector<native_text> texts = native_texts_of(code, operands, limits());
  if (texts.empty())
    throw device_error(std::string("weft: ") + op + ": this op has no code for the device " + name());
  op = code.name(op, operands.at);
  if (!has_f64())
    for (const auto& of : {operands.in, operands.out})
      for (const strided& t : of)
        if (t.type == dtype::f64) refuse_f64(op);
  const std::lock_guard lock(mutex_);
  if (!faults_) {
    faults_ = allocate(fault_bytes);
    fill_zero(faults_, fault_bytes);
  }
  for (const native_text& by : texts)
    run_native(op, code.fault ? code.fault : "an index is out of range", by, operands);
  finish_launch([op] { return op; });
}

WEFT_DEFINE void jit_backend::run_native(const char* op, const char* fault, const native_text& by,
                                         const native_operands& operands) {
  const int count = static_cast<int>(operands.in.size() + operands.out.size());
  std::string key =
      std::string(operands.scratch ? "native scratch " : "native ") + op + by.definitions + by.text;
  for (int k = 0; k < count; ++k) {
    const strided& t = operand(operands, k);
    key += " ";  // separately: g++ 12 falsely warns of overlapping copies
    key += name_of(t.type);
    key += std::to_string(t.extents.order);
    if (t.adds) key += " adds";
  }
  auto& kernel = kernels_[key];
  if (!kernel) {
    kernel = compiled(native_source(by, operands, reads_pointers()),
                      by.threads > 0 ? by.threads : group_size);
    kernel->group_bytes = by.group_bytes;
    refusals_.push_back(std::string(op) + ": " + fault);
    kernel->fault = static_cast<int>(refusals_.size());
  }
  std::vector<void*> pointers;
  parameters p(static_cast<std::size_t>(count + 2), 0);
  p.push_back(by.items);
  append_padded(p, operands.at.v, max_order, 0, max_order);
  p.push_back(kernel->fault);
  p.push_back(by.pass);
  p.push_back(static_cast<index_t>(operands.random));
  p.push_back(is_recording() ? address_of(recorded_->numbers) : 0);
  for (int k = 0; k < count; ++k) {
    const strided& t = operand(operands, k);
    pointers.push_back(t.pointer);
    const int order = std::max(t.extents.order, 1);
    append_padded(p, t.extents.extent, t.extents.order, 1, order);
    append_padded(p, t.stride, t.extents.order, 0, order);
  }
  pointers.push_back(is_recording() ? faults_ : fault_word(reports_.own()));
  pointers.push_back(operands.scratch ? operands.scratch : faults_);  // not accessed if there is none
  if (is_recording()) {
    recorded_->reports = true;
    if (std::string_view(by.text).find("random") != std::string_view::npos) recorded_->draws = true;
  }
  if (by.items == 0) return;
  run(*kernel, pointers, p, by.threads > 0 ? std::min(by.items, max_groups) : groups_for(by.items));
}

}  // namespace gpu
}  // namespace weft
