// SPDX-License-Identifier: MIT
// Reductions and movement along every dim, with their derivatives, agree with PyTorch, for extents of 0, 1
// and primes.
#include "cases.hpp"

using namespace weft;
using namespace weft::test;

namespace {

const io::stored_tensors& cases() {
  static const io::stored_tensors all = file("shapes");
  return all;
}

/// Each case has one operand x of order 3.
template <class F>
void of_x(const std::string& name, F f, const io::stored_tensors& from = cases()) {
  for_each_case(from, name, [&](const stored_case& c) {
    auto x = c.variable<float, order3>("x");
    c.agrees([&] { return f(x); }, 1e-5, 1, "x", x);
  });
}

template <index_t... D>
void reductions(const std::string& key) {
  of_x("sum_" + key, [](const auto& x) { return sum(x, dims<D...>); });
  of_x("mean_" + key, [](const auto& x) { return mean(x, dims<D...>, keepdim); });
  of_x("logsumexp_" + key, [](const auto& x) { return logsumexp(x, dims<D...>); });
  of_x("amax_" + key, [](const auto& x) { return amax(x, dims<D...>); });
  of_x("amin_" + key, [](const auto& x) { return amin(x, dims<D...>); });
}

template <index_t Dim>
void along() {
  const std::string key = std::to_string(Dim);
  of_x("softmax_" + key, [](const auto& x) { return softmax<Dim>(x); });
  of_x("log_softmax_" + key, [](const auto& x) { return log_softmax<Dim>(x); });
  of_x("argmax_" + key, [](const auto& x) { return argmax<Dim>(x); });
  of_x("argmin_" + key, [](const auto& x) { return argmin<Dim>(x); });
  of_x("argmax_" + key, [](const auto& x) { return squeeze<Dim>(argmax<Dim>(x, keepdim)); });
  of_x("argmin_" + key, [](const auto& x) { return squeeze<Dim>(argmin<Dim>(x, keepdim)); });
}

template <index_t Dim, bool Down>
void ordered(const std::string& key) {
  static const io::stored_tensors all = file("orders");
  const auto half = [](const auto& x) { return (x.extent(int{Dim}) + 1) / 2; };
  of_x("sort_" + key, [](const auto& x) { return sort<Dim, Down>(x); }, all);
  of_x("argsort_" + key, [](const auto& x) { return argsort<Dim, Down>(x); }, all);
  of_x("topk_" + key, [&](const auto& x) { return topk<Dim, !Down>(x, half(x)).values; }, all);
  of_x("argtopk_" + key, [&](const auto& x) { return topk<Dim, !Down>(x, half(x)).indices; }, all);
  if (!Down) of_x("cumsum_" + std::to_string(Dim), [](const auto& x) { return cumsum<Dim>(x); }, all);
}

}  // namespace

TEST_CASE("reductions of one dim") {
  reductions<0>("0");
  reductions<1>("1");
  reductions<2>("2");
}
TEST_CASE("reductions of several dims") {
  reductions<0, 2>("02");
  reductions<1, 2>("12");
  reductions<0, 1, 2>("all");
}
TEST_CASE("softmax and positions of extrema along each dim") {
  along<0>();
  along<1>();
  along<2>();
}

namespace {
template <index_t... D>
void norms(const std::string& key) {
  static const io::stored_tensors all = file("norms_and_slopes");
  of_x("vector_norm_" + key, [](const auto& x) { return vector_norm(x, dims<D...>); }, all);
  if constexpr (sizeof...(D) == 1)
    of_x("normalize_" + key, [](const auto& x) { return normalize<D...>(x); }, all);
}
}  // namespace

TEST_CASE("norms, also of rows of zeros") {
  norms<0>("0");
  norms<1>("1");
  norms<2>("2");
  norms<0, 2>("02");
  norms<1, 2>("12");
  norms<0, 1, 2>("all");
}

namespace {
template <index_t... D>
void variances(const std::string& key) {
  static const io::stored_tensors all = file("variances");
  of_x("var0_" + key, [](const auto& x) { return variance<0>(x, dims<D...>); }, all);
  of_x("var1_" + key, [](const auto& x) { return variance(x, dims<D...>); }, all);
  of_x("std0_" + key, [](const auto& x) { return stddev<0>(x, dims<D...>); }, all);
  of_x("std1_" + key, [](const auto& x) { return stddev(x, dims<D...>); }, all);
}
}  // namespace

TEST_CASE("variances, also of equal numbers and of numbers far from 0") {
  variances<0>("0");
  variances<1>("1");
  variances<2>("2");
  variances<0, 2>("02");
  variances<1, 2>("12");
  variances<0, 1, 2>("all");
  of_x("far", [](const auto& x) { return variance(x, dims<2>, keepdim); }, file("variances"));
}

