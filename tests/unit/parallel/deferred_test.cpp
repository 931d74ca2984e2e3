// SPDX-License-Identifier: MIT
// Models that no rank could hold: created without memory; each rank initializes its own shards.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>

#include <weft/io/tensor_files.hpp>
#include <weft/nn/clone.hpp>
#include <weft/nn/mixture_of_experts.hpp>
#include <weft/train/weights.hpp>

#include "../../limited_backend.hpp"
#include "large_net.hpp"

using namespace training;

namespace {
bool same_bits(const void* a, const void* b, std::size_t bytes) {
  return bytes == 0 || std::memcmp(a, b, bytes) == 0;
}

/// Whether this rank's rows equal those of the whole model.
template <class Run>
void check_rows(const Run& run, const net& whole) {
  const auto all = named_parameters(whole);
  const std::vector<held_tensor> held = run.held_tensors();
  REQUIRE(held.size() == all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const tensor_state &own = *run.local()[i].second, &w = *all[i].second;
    REQUIRE(held[i].name == all[i].first);
    CHECK(held[i].local == run.local()[i].second);
    const index_t row = w.extents.size() / parallel::in_rows(w.extents)[0];
    const index_t first = held[i].parts[0].where.offset[0] * row;
    INFO(all[i].first);
    CHECK(same_bits(own.memory.data(), static_cast<const float*>(w.memory.data()) + first, own.bytes()));
  }
}
}  // namespace

TEST_CASE("a model whose parameters no rank could hold is created, drawn with the same bits, and trained") {
  const net whole = large_net(one_thread(), 5);
  const auto bytes = static_cast<std::size_t>(4 * parameter_count(whole));
  const std::size_t limit = bytes * 4 / 5;
  run_ranks(4, [&](communicator& ranks) {
    const device where(std::make_shared<test::limited_backend>(limit));
    CHECK_THROWS_AS(large_net(where, 5), out_of_memory_error);
    where.memory().reset_peak();
    net model = large_net(where.deferred(), 5 + static_cast<std::uint64_t>(ranks.rank()));  // rank 0's counts
    CHECK(where.memory().figures().in_use == 0);
    sgd optimizer{.lr = 1e-2};
    auto run = bind<policy<strategy::fully_sharded<3>>>(model, optimizer, ranks);
    check_rows(run, whole);
    CHECK(where.memory().figures().peak < bytes / 4 + bytes / 16);
    std::vector<float> losses;
    for (int s = 0; s < 3; ++s) {
      tape steps(run);
      const auto loss = steps.eval(cross_entropy(model(batch_of(1, where, 0)), batch_of(1, where, 1)));
      steps.backward(loss);
      run.step();
      losses.push_back(loss.item());
    }
    CHECK(losses.back() < losses.front());
    CHECK(where.memory().figures().peak <= limit);
  });
}

TEST_CASE("deferred parameters have the bits of others under every stage, and alone") {
  const net whole = large_net(one_thread(), 7);
  for (sharding stage : stages)
    for (int n : {1, 2, 3})
      run_ranks(n, [&](communicator& ranks) {
        INFO("stage " << static_cast<int>(stage) << " on " << n << " ranks");
        net model = large_net(one_thread().deferred(), 7);
        adamw optimizer;
        auto run = bind(model, optimizer, ranks, {.divide = stage});
        check_rows(run, whole);
      });
  net alone = large_net(one_thread().deferred(), 7);
  materialize(alone);
  CHECK(elements_of(named_parameters(alone)) == elements_of(named_parameters(whole)));
  const net by_default = net::create(one_thread().deferred());  // not drawn by name
  CHECK(by_default.table.weight.state()->init.kind == initializer::distribution::normal);
}

TEST_CASE("all ranks begin with what rank 0 has, whatever others have, with elements and without") {
  const net whole = large_net(one_thread(), 7);
  for (const bool deferred : {false, true})
    for (const parallel_options& o : {parallel_options{}, parallel_options{.divide = sharding::optimizer},
                                      parallel_options{.divide = sharding::parameters},
                                      parallel_options{.divide = sharding::parameters, .shard_ranks = 2},
                                      parallel_options{.divide = sharding::parameters, .shard_ranks = 1}})
      run_ranks(4, [&](communicator& ranks) {
        INFO("stage " << static_cast<int>(o.divide) << ", groups of " << o.shard_ranks);
        const device where = deferred ? one_thread().deferred() : one_thread();
        net model = large_net(where, 7 + static_cast<std::uint64_t>(ranks.rank()));
        adamw optimizer;
        auto run = bind(model, optimizer, ranks, o);
        check_rows(run, whole);
      });
}

