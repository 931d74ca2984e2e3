// SPDX-License-Identifier: MIT
// The cotangents of queries, keys and values that are parts of one tensor are computed in place in its
// cotangent: bitwise identical to separate tensors, and a concat copies only what it must.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>

#include <weft/weft.hpp>

#include "../../compare.hpp"
#include "../../gpu/device_memory.hpp"

using namespace weft;
using test::matches;
namespace oracle = test::oracle;

namespace {

/// Counts the concats executed during its lifetime, and the parts that they copy.
struct concats_seen final : runtime::step_observer {
  int count = 0;
  concats_seen() { runtime::detail::steps_go_to = this; }
  ~concats_seen() override { runtime::detail::steps_go_to = nullptr; }
  void begin_launch(std::span<const kernel_call* const>) override {}
  void begin_product(std::span<const strided>) override {}
  void begin_native(const char* op, const native_code&, const attributes&, std::span<const strided>,
                    std::span<const strided>) override {
    count += std::string(op) == "concat";
  }
  void end(backend*) override {}
};

bool same_bits(const oracle::array& a, const oracle::array& b) {
  return std::equal(a.f.begin(), a.f.end(), b.f.begin(), b.f.end(),
                    [](double x, double y) { return std::memcmp(&x, &y, sizeof x) == 0; });
}

template <element T, class Extents>
variable<T, Extents> as_variable(const tensor<T, Extents>& x) {
  return variable<T, Extents>(x);
}

/// Compares the loss of attention on parts of 2 x, where x is random with these extents, and the gradient of
/// each part, between one tensor and separate ones; `concats`: how many are executed for the former.
template <element T, class Extents, class Parts>
void check_parts(context& c, const Extents& extents, int concats, const Parts& parts_of) {
  variable<T, Extents> half(randn<T>(extents, {.seed = 3}, c.where()));
  const auto twice = [](const auto& x) { return x + x; };
  const auto parts = parts_of(eval(twice(half), c));
  const auto q = as_variable(eval(std::get<0>(parts), c)), k = as_variable(eval(std::get<1>(parts), c)),
             v = as_variable(eval(std::get<2>(parts), c));
  const auto loss = [](const auto& q, const auto& k, const auto& v) {
    return sum(sin(cast<float>(attention<causal>(q, k, v))));
  };
  const auto whole = let(twice(half), [&](auto x) {
    const auto parts = parts_of(x);
    return loss(std::get<0>(parts), std::get<1>(parts), std::get<2>(parts));
  });
  for (int round = 0; round < 2; ++round) {  // also in memory that has been used
    half.zero_grad();
    tape steps(c);
    const auto y = steps.eval(whole);
    const concats_seen seen;
    steps.backward(y);
    CHECK(seen.count == concats);
  }
  tape steps(c);
  steps.backward(steps.eval(loss(q, k, v)));
  const auto same = [&](const auto& part, const auto& x) {
    return same_bits(oracle::read(eval(part, c)), oracle::read(eval(twice(x.grad()), c)));
  };
  const auto gradients = parts_of(half.grad());
  CHECK(same(std::get<0>(gradients), q));
  CHECK(same(std::get<1>(gradients), k));
  CHECK(same(std::get<2>(gradients), v));
}

/// The same on the CPU and on an OpenCL device.
template <element T, class Extents, class Parts>
void check_on_devices(const Extents& extents, int concats, const Parts& parts_of) {
  context here;
  check_parts<T>(here, extents, concats, parts_of);
  if constexpr (!std::is_same_v<T, double>) {
    if (const device* const d = test::tested_device()) {
      context there(*d);
      check_parts<T>(there, extents, concats, parts_of);
    }
  }
}

using dynamic_3 = extents<dyn, dyn, dyn>;
using dynamic_5 = extents<dyn, dyn, dyn, dyn, dyn>;

constexpr auto heads_of = [](auto x) { return unflatten<-1>(std::move(x), 2); };

/// The thirds of the last dim, in this order.
template <int Queries, int Keys, int Values>
constexpr auto thirds = [](const auto& x) {
  return std::tuple{heads_of(chunk<-1, 3, Queries>(x)), heads_of(chunk<-1, 3, Keys>(x)),
                    heads_of(chunk<-1, 3, Values>(x))};
};

}  // namespace

TEST_CASE("thirds of features, in any order, of every element type") {
  check_on_devices<float>(dynamic_3{2, 5, 24}, 0, thirds<0, 1, 2>);
  check_on_devices<float>(dynamic_3{1, 67, 42}, 0, thirds<2, 0, 1>);
  check_on_devices<float>(dynamic_3{3, 1, 6}, 0, thirds<1, 2, 0>);
  check_on_devices<float>(extents<2, 5, 24>{}, 0, thirds<0, 1, 2>);
  check_on_devices<double>(dynamic_3{2, 7, 18}, 0, thirds<0, 1, 2>);
  check_on_devices<bfloat16>(dynamic_3{2, 7, 96}, 0, thirds<0, 1, 2>);
  check_on_devices<float16>(dynamic_3{2, 65, 30}, 0, thirds<0, 1, 2>);
}

