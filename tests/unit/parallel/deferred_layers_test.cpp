// SPDX-License-Identifier: MIT
// Sharded layers of a model that no rank could hold: created on a deferred device, and initialized in parts,
// bitwise identical to the whole.
#include <doctest/doctest.h>

#include <cstring>

#include <weft/parallel/pipeline.hpp>
#include <weft/parallel/tensor_parallel.hpp>

#include "../../limited_backend.hpp"
#include "divided_training.hpp"

using namespace training;

namespace {

/// Columns in groups of dim 0, rows, a vocabulary, columns in groups of dim 1 with units; norms are whole.
struct large_model {
  embedding_table<3001, 96, divided::vocabulary> words;
  std::array<linear<96, 3 * 96, divided::columns<3, 8>>, 4> columns;
  std::array<linear<3 * 96, 96, divided::rows<>>, 4> rows;
  parameter<extents<96, 3 * 96>, float, divided::along<1, 3, 2>> groups =
      make_parameter(extents<96, 3 * 96>{}, init::normal(1));
  layer_normalization<96> norm;
};

template <class Plan>
void check_created(const mesh_sizes& sizes) {
  large_model whole;
  initialize(whole, 5);
  const auto bytes = static_cast<std::size_t>(4 * parameter_count(whole));
  run_ranks(static_cast<int>(sizes.ranks()), [&](communicator& ranks) {
    const std::size_t parts = static_cast<std::size_t>(sizes.ranks());
    const device where(std::make_shared<test::limited_backend>(bytes / parts + bytes / 16));
    CHECK_THROWS_AS(create<large_model>(where), out_of_memory_error);
    where.memory().empty_cache();
    auto model = create<large_model>(where.deferred());
    initialize(model, 5 + static_cast<std::uint64_t>(ranks.rank()));  // rank 0's counts
    sgd optimizer;
    auto run = bind<Plan>(model, optimizer, ranks, sizes);
    const auto all = state_dict(whole);
    for (const held_tensor& h : run.held_tensors()) {
      const auto& w =
          *std::find_if(all.begin(), all.end(), [&](const auto& t) { return t.first == h.name; })->second;
      const auto *own = static_cast<const float*>(h.local->memory.data()),
                 *expected = static_cast<const float*>(w.memory.data());
      INFO(h.name);
      bool same = true;
      index_t count = 0;
      for (const stored_box& p : h.parts)
        for_each_run(whole_box(parallel::in_rows(w.extents)), p, [&](index_t at, index_t here, index_t n) {
          same = same && std::memcmp(expected + at, own + here, static_cast<std::size_t>(n) * 4) == 0;
          count += n;
        });
      CHECK(same);
      CHECK(count == h.local->extents.size());
    }
  });
}

}  // namespace

TEST_CASE("layers are divided before they are drawn") {
  check_created<policy<strategy::mesh<tp<>>>>({.tp = 2});
  check_created<policy<strategy::mesh<tp<>>>>({.tp = 3});
  check_created<policy<strategy::mesh<fsdp<3>, tp<>>>>({.fsdp = 2, .tp = 2});
}

TEST_CASE("a rank that differs in what is deferred is named on all ranks") {
  run_ranks(2, [](communicator& ranks) {
    const device where = one_thread();
    auto model = create<large_model>(ranks.rank() == 1 ? where.deferred() : where);
    sgd optimizer;
    CHECK_THROWS_WITH_AS((bind<policy<strategy::mesh<tp<>>>>(model, optimizer, ranks, {.tp = 2})),
                         doctest::Contains("was created on a deferred device by some ranks"), usage_error);
  });
}

TEST_CASE("stages draw their own layers only, in parts") {
  divided_model::net whole = divided_model::net::create(4);
  initialize(whole, 5);
  const auto expected = elements_of(state_dict(whole));
  const device alone = one_thread();
  to(whole, alone);
  const std::size_t bytes = alone.memory().figures().in_use;
  run_ranks(4, [&](communicator& ranks) {
    const device where = one_thread();
    auto model = create<divided_model::net>(where.deferred());
    model.h.blocks.clear();
    for (int b = 0; b < 4; ++b) {
      model.h.blocks.push_back(create<divided_model::block>(where.deferred()));
      model.h.blocks.back().attn.heads = 6;
    }
    initialize(model, 5);
    sgd optimizer;
    using plan = policy<strategy::mesh<pp<>, tp<>>>;
    auto run = bind<plan>(model, optimizer, ranks, {.pp = 2, .tp = 2});
    CHECK(where.memory().figures().in_use == 0);
    const auto words = divided_model::batch(0, 0);
    run.prepare(cross_entropy(model(words), words), 2);
    CHECK(where.memory().figures().peak < bytes / 2);
    CHECK(elements_of(run.full()) == expected);
  });
}
