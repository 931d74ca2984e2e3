// SPDX-License-Identifier: MIT
// Milliseconds of collectives among ranks that are threads: collectives RANKS. Prints one line per operation
// and size, as do peers/open_mpi.cpp and peers/torch_gloo.py.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include <weft/comm/threads.hpp>

int main(int count, char** values) {
  using namespace weft;
  const int n = count > 1 ? std::atoi(values[1]) : 2;
  run_ranks(n, [n](communicator& ranks) {
    // Threads begin on the core of their creator, while mpirun binds each process to its own core.
    for (auto start = std::chrono::steady_clock::now();
         std::chrono::steady_clock::now() - start < std::chrono::milliseconds(200);) {}
    ranks.barrier().wait();
    for (index_t bytes = 1024; bytes <= index_t{256} << 20; bytes *= 4) {
      const index_t elements = bytes / 4 / n * n;
      std::vector<float> whole(static_cast<std::size_t>(elements), 1.0f),
          part(static_cast<std::size_t>(elements / n), 1.0f);
      const int rounds = bytes >= 1 << 24 ? 5 : bytes >= 1 << 20 ? 30 : 300;
      const auto measure = [&](const char* name, auto collective) {
        for (int i = 0; i < 2; ++i) collective();
        ranks.barrier().wait();
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < rounds; ++i) collective();
        const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - start;
        if (ranks.rank() == 0)
          std::printf("%s %lld %.6f\n", name, static_cast<long long>(bytes), spent.count() / rounds);
      };
      measure("all_reduce", [&] { ranks.all_reduce(whole).wait(); });
      measure("all_gather", [&] { ranks.all_gather(part, whole).wait(); });
      measure("reduce_scatter", [&] { ranks.reduce_scatter(whole, part).wait(); });
    }
  });
}
