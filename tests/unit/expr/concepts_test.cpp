// SPDX-License-Identifier: MIT
// Every shape law is a concept that generic code can check.
#include <doctest/doctest.h>

#include <sstream>

#include <weft/weft.hpp>

using namespace weft;

namespace {

template <index_t... E>
using f32 = tensor<float, extents<E...>>;
template <index_t... E>
using i32 = tensor<std::int32_t, extents<E...>>;

static_assert(matmul_compatible<f32<dyn, 784>, f32<784, 10>>);
static_assert(!matmul_compatible<f32<32, 784>, f32<10, 784>>);
static_assert(!matmul_compatible<f32<32, 784>, i32<784, 10>>);
static_assert(matmul_compatible<f32<784>, f32<784, 10>> && !matmul_compatible<f32<784>, f32<10, 784>>);
static_assert(matmul_compatible<f32<32, 784>, f32<784>> && !matmul_compatible<f32<>, f32<784>>);
static_assert(broadcast_compatible<f32<32, 1>, f32<784>> && !broadcast_compatible<f32<32, 2>, f32<784>>);
static_assert(reshape_compatible<f32<4, 6>, 8, 3> && reshape_compatible<f32<4, 6>, 8, dyn>);
static_assert(!reshape_compatible<f32<4, 6>, 5, 5>);
static_assert(expand_compatible<f32<4, 1>, 3, 4, 6> && !expand_compatible<f32<4, 2>, 4, 6>);
static_assert(!reshape_compatible<f32<3>, -3> && !expand_compatible<f32<1>, -5>);
static_assert(!accepts<op::where, attr<>, f32<3>> && !accepts<op::add, attr<>, f32<3>, f32<3>, f32<3>>);
static_assert(concat_compatible<0, f32<4, 6>, f32<2, 6>> && !concat_compatible<1, f32<4, 6>, f32<2, 6>>);
static_assert(embedding_compatible<f32<10, 4>, i32<3>> && !embedding_compatible<f32<10, 4>, f32<3>>);
static_assert(gather_compatible<1, f32<3, 5>, i32<3, 2>> && !gather_compatible<0, f32<3, 5>, i32<3, 2>>);
static_assert(attention_compatible<f32<2, dyn, 3, 8>, f32<2, dyn, 3, 8>, f32<2, dyn, 3, 8>>);
static_assert(!attention_compatible<f32<2, 5, 3, 8>, f32<2, 5, 3, 4>, f32<2, 5, 3, 8>>);
static_assert(attention_compatible<f32<2, 5, 6, 8>, f32<2, 9, 3, 8>, f32<2, dyn, 3, 8>>);
static_assert(!attention_compatible<f32<2, 5, 6, 8>, f32<2, 9, 4, 8>, f32<2, 9, 4, 8>>);  // 4 heads of 6
static_assert(!attention_compatible<f32<2, 5, 6, 8>, f32<2, 9, 3, 8>, f32<2, 8, 3, 8>>);
static_assert(cross_entropy_compatible<f32<dyn, 10>, i32<dyn>> &&
              !cross_entropy_compatible<f32<32, 10>, i32<31>>);

/// Selects by a law, without an error if it does not hold.
template <class A, class B>
auto product(A a, B b) {
  if constexpr (matmul_compatible<A, B>) return matmul(a, b);
  else return matmul(a, transpose(b));
}

struct net {
  linear<4, 3> first;
  linear<3, 2> second;
};
struct no_module {
  int numbers[3];
};
static_assert(module<net> && module<linear<4, 3>> && !module<no_module> && !module<f32<3>>);

}  // namespace

TEST_CASE("generic code asks a shape law before it applies the op") {
  const auto x = full<float>(extents<2, 3>{}, 1.0f);
  CHECK(eval(product(x, full<float>(extents<3, 4>{}, 1.0f))).extents() == shape{2, {2, 4}});
  CHECK(eval(product(x, full<float>(extents<4, 3>{}, 1.0f))).extents() == shape{2, {2, 4}});
}

TEST_CASE("a module prints a table of its parameters") {
  std::ostringstream out;
  out << net{};
  CHECK(out.str() ==
        "parameter      shape               elements\n"
        "first.weight   [3, 4]              12\n"
        "first.bias     [3]                 3\n"
        "second.weight  [2, 3]              6\n"
        "second.bias    [2]                 2\n"
        "total                              23\n");
}