namespace {
/// Sizes in the type, default-constructed parameters: nothing here refers to devices.
struct fixed_block {
  layer_normalization<64> norm;
  linear<64, 128> in;
  linear<128, 64> out;
  auto operator()(expression auto x) const {
    return let(x, [&](auto x) { return x + out(gelu(in(norm(x)))); });
  }
};
struct fixed_net {
  embedding_table<64, 64> table;
  std::array<fixed_block, 24> blocks;
  parameter<extents<64>> scale = make_parameter(extents<64>{}, init::constant(2));
  tensor<float, extents<3>> seen = full<float>(extents<3>{}, 4.0f);
  auto operator()(expression auto tokens) const {
    return matmul(blocks[23](blocks[0](table(tokens))) * scale, transpose(table.weight));
  }
};
tensor<float, extents<3>> refused() { throw value_error("made"); }
struct throws_when_made {
  parameter<extents<2>> p = make_parameter(extents<2>{}, init::constant(1));
  tensor<float, extents<3>> seen = refused();
};
}  // namespace

TEST_CASE("a model whose sizes are in its type is created without memory, and each rank draws its part") {
  fixed_net whole;
  initialize(whole, 5);
  const auto bytes = static_cast<std::size_t>(4 * parameter_count(whole));
  const std::size_t by_default = default_device().memory().figures().in_use;
  run_ranks(4, [&](communicator& ranks) {
    const device where(std::make_shared<test::limited_backend>(bytes * 4 / 5));
    CHECK_THROWS_AS(create<fixed_net>(where), out_of_memory_error);
    where.memory().reset_peak();
    auto model = create<fixed_net>(where.deferred());
    CHECK(where.memory().figures().in_use == 64);  // the buffer
    CHECK(model.seen.to_vector() == std::vector<float>(3, 4.0f));
    initialize(model, 5);
    sgd optimizer{.lr = 1e-2};
    auto run = bind<policy<strategy::fully_sharded<3>>>(model, optimizer, ranks);
    CHECK(where.memory().figures().peak < bytes / 4 + bytes / 16);
    const std::vector<held_tensor> held = run.held_tensors();
    const auto all = state_dict(whole);
    REQUIRE(held.size() == all.size());
    for (const held_tensor& h : held) {
      const auto& w =
          *std::find_if(all.begin(), all.end(), [&](const auto& t) { return t.first == h.name; })->second;
      const index_t first = h.parts[0].where.offset[0] * (w.extents.size() / w.extents[0]);
      CHECK(same_bits(h.local->memory.data(), static_cast<const float*>(w.memory.data()) + first,
                      h.local->bytes()));
    }
    tape steps(run);
    const auto loss = steps.eval(cross_entropy(model(batch_of(1, where, 0)), batch_of(1, where, 1)));
    steps.backward(loss);
    run.step();
    CHECK(std::isfinite(loss.item()));
  });
  CHECK(default_device().memory().figures().in_use == by_default);
}

TEST_CASE("creation on a device is for the models made by it alone") {
  const device where = one_thread();
  CHECK_THROWS_AS(create<throws_when_made>(where.deferred()), value_error);
  linear<3, 2> by_default;  // after an exception
  CHECK(by_default.weight.state()->where == default_device());
  CHECK(!by_default.weight.state()->is_deferred());
  const auto there = create<linear<3, 2>>(where);
  CHECK(there.weight.state()->where == where);
  CHECK(there.weight.to_vector().size() == 6);
  auto deferred = create<linear<3, 2>>(where.deferred());
  CHECK(deferred.weight.state()->is_deferred());
  initialize(deferred, 3);
  materialize(deferred);
  initialize(by_default, 3);
  CHECK(deferred.weight.to_vector() == by_default.weight.to_vector());
}

