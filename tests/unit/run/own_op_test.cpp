// SPDX-License-Identifier: MIT
// Ops defined outside the library, each in one place: docs/adding_an_op.md.
#include <cmath>

#include <doctest/doctest.h>

#include <weft/gpu/open.hpp>
#include <weft/weft.hpp>

#include "../../skip.hpp"

namespace {

/// Defined by a formula, from which kernel, fusion and both derivatives follow.
struct squash : weft::op::elementwise<1> {
  static constexpr auto name = "squash";
  static constexpr auto value(auto x) { return x / (1 + abs(x)); }
};

/// The same with an explicit rule.
struct squash_by_rule : weft::op::elementwise<1> {
  static constexpr auto name = "squash_by_rule";
  static constexpr auto value(auto x) { return x / (1 + abs(x)); }
  static constexpr auto vjp(auto g, auto, auto x) { return g / square(1 + abs(x)); }
};

/// A formula that uses a function with an explicit rule, and another such op.
struct mish : weft::op::elementwise<1> {
  static constexpr auto name = "mish";
  static constexpr auto value(auto x) { return x * tanh(softplus(x)); }
  static constexpr auto vjp(auto g, auto, auto x) {
    auto t = tanh(softplus(x));
    return g * (t + x * sigmoid(x) * (1 - t * t));
  }
};
struct mish_of_squash : weft::op::elementwise<1> {
  static constexpr auto name = "mish_of_squash";
  static constexpr auto value(auto x) { return weft::apply<mish>(weft::apply<squash_by_rule>(x)); }
  static constexpr auto vjp(auto g, auto, auto x) {
    auto s = 1 + abs(x), u = x / s;
    auto t = tanh(softplus(u));
    return g * (t + u * sigmoid(u) * (1 - t * t)) / (s * s);
  }
};

/// Opaque: running sums from the beginning or to the end.
template <bool Backwards>
struct running_sum : weft::op::rule<1> {
  static constexpr auto kind = weft::op::op_kind::native;
  static constexpr auto name = Backwards ? "running_sum_from_right" : "running_sum";
  static void on_cpu(const weft::native_call& call) {
    const weft::strided& x = call.in[0];
    double sum = 0;
    for (weft::index_t n = 0; n < x.size(); ++n) {
      const weft::index_t i = Backwards ? x.size() - 1 - n : n;
      call.out[0].data<double>()[i] = sum += x.data<const double>()[i * x.stride[0]];
    }
  }
  static constexpr weft::native_code code{&on_cpu,
                                          Backwards ? R"(
      double sum = 0;
      for (long i = in0_size; i-- > 0;) {
        sum += in0_load(i * in0_stride(0));
        out0_store(i, sum);
      })"
                                                    : R"(
      double sum = 0;
      for (long i = 0; i < in0_size; ++i) {
        sum += in0_load(i * in0_stride(0));
        out0_store(i, sum);
      })",
                                          [](const weft::native_operands&) -> weft::index_t { return 1; }};
  template <class Dims>
  static constexpr weft::inferred infer(Dims&, const weft::attributes&, const weft::tensor_spec* operands) {
    return {true, operands[0]};
  }
  static constexpr auto vjp(auto g, auto, auto) { return weft::apply<running_sum<!Backwards>>(g); }
};

/// Opaque; its derivative is another opaque op, whose derivative is the first.
struct doubled_sum : weft::op::rule<1> {
  static constexpr auto kind = weft::op::op_kind::native;
  static constexpr auto name = "doubled_sum";
  static void on_cpu(const weft::native_call& call) {
    running_sum<false>::on_cpu(call);
    for (weft::index_t i = 0; i < call.out[0].size(); ++i) call.out[0].data<double>()[i] *= 2;
  }
  static constexpr weft::native_code code{&on_cpu};
  template <class Dims>
  static constexpr weft::inferred infer(Dims&, const weft::attributes&, const weft::tensor_spec* operands) {
    return {true, operands[0]};
  }
  static constexpr auto vjp(auto g, auto, auto) { return 2 * weft::apply<running_sum<true>>(g); }
};

/// Opaque; its attributes include a number of either sign and an extent.
struct noted : weft::op::rule<1> {
  static constexpr auto kind = weft::op::op_kind::native;
  static constexpr auto name = "noted";
  static constexpr unsigned extents = 0b10;
  static void on_cpu(const weft::native_call& call) {
    for (weft::index_t i = 0; i < call.out[0].size(); ++i)
      call.out[0].data<double>()[i] = static_cast<double>(call.at[0] * 100 + call.at[1]);
  }
  static constexpr weft::native_code code{&on_cpu};
  template <class Dims>
  static constexpr weft::inferred infer(Dims&, const weft::attributes&, const weft::tensor_spec* operands) {
    return {true, operands[0]};
  }
};
/// Defined by a formula, in which the extent is a symbol.
template <weft::index_t Number>
struct noted_rows : weft::op::composed<1> {
  static constexpr auto name = "noted_rows";
  template <class Dims>
  static constexpr weft::inferred infer(Dims&, const weft::attributes&, const weft::tensor_spec* operands) {
    return {true, operands[0]};
  }
  static constexpr auto value(auto x) {
    return x.owner->template apply<noted>(weft::attributes{{Number, x.extents()[0]}, 2}, x);
  }
};

