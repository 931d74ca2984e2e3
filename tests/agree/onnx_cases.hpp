// SPDX-License-Identifier: MIT
// Expressions as ONNX models, with inputs and the outputs that weft computes, for check_onnx.py, which runs
// them in ONNX Runtime.
//
//   onnx_cases to(folder);
//   to.add("softmax", [](auto x) { return softmax(x); }, numbers<float>(extents<dyn, 5>{3}));
#pragma once

#include <cstdio>
#include <string>
#include <tuple>
#include <vector>

#include <weft/io/safetensors.hpp>
#include <weft/nn/linear_cross_entropy.hpp>
#include <weft/onnx/save.hpp>
#include <weft/weft.hpp>

namespace weft {

/// Elements from -2 to 2 in steps of 1/8, or integers from -5 to 5 (u8: 0 to 10), unordered.
template <element T, index_t... E>
tensor<T, extents<E...>> numbers(extents<E...> e, int seed = 0) {
  std::vector<T> all;
  const index_t n = static_cast<shape>(e).size();
  for (index_t i = 0; i < n; ++i) {
    const int k = static_cast<int>((i * 37 + seed * 11 + i * i % 7) % 33) - 16;
    if constexpr (std::is_same_v<T, bool>) all.push_back(k % 3 == 0);
    else if constexpr (std::is_same_v<T, std::uint8_t>) all.push_back(static_cast<T>((k + 16) % 11));
    else if constexpr (std::is_integral_v<T>) all.push_back(static_cast<T>((k + 16) % 11 - 5));
    else all.push_back(static_cast<T>(static_cast<float>(k) / 8));
  }
  tensor<T, extents<E...>> t(static_cast<shape>(e));
  if constexpr (std::is_same_v<T, bool>) {
    std::vector<char> bytes(all.begin(), all.end());
    t.copy_from(reinterpret_cast<const bool*>(bytes.data()));
  } else t.copy_from(all);
  return t;
}
/// Positive elements.
template <element T, index_t... E>
tensor<T, extents<E...>> positive(extents<E...> e, int seed = 0) {
  auto x = numbers<T>(e, seed);
  return eval(cast<T>(abs(x) + static_cast<float>(0.5)));
}
/// Integers from 0 to `end` - 1.
template <element T, index_t... E>
tensor<T, extents<E...>> indices(index_t end, extents<E...> e) {
  std::vector<T> all;
  const index_t n = static_cast<shape>(e).size();
  for (index_t i = 0; i < n; ++i) all.push_back(static_cast<T>((i * 5 + i / 3) % end));
  tensor<T, extents<E...>> t(static_cast<shape>(e));
  t.copy_from(all);
  return t;
}

/// Writes cases to a folder.
class onnx_cases {
 public:
  explicit onnx_cases(std::string folder) : folder_(std::move(folder)) {}

  /// The relative error allowed for f32 results of the cases that follow.
  void allow(double error) { error_ = error; }

  /// Where the elements of tensors are written for the cases that follow.
  void store(onnx::tensor_storage where) { storage_ = where; }

  /// Adds f(x...), with its operands as inputs.
  template <class F, class... X>
  void add(const std::string& name, F f, const X&... x) {
    add_resized(name, f, std::tuple(x...), std::tuple(x...));
  }
  /// The same, exported for operands `example` and run on `actual`, which has other dynamic extents.
  template <class F, class... X>
  void add_resized(const std::string& name, F f, const std::tuple<X...>& example,
                   const std::tuple<X...>& actual, const io::named_tensors& named = {}) {
    onnx_options options{.inputs = {}, .outputs = {"y"}, .tensors = named, .storage = storage_};
    int k = 0;
    const auto number = [&] { return "x" + std::to_string(k++); };
    std::apply([&](const auto&... x) { (options.inputs.push_back({number(), x}), ...); }, example);
    const std::string path = folder_ + "/" + name;
    save_onnx(path + ".onnx", std::apply(f, example), options);
    io::stored_tensors values;
    k = 0;
    std::apply([&](const auto&... x) { ((values.tensors[number()] = io::stored(*x.state())), ...); }, actual);
    values.tensors["y"] = io::stored(*eval(std::apply(f, actual)).state());
    values.metadata["error"] = std::to_string(error_ * 1e9);
    io::write_safetensors(path + ".safetensors", values);
  }

 private:
  std::string folder_;
  double error_ = 2e-6;
  onnx::tensor_storage storage_ = onnx::tensor_storage::in_file;
};

}  // namespace weft
