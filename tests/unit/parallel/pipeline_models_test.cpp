// SPDX-License-Identifier: MIT
// Pipelines combined with other features: precision, recomputation, parameters and buffers that several
// stages read, statements in slices, micro-batches of different shapes. Each is compared with one rank.
#include "pipelines.hpp"

using namespace pipelines;

namespace {

struct rich_block {
  layer_normalization<> norm;
  linear<> in, out;
  parameter<extents<dyn>> shared;      // one tensor, in all blocks
  tensor<float, extents<dyn>> frozen;  // a buffer of its own
  tensor<float, extents<>> gain;       // a buffer that all blocks and the first stage read
  auto operator()(expression auto x) const {
    return let(x, [&](auto x) {
      return x * gain + dropout(out(gelu(in(norm(x)) + shared)), 0.1f) + frozen;
    });
  }
};

/// The head is tied to the table; one parameter is unused.
struct rich_net {
  embedding_table<> table;
  tensor<float, extents<>> gain;
  linear<> unused;
  repeat<rich_block> h;
  layer_normalization<> last;

  static rich_net create(const device& where) {
    const auto shared = make_parameter(extents<dyn>{7}, init::normal(0.1), where);
    const auto gain = full<float>(extents<>{}, 0.75f, where);
    rich_net n{embedding_table<>::create(11, 6, where), gain, linear<>::create(3, 2, where), {},
               layer_normalization<>::create(6, where)};
    for (int i = 0; i < 4; ++i)
      n.h.blocks.push_back({layer_normalization<>::create(6, where), linear<>::create(6, 7, where),
                            linear<>::create(7, 6, where), shared,
                            full<float>(extents<dyn>{6}, 0.01f * static_cast<float>(i), where), gain});
    initialize(n, 5);
    return n;
  }
  auto features(expression auto tokens) const { return last(h(table(tokens) * gain)); }
  auto operator()(expression auto tokens) const {
    return matmul(features(tokens), transpose(table.weight));
  }
};

/// 1 to 4 rows, different in each micro-batch.
index_t rows_of(index_t number) { return 1 + (number * 3) % 4; }

const auto whole_loss = [](const rich_net& model, const device& where, index_t number) {
  const index_t rows = rows_of(number);
  return cross_entropy(model(tokens_of(number, where, 0, rows)), tokens_of(number, where, 1, rows));
};
/// At most 2 rows of logits at a time.
const auto loss_by_slices = [](const rich_net& model, const device& where, index_t number) {
  const index_t rows = rows_of(number);
  return linear_cross_entropy(model.features(tokens_of(number, where, 0, rows)), model.table.weight,
                              tokens_of(number, where, 1, rows), 2 * 11);
};

template <class Precision = precision::f32, class... Axes>
void check(const setting& s) {
  compare<Precision, Axes...>(s, rich_net::create, whole_loss);
}

}  // namespace

TEST_CASE("a model with everything in it: the same bits as on one rank") {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved:2", "breadth-first:2"}) {
    check({.schedule = schedule});
    check({.schedule = schedule, .deterministic = false, .recompute = context::every_program});
    check({.schedule = schedule, .per_rank = {2, 8, 4}, .recompute = 1, .clip = 0});
  }
  check({.sizes = {.pp = 4}, .per_rank = {1, 5, 2}});
  check({.sizes = {.pp = 3}, .schedule = "gpipe", .deterministic = false, .blocks = {1, 2, 1}});
  for (const bool deterministic : {true, false})
    check<precision::f32, dp>(
        {.sizes = {.pp = 2, .dp = 2}, .schedule = "interleaved:2", .deterministic = deterministic});
}

TEST_CASE("divided backward steps of the same model") {
  using divided = policy<precision::f32, strategy::mesh<pp<pipeline::one_f_one_b, true>>>;
  for (const char* schedule : {"zb-h1", "zb-v", "interleaved:2"})
    for (const bool deterministic : {true, false})
      compare_plan<divided, precision::f32>(
          {.schedule = schedule, .deterministic = deterministic, .recompute = deterministic ? 0 : 1},
          rich_net::create, whole_loss);
}

TEST_CASE("mixed precision on stages: the same bits, and all leave out the same steps") {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved:2"})
    check<precision::bf16>({.schedule = schedule, .recompute = 1});
  check<precision::bf16, fsdp<2>>({.sizes = {.pp = 2, .fsdp = 2}});
  const std::vector<index_t> steps(24, 2);
  for (const char* schedule : {"1f1b", "breadth-first:2"})
    check<precision::f16>({.schedule = schedule, .per_rank = steps, .scale = 0x1p34});
  check<precision::f16, fsdp<3>>(
      {.sizes = {.pp = 2, .fsdp = 2}, .per_rank = steps, .scale = 0x1p34});
  const outcome alone =  // steps are left out, and others are not
      train_alone<precision::f16>({.per_rank = steps, .scale = 0x1p34}, rich_net::create, whole_loss);
  CHECK(alone.norms.front() == -1);
  CHECK(alone.norms.back() > 0);
}

TEST_CASE("a head with its loss by slices, on the last stage") {
  for (const char* schedule : {"1f1b", "interleaved:2"})
    for (const bool deterministic : {true, false})
      compare<precision::f32>({.schedule = schedule, .deterministic = deterministic}, rich_net::create,
                              loss_by_slices);
  compare<precision::bf16>({}, rich_net::create, loss_by_slices);
}