/// Has code for no device.
struct nowhere : weft::op::rule<1> {
  static constexpr auto kind = weft::op::op_kind::native;
  static constexpr auto name = "nowhere";
  static constexpr weft::native_code code{};
  template <class Dims>
  static constexpr weft::inferred infer(Dims&, const weft::attributes&, const weft::tensor_spec* operands) {
    return {true, operands[0]};
  }
};

}  // namespace

using namespace weft;

TEST_CASE("an op by formula is fused and differentiated, once and twice") {
  variable<double, extents<5>> x(from(extents<5>{}, std::vector<double>{-2, -0.5, 0.25, 1, 3}));
  CHECK(eval(apply<squash>(x)).to_vector()[4] == 0.75);
  CHECK(gradcheck([&] { return sum(apply<squash>(x) * x); }, x));
  CHECK(gradcheck([&] { return sum(apply<squash_by_rule>(x) * x); }, x));
  CHECK(gradcheck([&] { return sum(grad([](auto v) { return sum(apply<squash>(v) * v); }, x) * x); }, x));
  using program = runtime::value_program<decltype(exp(apply<squash>(x) * 2.0) + 1.0)>;
  CHECK(program::plan.steps.size() == 1);
}

TEST_CASE("formulas with rules may be written in terms of others") {
  auto x = from(extents<5>{}, std::vector<double>{-2, -0.5, 0, 1, 30});
  const auto mish_at = [](double v) { return v * std::tanh(std::log1p(std::exp(v))); };
  const auto one = eval(apply<mish>(x)).to_vector(), two = eval(apply<mish_of_squash>(x)).to_vector();
  for (std::size_t i = 0; i < 5; ++i) {
    const double v = x.data()[i];
    CHECK(one[i] == doctest::Approx(mish_at(v)));
    CHECK(two[i] == doctest::Approx(mish_at(v / (1 + std::abs(v)))));
  }
  variable<double, extents<4>> z(from(extents<4>{}, std::vector<double>{-2, -0.5, 0.5, 2}));
  CHECK(gradcheck([&] { return sum(apply<mish>(z)); }, z));
  CHECK(gradcheck([&] { return sum(apply<mish_of_squash>(z) * z); }, z));
  auto half = eval(cast<bfloat16>(x));  // computed in f32 and rounded once
  CHECK(eval(apply<mish>(half) - cast<bfloat16>(apply<mish>(cast<float>(half)))).to_vector()[1] ==
        bfloat16(0.0f));
}

TEST_CASE("an opaque op has a loop of its own and a derivative") {
  variable<double, extents<5>> x(from(extents<5>{}, std::vector<double>{-2, -0.5, 0.25, 1, 3}));
  CHECK(eval(apply<running_sum<false>>(x)).to_vector() == std::vector<double>{-2, -2.5, -2.25, -1.25, 1.75});
  CHECK(gradcheck([&] { return sum(sin(apply<running_sum<false>>(x * 2.0)) * x); }, x));
}

TEST_CASE("an op's derivative is an op whose derivative is the first, and part of that of a third") {
  variable<double, extents<4>> x(from(extents<4>{}, std::vector<double>{1, 2, -3, 5}));
  CHECK(eval(apply<doubled_sum>(x)).to_vector() == std::vector<double>{2, 6, 0, 10});
  CHECK(gradcheck([&] { return sum(sin(apply<doubled_sum>(x))); }, x));
}

TEST_CASE("attributes are numbers of any sign, but for those that the op says are extents") {
  auto x = full<double>(extents<dyn>{3}, 1.0);
  CHECK(eval(apply<noted_rows<-1>>(x)).to_vector() == std::vector<double>{-97, -97, -97});
  CHECK(eval(apply<noted_rows<-2>>(x)).to_vector() == std::vector<double>{-197, -197, -197});
  CHECK(eval(apply<noted_rows<-50>>(x)).to_vector() == std::vector<double>{-4997, -4997, -4997});
}

TEST_CASE("an op without code for the device is refused by name") {
  auto x = full<float>(extents<3>{}, 1.0f);
  CHECK_THROWS_WITH_AS(eval(apply<nowhere>(x)), "weft: nowhere: this op has no code for the device cpu",
                       device_error);
}

#if WEFT_WITH_OPENCL
TEST_CASE("an opaque op runs on a device that it has a text for, and is refused by name where not") {
  std::unique_ptr<device> gpu;
  try {
    gpu = std::make_unique<device>(open_device("opencl"));
  } catch (const device_error& e) {
    test::skip("opencl", e.what());
    return;
  }
  context c(*gpu);
  variable<double, extents<5>> x(from(extents<5>{}, std::vector<double>{-2, -0.5, 0.25, 1, 3}, *gpu));
  tape steps(c);
  auto y = steps.eval(sum(apply<running_sum<false>>(x * 2.0) * x));
  steps.backward(y);
  variable<double, extents<5>> on_cpu(from(extents<5>{}, x.to_vector()));
  tape again;
  auto expected = again.eval(sum(apply<running_sum<false>>(on_cpu * 2.0) * on_cpu));
  again.backward(expected);
  CHECK(y.item() == doctest::Approx(expected.item()));
  CHECK(x.grad().to_vector() == on_cpu.grad().to_vector());
  auto z = full<float>(extents<3>{}, 1.0f, *gpu);
  CHECK_THROWS_WITH_AS(eval(apply<nowhere>(z), c), "weft: nowhere: this op has no code for the device opencl",
                       device_error);
}
#endif