TEST_CASE("cosines of angles, also beside rows of zeros, huge and tiny ones") {
  static const io::stored_tensors all = file("norms_and_slopes");
  const auto along = [&]<index_t D>(std::integral_constant<index_t, D>, const std::string& key) {
    for_each_case(all, "cosine_similarity_" + key, [](const stored_case& c) {
      auto a = c.variable<float, order3>("a"), b = c.variable<float, order3>("b");
      c.agrees([&] { return cosine_similarity<D>(a, b); }, 1e-5, 1, "a", a, "b", b);
    });
  };
  along(std::integral_constant<index_t, 0>{}, "0");
  along(std::integral_constant<index_t, 1>{}, "1");
  along(std::integral_constant<index_t, 2>{}, "2");
  for_each_case(all, "cosine_similarity_each", [](const stored_case& c) {
    auto a = c.variable<float, extents<dyn, 1, dyn>>("a");
    auto b = c.variable<float, order2>("b");
    c.agrees([&] { return cosine_similarity(a, b, 0.5); }, 1e-5, 1, "a", a, "b", b);
  });
  const auto x = ones<float>(extents<dyn, 3>{2}), y = ones<float>(extents<dyn, 3>{4});
  CHECK_THROWS_AS(eval(cosine_similarity(x, y)), shape_error);
  CHECK_THROWS_WITH_AS(cosine_similarity(x, y, -1), "weft: cosine_similarity: eps is -1, not 0 or more",
                       value_error);
  const auto coarse = eval(cast<bfloat16>(x * 1.7f));
  const auto other = randn_like(coarse);
  CHECK(eval(cosine_similarity(coarse, cast<float>(other))).to_vector() ==
        eval(cosine_similarity(cast<float>(coarse), cast<float>(other))).to_vector());
  const auto narrow = cosine_similarity(cast<bfloat16>(x), cast<bfloat16>(x) * -3);
  CHECK(eval(cast<float>(narrow)).to_vector() == std::vector<float>{-1, -1});
  CHECK(eval(cosine_similarity(cast<std::int32_t>(x), cast<std::int32_t>(x))).to_vector() ==
        eval(cosine_similarity(x, x)).to_vector());
}

TEST_CASE("slopes below 0") {
  static const io::stored_tensors all = file("norms_and_slopes");
  of_x("leaky_relu", [](const auto& x) { return leaky_relu(x, 0.25f); }, all);
  of_x("elu", [](const auto& x) { return elu(x, 1.5f); }, all);
}

TEST_CASE("orders along each dim: equal elements, NaN") {
  ordered<0, false>("ascending_0");
  ordered<1, false>("ascending_1");
  ordered<2, false>("ascending_2");
  ordered<0, true>("descending_0");
  ordered<1, true>("descending_1");
  ordered<2, true>("descending_2");
}

TEST_CASE("movement") {
  of_x("transpose", [](const auto& x) { return transpose<0, 2>(x); });
  of_x("permute", [](const auto& x) { return permute<1, 2, 0>(x); });
  of_x("flip", [](const auto& x) { return flip<1>(x); });
  of_x("flatten", [](const auto& x) { return flatten<0, 1>(x); });
  of_x("unsqueeze", [](const auto& x) { return unsqueeze<2>(x); });
  for_each_case(cases(), "concat", [](const stored_case& c) {
    auto x = c.variable<float, order3>("x"), z = c.variable<float, order3>("z");
    c.agrees([&] { return concat<1>(x, z, x); }, 1e-5, 1, "x", x, "z", z);
  });
  for_each_case(cases(), "stack", [](const stored_case& c) {
    auto x = c.variable<float, order3>("x"), z = c.variable<float, order3>("z");
    c.agrees([&] { return stack<-1>(x, z); }, 1e-5, 1, "x", x, "z", z);
  });
  of_x("slice", [](const auto& x) { return slice<1>(x, x.extent(1) / 3, x.extent(1)); });
  of_x("column_of_slice", [](const auto& x) { return sum(slice<2, 0, 1>(x), dims<2>) * 2.f; });
  of_x("sum_of_flipped", [](const auto& x) { return sum(flip<1>(x), dims<0, 1>) + 1.f; });
}

TEST_CASE("movement of static extents") {
  using fixed = extents<6, 10>;
  const auto of_fixed = [](const char* name, auto f) {
    for_each_case(cases(), name, [&](const stored_case& c) {
      auto x = c.variable<float, fixed>("x");
      c.agrees([&] { return f(x); }, 1e-5, 1, "x", x);
    });
  };
  of_fixed("slice_with_step", [](const auto& x) { return slice<1, 1, 9, 3>(x); });
  of_fixed("pad", [](const auto& x) { return pad<1, 2, 3>(x); });
  of_fixed("reshape", [](const auto& x) { return reshape<4, 15>(transpose(x)); });
  of_fixed("unflatten", [](const auto& x) { return unflatten<1, 5>(x); });
  of_fixed("chunk", [](const auto& x) { return chunk<1, 5, 3>(x) * chunk<1, 5, 0>(x); });
}
