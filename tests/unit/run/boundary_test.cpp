// SPDX-License-Identifier: MIT
// Evaluators: the programs that a statement with boundaries consists of, and their order.
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

struct doubled {
  auto operator()(expression auto x) const { return x * 2.0f; }
};
/// Shares the result of a repeat inside it.
struct nested {
  repeat<doubled> inside;
  auto operator()(expression auto x) const {
    auto s = shared(inside(x));
    return s + s * x;
  }
};
/// An evaluator that reads its operand as a tensor.
struct last_row {
  auto operator()(expression auto x) const { return x[-1] * ones_like(x) + x; }
};
struct square_of {
  auto operator()(expression auto x) const { return x + x * x - x; }
};
struct longer {
  auto operator()(expression auto x) const { return concat<0>(x, x); }
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

TEST_CASE("the operand of a block is a tensor, and one operand of its program") {
  using matrix = extents<dyn, dyn>;
  const auto x = from(matrix{2, 2}, {1.f, 2.f, 3.f, 4.f});
  const repeat<last_row> rows{std::vector<last_row>(1)};
  CHECK(eval(rows(x)).to_vector() == std::vector<float>{4, 6, 6, 8});
  repeat<nested> outer{std::vector<nested>(2)};
  for (nested& n : outer.blocks) n.inside.blocks.resize(1);
  const auto two = [](float v) { return 2 * v + 2 * v * v; };
  CHECK(eval(outer(x)).to_vector() == std::vector<float>{two(two(1)), two(two(2)), two(two(3)), two(two(4))});
  const repeat<doubled> once{std::vector<doubled>(1)};
  CHECK(eval(let(x * 1.0f,
                 [&](auto h) {  // also in a let
                   auto s = shared(once(h));
                   return s * h + s;
                 }))
            .to_vector() == std::vector<float>{4, 12, 24, 40});
  variable<float, matrix> v(x);
  tape steps;
  const repeat<square_of> squares{std::vector<square_of>(2)};
  steps.backward(steps.eval(sum(squares(v))));  // of x^4
  CHECK(v.grad().to_vector() == std::vector<float>{4, 32, 108, 256});
  const repeat<longer> grows{std::vector<longer>(1)};
  CHECK_THROWS_WITH_AS(
      eval(grows(x)),
      "weft: repeat: a block must keep the shape of its operand: it returned [4, 2] for [2, 2]", shape_error);
}
