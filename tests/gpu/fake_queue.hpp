// SPDX-License-Identifier: MIT
// The interface of the fake driver for the other fake libraries: queueing work on streams, queries about
// memory.
//
// Streams are lazy: queued work runs only when the host, or later work that depends on it, waits for it or
// asks whether it is done. Code that forgets to wait therefore reads old values.
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
  std::function<bool()> run;                      // true if it is done; false: try again later
  std::function<std::vector<position>()> awaits;  // the work that has to run first; null: none
};

}  // namespace fake_cuda

extern "C" {
/// Queues work; its stream's context must be current.
CUresult fake_cuda_queue(CUstream stream, fake_cuda::queued_work work);
/// The current end of a stream.
long fake_cuda_end_of(CUstream stream);
/// Whether these bytes are in the memory of this context's device.
bool fake_cuda_holds(CUcontext context, const void* memory, std::size_t bytes);
CUcontext fake_cuda_context_of(CUstream stream);
/// Counts a call; returns its error if it fails or no context is current.
CUresult fake_cuda_enter(const char* name);
/// Whether all work queued on the streams of a context is done.
bool fake_cuda_is_idle(CUcontext context);
/// Mapped memory (fake_pages.cpp): whether these bytes are mapped in this context; how much is held, in
/// objects and in bytes.
bool fake_pages_hold(CUcontext context, CUdeviceptr address, std::size_t bytes);
long fake_pages_held();
std::size_t fake_pages_bytes();
/// The device number of a context.
int fake_cuda_device_of(CUcontext context);
CUcontext fake_cuda_current();
void fake_cuda_note(const char* misuse);
/// Wakes threads that wait for streams, because a condition that work waits for has changed.
void fake_cuda_changed();
/// Protects all of the above; it is held while work runs.
std::recursive_mutex& fake_cuda_state();
}