namespace {
struct with_run_time_sizes {
  linear<> in = linear<>::create(3, 5);
  batch_normalization<> norm = batch_normalization<>::create(5);
  gru<> memory = gru<>::create(5, 2);
  mixture_of_experts<> experts =
      mixture_of_experts<>::create(2, 2, {.per_row = 1}, [] { return feed_forward<>::create(2, 3); });
};
}  // namespace

TEST_CASE("layers whose sizes are given in a model are created on its device") {
  const device where = one_thread();
  const auto on = create<with_run_time_sizes>(where);
  for (const auto& [name, t] : state_dict(on)) {
    INFO(name);
    CHECK(t->where == where);
  }
  auto deferred = create<with_run_time_sizes>(where.deferred());
  for (const auto& [name, p] : named_parameters(deferred)) {
    INFO(name);
    CHECK(p->is_deferred());
  }
  initialize(deferred, 3);
  materialize(deferred);
  auto whole = create<with_run_time_sizes>(where);
  initialize(whole, 3);
  CHECK(elements_of(state_dict(deferred)) == elements_of(state_dict(whole)));
}

TEST_CASE("a parameter that has no elements yet says so") {
  const device where = one_thread();
  context c(where);
  net model = net::create(where.deferred());
  const auto refused = [](auto f) {
    CHECK_THROWS_WITH_AS(f(), doctest::Contains("has no elements yet: bind the model"), value_error);
  };
  refused([&] { model.table.weight.to_vector(); });
  refused([&] { model.table.weight.data(); });
  refused([&] { eval(model.table.weight + 1.0f, c); });
  refused([&] { clone(model); });
  const device other = one_thread();
  to(model, other);  // it will get its elements there
  refused([&] { model.table.weight.to_vector(); });
  CHECK(model.table.weight.state()->where == other);
  CHECK(parameter_count(model) > 0);
}

TEST_CASE("ranks that have made their models in different ways are told the parameter") {
  run_ranks(3, [](communicator& ranks) {
    const device where = one_thread();
    net model = net::create(where);
    if (ranks.rank() == 2)
      model.h.blocks[1].in.bias = make_parameter(extents<dyn>{7}, init::constant(0), where.deferred());
    adamw optimizer;
    CHECK_THROWS_WITH_AS(bind<policy<strategy::data_parallel>>(model, optimizer, ranks),
                         doctest::Contains("parameter h.1.in.bias was created on a deferred device by some"),
                         usage_error);
  });
}

TEST_CASE("weights are loaded by rows: no rank holds more of the file than what is its own") {
  const std::string path = "/tmp/weft_weights_" + std::to_string(::getpid()) + ".safetensors";
  const net whole = large_net(one_thread(), 9);
  io::save(path, state_dict(whole));
  const auto bytes = static_cast<std::size_t>(4 * parameter_count(whole));
  for (sharding stage : stages)
    run_ranks(3, [&](communicator& ranks) {
      const bool divided = stage == sharding::parameters;
      const device where(std::make_shared<test::limited_backend>(divided ? bytes / 2 : 4 * bytes));
      net model = large_net(where.deferred(), 7);
      adamw optimizer;
      auto run = bind(model, optimizer, ranks, {.divide = stage});
      load_weights(path, run);
      check_rows(run, whole);
      const auto read = eval(model.h.blocks[3].in.weight + 0.0f, run);
      CHECK(read.to_vector() == whole.h.blocks[3].in.weight.to_vector());
    });
  run_ranks(2, [&](communicator& ranks) {
    const auto refused = [&](net model, const char* why) {
      adamw optimizer;
      auto run = bind(model, optimizer, ranks, {.divide = sharding::parameters});
      CHECK_THROWS_WITH_AS(load_weights(path, run), doctest::Contains(why), io_error);
    };
    const device where = one_thread();
    net other = large_net(where, 7);
    other.last.bias = make_parameter(extents<dyn>{65}, init::constant(0), where);
    refused(other, "tensor last.bias is f32 [64], but the model expects f32 [65]");
    other = large_net(where, 7);
    other.h.blocks.push_back(large_net(where, 8).h.blocks[0]);
    refused(other, "tensor h.48.norm.weight is missing");
  });
  std::remove(path.c_str());
}
