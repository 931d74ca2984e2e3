// SPDX-License-Identifier: MIT
// The part of the fake driver that maps memory to reserved addresses. Addresses without memory cannot be
// accessed; memory initially holds NaN. It records sizes and addresses that are not multiples of the
// granularity, memory mapped over other memory or released while work is queued, and mappings that remain
// when addresses are released.
#include <cuda.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "fake_queue.hpp"

namespace {

constexpr std::size_t granularity = std::size_t{2} << 20;

struct reservation {
  std::size_t bytes;
  void* pages;  // including the unused pages at both ends
  std::size_t page_bytes;
};
struct allocation {
  std::size_t bytes;
  int device;
  bool is_mapped = false;
};
struct mapping {
  std::size_t bytes;
  int device;
  CUmemGenericAllocationHandle memory;
  unsigned accessible = 0;  // the devices that may access it, as a bit set
};

std::map<CUdeviceptr, reservation> reservations;
std::map<CUmemGenericAllocationHandle, allocation> allocations;
std::map<CUdeviceptr, mapping> mappings;
CUmemGenericAllocationHandle next_allocation = 1;

CUresult refuse(const std::string& what) {
  fake_cuda_note(what.c_str());
  return CUDA_ERROR_INVALID_VALUE;
}
bool is_whole(std::uint64_t n) { return n > 0 && n % granularity == 0; }
template <class T>
auto holding(std::map<CUdeviceptr, T>& all, CUdeviceptr at, std::size_t bytes) {
  auto found = all.upper_bound(at);
  if (found == all.begin() || (--found, at + bytes > found->first + found->second.bytes)) return all.end();
  return found;
}
bool is_own(const CUmemLocation& where) {
  return where.type == CU_MEM_LOCATION_TYPE_DEVICE && where.id == fake_cuda_device_of(fake_cuda_current());
}

}  // namespace

