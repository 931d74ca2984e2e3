// SPDX-License-Identifier: MIT
// The law of derivatives: the derivative of every op agrees with difference quotients of its definition.
#include <doctest/doctest.h>

#include "../gradients.hpp"

using namespace weft;
using test::derivable;
using test::numbers;
using test::points;
using test::weighed;

TEST_CASE("where and clamp") {
  auto x = points(-2, 2);
  CHECK(derivable(weighed(where(x < 0.4, x * 2, x * x)), x));
  CHECK(derivable(weighed(clamp(x, -1.0, 1.0)), x));
  CHECK(derivable(weighed(clamp_min(x, -0.5)), x));
  CHECK(derivable(weighed(clamp_max(x, 0.5)), x));
  auto bound = variable<double, extents<2, 1>>(from(extents<2, 1>{}, {-0.7, 0.9}));
  CHECK(derivable(weighed(clamp_min(x, bound)), bound));
  CHECK(derivable(weighed(clamp_max(x, bound)), bound));
}

TEST_CASE("broadcasting") {
  auto x = numbers(3, 4);
  auto row = points(-1, 1);
  auto wide = numbers(3, 7, 2);
  CHECK(derivable(weighed(wide * row + row), row));
  CHECK(derivable(weighed(reshape<3, 4, 1>(x) * reshape<1, 1, 7>(row)), x));
}

TEST_CASE("reductions") {
  auto x = numbers(3, 4);
  CHECK(derivable(weighed(sum(x, dims<0>)), x));
  CHECK(derivable(weighed(sum(x * x, dims<1>, keepdim)), x));
  CHECK(derivable(weighed(mean(exp(x), dims<1>)), x));
  CHECK(derivable(weighed(amax(x, dims<0>)), x));
  CHECK(derivable(weighed(amin(x, dims<1>)), x));
  CHECK(derivable(weighed(logsumexp(x, dims<1>)), x));
  CHECK(derivable(logsumexp(x), x));
  CHECK(derivable(weighed(vector_norm(x, dims<1>)), x));
  CHECK(derivable(weighed(vector_norm(x, dims<0, 1>, keepdim)), x));
  CHECK(derivable(weighed(variance(x, dims<1>)), x));
  CHECK(derivable(variance<0>(x), x));
  CHECK(derivable(weighed(stddev(x, dims<0>, keepdim)), x));
  CHECK(derivable(weighed(normalize(x)), x));
  CHECK(derivable(weighed(normalize<0>(x)), x));
  auto y = numbers(3, 4, 1);
  CHECK(derivable(weighed(cosine_similarity(x, y)), x));
  CHECK(derivable(weighed(cosine_similarity<0>(x, y)), y));
  CHECK(derivable(weighed(cosine_similarity(unsqueeze<1>(x), y, 1.5)), y));
}

TEST_CASE("movement") {
  auto x = numbers(4, 6);
  auto open = variable<double, extents<dyn, dyn>>(x);
  CHECK(derivable(weighed(pad<0, 1, 2>(open) * pad<0, 0, 3>(open)), open));
  auto y = numbers(4, 6, 1);
  CHECK(derivable(weighed(transpose(x) * 2), x));
  CHECK(derivable(weighed(reshape<8, 3>(transpose(x))), x));
  CHECK(derivable(weighed(slice<1, 1, 6, 2>(x)), x));
  CHECK(derivable(weighed(slice<0>(x, 1, 3)), x));
  CHECK(derivable(weighed(flip<1>(x) * y), x));
  CHECK(derivable(weighed(concat<1>(x, y, x)), x));
  CHECK(derivable(weighed(expand<3, 4, 6>(x)), x));
  CHECK(derivable(weighed(chunk<1, 3, 0>(x) * chunk<1, 3, 2>(x) + chunk<1, 3, 1>(x)), x));
  auto fixed = variable<double, extents<2, 3>>(randn<double>(extents<2, 3>{}));
  CHECK(derivable(weighed(pad<1, 1, 2>(fixed)), fixed));
}

TEST_CASE("matmul: batches, transposes, broadcast batches") {
  auto a = numbers(3, 4), b = numbers(4, 5, 1);
  CHECK(derivable(weighed(matmul(a, b)), a));
  CHECK(derivable(weighed(matmul(a, b)), b));
  CHECK(derivable(weighed(matmul(transpose(b), transpose(a))), b));
  auto t = variable<double, extents<2, 3, 4>>(randn<double>(extents<2, 3, 4>{}));
  auto u = variable<double, extents<2, 4, 3>>(randn<double>(extents<2, 4, 3>{}, {.seed = 5}));
  CHECK(derivable(weighed(matmul(t, b)), b));
  CHECK(derivable(weighed(matmul(t, u)), t));
  CHECK(derivable(weighed(matmul(a, u)), a));
}

TEST_CASE("let: shared and written out are the same") {
  auto x = numbers(3, 4);
  const auto f = [](auto h) { return h * exp(h) + h; };
  CHECK(derivable(weighed(let(x * 2, f)), x));
}

TEST_CASE("equations: products of matrices and of elements") {
  auto a = numbers(3, 4), b = numbers(4, 5, 1), c = numbers(3, 4, 2);
  auto t = variable<double, extents<2, 3, 4>>(randn<double>(extents<2, 3, 4>{}));
  auto u = variable<double, extents<4, dyn, 5>>(randn<double>(extents<4, dyn, 5>{3}, {.seed = 5}));
  CHECK(derivable(weighed(einsum<"ij,jk->ki">(a, b)), a));
  CHECK(derivable(weighed(einsum<"ij,jk->ki">(a, b)), b));
  CHECK(derivable(weighed(einsum<"bij,jik->bk">(t, u)), t));
  CHECK(derivable(weighed(einsum<"bij,jik->bk">(t, u)), u));
  CHECK(derivable(weighed(einsum<"bij,jik->ikb">(t, u)), t));
  CHECK(derivable(weighed(einsum<"bij,jik->ikb">(t, u)), u));
  CHECK(derivable(weighed(einsum<"ij,jk->jk">(a, b)), a));
  CHECK(derivable(weighed(einsum<"ij,ij->i">(a, c * a)), a));
  CHECK(derivable(weighed(einsum<"bij->jb">(t)), t));
}

TEST_CASE("products with derivatives: vjp, jvp, hvp, and a third derivative") {
  auto x = from(extents<2>{}, std::vector<double>{0.5, 2});
  auto v = from(extents<2>{}, std::vector<double>{1, 10});
  const auto cube = [](auto t) { return t * t * t; };
  CHECK(eval(vjp(cube, x, v)).to_vector() == std::vector<double>{0.75, 120});
  CHECK(eval(jvp(cube, x, v)).to_vector() == std::vector<double>{0.75, 120});
  const auto f = [&](auto t) { return sum(cube(t)); };
  CHECK(eval(hvp(f, x, v)).to_vector() == std::vector<double>{3, 120});
  const auto third = grad([&](auto t) { return sum(grad([&](auto u) { return sum(grad(f, u)); }, t)); }, x);
  CHECK(eval(third).to_vector() == std::vector<double>{6, 6});
}
