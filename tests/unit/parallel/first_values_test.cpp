// SPDX-License-Identifier: MIT
// The messages of ranks that bind a model: digests, and rank 0's elements where other ranks differ.
#include <atomic>
#include <cstring>

#include "training.hpp"

using namespace training;

namespace {

/// Memory that the host can copy to and from, and that messages cannot use.
struct far_backend : cpu::cpu_backend {
  far_backend() : cpu_backend(1) {}
  bool host_accessible() const override { return false; }
  void upload(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
};

struct table {
  parameter<extents<dyn, dyn>> weight, other;
  tensor<float, extents<dyn>> seen;
};
table table_of(index_t rows, std::uint64_t seed, const device& where) {
  table t{make_parameter(extents<dyn, dyn>{rows, 1024}, init::normal(1), where),
          make_parameter(extents<dyn, dyn>{3, 5}, init::normal(1), where),
          full<float>(extents<dyn>{7}, 1.0f, where)};
  initialize(t, seed);
  return t;
}

const parallel_options strategies[] = {{},
                                       {.divide = sharding::optimizer},
                                       {.divide = sharding::gradients},
                                       {.divide = sharding::parameters},
                                       {.divide = sharding::parameters, .shard_ranks = 2}};

/// The bytes that 4 ranks together send when they bind the models that `make` creates; the models are
/// checked.
template <class Make, class Check>
index_t sent_at_bind(const parallel_options& o, Make make, Check check) {
  std::atomic<index_t> sent = 0;
  run_ranks(4, [&](communicator& ranks) {
    auto model = make(ranks.rank());
    sgd optimizer;
    auto run = bind(model, optimizer, ranks, o);
    sent += run.groups().sent().total();
    check(run.full());
  });
  return sent;
}

}  // namespace

TEST_CASE("models that all ranks have made alike are not sent: two numbers for all and for each tensor are") {
  const auto expected = elements_of(state_dict(table_of(64, 5, one_thread())));
  for (const parallel_options& o : strategies)
    for (const bool deferred : {false, true}) {
      const index_t sent = sent_at_bind(
          o, [&](int) { return table_of(64, 5, deferred ? one_thread().deferred() : one_thread()); },
          [&](const state_dict_t& all) { CHECK(elements_of(all) == expected); });
      CHECK(sent == 2 * (4 - 1) * 2 * (1 + 3) * 8);  // all_reduce of two numbers for three tensors
    }
}

TEST_CASE("what differs on one rank is sent, by rank 0, in messages of at most 1 MiB, and nothing else") {
  const auto expected = elements_of(state_dict(table_of(700, 5, one_thread())));
  for (const bool far : {false, true})
    for (const parallel_options& o : strategies)
      for (const bool first : {false, true}) {
        const device where = far ? device(std::make_shared<far_backend>()) : one_thread();
        const index_t sent = sent_at_bind(
            o,
            [&](int rank) {
              table t = table_of(700, 5, where);
              auto v = t.weight.to_vector();
              if (first && rank == 0) t.other.copy_from(std::vector<float>(15, 0.0f));
              v[699 * 1024 + 1000] = 0;  // one element, in the last of three messages
              if (!first && rank == 3) t.weight.copy_from(v);
              return t;
            },
            [&](const state_dict_t& all) {
              auto e = expected;
              if (first) std::fill_n(e.begin() + 700 * 1024, 15, 0.0f);
              CHECK(elements_of(all) == e);
            });
        const index_t elements = first ? 15 * 4 : 700 * 1024 * 4;
        CHECK(sent == 2 * 3 * 2 * 4 * 8 + 2 * 3 * 2 * 8 + 3 * elements);
      }
}

TEST_CASE("initializers of deferred parameters that differ are taken from rank 0, without elements") {
  const auto expected = elements_of(state_dict(table_of(64, 5, one_thread())));
  for (const parallel_options& o : strategies) {
    const index_t sent = sent_at_bind(
        o, [&](int rank) { return table_of(64, rank == 2 ? 6 : 5, one_thread().deferred()); },
        [&](const state_dict_t& all) { CHECK(elements_of(all) == expected); });
    CHECK(sent == 2 * 3 * 2 * 4 * 8 + 2 * 3 * 2 * 2 * 8 + 3 * 2 * 6 * 8);
  }
}

namespace {
template <index_t Rows, index_t Columns>
struct matrix {
  parameter<extents<Rows, Columns>> weight = make_parameter(extents<Rows, Columns>{}, init::constant(1));
};
struct named_otherwise {
  parameter<extents<2, 8>> kernel = make_parameter(extents<2, 8>{}, init::constant(1));
};
struct matrix_in_first {
  matrix<2, 8> first;
};
struct two_matrices {
  matrix<2, 8> first, second;
};
struct one_and_vector {
  matrix<2, 8> first;
  parameter<extents<8>> bias = make_parameter(extents<8>{}, init::constant(1));
};
struct other_type {
  tensor<std::int32_t, extents<4>> buffer = full<std::int32_t>(extents<4>{}, 0);
  parameter<extents<2, 8>> weight = make_parameter(extents<2, 8>{}, init::constant(1));
};
struct same_bytes {
  tensor<float, extents<4>> buffer = full<float>(extents<4>{}, 0.0f);
  parameter<extents<2, 8>> weight = make_parameter(extents<2, 8>{}, init::constant(1));
};

/// Binds A on all ranks except `rank`, which binds B.
template <class A, class B>
void refuses(int rank, const std::string& why) {
  run_ranks(3, [&](communicator& ranks) {
    const auto bound = [&](auto model) {
      sgd optimizer;
      CHECK_THROWS_WITH_AS(
          bind<policy<strategy::data_parallel>>(model, optimizer, ranks),
          ("weft: bind: the ranks have different models: parameter or buffer " + why).c_str(), usage_error);
    };
    ranks.rank() == rank ? bound(B{}) : bound(A{});
  });
}
}  // namespace

TEST_CASE("ranks with other models are told which parameter differs, and on which rank") {
  refuses<matrix<2, 8>, matrix<8, 2>>(1,
                                      "0 is weight, f32 [2, 8] on rank 0, and weight, f32 [8, 2] on rank 1");
  refuses<matrix<2, 8>, matrix<8, 2>>(0,
                                      "0 is weight, f32 [8, 2] on rank 0, and weight, f32 [2, 8] on rank 1");
  refuses<matrix<2, 8>, matrix<2, 9>>(2,
                                      "0 is weight, f32 [2, 8] on rank 0, and weight, f32 [2, 9] on rank 2");
  refuses<matrix<2, 8>, named_otherwise>(
      2, "0 is weight, f32 [2, 8] on rank 0, and kernel, f32 [2, 8] on rank 2");
  refuses<two_matrices, one_and_vector>(
      1, "1 is second.weight, f32 [2, 8] on rank 0, and bias, f32 [8] on rank 1");
  refuses<same_bytes, other_type>(1, "0 is buffer, f32 [4] on rank 0, and buffer, i32 [4] on rank 1");
  run_ranks(2, [](communicator& ranks) {
    table t = table_of(ranks.rank() ? 8 : 9, 5, one_thread());
    sgd optimizer;
    CHECK_THROWS_WITH_AS(bind<policy<strategy::fully_sharded<3>>>(t, optimizer, ranks),
                         doctest::Contains("weight, f32 [9, 1024] on rank 0"), usage_error);
  });
}

TEST_CASE("a rank with fewer parameters is told so") {
  refuses<two_matrices, matrix_in_first>(1,
                                         "1 is second.weight, f32 [2, 8] on rank 0, and missing on rank 1");
}
