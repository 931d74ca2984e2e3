// SPDX-License-Identifier: MIT
// A steady-state step makes no heap allocation: every operator new of this program is counted.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include <weft/train/text.hpp>

#include "../parallel/training.hpp"

namespace {
std::atomic<long> allocated = 0;

void* counted(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
  ++allocated;
  void* p = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (!p) throw std::bad_alloc();
  return p;
}
}  // namespace

// Not inlined, because g++ 12 would warn that new and free are mismatched.
[[gnu::noinline]] void* operator new(std::size_t n) { return counted(n); }
[[gnu::noinline]] void* operator new(std::size_t n, std::align_val_t a) {
  return counted(n, static_cast<std::size_t>(a));
}
[[gnu::noinline]] void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return counted(n, static_cast<std::size_t>(a));
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

using namespace weft;

namespace {

/// The number of allocations in the last of a few steps.
template <class Step>
long in_a_steady_step(Step step) {
  long before = 0;
  for (int i = 0; i < 6; ++i) {
    before = allocated;
    step();
  }
  return detail::recycled_blocks::recycles ? allocated - before : 0;
}

text_samples text() {
  std::vector<unsigned char> bytes(1000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * 7 % 11);
  return text_samples(bytes, 8);
}

}  // namespace

TEST_CASE("a step by hand: loader, tape, backward, clipping, optimiser") {
  training::net model = training::net::create(default_device());
  adamw optimizer;
  loader batches(text(), {.batch = 4, .shuffle = true});
  CHECK(in_a_steady_step([&] {
          const auto [inputs, labels] = batches.next();
          tape steps;
          const auto loss = steps.eval(cross_entropy(model(inputs), labels));
          steps.backward(loss);
          clip_grad_norm(model, 1.0);
          optimizer.step(model);
          CHECK(loss.item() > 0);
        }) == 0);
}

TEST_CASE("a step of a bound run, with accumulation and recomputation") {
  training::net model = training::net::create(default_device());
  sgd optimizer{.lr = 1e-2, .momentum = 0.9};
  loader batches(text(), {.batch = 4});
  auto run = bind<policy<strategy::data_parallel>>(model, optimizer);
  run.recompute_programs = context::every_program;
  CHECK(in_a_steady_step([&] {
          for (int micro = 0; micro < 2; ++micro) {
            const auto [inputs, labels] = batches.next();
            tape steps(run);
            steps.backward(steps.eval(cross_entropy(model(inputs), labels)));
          }
          run.step({.clip = 1, .micro_batches = 2});
        }) == 0);
}

TEST_CASE("many small statements and expressions that are kept") {
  const auto x = variable<float, extents<8>>(full<float>(extents<8>{}, 0.5f));
  const auto w = full<float>(extents<8>{}, 0.25f);
  const auto kept = compile(sum(exp(x) * w));
  CHECK(in_a_steady_step([&] {
          tape steps;
          auto y = steps.eval(x * w);
          for (int i = 0; i < 100; ++i) y = steps.eval(sin(y) * x + w);
          steps.backward(steps.eval(sum(y)));
          CHECK(kept().item() > 0);
          CHECK(x.grad().defined());
        }) == 0);
}
