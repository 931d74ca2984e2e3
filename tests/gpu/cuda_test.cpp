// SPDX-License-Identifier: MIT
// What weft asks of CUDA, seen by a driver, a compiler and a cuBLASLt that are fakes (fake_*.cpp).
#include <doctest/doctest.h>

#include <cmath>
#include <mutex>
#include <thread>

#include <weft/gpu/cuda.hpp>
#include <weft/weft.hpp>

#include "fake_cuda.hpp"

using namespace weft;

namespace {

device nvidia(int ordinal = 0) { return device(std::make_shared<gpu::cuda_backend>(ordinal)); }

auto sample(const device& d, std::uint64_t seed) {
  return randn<float>(extents<dyn, dyn>{7, 7}, {.seed = seed}, d);
}

/// A chain with a product, a look-up, rows with scratch memory; wherever it is computed.
std::vector<float> chain(const device& d, std::uint64_t seed) {
  context c(d);
  const auto x = sample(d, seed), w = sample(d, seed + 1);
  const auto index = generate<std::int32_t>(extents<3>{}, [](index_t i) { return 2 * i; }, d);
  return eval(softmax(exp(tanh(embedding(matmul(x, w), index)))), c).to_vector();
}

bool close(const std::vector<float>& a, const std::vector<float>& b) {
  bool all = a.size() == b.size() && !a.empty();
  for (std::size_t i = 0; all && i < a.size(); ++i) all = std::abs(a[i] - b[i]) <= 1e-5f;  // false for NaN
  return all;
}

/// c = x w on a device, against the CPU. The second product asks for no memory and no kernel.
struct a_product {
  device d;
  context c{d};
  tensor<float, extents<dyn, dyn>> x = sample(d, 1), w = sample(d, 2);
  std::vector<float> expected =
      eval(matmul(sample(default_device(), 1), sample(default_device(), 2))).to_vector();

  void check() {
    const auto y = eval(matmul(x, w), c);
    CHECK(close(y.to_vector(), expected));
  }
};
void check_product(const device& d) { a_product{d}.check(); }

/// The message of what `f` throws.
template <class Error, class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing of the kind was thrown";
}

}  // namespace

TEST_CASE(
    "cuda: every call is made in the context of its device, with two devices in a thread and in threads of "
    "their own") {
  const device first = nvidia(0), second = nvidia(1);
  a_product on_first{first}, on_second{second};
  for (int round = 0; round < 2; ++round) {
    on_first.check();  // while the second is current
    on_second.check();
  }
  std::thread([&] { on_first.check(); }).join();  // while none is
  CHECK(close(chain(first, 5), chain(default_device(), 5)));
  CHECK(close(chain(second, 5), chain(default_device(), 5)));
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("cuda: errors of an allocation keep their names, and only want of memory is tried again") {
  const device d = nvidia();
  { const buffer cached = d.allocate(1 << 20); }
  const long before = fake_cuda::calls("cuMemAlloc");
  fake_cuda::fail("cuMemAlloc", CUDA_ERROR_ILLEGAL_ADDRESS, 1);
  CHECK(message_of<device_error>([&] {
          (void)d.allocate(1 << 22);
        }).find("an illegal memory access was encountered") != std::string::npos);
  CHECK(fake_cuda::calls("cuMemAlloc") == before + 1);
  CHECK(d.memory().figures().reserved >= 1 << 20);

  fake_cuda::fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, 1);
  CHECK(d.allocate(1 << 22).data() != nullptr);
  CHECK(fake_cuda::calls("cuMemAlloc") == before + 3);

  fake_cuda::fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, -1);
  const std::string said = message_of<out_of_memory_error>([&] { (void)d.allocate(1 << 23); });
  fake_cuda::fail("cuMemAlloc", 0, 0);
  CHECK(said == "weft: cuda: out of memory: could not allocate 8388608 bytes");
}

TEST_CASE("cuda: what cuBLASLt has no algorithm for is computed by the plain kernel, and asked once") {
  auto& products = fake_cuda::products_of();
  for (int answer : {1, 2}) {
    CAPTURE(answer);
    const device d = nvidia();
    const long questions = products.questions, done = products.products;
    products.answer = answer;
    CHECK_NOTHROW(check_product(d));
    CHECK_NOTHROW(check_product(d));
    products.answer = 0;
    CHECK(products.questions == questions + 1);
    CHECK(products.products == done);
  }
}

TEST_CASE(
    "cuda: algorithms depend on the alignment that vectors need alone, and never round partial sums to the "
    "result's type") {
  auto& products = fake_cuda::products_of();
  const device d = nvidia();
  context c(d);
  const auto rows = randn<float>(extents<dyn, 8>{48, 8}, {.seed = 1}, d);
  const auto w = randn<float>(extents<8, 4>{}, {.seed = 2}, d);
  eval(matmul(rows, w), c);
  for (unsigned aligned : products.alignment) CHECK(aligned == 16);
  CHECK(products.schemes == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  const long questions = products.questions;
  for (index_t from : {0, 1, 2, 8, 16})
    eval(matmul(slice<0>(rows, from, from + 24), w), c);  // at 32, 64, 256, 512 bytes
  CHECK(products.questions == questions + 1);
}

TEST_CASE("cuda: contexts in threads of their own share a device") {
  const device d = nvidia();
  std::vector<std::vector<float>> expected, found(4);
  for (std::uint64_t t = 0; t < found.size(); ++t) expected.push_back(chain(default_device(), t));
  std::mutex mutex;
  std::string errors;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < found.size(); ++t)
    threads.emplace_back([&, t] {
      try {
        for (int round = 0; round < 20; ++round) found[t] = chain(d, t);
      } catch (const std::exception& e) {
        const std::lock_guard lock(mutex);
        errors += e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  CHECK(errors == "");
  for (std::size_t t = 0; t < found.size(); ++t) CHECK(close(found[t], expected[t]));
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("cuda: what a device took from the driver goes back, also when it cannot be made") {
  const long before = fake_cuda::held(), descriptors = fake_cuda::products_of().descriptors;
  for (const char* call : {"cuStreamCreate", "cuMemAlloc"}) {
    fake_cuda::fail(call, CUDA_ERROR_OUT_OF_MEMORY, 1);
    CHECK(message_of<device_error>([] { nvidia(); }).find("out of memory") != std::string::npos);
    CHECK(fake_cuda::held() == before);
  }
  chain(nvidia(1), 3);
  CHECK(fake_cuda::held() == before);
  CHECK(fake_cuda::products_of().descriptors == descriptors);
  CHECK(fake_cuda::misuse() == "");
}
