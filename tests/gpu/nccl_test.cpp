// SPDX-License-Identifier: MIT
// Ranks over NCCL, on a driver and a NCCL that are fakes (fake_cuda.cpp, fake_nccl.cpp).
#include "../unit/comm/contract.hpp"

#include <atomic>

#include <weft/comm/self.hpp>

#include "device_ranks.hpp"
#include "fake_cuda.hpp"

using namespace weft;
using namespace std::chrono_literals;
using contract::failure, contract::has;

namespace {

/// The driver's context of a device: that of the primary one.
CUcontext context_of(int ordinal) {
  const auto retain =
      fake_cuda::function<CUresult(CUcontext*, CUdevice)>("libcuda.so.1", "cuDevicePrimaryCtxRetain");
  const auto release = fake_cuda::function<CUresult(CUdevice)>("libcuda.so.1", "cuDevicePrimaryCtxRelease_v2");
  CUcontext c = nullptr;
  retain(&c, ordinal);
  release(ordinal);
  return c;
}

/// What ranks throw, by rank.
template <class F>
std::vector<std::string> failures(int n, F f, const nccl_options& o = {}) {
  std::vector<std::string> texts(static_cast<std::size_t>(n));
  device_ranks::run(
      n,
      [&](communicator& ranks, communicator&, const device& where) {
        device_ranks::on_device on(ranks, where);
        texts[static_cast<std::size_t>(ranks.rank())] = failure([&] { f(static_cast<communicator&>(on)); });
      },
      o);
  return texts;
}

/// How many threads have come to a point, for others to wait for.
class counter {
 public:
  void operator++() {
    ++count_;
    count_.notify_all();
  }
  void wait_for(int n) const {
    for (int now; (now = count_) < n;) count_.wait(now);
  }

 private:
  std::atomic<int> count_ = 0;
};

}  // namespace

TEST_CASE("the contract of communicators: elements in memory of devices, over NCCL") {
  const long before = fake_cuda::held();
  for (int n : {1, 2, 3, 4})
    contract::check_contract(
        [](int k, auto f) {
          device_ranks::run(k, [&](communicator& ranks, communicator&, const device& where) {
            device_ranks::on_device on(ranks, where);
            f(static_cast<communicator&>(on));
          });
        },
        n);
  CHECK(fake_cuda::misuse() == "");
  CHECK(fake_cuda::held_by_nccl() == 0);
  CHECK(fake_cuda::held() == before);
}

TEST_CASE("the contract of communicators: elements in memory of hosts, beside NCCL") {
  for (int n : {1, 3})
    contract::check_contract(
        [](int k, auto f) {
          device_ranks::run(k, [&](communicator& ranks, communicator&, const device&) { f(ranks); });
        },
        n);
  CHECK(fake_cuda::misuse() == "");
}
