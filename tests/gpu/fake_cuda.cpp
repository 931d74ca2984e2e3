// SPDX-License-Identifier: MIT
// A fake CUDA driver for tests, as libcuda.so.1, that computes on the CPU. It has two devices, or
// FAKE_CUDA_DEVICES. FAKE_CUDA_VERSION is the version that it supports; with FAKE_CUDA_PEERS=0, no device can
// access another one's memory. It counts calls, fails on request, and records violations of the driver's
// rules. Memory ends at an unreadable page, initially holds NaN, and cannot be read after it was freed. Work
// queued on streams runs as late as possible (fake_queue.hpp). A kernel is a shared object (fake_nvrtc.cpp);
// its threads are fibers, which meet at barriers of their group and in instructions that all lanes of a warp
// execute. Copies to shared memory happen when they are awaited.
#include <cuda.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fake_queue.hpp"
#include "fake_warp_words.hpp"

FAKE_WARP_WORDS

struct CUctx_st {
  int device;
  int holders = 0;
};
/// The captured calls, in order.
struct CUgraph_st {
  std::deque<fake_cuda::queued_work> work{};
};
struct CUgraphExec_st {
  CUcontext context;
  std::deque<fake_cuda::queued_work> work;
};
struct CUstream_st {
  CUcontext context;
  std::deque<fake_cuda::queued_work> work{};
  long begun = 0, over = 0;
  bool runs = false, is_destroyed = false;
  CUgraph captured = nullptr;  // while it is captured
  bool is_broken = false;      // a call that a capture does not allow was made
};
struct CUevent_st {
  CUcontext context;
  fake_cuda::position at{nullptr, 0};  // nothing recorded
  long tried = -1;                     // the state of all streams in which it was last found unfinished
};
struct CUfunc_st {
  void (*entry)(void** arguments) = nullptr;
  struct place {
    unsigned item, items, group, groups;
  }* place = nullptr;
  void (**barrier)() = nullptr;
  fake_warp_words* warp = nullptr;
  unsigned most_shared = 48 << 10;
  unsigned long (*sizes)(unsigned long* to) = nullptr;  // of the parameters
};
struct CUmod_st {
  CUcontext context;
  void* library;
  int file;
  CUfunc_st function;
};

