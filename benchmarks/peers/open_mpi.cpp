// SPDX-License-Identifier: MIT
// Milliseconds of MPI's own collectives: mpirun -n RANKS open_mpi. Prints the lines of collectives.cpp.
#include <mpi.h>

#include <cstdio>
#include <vector>

int main(int count, char** values) {
  MPI_Init(&count, &values);
  int rank = 0, n = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  for (long bytes = 1024; bytes <= 256L << 20; bytes *= 4) {
    const int elements = static_cast<int>(bytes / 4 / n * n);
    std::vector<float> whole(static_cast<std::size_t>(elements), 1.0f),
        part(static_cast<std::size_t>(elements / n), 1.0f);
    const int rounds = bytes >= 1 << 24 ? 5 : bytes >= 1 << 20 ? 30 : 300;
    const auto measure = [&](const char* name, auto collective) {
      for (int i = 0; i < 2; ++i) collective();
      MPI_Barrier(MPI_COMM_WORLD);
      const double start = MPI_Wtime();
      for (int i = 0; i < rounds; ++i) collective();
      const double spent = (MPI_Wtime() - start) * 1e3 / rounds;
      if (rank == 0) std::printf("%s %ld %.6f\n", name, bytes, spent);
    };
    measure("all_reduce",
            [&] { MPI_Allreduce(MPI_IN_PLACE, whole.data(), elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
    measure("all_gather", [&] {
      MPI_Allgather(part.data(), elements / n, MPI_FLOAT, whole.data(), elements / n, MPI_FLOAT,
                    MPI_COMM_WORLD);
    });
    measure("reduce_scatter", [&] {
      MPI_Reduce_scatter_block(whole.data(), part.data(), elements / n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    });
  }
  MPI_Finalize();
}
