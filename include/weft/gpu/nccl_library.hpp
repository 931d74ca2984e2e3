// SPDX-License-Identifier: MIT
// The NCCL functions in use, and their types, declared here: NCCL's header is not needed, and its library is
// opened at run time.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>

#include <weft/base/dtype.hpp>
#include <weft/comm/operation.hpp>
#include <weft/gpu/library.hpp>

namespace weft::gpu {

/// Identifies an NCCL communicator that is being formed: created by one rank, known to all.
struct nccl_id {
  char bytes[128];
};
/// Results of calls and states of communicators, with NCCL's values. `in_progress` is not a failure.
enum class nccl_result : int {
  success = 0,
  cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7
};
/// Options of a communicator as of NCCL 2.14; later versions add further ones.
struct nccl_config {
  std::size_t size = sizeof(nccl_config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;  // calls return immediately; the communicator's state tells their progress
};

/// NCCL's number for an element type in sums; for a type that NCCL lacks (bool), that of a byte.
constexpr int nccl_type(dtype t) {
  switch (t) {
    case dtype::f64: return 8;
    case dtype::f32: return 7;
    case dtype::bf16: return 9;
    case dtype::f16: return 6;
    case dtype::i64: return 4;
    case dtype::i32: return 2;
    case dtype::u8:
    case dtype::boolean: return 1;
  }
  return 1;
}
inline constexpr int nccl_bytes = 1;
constexpr int nccl_reduction(reduction op) {
  constexpr int numbers[] = {0, 4, 1, 3, 2};  // sum, average, product, minimum, maximum
  return numbers[static_cast<int>(op)];
}

/// NCCL. The constructor throws device_error if NCCL is not installed or is older than 2.14, the first
/// version whose communicators can be formed without blocking.
struct nccl_functions {
  using comm = void*;
  library from{{"libnccl.so.2", "libnccl.so"}, &cuda_folders};
#define WEFT_NCCL(member, name, ...) \
  nccl_result (*member)(__VA_ARGS__) = from.function<nccl_result (*)(__VA_ARGS__)>(#name)
  WEFT_NCCL(version, ncclGetVersion, int*);
  WEFT_NCCL(new_id, ncclGetUniqueId, nccl_id*);
  WEFT_NCCL(join, ncclCommInitRankConfig, comm*, int, nccl_id, int, nccl_config*);
  WEFT_NCCL(finalize, ncclCommFinalize, comm);
  WEFT_NCCL(destroy, ncclCommDestroy, comm);
  WEFT_NCCL(abort, ncclCommAbort, comm);
  WEFT_NCCL(state, ncclCommGetAsyncError, comm, nccl_result*);
  WEFT_NCCL(begin_group, ncclGroupStart);
  WEFT_NCCL(end_group, ncclGroupEnd);
  WEFT_NCCL(all_reduce, ncclAllReduce, const void*, void*, std::size_t, int, int, comm, CUstream);
  WEFT_NCCL(broadcast, ncclBroadcast, const void*, void*, std::size_t, int, int, comm, CUstream);
  WEFT_NCCL(reduce, ncclReduce, const void*, void*, std::size_t, int, int, int, comm, CUstream);
  WEFT_NCCL(all_gather, ncclAllGather, const void*, void*, std::size_t, int, comm, CUstream);
  WEFT_NCCL(reduce_scatter, ncclReduceScatter, const void*, void*, std::size_t, int, int, comm, CUstream);
  WEFT_NCCL(send, ncclSend, const void*, std::size_t, int, int, comm, CUstream);
  WEFT_NCCL(receive, ncclRecv, void*, std::size_t, int, int, comm, CUstream);
#undef WEFT_NCCL
  const char* (*error_text)(nccl_result) = from.function<const char* (*)(nccl_result)>("ncclGetErrorString");
  const char* (*last_error)(comm) = from.function<const char* (*)(comm)>("ncclGetLastError");

  [[gnu::cold]] nccl_functions() {
    int found = 0;
    check(version(&found), "ncclGetVersion", nullptr);
    if (found < 21400)
      throw device_error("weft: nccl: version " + std::to_string(found / 10000) + "." +
                         std::to_string(found / 100 % 100) + " is installed; 2.14 or newer is needed");
  }

  /// Throws comm_error, with NCCL's message, unless a call has succeeded or is in progress.
  void check(nccl_result result, const char* what, comm c) const {
    if (result != nccl_result::success && result != nccl_result::in_progress) refuse(result, what, c);
  }

 private:
  [[noreturn, gnu::cold]] void refuse(nccl_result result, const char* what, comm c) const {
    const char* const more = last_error(c);
    throw comm_error(std::string("weft: nccl: ") + what + ": " + error_text(result) +
                     (more && *more ? std::string(": ") + more : ""));
  }
};

}  // namespace weft::gpu
