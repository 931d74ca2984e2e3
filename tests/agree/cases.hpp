// SPDX-License-Identifier: MIT
// Cases that PyTorch computed (tests/agree/make_ops_data.py), read from a file and compared.
//
//   for_each_case(file("shapes"), "softmax_0", [](const stored_case& c) {
//     auto x = c.variable<float, order3>("x");
//     c.agrees([&] { return softmax<0>(x); }, 1e-5, "x", x);
//   });
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include <weft/io/safetensors.hpp>
#include <weft/weft.hpp>

namespace weft::test {

using order0 = extents<>;
using order1 = extents<dyn>;
using order2 = extents<dyn, dyn>;
using order3 = extents<dyn, dyn, dyn>;
using order4 = extents<dyn, dyn, dyn, dyn>;

/// Whether `a` equals `b`: NaN and infinities in the same places, other elements within `tolerance` times |b|
/// or `scale`.
inline bool agree(double a, double b, double tolerance, double scale) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::abs(a - b) <= tolerance * std::max(std::abs(b), scale);
}

/// The elements of a tensor of any type as f64; integers in tests are small enough to be exact.
inline std::vector<double> elements_of(const tensor_state& t) {
  const io::stored_tensor s = io::stored(t);
  std::vector<double> all(static_cast<std::size_t>(s.extents.size()));
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = visit_type(s.type, [&]<class T>(T) {
      if constexpr (std::is_same_v<T, bool>) return static_cast<double>(s.bytes[i]);  // as stored in memory
      else return static_cast<double>(reinterpret_cast<const T*>(s.bytes.data())[i]);
    });
  return all;
}

class stored_case {
 public:
  stored_case(const io::stored_tensors& all, std::string prefix) : all_(all), prefix_(std::move(prefix)) {}

  bool has(const std::string& name) const { return all_.tensors.count(prefix_ + name) > 0; }
  template <class T, class Extents>
  tensor<T, Extents> stored(const std::string& name) const {
    const io::stored_tensor& s = all_.tensors.at(prefix_ + name);
    tensor<T, Extents> t(s.extents);
    io::restore(prefix_, name, s, *t.state());
    return t;
  }
  /// Sets the elements of `t` to those of `name`.
  void restore(const std::string& name, tensor_state& t) const {
    io::restore(prefix_, name, all_.tensors.at(prefix_ + name), t);
  }
  shape extents_of(const std::string& name) const { return all_.tensors.at(prefix_ + name).extents; }
  template <class T, class Extents>
  weft::variable<T, Extents> variable(const std::string& name) const {
    return weft::variable<T, Extents>(stored<T, Extents>(name));
  }

  /// Checks that element type, shape and elements are those of `name`. Elements may differ by `tolerance`
  /// times their own size and `scale`.
  void same(const tensor_state& t, const std::string& name, double tolerance, double scale) const {
    const io::stored_tensor& s = all_.tensors.at(prefix_ + name);
    tensor_state expected(default_device(), s.extents, s.type);
    io::restore(prefix_, name, s, expected);
    CAPTURE(prefix_ + name);
    CHECK(std::string(name_of(t.type)) == name_of(s.type));
    REQUIRE(to_string(t.extents) == to_string(s.extents));
    const std::vector<double> a = elements_of(t), b = elements_of(expected);
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (agree(a[i], b[i], tolerance, scale)) continue;
      CAPTURE(i);
      CHECK(a[i] == b[i]);
      return;
    }
  }

  /// Checks that the value of `f` is y and, if the case has gradients, that the operands' gradients match.
  /// Operands are given as name, variable, ...
  template <class F, class... Named>
  void agrees(F f, double tolerance, double scale, const Named&... named) const {
    tape steps;
    const auto y = steps.eval(f());
    same(*y.state(), "y", tolerance, scale);
    if (!has("weights")) return;
    using result = std::remove_cvref_t<decltype(y)>;
    steps.backward(y, stored<typename result::value_type, typename result::extents_type>("weights"));
    check_gradients(tolerance, scale, named...);
  }

 private:
  void check_gradients(double, double) const {}
  template <class V, class... Rest>
  void check_gradients(double tolerance, double scale, const char* name, const V& v,
                       const Rest&... rest) const {
    CAPTURE(prefix_ + name);
    if (has(std::string("grad.") + name)) {
      // If a derivative is 0 everywhere, weft has no gradient and PyTorch has zeros.
      const auto gradient = v.grad().defined() ? v.grad() : zeros_like(v);
      same(*gradient.state(), std::string("grad.") + name, tolerance, scale);
    }
    check_gradients(tolerance, scale, rest...);
  }

  template <class T, class Extents>
  static tensor<T, Extents> zeros_like(const weft::variable<T, Extents>& v) {
    tensor<T, Extents> t(v.extents());
    t.copy_from(std::vector<T>(static_cast<std::size_t>(v.size())));
    return t;
  }

  const io::stored_tensors& all_;
  std::string prefix_;
};

inline io::stored_tensors file(const std::string& name) {
  std::string path = WEFT_TEST_DATA "/";
  path.append(name).append(".safetensors");
  return io::read_safetensors(path);
}

/// Calls f(case) for the cases named `name`; there must be at least one.
template <class F>
void for_each_case(const io::stored_tensors& all, const std::string& name, F f) {
  CAPTURE(name);
  int count = 0;
  while (all.tensors.count(name + "/" + std::to_string(count) + "/y")) {
    CAPTURE(count);
    f(stored_case(all, name + "/" + std::to_string(count++) + "/"));
  }
  CHECK(count > 0);
}

}  // namespace weft::test