TEST_CASE("fewer heads of keys than of queries, and features between them that nobody reads") {
  check_on_devices<float>(dynamic_3{2, 9, 40}, 0, [](const auto& x) {
    return std::tuple{unflatten<-1>(slice<-1, 0, 20>(x), 4), heads_of(slice<-1, 20, 30>(x)),
                      heads_of(slice<-1, 30, 40>(x))};
  });
  check_on_devices<float>(dynamic_3{2, 9, 31}, 0, [](const auto& x) {
    return std::tuple{heads_of(slice<-1, 0, 10>(x)), heads_of(slice<-1, 10, 20>(x)),
                      heads_of(slice<-1, 21, 31>(x))};
  });
}

TEST_CASE("parts of a dim of their own, first, between others, or last") {
  check_on_devices<float>(dynamic_5{3, 2, 6, 2, 5}, 0, [](const auto& x) {
    return std::tuple{select<0>(x, 0), select<0>(x, 1), select<0>(x, 2)};
  });
  check_on_devices<float>(dynamic_5{2, 6, 3, 2, 5}, 0, [](const auto& x) {
    return std::tuple{select<2>(x, 0), select<2>(x, 1), select<2>(x, 2)};
  });
  check_on_devices<float>(dynamic_5{2, 6, 2, 5, 3}, 0, [](const auto& x) {
    return std::tuple{select<4>(x, 0), select<4>(x, 1), select<4>(x, 2)};
  });
}

TEST_CASE("without elements") {
  check_on_devices<float>(dynamic_3{0, 5, 24}, 1, thirds<0, 1, 2>);
  check_on_devices<float>(dynamic_3{2, 0, 24}, 1, thirds<0, 1, 2>);
}

TEST_CASE("heads before positions are copied") {
  check_on_devices<float>(extents<2, 6, 24>{}, 1, [](const auto& x) {
    const auto heads = [](auto part) { return transpose<1, 2>(reshape<2, 2, 6, 4>(std::move(part))); };
    return std::tuple{heads(chunk<-1, 3, 0>(x)), heads(chunk<-1, 3, 1>(x)), heads(chunk<-1, 3, 2>(x))};
  });
}

namespace {
/// 3 x, by an op whose results have arbitrary strides.
struct tripled : op::rule<1> {
  static constexpr auto kind = op::op_kind::native;
  static constexpr auto name = "tripled";
  static void on_cpu(const native_call& call) {
    const strided &x = call.in[0], &y = call.out[0];
    for (index_t i = 0; i < x.extents[0]; ++i)
      for (index_t j = 0; j < x.extents[1]; ++j)
        y.data<float>()[i * y.stride[0] + j * y.stride[1]] =
            3 * x.data<const float>()[i * x.stride[0] + j * x.stride[1]];
  }
  static constexpr native_code code{.cpu = &on_cpu,
                                    .text = R"(
        long i = item / in0_extent(1), j = item % in0_extent(1);
        in0_t x = in0_load(i * in0_stride(0) + j * in0_stride(1));
        out0_store(i * out0_stride(0) + j * out0_stride(1), 3 * x);
      )",
                                    .any_result_strides = true};
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {operands[0].extents.order == 2, operands[0], operands[0].type == dtype::f32};
  }
};

void check_custom_op(context& c) {
  using matrix = extents<dyn, dyn>;
  const auto drawn = [&](const matrix& e, std::uint64_t seed) {
    return randn<float>(e, {.seed = seed}, c.where());
  };
  const auto x = drawn({5, 3}, 1), y = drawn({5, 4}, 2), z = drawn({5, 2}, 3);
  const auto thrice = [](const auto& e) { return apply<tripled>(e); };
  const auto value_of = [&](const auto& e, int concats) {
    const concats_seen seen;
    const auto value = eval(e, c);
    CHECK(seen.count == concats);
    return oracle::read(value);
  };
  const auto expected = [](const auto& e) { return oracle::value(e); };
  const auto t = [](const auto& e) { return e * 3.0f; };
  CHECK(same_bits(value_of(concat<1>(thrice(x), thrice(y)), 0), expected(concat<1>(t(x), t(y)))));
  CHECK(same_bits(value_of(concat<1>(thrice(x), z, thrice(y)), 1), expected(concat<1>(t(x), z, t(y)))));
  CHECK(same_bits(value_of(let(concat<1>(z, thrice(x)), [](auto v) { return v + exp(v) * 0.0f; }), 1),
                  expected(concat<1>(z, t(x)))));
  // Read twice, or in another order: copied.
  CHECK(same_bits(value_of(let(thrice(x), [](auto v) { return concat<1>(v, v); }), 1),
                  expected(concat<1>(t(x), t(x)))));
  CHECK(same_bits(value_of(let(thrice(x), [](auto v) { return concat<1>(v, exp(v * 0.0f)); }), 1),
                  expected(concat<1>(t(x), exp(x * 0.0f)))));
  CHECK(same_bits(value_of(concat<1>(transpose(thrice(x)), transpose(thrice(x + 1.0f))), 1),
                  expected(concat<1>(transpose(t(x)), transpose(t(x + 1.0f))))));
}
}  // namespace

TEST_CASE("results of an op of one's own") {
  context here;
  check_custom_op(here);
  if (const device* const d = test::tested_device()) {
    context there(*d);
    check_custom_op(there);
  }
}