namespace {

struct failure {
  int code = 0, times = 0;
};
struct block {
  std::size_t bytes;
  char* pages;
  std::size_t page_bytes;
  CUcontext context;
};

std::recursive_mutex state;
std::condition_variable_any changed;
std::map<std::string, long> calls;
std::map<std::string, failure> failures;
std::string misuse;
constexpr int most_devices = 8;
constexpr std::size_t device_bytes = std::size_t{1} << 30;
/// The major part of the compute capability.
int capability() {
  const char* const set = std::getenv("FAKE_CUDA_CAPABILITY");
  return set ? std::atoi(set) : 9;
}
/// Bytes of shared memory per group: the smallest limit of any device of the capability.
int most_shared() { return capability() == 9 ? 227 << 10 : 99 << 10; }
CUctx_st contexts[most_devices] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
std::vector<std::unique_ptr<CUstream_st>> all_streams;  // including destroyed streams, to which events refer
std::map<CUdeviceptr, block> memory;
std::map<const char*, std::size_t> host_memory;  // pinned: the device reads it only when a copy runs
long streams = 0, modules = 0, events = 0, graphs = 0, changes = 0;
thread_local CUcontext current = nullptr;
thread_local CUstream capturing = nullptr;  // the stream that this thread captures

/// Misuse that no test has queried fails the program.
struct at_end {
  ~at_end() {
    if (misuse.empty()) return;
    std::fprintf(stderr, "the fake driver was misused:\n%s", misuse.c_str());
    std::_Exit(70);
  }
} end;

void note(const std::string& what) { misuse += what + "\n"; }

/// Counts a call; returns its result if it ends here.
CUresult enter(const char* name, bool in_context = true) {
  ++calls[name];
  failure& f = failures[name];
  if (f.times != 0) {
    if (f.times > 0) --f.times;
    return static_cast<CUresult>(f.code);
  }
  if (in_context && (!current || current->holders == 0)) {
    note(std::string(name) + ": no context is current");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  return CUDA_SUCCESS;
}
/// Called by functions that are not allowed while this thread captures a stream; they end the capture.
CUresult outside_capture(const char* name) {
  if (!capturing) return CUDA_SUCCESS;
  capturing->is_broken = true;
  note(std::string(name) + ": in a capture");
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}
CUresult belongs(const char* name, CUcontext owner) {
  if (owner == current) return CUDA_SUCCESS;
  note(std::string(name) + ": another context is current");
  return CUDA_ERROR_INVALID_CONTEXT;
}
CUresult in_memory(const char* name, CUdeviceptr address, std::size_t bytes) {
  if (fake_pages_hold(current, address, bytes)) return CUDA_SUCCESS;
  auto after = memory.upper_bound(address);
  if (after == memory.begin() || (--after, address + bytes > after->first + after->second.bytes)) {
    note(std::string(name) + ": no such memory");
    return CUDA_ERROR_INVALID_VALUE;
  }
  return belongs(name, after->second.context);
}

int device_count() {
  const char* const set = std::getenv("FAKE_CUDA_DEVICES");
  return set ? std::clamp(std::atoi(set), 1, most_devices) : 2;
}

/// Runs the work queued up to these positions, and the work that it waits for, as far as possible; returns
/// whether all of it is done.
bool run_up_to(const std::vector<fake_cuda::position>& ends) {
  std::map<CUstream, long> wanted;
  bool moves = true;
  const auto want = [&](const fake_cuda::position& p) {
    if (!p.first) return;
    long& known = wanted[p.first];
    if (p.second > known) known = p.second, moves = true;
  };
  for (const auto& p : ends) want(p);
  while (moves) {
    moves = false;
    for (const auto& [stream, end] : std::map<CUstream, long>(wanted))
      while (!stream->runs && stream->over < end) {
        stream->runs = true;
        const fake_cuda::queued_work& work = stream->work.front();
        if (work.awaits)
          for (const auto& p : work.awaits()) want(p);
        const bool over = work.run();
        stream->runs = false;
        if (!over) break;
        stream->work.pop_front();
        ++stream->over;
        ++changes;
        moves = true;
      }
  }
  return std::all_of(ends.begin(), ends.end(),
                     [](const auto& p) { return !p.first || p.first->over >= p.second; });
}
fake_cuda::position end_of(CUstream stream) { return {stream, stream->begun}; }
std::vector<fake_cuda::position> ends_in(CUcontext context) {
  std::vector<fake_cuda::position> ends;
  for (const auto& s : all_streams)
    if (s->context == context) ends.push_back(end_of(s.get()));
  return ends;
}

/// The threads ("items") of the one group that runs. Only one host thread runs kernels.
struct group_of_items {
  struct copy {
    void* to;
    const void* from;
    unsigned there, bytes;
  };
  enum class state { runs, at_barrier, in_warp, is_done };
  struct fiber {
    ucontext_t at;
    state is = state::runs;
    const void* site = nullptr;  // in_warp: the instruction; then its operands, and its function
    void* own = nullptr;
    void (*together)(void** lanes) = nullptr;
    std::deque<std::vector<copy>> copies{};  // groups; the last is not committed
    std::unique_ptr<char[]> stack{new char[stack_bytes]};
  };
  static constexpr std::size_t stack_bytes = 256 << 10;
  static constexpr unsigned lanes = 32;
  std::vector<fiber> fibers;
  ucontext_t scheduler;
  fiber* running = nullptr;
  CUfunction function = nullptr;
  void** arguments = nullptr;
  unsigned items = 0;
  bool backward = false;  // the order in which items run

  static void start();
  static void wait(state why);
  static void meet(const void* site, void* own, void (*together)(void** all));
  static void begin_copy(void* to, const void* from, unsigned there, unsigned bytes);
  static void end_of_copies();
  static void await_copies(unsigned left);

  /// Calls f(i) for i from first to last - 1, in this group's order, until it returns false.
  template <class F>
  bool in_order(unsigned first, unsigned last, F f) {
    for (unsigned i = first; i < last; ++i)
      if (!f(backward ? last - 1 - (i - first) : i)) return false;
    return true;
  }
  /// Runs the items of a warp up to a barrier or to their ends.
  bool run_warp(unsigned first, unsigned last) {
    for (;;) {
      in_order(first, last, [&](unsigned i) {
        running = &fibers[i];
        function->place->item = i;
        if (running->is == state::runs) swapcontext(&scheduler, &running->at);
        return true;
      });
      void* all[lanes];
      unsigned met = 0;
      for (unsigned i = first; i < last; ++i)
        if (fibers[i].is == state::in_warp && fibers[i].site == fibers[first].site)
          all[met++] = fibers[i].own;
      if (met == 0 && std::none_of(&fibers[first], &fibers[last - 1] + 1,
                                   [](const fiber& f) { return f.is == state::in_warp; }))
        return true;
      if (met != lanes) {
        note("cuLaunchKernel: not every lane of a warp reaches an instruction of all");
        return false;
      }
      fibers[first].together(all);
      for (unsigned i = first; i < last; ++i) fibers[i].is = state::runs;
    }
  }
  /// Runs the items of a group; false if some wait for others that never arrive.
  bool run(unsigned count) {
    items = count;
    while (fibers.size() < items) fibers.emplace_back();
    for (unsigned i = 0; i < items; ++i) {
      fiber& f = fibers[i];
      f.is = state::runs;
      f.copies.assign(1, {});
      getcontext(&f.at);
      f.at.uc_stack.ss_sp = f.stack.get();
      f.at.uc_stack.ss_size = stack_bytes;
      f.at.uc_link = &scheduler;
      makecontext(&f.at, &start, 0);
    }
    for (;;) {
      const bool met = in_order(0, (items + lanes - 1) / lanes, [&](unsigned warp) {
        return run_warp(warp * lanes, std::min(items, (warp + 1) * lanes));
      });
      if (!met) return false;
      unsigned done = 0;
      for (unsigned i = 0; i < items; ++i) done += fibers[i].is == state::is_done;
      if (done == items) return true;
      if (done != 0) {
        note("cuLaunchKernel: not every item of a group reaches a barrier");
        return false;
      }
      for (unsigned i = 0; i < items; ++i) fibers[i].is = state::runs;
    }
  }
} group;

void group_of_items::start() {
  group.function->entry(group.arguments);
  if (group.running->copies.size() > 1 || !group.running->copies[0].empty())
    note("cuLaunchKernel: an item ends before its copies");
  group.running->is = state::is_done;
}
/// Switches directly to the next lane of the warp, if it can run: half as many switches as through the
/// scheduler.
void group_of_items::wait(state why) {
  fiber* const own = group.running;
  own->is = why;
  const auto number = static_cast<unsigned>(own - group.fibers.data());
  const bool is_last = number % lanes == (group.backward ? 0 : lanes - 1);
  const unsigned next = group.backward ? number - 1 : number + 1;
  if (is_last || next >= group.items || group.fibers[next].is != state::runs) {
    swapcontext(&own->at, &group.scheduler);
    return;
  }
  group.running = &group.fibers[next];
  group.function->place->item = next;
  swapcontext(&own->at, &group.running->at);
}
void group_of_items::meet(const void* site, void* own, void (*together)(void** all)) {
  group.running->site = site;
  group.running->own = own;
  group.running->together = together;
  wait(state::in_warp);
}
void group_of_items::begin_copy(void* to, const void* from, unsigned there, unsigned bytes) {
  group.running->copies.back().push_back({to, from, there, bytes});
}
void group_of_items::end_of_copies() { group.running->copies.emplace_back(); }
/// Copies happen as late as possible.
void group_of_items::await_copies(unsigned left) {
  for (auto& copies = group.running->copies; copies.size() > left + 1; copies.pop_front())
    for (const copy& c : copies.front()) {
      std::memset(c.to, 0, c.bytes);
      std::memcpy(c.to, c.from, c.there);
    }
}

/// The shared memory of a group, which ends at an unreadable page.
struct group_memory {
  static constexpr std::size_t page = 4096;
  std::size_t bytes, used = (bytes + page - 1) / page * page;
  char* pages = static_cast<char*>(
      mmap(nullptr, used + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  explicit group_memory(std::size_t n) : bytes((n + 15) / 16 * 16) {
    mprotect(pages + used, page, PROT_NONE);
  }
  group_memory(const group_memory&) = delete;
  group_memory& operator=(const group_memory&) = delete;
  ~group_memory() { munmap(pages, used + page); }
  char* begin() const { return pages + used - bytes; }
};

void run_kernel(CUfunction function, unsigned groups, unsigned items, unsigned shared, void** arguments) {
  const group_memory in_group(shared);
  group.function = function;
  group.arguments = arguments;
  *function->barrier = [] { group_of_items::wait(group_of_items::state::at_barrier); };
  *function->warp = {&group_of_items::meet,
                     &group_of_items::begin_copy,
                     &group_of_items::end_of_copies,
                     &group_of_items::await_copies,
                     &fake_cuda_note,
                     in_group.begin(),
                     in_group.bytes};
  group.backward = !group.backward;
  for (unsigned g = 0; g < groups; ++g) {
    *function->place = {0, items, g, groups};
    std::memset(in_group.begin(), 0xff, in_group.bytes);
    if (!group.run(items)) return;
  }
}

}  // namespace

extern "C" {

void fake_cuda_fail(const char* name, int code, int times) {
  const std::lock_guard lock(state);
  failures[name] = {code, times};
}
long fake_cuda_calls(const char* name) {
  const std::lock_guard lock(state);
  return calls[name];
}
const char* fake_cuda_misuse() {
  static std::string told;
  const std::lock_guard lock(state);
  told = std::move(misuse);
  misuse.clear();
  return told.c_str();
}
long fake_cuda_held() {
  const std::lock_guard lock(state);
  long holders = 0;
  for (const CUctx_st& c : contexts) holders += c.holders;
  return holders + streams + modules + events + graphs + fake_pages_held() +
         static_cast<long>(memory.size() + host_memory.size());
}

std::recursive_mutex& fake_cuda_state() { return state; }
void fake_cuda_note(const char* what) {
  const std::lock_guard lock(state);
  note(what);
}
void fake_cuda_changed() {
  const std::lock_guard lock(state);
  ++changes;
  changed.notify_all();
}
CUcontext fake_cuda_current() { return current; }
CUcontext fake_cuda_context_of(CUstream stream) { return stream->context; }
int fake_cuda_device_of(CUcontext context) { return context->device; }
CUresult fake_cuda_enter(const char* name) { return enter(name); }
bool fake_cuda_is_idle(CUcontext context) {
  for (const auto& s : all_streams)
    if (s->context == context && s->over < s->begun) return false;
  return true;
}
long fake_cuda_end_of(CUstream stream) {
  const std::lock_guard lock(state);
  return stream->begun;
}
bool fake_cuda_holds(CUcontext context, const void* at, std::size_t bytes) {
  const std::lock_guard lock(state);
  const auto address = reinterpret_cast<CUdeviceptr>(at);
  if (fake_pages_hold(context, address, bytes)) return true;
  auto after = memory.upper_bound(address);
  return after != memory.begin() && (--after, address + bytes <= after->first + after->second.bytes) &&
         after->second.context == context;
}
CUresult fake_cuda_queue(CUstream stream, fake_cuda::queued_work work) {
  const std::lock_guard lock(state);
  if (const CUresult r = belongs("work queued on a stream", stream->context)) return r;
  if (stream->captured) {
    if (stream != capturing) note("work queued on a stream that another thread captures");
    if (work.awaits) note("work of another stream in a capture");
    stream->captured->work.push_back(std::move(work));
    return CUDA_SUCCESS;
  }
  stream->work.push_back(std::move(work));
  ++stream->begun;
  fake_cuda_changed();
  return CUDA_SUCCESS;
}

CUresult cuInit(unsigned) {
  const std::lock_guard lock(state);
  return enter("cuInit", false);
}
CUresult cuDriverGetVersion(int* version) {
  const char* const set = std::getenv("FAKE_CUDA_VERSION");
  *version = set ? std::atoi(set) : 13000;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuDeviceGetCount", false)) return r;
  *count = device_count();
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(std::size_t* bytes, CUdevice) {
  *bytes = device_bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemGetInfo(std::size_t* free, std::size_t* total) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuMemGetInfo")) return r;
  std::size_t used = fake_pages_bytes();
  for (const auto& [address, b] : memory) used += b.bytes;
  *total = device_bytes;
  *free = device_bytes - std::min(device_bytes, used);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuDeviceGet", false)) return r;
  if (ordinal < 0 || ordinal >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::strncpy(name, "a CPU that plays a GPU", static_cast<std::size_t>(size));
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  *value = 0;
  if (which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) *value = capability();
  if (which == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) *value = 1;
  if (which == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) *value = most_shared();
  return CUDA_SUCCESS;
}
CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuDeviceCanAccessPeer", false)) return r;
  const char* const set = std::getenv("FAKE_CUDA_PEERS");
  *can = device != peer && (!set || std::atoi(set) != 0);
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuFuncSetAttribute")) return r;
  if (which != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 || value > most_shared())
    return CUDA_ERROR_INVALID_VALUE;
  function->most_shared = static_cast<unsigned>(value);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuDevicePrimaryCtxRetain", false)) return r;
  *context = &contexts[device];
  ++(*context)->holders;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuDevicePrimaryCtxRelease", false)) return r;
  if (--contexts[device].holders < 0) note("cuDevicePrimaryCtxRelease: nobody holds it");
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuCtxSetCurrent", false)) return r;
  current = context;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = current;
  return CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream* stream, unsigned) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuStreamCreate")) return r;
  all_streams.push_back(std::make_unique<CUstream_st>(CUstream_st{current}));
  *stream = all_streams.back().get();
  ++streams;
  return CUDA_SUCCESS;
}
CUresult cuStreamDestroy(CUstream stream) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuStreamDestroy")) return r;
  if (const CUresult r = outside_capture("cuStreamDestroy")) return r;
  if (const CUresult r = belongs("cuStreamDestroy", stream->context)) return r;
  if (!run_up_to({end_of(stream)})) note("cuStreamDestroy: its work cannot end");
  stream->is_destroyed = true;
  --streams;
  return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream stream) {
  std::unique_lock lock(state);
  if (const CUresult r = enter("cuStreamSynchronize")) return r;
  if (const CUresult r = outside_capture("cuStreamSynchronize")) return r;
  if (const CUresult r = belongs("cuStreamSynchronize", stream->context)) return r;
  const auto end = end_of(stream);
  while (!run_up_to({end})) changed.wait(lock);
  return CUDA_SUCCESS;
}
CUresult cuEventCreate(CUevent* event, unsigned) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuEventCreate")) return r;
  *event = new CUevent_st{current};
  ++events;
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent event) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuEventDestroy")) return r;
  if (const CUresult r = belongs("cuEventDestroy", event->context)) return r;
  delete event;
  --events;
  return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuEventRecord")) return r;
  if (event->context != stream->context) note("cuEventRecord: a stream of another context");
  event->at = end_of(stream);
  event->tried = -1;
  return belongs("cuEventRecord", stream->context);
}
CUresult cuEventQuery(CUevent event) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuEventQuery")) return r;
  if (const CUresult r = outside_capture("cuEventQuery")) return r;
  if (event->tried == changes) return CUDA_ERROR_NOT_READY;
  if (run_up_to({event->at})) return CUDA_SUCCESS;
  event->tried = changes;
  return CUDA_ERROR_NOT_READY;
}
CUresult cuEventSynchronize(CUevent event) {
  std::unique_lock lock(state);
  if (const CUresult r = enter("cuEventSynchronize")) return r;
  while (!run_up_to({event->at})) changed.wait(lock);
  return CUDA_SUCCESS;
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuStreamWaitEvent")) return r;
  const auto at = event->at;
  return fake_cuda_queue(stream, {[at] { return !at.first || at.first->over >= at.second; },
                                  [at] { return std::vector{at}; }});
}

