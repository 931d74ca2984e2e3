// SPDX-License-Identifier: MIT
// Ranks over NCCL, on a fake driver and a fake NCCL (fake_cuda.cpp, fake_nccl.cpp).
#include "../unit/comm/contract.hpp"

#include <atomic>

#include <weft/comm/self.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/weft.hpp>

#include "device_ranks.hpp"
#include "fake_cuda.hpp"

using namespace weft;
using namespace std::chrono_literals;
using contract::failure, contract::has;

namespace {

/// The driver's primary context of a device.
CUcontext context_of(int ordinal) {
  const auto retain =
      fake_cuda::function<CUresult(CUcontext*, CUdevice)>("libcuda.so.1", "cuDevicePrimaryCtxRetain");
  const auto release =
      fake_cuda::function<CUresult(CUdevice)>("libcuda.so.1", "cuDevicePrimaryCtxRelease_v2");
  CUcontext c = nullptr;
  retain(&c, ordinal);
  release(ordinal);
  return c;
}

/// The messages of the exceptions that ranks throw, by rank.
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

struct classifier {
  linear<7, 5> hidden;
  linear<5, 3> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};
/// The losses of four steps on this rank, with its share of a batch.
template <class Plan>
std::vector<float> trained(communicator& ranks, const device_options& o) {
  classifier model;
  initialize(model, 3);
  adamw optimizer{.lr = 0.1f};
  auto run = bind<Plan>(model, optimizer, ranks, o);
  const index_t first = 2 * ranks.rank();
  const auto images = generate<float>(
      extents<dyn, 7>{2, 7}, [=](index_t i) { return static_cast<float>((7 * first + i) * 37 % 19) / 19; },
      run.where());
  const auto labels =
      generate<std::int32_t>(extents<dyn>{2}, [=](index_t i) { return (first + i) % 3; }, run.where());
  std::vector<float> all;
  for (int s = 0; s < 4; ++s) {
    tape steps(run);
    const auto loss = steps.eval(cross_entropy(model(images), labels));
    steps.backward(loss);
    run.step();
    all.push_back(loss.item());
  }
  return all;
}
/// The same on two ranks, rank 0's losses first; with(host, f) calls f with the communicator and device
/// options.
template <class Plan, class F>
std::vector<float> trained_on_two(F with) {
  std::vector<float> losses[2];
  run_ranks(2, [&](communicator& host) {
    with(host, [&](communicator& ranks, const device_options& o) {
      losses[ranks.rank()] = trained<Plan>(ranks, o);
    });
  });
  losses[0].insert(losses[0].end(), losses[1].begin(), losses[1].end());
  return losses[0];
}
/// Checks the losses of both ranks over NCCL.
template <class Strategy>
void check_training() {
  using on_gpu = policy<on<cuda>, precision::f32, Strategy>;
  const auto expected = trained_on_two<policy<on<weft::host>, precision::f32, Strategy>>(
      [](communicator& ranks, auto f) { f(ranks, {}); });
  const auto by_host =
      trained_on_two<on_gpu>([](communicator& ranks, auto f) { f(ranks, {.device = ranks.rank()}); });
  const long before = fake_cuda::launched_by_nccl();
  const auto by_nccl = trained_on_two<on_gpu>([](communicator& ranks, auto f) {
    nccl_communicator over(ranks, on<cuda>::where({.device = ranks.rank()}));
    f(over, {.device = ranks.rank()});
  });
  CHECK(fake_cuda::launched_by_nccl() > before);
  CHECK(by_nccl == by_host);  // bitwise identical
  REQUIRE(expected.size() == by_nccl.size());
  for (std::size_t i = 0; i < expected.size(); ++i) CHECK(std::abs(by_nccl[i] - expected[i]) <= 1e-5f);
}

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

TEST_CASE("sums over NCCL have the bits of the tree that hosts use, unless NCCL adds") {
  for (const bool fixed : {true, false})
    device_ranks::run(3,
                      [&](communicator& ranks, communicator&, const device& where) {
                        device_ranks::on_device on(ranks, where);
                        CHECK(contract::sums_follow_the_tree(on) == fixed);
                      },
                      {.fixed_order = fixed});
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("where NCCL adds, and where ranks do not agree first, collectives do the same") {
  device_ranks::run(3,
                    [](communicator& ranks, communicator&, const device& where) {
                      device_ranks::on_device on(ranks, where);
                      contract::reductions<float>(on);
                      contract::reductions<double>(on);
                      contract::reductions<std::int64_t>(on);
                      contract::reductions<bfloat16>(on);
                      contract::movement<float>(on);
                    },
                    {.fixed_order = false, .agrees = false});
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("a NaN wins in minima and maxima over NCCL, also where NCCL adds") {
  for (const bool fixed : {true, false})
    device_ranks::run(3,
                      [](communicator& ranks, communicator&, const device& where) {
                        device_ranks::on_device on(ranks, where);
                        for (const reduction op : {reduction::minimum, reduction::maximum}) {
                          std::vector<float> x(8, 1);
                          x[static_cast<std::size_t>(ranks.rank())] = NAN;
                          on.all_reduce(x, op).wait();
                          for (std::size_t i = 0; i < x.size(); ++i) CHECK(std::isnan(x[i]) == (i < 3));
                        }
                      },
                      {.fixed_order = fixed});
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("operations over NCCL get memory that the device has cached") {
  device_ranks::run(2, [](communicator& ranks, communicator& host, const device& where) {
    const buffer all = where.allocate(4000);
    { const buffer cached = where.allocate(1 << 22); }
    where->fill_zero(all.data(), 4000);
    host.barrier().wait();
    if (ranks.rank() == 0) fake_cuda::fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, 2);
    host.barrier().wait();
    CHECK_NOTHROW(ranks.all_reduce(elements(all.data(), 1000, dtype::f32, memory_space::device)).wait());
  });
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("ranks over NCCL that call different operations are named, before data moves") {
  const auto texts = failures(3, [](communicator& ranks) {
    std::vector<float> x(4);
    if (ranks.rank() == 1) ranks.broadcast(x, 0, {.label = "h.3"}).wait();
    else ranks.all_reduce(x, reduction::sum, {.label = "h.3"}).wait();
  });
  for (const std::string& t : texts)
    CHECK_MESSAGE(has(t, "at fault: rank 1 called broadcast(f32 x 4, root 0) for h.3, in device memory"), t);
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("a message over NCCL whose sides differ is an error that names both") {
  for (int ranks = 2; ranks <= 3; ++ranks)
    for (int how = 0; how < 3; ++how)
      device_ranks::run(ranks, [=](communicator& all, communicator&, const device& where) {
        device_ranks::on_device on(all, where);
        const std::string wrong = contract::wrong_message(on, how);
        for (const std::string& part : contract::wrong_message_says(ranks, how))
          CHECK_MESSAGE(has(wrong, part), wrong);
      });
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("a rank over NCCL that does not come is named after the time-out") {
  std::atomic<int> told = 0;
  const auto texts = failures(3, [&](communicator& ranks) {
    std::vector<float> x(4);
    ranks.all_reduce(x, reduction::sum, {.label = "h.0"}).wait();
    if (ranks.rank() == 2) {
      for (int now; (now = told) < 2;) told.wait(now);
      return ranks.barrier().wait();
    }
    const std::string late =
        failure([&] { ranks.all_reduce(x, reduction::sum, {.label = "h.1", .timeout = 300ms}).wait(); });
    ++told;
    told.notify_all();
    throw comm_error(late);
  });
  for (const std::string& t : texts) CHECK_MESSAGE(has(t, "not there: rank 2"), t);
  CHECK_MESSAGE(has(texts[0], "all_reduce(sum, f32 x 4) for h.1"), texts[0]);
}

TEST_CASE("a device that does not finish is found after the time-out, an error of NCCL at once") {
  const CUcontext second = context_of(1);
  const auto stopped = failures(2, [&](communicator& ranks) {
    std::vector<float> x(4);
    ranks.all_reduce(x).wait();
    if (ranks.rank() == 1) fake_cuda::stall_nccl(second, true);
    ranks.all_reduce(x, reduction::sum, {.label = "h.1", .timeout = 300ms}).wait();
  });
  fake_cuda::stall_nccl(second, false);
  for (const std::string& t : stopped) {
    CHECK_MESSAGE(has(t, "all_reduce(sum, f32 x 4) for h.1, in device memory"), t);
    CHECK_MESSAGE(has(t, "all ranks are there, but the data is not: NCCL on a CPU that plays a GPU"), t);
  }
  const auto failed = failures(2, [&](communicator& ranks) {
    std::vector<float> x(4);
    ranks.all_reduce(x).wait();
    if (ranks.rank() == 1) fake_cuda::fail_nccl(second, 6);
    for (int i = 0; i < 2; ++i) ranks.all_reduce(x, reduction::sum, {.timeout = 20s}).wait();
  });
  for (const std::string& t : failed)
    CHECK_MESSAGE(has(t, "remote process exited or there was a network error: what the fake was told"), t);
  CHECK(fake_cuda::misuse() == "");
  CHECK(fake_cuda::held_by_nccl() == 0);
}

TEST_CASE("memory of an operand that is freed before its operation is over is not reused until then") {
  device_ranks::run(2, [](communicator& ranks, communicator&, const device& where) {
    const std::vector<float> mine(1000, static_cast<float>(1 + ranks.rank()));
    const std::size_t bytes = mine.size() * sizeof(float);
    buffer in = where.allocate(bytes);
    const buffer all = where.allocate(2 * bytes);
    where->upload(in.data(), mine.data(), bytes);
    const void* const at = in.data();
    work w = ranks.all_gather(const_elements(at, 1000, dtype::f32, memory_space::device),
                              elements(all.data(), 2000, dtype::f32, memory_space::device));
    in = {};
    CHECK(where.memory().figures().awaited > 0);
    const buffer next = where.allocate(bytes);
    CHECK(next.data() != at);
    where->fill_zero(next.data(), bytes);
    where->synchronize();
    w.wait();
    std::vector<float> found(2000);
    where->download(found.data(), all.data(), 2 * bytes);
    CHECK(found[999] == 1);
    CHECK(found[1000] == 2);
    CHECK(where.allocate(bytes).data() == at);
    CHECK(where.memory().figures().awaited == 0);
  });
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("a rank over NCCL that gives up says why on all, also to those that wait for its device") {
  const auto texts = failures(3, [](communicator& ranks) {
    std::vector<float> x(4);
    ranks.all_reduce(x).wait();
    if (ranks.rank() == 1) ranks.abort("the disk is full");
    ranks.all_reduce(x).wait();
  });
  for (const std::string& t : texts) CHECK_MESSAGE(has(t, "rank 1 gave up: the disk is full"), t);
}

TEST_CASE("ranks over NCCL need a device of CUDA each") {
  self_communicator alone;
  CHECK(failure([&] { nccl_communicator ranks(alone, default_device()); }) ==
        "weft: nccl: the device is cpu, not a CUDA device");
  const std::string two = failure([] {
    run_ranks(2, [](communicator& host) {
      const device where(std::make_shared<gpu::cuda_backend>(0));
      nccl_communicator ranks(host, where, {}, 20s);
    });
  });
  CHECK_MESSAGE(has(two, "ncclCommInitRankConfig"), two);
  std::vector<float> x(4);
  CHECK(
      has(failure([&] { alone.all_reduce(elements(x.data(), 4, dtype::f32, memory_space::device)).wait(); }),
          "the communicator self cannot access this memory"));
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("strategies over NCCL: messages in memory of devices, with the bits of those by the host") {
  check_training<strategy::data_parallel>();
  check_training<strategy::fully_sharded<3>>();
  CHECK(fake_cuda::misuse() == "");
}
