// SPDX-License-Identifier: MIT
// Cases of check_onnx.py: views, copies, reductions, indexing and sorting, at odd sizes, and with dynamic
// extents that differ from those of the export.
#include "onnx_cases.hpp"

using namespace weft;

namespace {

template <element T>
void movement(onnx_cases& to, const std::string& type) {
  const auto x = numbers<T>(extents<dyn, 4, 3>{2});
  to.add(
      "views_" + type, [](auto a) { return flip<0>(permute<2, 0, 1>(slice<1, 1, 4, 2>(flip<2>(a)))); }, x);
  to.add(
      "concat_" + type,
      [](auto a) { return concat<1>(a, slice<1, 0, 1>(a), pad<1, 2, 1>(slice<1, 2, 4>(a))); }, x);
  to.add(
      "expand_" + type, [](auto a) { return expand<3, 5, 4>(unsqueeze<0>(a)); }, numbers<T>(extents<5, 1>{}));
  to.add(
      "gather_" + type, [](auto a, auto i) { return gather<1>(a, i); }, numbers<T>(extents<3, 5>{}),
      indices<std::int64_t>(5, extents<3, 7>{}));
  to.add(
      "index_select_" + type, [](auto a, auto i) { return index_select<1>(a, i); },
      numbers<T>(extents<2, 5, 3>{}), indices<std::int32_t>(5, extents<dyn>{7}));
  to.add(
      "sort_" + type, [](auto a) { return sort<1>(a); }, numbers<T>(extents<3, 11>{}));
  to.add(
      "argsort_" + type, [](auto a) { return argsort<0, descending>(a); }, numbers<T>(extents<11, 3>{}));
  to.add(
      "topk_" + type, [](auto a) { return topk<1, 4>(a).values; }, numbers<T>(extents<dyn, 9>{3}));
  to.add(
      "topk_smallest_" + type, [](auto a) { return topk<0, 2, smallest>(a).indices; },
      numbers<T>(extents<7, 3>{}));
  to.add(
      "stack_" + type, [](auto a) { return stack<1>(a, a); }, numbers<T>(extents<dyn, 3>{0}));
}

template <element T>
void folds(onnx_cases& to, const std::string& type) {
  const auto x = numbers<T>(extents<dyn, 4, 3>{5});
  to.add(
      "sum_" + type, [](auto a) { return sum(a, dims<0, 2>); }, x);
  to.add(
      "sum_all_" + type, [](auto a) { return sum(a); }, x);
  to.add(
      "sum_none_" + type, [](auto a) { return sum(a, dims<0>); }, numbers<T>(extents<dyn, 3>{0}));
  to.add(
      "mean_" + type, [](auto a) { return mean(a, dims<1>, keepdim); }, x);
  to.add(
      "amax_" + type, [](auto a) { return amax(a, dims<1, 2>); }, x);
  to.add(
      "amin_" + type, [](auto a) { return amin(a, dims<0>, keepdim); }, x);
  to.add(
      "cumsum_" + type, [](auto a) { return cumsum<1>(a); }, x);
  to.add(
      "cumprod_" + type, [](auto a) { return cumprod<1>(a); }, x);
  to.add(
      "any_" + type, [](auto a) { return any(a, dims<2>); }, x);
  to.add(
      "all_" + type, [](auto a) { return all(a); }, x);
}

template <element T>
void positions(onnx_cases& to, const std::string& type) {
  const auto x = numbers<T>(extents<dyn, 7>{5});
  to.add(
      "argmax_" + type, [](auto a) { return argmax<1>(a); }, x);
  to.add(
      "argmin_" + type, [](auto a) { return argmin<0>(a); }, x);
  to.add(
      "argmax_all_" + type, [](auto a) { return argmax(a); }, x);
  to.add(
      "scatter_add_" + type, [](auto a, auto i, auto s) { return scatter_add<1>(a, i, s); },
      numbers<T>(extents<3, 5>{}), indices<std::int64_t>(5, extents<3, 4>{}), numbers<T>(extents<3, 4>{}, 1));
}

}  // namespace

