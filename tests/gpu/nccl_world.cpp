// SPDX-License-Identifier: MIT
// Ranks over NCCL on the GPUs of this machine: a world of one rank and, with several GPUs, one rank per GPU.
// Prints errors; exit code 3 without a GPU or NCCL.
#include <cstdio>

#include <weft/comm/self.hpp>

#include "device_ranks.hpp"

using namespace weft;

namespace {

std::atomic<int> wrong = 0;

void check(bool good, const char* what, communicator& ranks) {
  if (good) return;
  ++wrong;
  std::printf("rank %d of %d: %s: wrong\n", ranks.rank(), ranks.size(), what);
}

/// Element i of rank r; sums over a few ranks are exact.
float value(int r, index_t i) { return static_cast<float>((7 * r + 3 * i) % 11); }

template <class T>
void collectives(communicator& ranks) {
  const int n = ranks.size(), own = ranks.rank();
  const index_t count = 100'003;
  const auto all_good = [&](const std::vector<T>& x, auto expected) {
    for (std::size_t i = 0; i < x.size(); ++i)
      if (static_cast<float>(x[i]) != expected(static_cast<index_t>(i))) return false;
    return true;
  };
  const auto sum = [&](index_t i) {
    float s = 0;
    for (int r = 0; r < n; ++r) s += value(r, i);
    return s;
  };
  std::vector<T> x;
  for (index_t i = 0; i < count; ++i) x.push_back(static_cast<T>(value(own, i)));
  std::vector<T> y = x;
  ranks.all_reduce(y).wait();
  check(all_good(y, sum), "all_reduce", ranks);
  y = x;
  ranks.broadcast(y, n - 1).wait();
  check(all_good(y, [&](index_t i) { return value(n - 1, i); }), "broadcast", ranks);
  y.assign(static_cast<std::size_t>(count * n), T{});
  ranks.all_gather(x, y).wait();
  check(all_good(y, [&](index_t i) { return value(static_cast<int>(i / count), i % count); }), "all_gather",
        ranks);
  rank_counts parts = even_parts(count, n);
  y.assign(static_cast<std::size_t>(parts[static_cast<std::size_t>(own)]), T{});
  ranks.reduce_scatter(x, y, reduction::sum, parts).wait();
  index_t first = 0;
  for (int r = 0; r < own; ++r) first += parts[static_cast<std::size_t>(r)];
  check(all_good(y, [&](index_t i) { return sum(first + i); }), "reduce_scatter", ranks);
  if (n == 1) return;
  const int after = (own + 1) % n, before = (own + n - 1) % n;
  y.assign(x.size(), T{});
  const work received = ranks.receive(y, before), sent = ranks.send(x, after);
  received.wait();
  sent.wait();
  check(all_good(y, [&](index_t i) { return value(before, i); }), "send and receive", ranks);
}

void run(communicator& host, const nccl_options& o) {
  const device where(std::make_shared<gpu::cuda_backend>(host.rank()));
  nccl_communicator over(host, where, o, std::chrono::seconds(60));
  device_ranks::on_device on(over, where);
  communicator& ranks = on;
  for (int round = 0; round < 3; ++round) {
    collectives<float>(ranks);
    collectives<bfloat16>(ranks);
    collectives<std::int32_t>(ranks);
  }
  const auto part = ranks.split(0);
  collectives<float>(*part);
}

}  // namespace

int main() {
  try {
    const int gpus = std::min(static_cast<int>(cuda::list().size()), 8);
    const gpu::nccl_functions nccl;
    if (gpus == 0) return std::puts("no GPU"), 3;
    for (const bool fixed : {true, false}) {
      self_communicator alone;
      run(alone, {.fixed_order = fixed});
      if (gpus > 1) run_ranks(gpus, [&](communicator& host) { run(host, {.fixed_order = fixed}); });
    }
    std::printf("%d GPUs: %s\n", gpus, wrong ? "wrong" : "right");
    return wrong ? 1 : 0;
  } catch (const device_error& e) {
    return std::printf("%s\n", e.what()), 3;
  } catch (const std::exception& e) { return std::printf("%s\n", e.what()), 1; }
}
