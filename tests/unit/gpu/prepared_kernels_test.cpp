// SPDX-License-Identifier: MIT
// The kernels of a program are compiled before its first run, several at a time.
#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <weft/gpu/jit_backend.hpp>
#include <weft/weft.hpp>

using namespace weft;

namespace {

/// A device that computes nothing. While compilations are meant to overlap, each waits for a second one.
class compiler : public gpu::jit_backend {
 public:
  bool meets = false;
  int failures = 0;  // of the next compilations
  int compiled = 0, most_at_once = 0, compiled_at_launch = 0;
  std::multiset<std::string> sources;

  ~compiler() override { release(); }
  const char* name() const override { return "compiler"; }
  void* allocate(std::size_t bytes) override { return std::calloc(1, bytes); }
  void deallocate(void* memory, std::size_t) noexcept override { std::free(memory); }
  void fill_zero(void*, std::size_t) override {}
  void launch(const kernel_call& call) override {
    const int before = compiled;
    jit_backend::launch(call);
    compiled_at_launch += compiled - before;
  }

 protected:
  const char* dialect() const override { return ""; }
  std::shared_ptr<gpu::compiled_kernel> compile(const std::string& text) override {
    std::unique_lock lock(mutex_);
    if (failures > 0) {
      --failures;
      throw device_error("this kernel does not compile");
    }
    ++compiled;
    sources.insert(text);
    most_at_once = std::max(most_at_once, ++here_);
    changed_.notify_all();
    if (meets) changed_.wait_for(lock, std::chrono::seconds(60), [&] { return most_at_once > 1; });
    --here_;
    return std::make_shared<gpu::compiled_kernel>();
  }
  void run(gpu::compiled_kernel&, const std::vector<void*>&, gpu::parameters&, index_t) override {}
  void wait() override {}
  void read(void* to, const void*, std::size_t bytes) override { std::memset(to, 0, bytes); }
  void write(void*, const void*, std::size_t) override {}

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int here_ = 0;
};

/// A device that executes copies only when they are waited for.
class late : public compiler {
 public:
  explicit late(int& queued_at_end) : queued_at_end_(queued_at_end) {}
  ~late() override {
    release();
    for (void* memory : freed_) std::free(memory);
  }
  void deallocate(void* memory, std::size_t) noexcept override { freed_.push_back(memory); }

 protected:
  void write(void* to, const void* from, std::size_t bytes) override {
    queued_.push_back([=] { std::memcpy(to, from, bytes); });
  }
  void wait() override {
    for (const auto& copy : queued_) copy();
    queued_.clear();
  }
  void free_staging(void* memory) noexcept override {
    queued_at_end_ = static_cast<int>(queued_.size());
    compiler::free_staging(memory);
  }

 private:
  int& queued_at_end_;
  std::vector<std::function<void()>> queued_;
  std::vector<void*> freed_;  // which copies may still write
};

/// A device without memory for staging, which executes copies only when they are waited for.
class without_staging : public compiler {
 public:
  ~without_staging() override { release(); }
  std::size_t queued() const { return queued_.size(); }

 protected:
  void read(void* to, const void* from, std::size_t bytes) override {
    queued_.push_back([=] { std::memcpy(to, from, bytes); });
  }
  void wait() override {
    for (const auto& copy : queued_) copy();
    queued_.clear();
  }
  void* allocate_staging(std::size_t) override { throw out_of_memory_error("no memory for staging"); }

 private:
  std::vector<std::function<void()>> queued_;
};

/// Kernels over rows, and over columns with partial results; the same kernels in two places.
void compute(const device& d, context& c, index_t rows) {
  const auto x = zeros<float>(extents<dyn, dyn>{rows, 5}, d);
  eval(matmul(softmax(softmax(x)), transpose(softmax(x) + sum(exp(x), dims<0>))), c);
}

}  // namespace

TEST_CASE("all fused kernels of a program are compiled before its first run, each once, several at a time") {
  const auto backend = std::make_shared<compiler>();
  backend->meets = std::thread::hardware_concurrency() > 1;
  const device d(backend);
  context c(d);
  compute(d, c, 1000);
  const int count = backend->compiled;
  CHECK(count >= 3);
  CHECK(backend->compiled_at_launch == 0);
  CHECK(backend->most_at_once >= (backend->meets ? 2 : 1));
  CHECK(std::set<std::string>(backend->sources.begin(), backend->sources.end()).size() ==
        backend->sources.size());
  backend->meets = false;
  compute(d, c, 1000);
  compute(d, c, 1001);
  CHECK(backend->compiled == count);
}

TEST_CASE("what does not compile beforehand is tried again by the launch, which says why") {
  const auto backend = std::make_shared<compiler>();
  const device d(backend);
  context c(d);
  backend->failures = 1;
  CHECK_NOTHROW(compute(d, c, 1000));
  CHECK(backend->compiled_at_launch == 1);
  backend->failures = 1000;
  const auto x = zeros<float>(extents<dyn>{7}, d);
  CHECK_THROWS_WITH_AS(eval(tanh(x), c), "this kernel does not compile", device_error);
  CHECK(backend->failures == 998);
}

TEST_CASE("copies to the host that fail in part have ended when the error is thrown") {
  const auto backend = std::make_shared<without_staging>();
  std::vector<char> from(std::size_t{5} << 20, 1), to(from.size(), 0);
  char small = 0;
  const host_copy copies[] = {{to.data(), from.data(), to.size()}, {&small, from.data(), 1}};
  CHECK_THROWS_WITH_AS(backend->download_together(copies), "no memory for staging", out_of_memory_error);
  CHECK(backend->queued() == 0);
  CHECK(to == from);
}

TEST_CASE("copies to a device are not waited for, and end before the memory that they read is freed") {
  int queued_at_end = -1;
  {
    const device d(std::make_shared<late>(queued_at_end));
    std::vector<float> values(1000, 1);
    const auto x = from(extents<dyn>{1000}, values, d);
    values.assign(1000, 2);
    const auto* there = static_cast<const float*>(x.state()->memory.data());
    CHECK(there[999] != 1);
    d->synchronize();
    CHECK(there[999] == 1);
    const auto y = from(extents<dyn>{1000}, values, d);
  }
  CHECK(queued_at_end == 0);
}
