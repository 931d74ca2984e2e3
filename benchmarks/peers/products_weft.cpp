// SPDX-License-Identifier: MIT
// The kernel that a program's matrix product ends in, called without a graph, on operands and a result that
// exist.
#include <weft/device/cpu/product.hpp>

#include <vector>

#include "products.hpp"

using namespace weft;

namespace {
template <class T, class Out>
void add_tasks(std::vector<ops::task>& tasks, const char* type, executor& threads) {
  products::add_tasks(tasks, type, [&threads](const products::shape& s, const products::form& f) {
    const auto filled = [](long size) {
      std::vector<T> v(static_cast<std::size_t>(size));
      for (std::size_t i = 0; i < v.size(); ++i) v[i] = T(ops::element(static_cast<long>(i)));
      return v;
    };
    return [&threads, s, f, a = filled(s.m * s.k), b = filled(s.k * s.n),
            c = std::vector<Out>(static_cast<std::size_t>(s.m * s.n))]() mutable {
      const cpu::matrix<T> x =
          f.a_transposed ? cpu::matrix<T>{a.data(), 1, s.m} : cpu::matrix<T>{a.data(), s.k, 1};
      const cpu::matrix<T> y =
          f.b_transposed ? cpu::matrix<T>{b.data(), 1, s.k} : cpu::matrix<T>{b.data(), s.n, 1};
      cpu::multiply({s.m, s.n, s.k}, x, y, cpu::result_matrix<Out>{c.data(), s.n}, threads);
    };
  });
}
}  // namespace

int main(int, char** values) {
  executor threads(ops::threads_of(values));
  std::vector<ops::task> tasks;
  add_tasks<float, float>(tasks, "f32", threads);
  add_tasks<bfloat16, float>(tasks, "bf16", threads);
  ops::serve(tasks);
}