int main(int, char** arguments) {
  onnx_cases to(arguments[1]);
  movement<double>(to, "f64");
  movement<float>(to, "f32");
  movement<bfloat16>(to, "bf16");
  movement<float16>(to, "f16");
  movement<std::int64_t>(to, "i64");
  movement<std::int32_t>(to, "i32");
  movement<std::uint8_t>(to, "u8");
  movement<bool>(to, "bool");
  folds<double>(to, "f64");
  folds<float>(to, "f32");
  folds<bfloat16>(to, "bf16");
  folds<std::int64_t>(to, "i64");
  folds<std::uint8_t>(to, "u8");
  folds<bool>(to, "bool");
  positions<double>(to, "f64");
  positions<float16>(to, "f16");
  positions<std::int64_t>(to, "i64");
  positions<std::int32_t>(to, "i32");
  positions<std::uint8_t>(to, "u8");

  const auto x = numbers<float>(extents<dyn, dyn, 6>{2, 5}),
             larger = numbers<float>(extents<dyn, dyn, 6>{3, 7}, 1);
  const auto resized = [&](const std::string& name, auto f) {
    to.add_resized(name, f, std::tuple(x), std::tuple(larger));
    to.add_resized(name + "_empty", f, std::tuple(x), std::tuple(numbers<float>(extents<dyn, dyn, 6>{0, 1})));
  };
  resized("dynamic_reshape", [](auto a) { return reshape<dyn, 2>(a) * 2; });
  resized("dynamic_flatten", [](auto a) { return flatten<0, 1>(a); });
  resized("dynamic_unflatten", [](auto a) { return unflatten<2, 3>(a); });
  resized("dynamic_mean", [](auto a) { return sum(a, dims<0, 1>) + mean(a, dims<2>, keepdim); });
  resized("dynamic_concat", [](auto a) { return concat<1>(a, a); });
  resized("dynamic_permute", [](auto a) { return flatten<0, 1>(permute<1, 2, 0>(a)); });
  resized("dynamic_softmax", [](auto a) { return softmax<1>(a) + softmax<0>(a); });
  resized("dynamic_cumsum", [](auto a) { return cumsum<0>(a) + cumsum<1>(a); });
  resized("dynamic_flip", [](auto a) { return flip<0>(flip<1>(a)); });
  resized("dynamic_sort", [](auto a) { return sort<1, descending>(a); });
  resized("dynamic_matmul", [](auto a) { return matmul(a, transpose(a)); });
  resized("dynamic_logsumexp", [](auto a) { return logsumexp(a, dims<2>); });
  to.add_resized(
      "dynamic_slice", [](auto a) { return slice<1>(a, 1, 4); }, std::tuple(x), std::tuple(larger));
  to.add_resized(
      "dynamic_select", [](auto a) { return select<0, 1>(a) + select<1>(a, 0)[1]; }, std::tuple(x),
      std::tuple(numbers<float>(extents<dyn, dyn, 6>{2, 9})));
  to.add_resized(
      "dynamic_chunk", [](auto a) { return chunk<0, 3, 1>(a); },
      std::tuple(numbers<float>(extents<dyn, 2>{3})), std::tuple(numbers<float>(extents<dyn, 2>{9})));
  to.add_resized(
      "dynamic_two", [](auto a, auto b) { return matmul(a, b) + 1; },
      std::tuple(numbers<float>(extents<dyn, dyn>{2, 3}), numbers<float>(extents<dyn, dyn>{3, 4})),
      std::tuple(numbers<float>(extents<dyn, dyn>{5, 7}), numbers<float>(extents<dyn, dyn>{7, 1})));
  to.add_resized(
      "fixed_by_operand", [w = numbers<float>(extents<4, 3>{})](auto a) { return matmul(a, w); },
      std::tuple(numbers<float>(extents<dyn, dyn>{2, 4})),
      std::tuple(numbers<float>(extents<dyn, dyn>{5, 4})));

  const auto image = numbers<float>(extents<2, 7, 6>{});
  to.add(
      "windows",
      [](auto a) {
        return windows<height_width{2, 3}, height_width{2, 1}, height_width{3, 2}>(a) * 1;
      },
      image);
  to.add_resized(
      "dynamic_windows",
      [](auto a) {
        return windows<height_width{2, 3}, 2>(a) * 1;
      },
      std::tuple(numbers<float>(extents<dyn, dyn>{4, 5})),
      std::tuple(numbers<float>(extents<dyn, dyn>{8, 11})));
  to.add(
      "one_hot", [](auto i) { return one_hot<5>(i); }, indices<std::uint8_t>(5, extents<dyn, 2>{3}));
  to.add(
      "embedding", [](auto t, auto i) { return embedding(t, i); }, numbers<float>(extents<7, 3>{}),
      indices<std::uint8_t>(7, extents<dyn, 2>{3}));
  to.add(
      "logsumexp", [](auto a) { return logsumexp(a, dims<0, 2>) + logsumexp(a * 100); }, image);
  to.add(
      "log_softmax", [](auto a) { return log_softmax<1>(a * 30); }, image);
  to.add(
      "einsum", [](auto a, auto b) { return einsum<"abc,dca->bd">(a, b); }, image,
      numbers<float>(extents<3, 6, 2>{}));
  to.add(
      "einsum_sum", [](auto a) { return einsum<"abc->cb">(a); }, image);
  to.add(
      "ones", [](auto a) { return a + expand<3, 1>(a) + sum(a, dims<0, 1>); },
      numbers<float>(extents<1, 1>{}));
  to.add(
      "outer", [](auto a, auto b) { return unsqueeze<1>(a) * b - unsqueeze<0>(b); },
      numbers<float>(extents<dyn>{3}), numbers<float>(extents<7>{}, 1));
  to.add(
      "let", [](auto a) { return let(exp(a), [](auto e) { return e / (1 + e); }); }, image);
  to.add(
      "gradient",
      [](auto a) {
        return grad([](auto z) { return sum(square(slice<0, 0, 7, 3>(z)) * slice<0, 1, 4>(z)); }, a);
      },
      numbers<float>(extents<7, 2>{}));
  to.add(
      "gradient_gather",
      [](auto a, auto i) { return grad([i](auto z) { return sum(square(index_select<0>(z, i))); }, a); },
      numbers<float>(extents<5, 2>{}), indices<std::int64_t>(5, extents<9>{}));

  constexpr float infinity = __builtin_inff();
  const auto y = from(extents<3, 4>{}, std::vector<float>{-infinity, -infinity, -infinity, -infinity,
                                                          infinity, 1, 2, 3, -infinity, 3, 2, 1});
  to.add(
      "infinite_softmax", [](auto a) { return softmax(a); }, y);
  to.add(
      "infinite_log_softmax", [](auto a) { return log_softmax(a); }, y);
  to.add(
      "infinite_logsumexp", [](auto a) { return logsumexp(a, dims<1>); }, y);
  to.add(
      "infinite_max_pool2d", [](auto a) { return max_pool2d<2, pool_options{.padding = 1}>(a); }, y);
  to.add(
      "infinite_cumsum", [](auto a) { return cumsum<1>(a); }, y);
  to.add(
      "infinite_sort", [](auto a) { return sort<1>(a); }, y);
}
