// SPDX-License-Identifier: MIT
// What libraries beside the fake driver use of it: they queue work on streams, and ask about memory.
//
// Streams are lazy: what is queued runs when the host, or work that must come after it, waits for it or asks
// whether it is over, and no earlier. So what forgets to wait finds what was there before.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace fake_cuda {

/// A position on a stream: how many pieces of work have been queued up to it.
using position = std::pair<CUstream, long>;

struct queued_work {
  std::function<bool()> run;                      // true if it is over; false: try again later
  std::function<std::vector<position>()> awaits;  // what has to run first; null: nothing
};

}  // namespace fake_cuda

extern "C" {
/// Queues work; its stream's context must be current.
CUresult fake_cuda_queue(CUstream stream, fake_cuda::queued_work work);
/// Where a stream ends now.
long fake_cuda_end_of(CUstream stream);
/// Whether these bytes are memory of the device of this context.
bool fake_cuda_holds(CUcontext context, const void* memory, std::size_t bytes);
CUcontext fake_cuda_context_of(CUstream stream);
/// Counts a call; its result if it fails or no context is current.
CUresult fake_cuda_enter(const char* name);
/// Whether all that was queued on the streams of a context is over.
bool fake_cuda_is_idle(CUcontext context);
/// Of memory that is mapped (fake_pages.cpp): whether these bytes are, in this context; what is held of it,
/// in objects and in bytes.
bool fake_pages_hold(CUcontext context, CUdeviceptr address, std::size_t bytes);
long fake_pages_held();
std::size_t fake_pages_bytes();
/// The number of the device of a context.
int fake_cuda_device_of(CUcontext context);
CUcontext fake_cuda_current();
void fake_cuda_note(const char* misuse);
/// Wakes those who wait for streams: something that work waits for has changed.
void fake_cuda_changed();
/// Protects all of the above, and is held when work runs.
std::recursive_mutex& fake_cuda_state();
}