CUresult cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuMemAlloc")) return r;
  if (const CUresult r = outside_capture("cuMemAlloc")) return r;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t page = 4096, used = (bytes + page - 1) / page * page;
  void* const pages = mmap(nullptr, used + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  char* const end = static_cast<char*>(pages) + used;
  mprotect(end, page, PROT_NONE);
  std::memset(pages, 0xff, used);
  *address = reinterpret_cast<CUdeviceptr>(end) - (bytes + 63) / 64 * 64;
  memory[*address] = {bytes, static_cast<char*>(pages), used, current};
  return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr address) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuMemFree")) return r;
  if (const CUresult r = outside_capture("cuMemFree")) return r;
  const auto found = memory.find(address);
  if (found == memory.end()) {
    note("cuMemFree: no such memory");
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult r = belongs("cuMemFree", found->second.context)) return r;
  run_up_to(ends_in(current));  // the driver waits for the device
  mmap(found->second.pages, found->second.page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
       0);
  memory.erase(found);
  return CUDA_SUCCESS;
}
CUresult cuMemHostAlloc(void** address, std::size_t bytes, unsigned) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuMemHostAlloc")) return r;
  if (const CUresult r = outside_capture("cuMemHostAlloc")) return r;
  *address = ::operator new(bytes);
  std::memset(*address, 0xff, bytes);
  host_memory[static_cast<const char*>(*address)] = bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void* address) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuMemFreeHost")) return r;
  if (const CUresult r = outside_capture("cuMemFreeHost")) return r;
  if (host_memory.erase(static_cast<const char*>(address)) == 0) note("cuMemFreeHost: no such memory");
  else ::operator delete(address);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuMemcpyHtoDAsync")) return r;
  if (const CUresult r = belongs("cuMemcpyHtoDAsync", stream->context)) return r;
  if (const CUresult r = in_memory("cuMemcpyHtoDAsync", to, bytes)) return r;
  const auto after = host_memory.upper_bound(static_cast<const char*>(from));
  if (after != host_memory.begin() && from < std::prev(after)->first + std::prev(after)->second)
    return fake_cuda_queue(stream, {[=] {
                                      std::memcpy(reinterpret_cast<void*>(to), from, bytes);
                                      return true;
                                    },
                                    nullptr});
  if (stream->captured) note("cuMemcpyHtoDAsync: memory of the host that is not pinned, in a capture");
  const std::vector<char> copied(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
  return fake_cuda_queue(stream, {[to, copied] {
                                    std::memcpy(reinterpret_cast<void*>(to), copied.data(), copied.size());
                                    return true;
                                  },
                                  nullptr});
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuMemcpyDtoDAsync")) return r;
  if (const CUresult r = belongs("cuMemcpyDtoDAsync", stream->context)) return r;
  if (const CUresult r = in_memory("cuMemcpyDtoDAsync", to, bytes)) return r;
  if (const CUresult r = in_memory("cuMemcpyDtoDAsync", from, bytes)) return r;
  return fake_cuda_queue(
      stream, {[=] {
                 std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
                 return true;
               },
               nullptr});
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuMemcpyDtoHAsync")) return r;
  if (const CUresult r = belongs("cuMemcpyDtoHAsync", stream->context)) return r;
  if (const CUresult r = in_memory("cuMemcpyDtoHAsync", from, bytes)) return r;
  return fake_cuda_queue(stream, {[=] {
                                    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
                                    return true;
                                  },
                                  nullptr});
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t bytes, CUstream stream) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuMemsetD8Async")) return r;
  if (const CUresult r = belongs("cuMemsetD8Async", stream->context)) return r;
  if (const CUresult r = in_memory("cuMemsetD8Async", to, bytes)) return r;
  return fake_cuda_queue(stream, {[=] {
                                    std::memset(reinterpret_cast<void*>(to), value, bytes);
                                    return true;
                                  },
                                  nullptr});
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuModuleLoadData")) return r;
  if (const CUresult r = outside_capture("cuModuleLoadData")) return r;
  std::uint64_t size = 0;
  if (std::memcmp(image, "FAKECODE", 8) != 0) return CUDA_ERROR_INVALID_IMAGE;
  std::memcpy(&size, static_cast<const char*>(image) + 8, sizeof size);
  const int file = memfd_create("kernel", MFD_CLOEXEC);
  if (write(file, static_cast<const char*>(image) + 16, size) != static_cast<ssize_t>(size))
    return CUDA_ERROR_INVALID_IMAGE;
  void* const library = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return CUDA_ERROR_INVALID_IMAGE;
  CUfunc_st f;
  f.entry = reinterpret_cast<decltype(f.entry)>(dlsym(library, "fake_entry"));
  f.place = static_cast<decltype(f.place)>(dlsym(library, "fake_place"));
  f.barrier = static_cast<decltype(f.barrier)>(dlsym(library, "fake_barrier"));
  f.warp = static_cast<decltype(f.warp)>(dlsym(library, "fake_warp"));
  f.sizes = reinterpret_cast<decltype(f.sizes)>(dlsym(library, "fake_sizes"));
  *module = new CUmod_st{current, library, file, f};
  ++modules;
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuModuleUnload")) return r;
  if (const CUresult r = outside_capture("cuModuleUnload")) return r;
  if (const CUresult r = belongs("cuModuleUnload", module->context)) return r;
  run_up_to(ends_in(current));
  dlclose(module->library);
  close(module->file);  // only now, as the loader identifies libraries by name
  delete module;
  --modules;
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuModuleGetFunction")) return r;
  if (std::strcmp(name, "weft_kernel") != 0) return CUDA_ERROR_NOT_FOUND;
  *function = &module->function;
  return belongs("cuModuleGetFunction", module->context);
}
CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned items,
                        unsigned items_y, unsigned items_z, unsigned shared, CUstream stream,
                        void** arguments, void** extra) {
  {
    const std::lock_guard lock(state);
    if (const CUresult r = enter("cuLaunchKernel")) return r;
    if (const CUresult r = belongs("cuLaunchKernel", stream->context)) return r;
    if (x < 1 || x > 0x7fffffff || y != 1 || z != 1 || items < 1 || items > 1024 || items_y != 1 ||
        items_z != 1 || shared > function->most_shared || extra) {
      note("cuLaunchKernel: not such a grid");
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  unsigned long sizes[64];
  const unsigned long count = function->sizes(sizes);
  std::vector<std::vector<char>> values;
  for (unsigned long i = 0; i < count; ++i) {
    const char* const at = static_cast<const char*>(arguments[i]);
    values.emplace_back(at, at + sizes[i]);
  }
  return fake_cuda_queue(stream, {[=]() mutable {
                                    std::vector<void*> copied;
                                    for (auto& v : values) copied.push_back(v.data());
                                    run_kernel(function, x, items, shared, copied.data());
                                    return true;
                                  },
                                  nullptr});
}
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuStreamBeginCapture")) return r;
  if (const CUresult r = belongs("cuStreamBeginCapture", stream->context)) return r;
  if (stream->captured || capturing || mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
    return CUDA_ERROR_ILLEGAL_STATE;
  stream->captured = new CUgraph_st;
  stream->is_broken = false;
  capturing = stream;
  ++graphs;
  return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuStreamEndCapture")) return r;
  *graph = nullptr;
  if (!stream->captured) return CUDA_ERROR_ILLEGAL_STATE;
  if (stream != capturing) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  capturing = nullptr;
  *graph = std::exchange(stream->captured, nullptr);
  if (!stream->is_broken) return CUDA_SUCCESS;
  cuGraphDestroy(std::exchange(*graph, nullptr));
  return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}
CUresult cuGraphInstantiate(CUgraphExec* executable, CUgraph graph, unsigned long long) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuGraphInstantiate")) return r;
  *executable = new CUgraphExec_st{current, graph->work};
  ++graphs;
  return CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuGraphLaunch")) return r;
  if (const CUresult r = belongs("cuGraphLaunch", executable->context)) return r;
  for (const fake_cuda::queued_work& work : executable->work)
    if (const CUresult r = fake_cuda_queue(stream, work)) return r;
  return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuGraphDestroy")) return r;
  delete graph;
  --graphs;
  return CUDA_SUCCESS;
}
CUresult cuGraphExecDestroy(CUgraphExec executable) {
  const std::lock_guard lock(state);
  if (const CUresult r = enter("cuGraphExecDestroy")) return r;
  if (const CUresult r = belongs("cuGraphExecDestroy", executable->context)) return r;
  delete executable;
  --graphs;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult code, const char** text) {
  *text = code == CUDA_ERROR_ILLEGAL_ADDRESS ? "an illegal memory access was encountered"
          : code == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
          : code == CUDA_ERROR_INVALID_CONTEXT ? "invalid device context" : nullptr;
  return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // extern "C"
