// SPDX-License-Identifier: MIT
// NCCL for the fake driver, as libnccl.so.2: ranks are threads of one process, each with a device. Calls
// become work on lazy streams after a few polls of the communicator's state. It records calls that violate
// NCCL's rules, buffers that are not memory of the rank's device, and mismatched calls of ranks. On request
// it fails, or keeps the work of a device from starting.
#include <cuda.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fake_queue.hpp"

namespace {

enum result : int {
  success,
  cuda_error,
  system_error,
  internal_error,
  invalid_argument,
  invalid_usage,
  remote_error,
  in_progress
};
struct unique_id {
  char bytes[128];
};
struct config {
  std::size_t size;
  unsigned magic, version;
  int blocking;
};

enum class kind { all_reduce, broadcast, reduce, all_gather, reduce_scatter, send, receive };
struct call {
  kind what;
  const char* in;
  char* out;
  std::size_t count;
  int type, op, peer;
  bool is_over = false, is_there = false;
  long number = 0;  // counts the communicator's collectives
};

struct comm;
/// The calls of a group, which form one piece of work.
struct batch {
  comm* of;
  CUstream stream;
  std::vector<std::shared_ptr<call>> calls;
};
struct clique {
  int size = 0, finalized = 0;
  std::map<int, comm*> ranks{};
  std::map<long, std::map<int, call*>> collectives{};  // by number, by rank
  using messages =
      std::map<std::pair<int, int>, std::deque<std::shared_ptr<call>>>;  // by sender and receiver
  messages sends{}, receives{};
};
struct comm {
  std::shared_ptr<clique> of;
  int rank;
  CUcontext context;
  int polls = 0;  // until the last call is on the stream
  std::shared_ptr<batch> launching{};
  std::vector<fake_cuda::position> ends{};  // of launched work
  long collectives = 0;
  int error = success;
  bool is_aborted = false, is_finalized = false;
};

std::map<std::string, std::shared_ptr<clique>> cliques;
std::vector<std::unique_ptr<comm>> all;
long ids = 0, held = 0, launched = 0;
std::map<CUcontext, int> failing;
std::set<CUcontext> stalled;
thread_local int depth = 0;
thread_local std::vector<std::shared_ptr<batch>> grouped;

std::unique_lock<std::recursive_mutex> locked() {
  return std::unique_lock<std::recursive_mutex>(fake_cuda_state());
}
int refuse(const std::string& why) {
  fake_cuda_note(("nccl: " + why).c_str());
  return invalid_usage;
}

std::size_t size_of(int type) {
  constexpr std::size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return sizes[type];
}

struct bf16 {
  std::uint16_t bits = 0;
  bf16() = default;
  bf16(float x) {
    std::uint32_t u;
    std::memcpy(&u, &x, 4);
    bits = static_cast<std::uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
  operator float() const {
    const std::uint32_t u = std::uint32_t{bits} << 16;
    float x;
    std::memcpy(&x, &u, 4);
    return x;
  }
};

/// Reduces element i of all ranks, starting at a rank that depends on i, as in a ring.
template <class T>
T reduced(const std::map<int, call*>& ranks, std::size_t i, int op) {
  const auto n = static_cast<int>(ranks.size());
  const auto of = [&](int r) {
    T x;
    std::memcpy(&x, ranks.at(r % n)->in + i * sizeof(T), sizeof(T));
    return x;
  };
  const int first = static_cast<int>((i / 3 + 1) % static_cast<std::size_t>(n));
  T sum = of(first);
  for (int r = 1; r < n; ++r) {
    const T x = of(first + r);
    switch (op) {
      case 0:
      case 4: sum = static_cast<T>(sum + x); break;
      case 1: sum = static_cast<T>(sum * x); break;
      case 2: sum = sum < x || sum != sum ? x : sum; break;  // as fmax and fmin: a NaN is no number
      default: sum = x < sum || sum != sum ? x : sum;
    }
  }
  return op == 4 ? static_cast<T>(sum / static_cast<T>(static_cast<float>(n))) : sum;
}
template <class T>
void reduce_all(const std::map<int, call*>& ranks, const std::vector<int>& to, std::size_t count, int op) {
  std::vector<char> sums(count * sizeof(T));
  for (std::size_t i = 0; i < count; ++i) {
    const T x = reduced<T>(ranks, i, op);
    std::memcpy(sums.data() + i * sizeof(T), &x, sizeof(T));
  }
  for (const int r : to) {
    const call& c = *ranks.at(r);
    const std::size_t begin = c.what == kind::reduce_scatter ? static_cast<std::size_t>(r) * c.count : 0;
    std::memcpy(c.out, sums.data() + begin * sizeof(T), c.count * sizeof(T));
  }
}

void run_collective(const std::map<int, call*>& ranks) {
  const call& first = *ranks.at(0);
  const std::size_t bytes = first.count * size_of(first.type);
  std::vector<int> everyone;
  for (const auto& [r, c] : ranks) everyone.push_back(r);
  if (first.what == kind::broadcast) {
    const std::string from(ranks.at(first.peer)->in, bytes);
    for (const auto& [r, c] : ranks) std::memcpy(c->out, from.data(), bytes);
  } else if (first.what == kind::all_gather) {
    std::string together;
    for (const auto& [r, c] : ranks) together.append(c->in, bytes);
    for (const auto& [r, c] : ranks) std::memcpy(c->out, together.data(), together.size());
  } else {
    const std::vector<int> to = first.what == kind::reduce ? std::vector{first.peer} : everyone;
    const std::size_t count = first.what == kind::reduce_scatter ? first.count * ranks.size() : first.count;
    switch (first.type) {
      case 1: reduce_all<std::uint8_t>(ranks, to, count, first.op); break;
      case 2: reduce_all<std::int32_t>(ranks, to, count, first.op); break;
      case 4: reduce_all<std::int64_t>(ranks, to, count, first.op); break;
      case 6: reduce_all<_Float16>(ranks, to, count, first.op); break;
      case 7: reduce_all<float>(ranks, to, count, first.op); break;
      case 8: reduce_all<double>(ranks, to, count, first.op); break;
      default: reduce_all<bf16>(ranks, to, count, first.op);
    }
  }
}

void meet(clique& of, int rank, const std::shared_ptr<call>& c) {
  if (c->what == kind::send || c->what == kind::receive) {
    const bool sends = c->what == kind::send;
    const std::pair path(sends ? rank : c->peer, sends ? c->peer : rank);
    (sends ? of.sends : of.receives)[path].push_back(c);
    auto &out = of.sends[path], &in = of.receives[path];
    while (!out.empty() && !in.empty()) {
      if (out.front()->count != in.front()->count) refuse("a message is received in another size");
      std::memcpy(in.front()->out, out.front()->in, std::min(in.front()->count, out.front()->count));
      out.front()->is_over = in.front()->is_over = true;
      fake_cuda_changed();
      out.pop_front();
      in.pop_front();
    }
    return;
  }
  auto& ranks = of.collectives[c->number];
  ranks[rank] = c.get();
  if (static_cast<int>(ranks.size()) < of.size) return;
  const call& first = *ranks.at(0);
  for (const auto& [r, other] : ranks)
    if (other->what != first.what || other->count != first.count || other->type != first.type ||
        other->op != first.op || other->peer != first.peer)
      refuse("ranks call different collectives, or with different arguments");
  run_collective(ranks);
  for (const auto& [r, other] : ranks) other->is_over = true;
  fake_cuda_changed();
  of.collectives.erase(c->number);
}

/// Whether a batch is done; the first call announces its calls to the other ranks.
bool run(batch& b) {
  if (b.of->is_aborted) return true;
  for (const auto& c : b.calls)
    if (!c->is_there) {
      c->is_there = true;
      meet(*b.of->of, b.of->rank, c);
    }
  return std::all_of(b.calls.begin(), b.calls.end(), [](const auto& c) { return c->is_over; });
}

void launch(comm& c) {
  ++launched;
  const auto b = std::move(c.launching);
  c.launching = nullptr;
  CUcontext const current = fake_cuda_current();
  if (current != fake_cuda_context_of(b->stream)) {
    refuse("a stream of another context");
    return;
  }
  fake_cuda_queue(b->stream, {[b] { return run(*b); },
                              [b] {
                                std::vector<fake_cuda::position> ends;
                                for (const auto& [r, other] : b->of->of->ranks)
                                  ends.insert(ends.end(), other->ends.begin(), other->ends.end());
                                return ends;
                              }});
  c.ends.emplace_back(b->stream, fake_cuda_end_of(b->stream));
  if (c.ends.size() > 8) c.ends.erase(c.ends.begin());
}

bool good_buffer(const comm& c, const void* at, std::size_t bytes) {
  return bytes == 0 || fake_cuda_holds(c.context, at, bytes);
}

int add(comm* c, CUstream stream, call made, std::size_t in_bytes, std::size_t out_bytes) {
  const auto lock = locked();
  if (c->is_aborted || c->is_finalized) return refuse("a call after the communicator's end");
  if (c->launching || static_cast<int>(c->of->ranks.size()) < c->of->size)
    return refuse("a call before the last one is on the stream");
  if (fake_cuda_current() != c->context) return refuse("the context of another device is current");
  if (!good_buffer(*c, made.in, in_bytes) || !good_buffer(*c, made.out, out_bytes))
    return refuse("a buffer is not memory of the rank's device");
  if (made.what < kind::send) made.number = c->collectives++;
  const bool alone = depth == 0;
  if (alone || grouped.empty() || grouped.back()->of != c)
    grouped.push_back(std::make_shared<batch>(batch{c, stream, {}}));
  grouped.back()->calls.push_back(std::make_shared<call>(made));
  if (!alone) return in_progress;
  c->launching = std::move(grouped.back());
  grouped.pop_back();
  c->polls = 2;
  return in_progress;
}

}  // namespace

extern "C" {

/// Makes the next state of a communicator on the device of this context this error.
void fake_nccl_fail(CUcontext device, int error) {
  const auto lock = locked();
  failing[device] = error;
}
/// Sets whether the calls of this device's rank are never launched.
void fake_nccl_stall(CUcontext device, bool on) {
  const auto lock = locked();
  if (on) stalled.insert(device);
  else stalled.erase(device);
}
long fake_nccl_launched() {
  const auto lock = locked();
  return launched;
}
long fake_nccl_held() {
  const auto lock = locked();
  return held;
}

int ncclGetVersion(int* version) {
  *version = 22809;
  return success;
}
const char* ncclGetErrorString(int code) {
  return code == remote_error ? "remote process exited or there was a network error" : "an error of the fake";
}
const char* ncclGetLastError(void*) { return "what the fake was told"; }
int ncclGetUniqueId(unique_id* id) {
  const auto lock = locked();
  *id = {};
  std::strcpy(id->bytes, std::to_string(++ids).c_str());
  return success;
}
int ncclCommInitRankConfig(comm** to, int size, unique_id id, int rank, const config* how) {
  const auto lock = locked();
  if (how->size != 24 || how->magic != 0xcafebeef || how->version != 21400 || how->blocking != 0)
    return refuse("a communicator that would block, or a wrong configuration");
  if (depth > 0) return refuse("a communicator is formed within a group");
  if (!fake_cuda_current()) return refuse("no context is current");
  auto& of = cliques[id.bytes];
  if (!of) of = std::make_shared<clique>(clique{size});
  if (of->size != size || of->ranks.contains(rank) || rank >= size)
    return refuse("ranks do not fit into one communicator");
  for (const auto& [r, other] : of->ranks)
    if (other->context == fake_cuda_current()) return invalid_usage;  // two ranks on one device
  all.push_back(std::make_unique<comm>(comm{of, rank, fake_cuda_current()}));
  *to = of->ranks[rank] = all.back().get();
  ++held;
  return in_progress;
}
int ncclCommGetAsyncError(comm* c, int* state) {
  const auto lock = locked();
  if (const auto told = failing.find(c->context); told != failing.end()) {
    c->error = told->second;
    failing.erase(told);
  }
  *state = c->error;
  if (c->error) return success;
  if (c->is_finalized) *state = c->of->finalized < c->of->size ? in_progress : success;
  if (static_cast<int>(c->of->ranks.size()) < c->of->size) *state = in_progress;
  if (!c->launching || stalled.contains(c->context)) {
    if (c->launching) *state = in_progress;
    return success;
  }
  if (c->polls-- > 0) *state = in_progress;
  else launch(*c);
  return success;
}
int ncclCommFinalize(comm* c) {
  const auto lock = locked();
  if (c->launching) return refuse("the end of a communicator before its last call is on the stream");
  c->is_finalized = true;
  ++c->of->finalized;
  return in_progress;
}
int ncclCommDestroy(comm* c) {
  const auto lock = locked();
  if (!c->is_finalized) refuse("a communicator is destroyed before its end");
  --held;
  return success;
}
int ncclCommAbort(comm* c) {
  const auto lock = locked();
  c->is_aborted = true;
  for (auto& [number, ranks] : c->of->collectives) ranks.erase(c->rank);
  for (auto& [path, queue] : c->of->sends)
    if (path.first == c->rank) queue.clear();
  for (auto& [path, queue] : c->of->receives)
    if (path.second == c->rank) queue.clear();
  if (!c->is_finalized) ++c->of->finalized;
  --held;
  fake_cuda_changed();
  return success;
}

int ncclGroupStart() {
  ++depth;
  return success;
}
int ncclGroupEnd() {
  const auto lock = locked();
  if (depth == 0) return refuse("the end of no group");
  if (--depth > 0) return success;
  for (auto& b : grouped) {
    if (b->of->launching) refuse("several streams in a group");
    b->of->polls = 2;
    b->of->launching = std::move(b);
  }
  grouped.clear();
  return in_progress;
}

int ncclAllReduce(const char* in, char* out, std::size_t n, int type, int op, comm* c, CUstream s) {
  return add(c, s, {kind::all_reduce, in, out, n, type, op, 0}, n * size_of(type), n * size_of(type));
}
int ncclBroadcast(const char* in, char* out, std::size_t n, int type, int root, comm* c, CUstream s) {
  return add(c, s, {kind::broadcast, in, out, n, type, 0, root}, c->rank == root ? n * size_of(type) : 0,
             n * size_of(type));
}
int ncclReduce(const char* in, char* out, std::size_t n, int type, int op, int root, comm* c, CUstream s) {
  return add(c, s, {kind::reduce, in, out, n, type, op, root}, n * size_of(type),
             c->rank == root ? n * size_of(type) : 0);
}
int ncclAllGather(const char* in, char* out, std::size_t n, int type, comm* c, CUstream s) {
  const std::size_t bytes = n * size_of(type);
  return add(c, s, {kind::all_gather, in, out, n, type, 0, 0}, bytes,
             bytes * static_cast<std::size_t>(c->of->size));
}
int ncclReduceScatter(const char* in, char* out, std::size_t n, int type, int op, comm* c, CUstream s) {
  const std::size_t bytes = n * size_of(type);
  return add(c, s, {kind::reduce_scatter, in, out, n, type, op, 0},
             bytes * static_cast<std::size_t>(c->of->size), bytes);
}
int ncclSend(const char* in, std::size_t n, int type, int peer, comm* c, CUstream s) {
  return add(c, s, {kind::send, in, nullptr, n * size_of(type), 1, 0, peer}, n * size_of(type), 0);
}
int ncclRecv(char* out, std::size_t n, int type, int peer, comm* c, CUstream s) {
  return add(c, s, {kind::receive, nullptr, out, n * size_of(type), 1, 0, peer}, 0, n * size_of(type));
}

}  // extern "C"
