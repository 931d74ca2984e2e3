// SPDX-License-Identifier: MIT
// A tool that NVTX loads like a profiler: it keeps the ranges of all threads as text, one line each, indented
// by depth.
#include <mutex>
#include <string>
#include <utility>

#include <nvtx3/nvToolsExt.h>

namespace {

std::mutex guard;
std::string all;
thread_local int depth = 0;

int push(const char* name) {
  const std::lock_guard lock(guard);
  all += std::string(static_cast<std::size_t>(depth), ' ') + name + '\n';
  return depth++;
}
int pop() { return --depth; }

}  // namespace

/// The ranges that have begun since the last call.
extern "C" const char* fake_nvtx_ranges() {
  static std::string last;
  const std::lock_guard lock(guard);
  last = std::exchange(all, {});
  return last.c_str();
}
/// The depth of this thread.
extern "C" int fake_nvtx_depth() { return depth; }

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned count = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions, &count)) return 0;
  *functions[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&push);
  *functions[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&pop);
  return 1;
}