extern "C" {

bool fake_pages_hold(CUcontext context, CUdeviceptr address, std::size_t bytes) {
  for (const CUdeviceptr end = address + bytes; address < end;) {
    const auto found = holding(mappings, address, 1);
    const int device = fake_cuda_device_of(context);
    if (found == mappings.end() || !(found->second.accessible >> device & 1) ||
        found->second.device != device)
      return false;
    address = found->first + found->second.bytes;
  }
  return bytes > 0;
}
unsigned fake_pages_access(const void* at) {
  const std::lock_guard lock(fake_cuda_state());
  const auto found = holding(mappings, reinterpret_cast<CUdeviceptr>(at), 1);
  return found == mappings.end() ? 0 : found->second.accessible;
}
long fake_pages_held() {
  return static_cast<long>(reservations.size() + allocations.size() + mappings.size());
}
std::size_t fake_pages_bytes() {
  std::size_t bytes = 0;
  for (const auto& [at, m] : mappings) bytes += m.bytes;
  return bytes;
}

CUresult cuMemGetAllocationGranularity(std::size_t* bytes, const CUmemAllocationProp* kind,
                                       CUmemAllocationGranularity_flags) {
  const std::lock_guard lock(fake_cuda_state());
  if (const CUresult r = fake_cuda_enter("cuMemGetAllocationGranularity")) return r;
  if (kind->type != CU_MEM_ALLOCATION_TYPE_PINNED || !is_own(kind->location))
    return refuse("cuMemGetAllocationGranularity: not memory of this device");
  *bytes = granularity;
  return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t, CUdeviceptr,
                             unsigned long long) {
  const std::lock_guard lock(fake_cuda_state());
  if (const CUresult r = fake_cuda_enter("cuMemAddressReserve")) return r;
  if (!is_whole(bytes)) return refuse("cuMemAddressReserve: not whole pages");
  const std::size_t all = bytes + granularity;
  void* const pages =
      mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = (reinterpret_cast<CUdeviceptr>(pages) + granularity - 1) / granularity * granularity;
  reservations[*address] = {bytes, pages, all};
  return CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr address, std::size_t bytes) {
  const std::lock_guard lock(fake_cuda_state());
  if (const CUresult r = fake_cuda_enter("cuMemAddressFree")) return r;
  const auto found = reservations.find(address);
  if (found == reservations.end() || found->second.bytes != bytes)
    return refuse("cuMemAddressFree: no such addresses");
  const auto mapped = mappings.lower_bound(address);
  if (mapped != mappings.end() && mapped->first < address + bytes)
    return refuse("cuMemAddressFree: memory is mapped there");
  munmap(found->second.pages, found->second.page_bytes);
  reservations.erase(found);
  return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* memory, std::size_t bytes, const CUmemAllocationProp* kind,
                     unsigned long long) {
  const std::lock_guard lock(fake_cuda_state());
  if (const CUresult r = fake_cuda_enter("cuMemCreate")) return r;
  if (!is_whole(bytes)) return refuse("cuMemCreate: not whole pages");
  if (kind->type != CU_MEM_ALLOCATION_TYPE_PINNED || !is_own(kind->location))
    return refuse("cuMemCreate: not memory of this device");
  *memory = next_allocation++;
  allocations[*memory] = {bytes, kind->location.id};
  return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle memory) {
  const std::lock_guard lock(fake_cuda_state());
  if (const CUresult r = fake_cuda_enter("cuMemRelease")) return r;
  return allocations.erase(memory) == 1 ? CUDA_SUCCESS : refuse("cuMemRelease: no such memory");
}
CUresult cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                  CUmemGenericAllocationHandle memory, unsigned long long) {
  const std::lock_guard lock(fake_cuda_state());
  if (const CUresult r = fake_cuda_enter("cuMemMap")) return r;
  const auto of = allocations.find(memory);
  if (of == allocations.end() || of->second.bytes != bytes || offset != 0 || of->second.is_mapped)
    return refuse("cuMemMap: not memory of this size that is mapped nowhere");
  if (!is_whole(address) || holding(reservations, address, bytes) == reservations.end())
    return refuse("cuMemMap: not whole pages of reserved addresses");
  const auto after = mappings.lower_bound(address);
  if ((after != mappings.end() && after->first < address + bytes) ||
      holding(mappings, address, 1) != mappings.end())
    return refuse("cuMemMap: memory is mapped there");
  of->second.is_mapped = true;
  mappings[address] = {bytes, of->second.device, memory};
  return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* access,
                        std::size_t count) {
  const std::lock_guard lock(fake_cuda_state());
  if (const CUresult r = fake_cuda_enter("cuMemSetAccess")) return r;
  unsigned devices = 0;
  for (const CUmemAccessDesc* a = access; a < access + count; ++a) {
    const int device = a->location.id, own = fake_cuda_device_of(fake_cuda_current());
    int can = device == own;
    if (!can) cuDeviceCanAccessPeer(&can, device, own);
    if (a->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
        a->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !can)
      return refuse("cuMemSetAccess: not for a device that can access this one's memory");
    devices |= 1u << device;
  }
  for (CUdeviceptr at = address; at < address + bytes;) {
    const auto found = mappings.find(at);
    if (found == mappings.end()) return refuse("cuMemSetAccess: no memory is mapped there");
    mapping& m = found->second;
    if (std::exchange(m.accessible, m.accessible | devices) == 0) {
      mprotect(reinterpret_cast<void*>(at), m.bytes, PROT_READ | PROT_WRITE);
      std::memset(reinterpret_cast<void*>(at), 0xff, m.bytes);
    }
    at += m.bytes;
  }
  return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr address, std::size_t bytes) {
  const std::lock_guard lock(fake_cuda_state());
  if (const CUresult r = fake_cuda_enter("cuMemUnmap")) return r;
  const auto found = mappings.find(address);
  if (found == mappings.end() || found->second.bytes != bytes)
    return refuse("cuMemUnmap: not what was mapped");
  if (!fake_cuda_is_idle(fake_cuda_current())) fake_cuda_note("cuMemUnmap: work is queued that may use it");
  void* const at = reinterpret_cast<void*>(address);
  mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  const auto of = allocations.find(found->second.memory);
  if (of != allocations.end()) of->second.is_mapped = false;
  mappings.erase(found);
  return CUDA_SUCCESS;
}

}  // extern "C"
