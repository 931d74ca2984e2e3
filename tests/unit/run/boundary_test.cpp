// SPDX-License-Identifier: MIT
// Evaluators: which programs a statement with boundaries consists of, in which order.
#include <doctest/doctest.h>

#include <vector>

#include <weft/nn/repeat.hpp>
#include <weft/weft.hpp>

using namespace weft;

static_assert(runtime::program_evaluator<runtime::forgetful_evaluator<program_options<>>>);
static_assert(runtime::program_evaluator<tape<>>);
static_assert(!runtime::program_evaluator<context>);

namespace {

/// An evaluator that lists the shapes of what it computes.
struct listing_evaluator {
  runtime::forgetful_evaluator<program_options<>> inner;
  std::vector<shape> computed{};

  template <expression E>
  auto eval_program(const E& e) {
    const auto value = inner.eval_program(e);
    computed.push_back(value.extents());
    return value;
  }
  template <class X, class Labels, class F>
  auto sum_of_slices(const X& x, const Labels& labels, index_t rows, const F& f) {
    const auto value = inner.sum_of_slices(x, labels, rows, f);
    computed.push_back(value.extents());
    return value;
  }
  template <expression E>
  auto eval(const E& e) {
    return eval_program(runtime::without_boundaries(*this, e));
  }
};
static_assert(runtime::program_evaluator<listing_evaluator>);

struct block {
  linear<3, 3> layer;
  auto operator()(expression auto x) const { return x + layer(x); }
};
struct net {
  linear<2, 3> first;
  repeat<block> blocks;
  linear<3, 1> last;
  auto operator()(expression auto x) const { return sum(last(blocks(first(x)))); }
};

}  // namespace

TEST_CASE("an evaluator sees what stands before a boundary, each block, and what follows") {
  net model;
  model.blocks.blocks.resize(3);
  const auto x = randn<float>(extents<5, 2>{});
  listing_evaluator evaluator{{default_context()}};
  const auto value = evaluator.eval(model(x));
  CHECK(evaluator.computed ==
        std::vector<shape>{{2, {5, 3}}, {2, {5, 3}}, {2, {5, 3}}, {2, {5, 3}}, {0, {}}});
  CHECK(value.item() == eval(model(x)).item());
  evaluator.computed.clear();
  model.blocks.blocks.clear();
  CHECK(evaluator.eval(model(x)).item() == eval(model(x)).item());
  CHECK(evaluator.computed.size() == 2);
}
