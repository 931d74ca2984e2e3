// SPDX-License-Identifier: MIT
// Every kind of program matches its definition on every device and on the reference back end.
// WEFT_TEST_DEVICE names the device; the default is opencl, and a machine without OpenCL skips it. Included
// with WEFT_TEST_KIND set to a device kind, this file is the contract for that kind (custom_device_test.cpp).
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <sstream>

#include <weft/gpu/open.hpp>
#include <weft/lower/reference.hpp>
#include <weft/nn/mixture_of_experts.hpp>
#include <weft/weft.hpp>

#include "../attention.hpp"
#include "../compare.hpp"
#include "../skip.hpp"

using namespace weft;
using test::matches;
namespace oracle = test::oracle;

namespace {

/// Null if the machine has no such device.
const device* tested_device() {
#ifdef WEFT_TEST_KIND
  static const device own(WEFT_TEST_KIND::open(0, {}));
  return &own;
#else
  static const device* found = []() -> const device* {
    const char* name = std::getenv("WEFT_TEST_DEVICE");
    try {
      return new device(open_device(name ? name : "opencl"));
    } catch (const device_error& e) {
      if (name) throw;
      test::skip("opencl", e.what());
      return nullptr;
    }
  }();
  return found;
#endif
}

const device& reference() {
  static const device r(std::make_shared<lower::reference_backend>());
  return r;
}

#if WEFT_WITH_CUDA && !defined(WEFT_TEST_KIND)
/// The architectures that kernels are compiled for: WEFT_TEST_ARCHITECTURES, by default sm_90.
std::vector<std::string> architectures() {
  const char* const given = std::getenv("WEFT_TEST_ARCHITECTURES");
  std::istringstream names(given ? given : "sm_90");
  return {std::istream_iterator<std::string>(names), {}};
}

/// Compiles every kernel to machine code and runs none: checks the text as far as possible without a GPU.
class compile_only : public gpu::jit_backend {
 public:
  const char* name() const override { return "NVRTC"; }
  void* allocate(std::size_t bytes) override { return std::calloc(1, bytes); }
  void deallocate(void* memory, std::size_t) noexcept override { std::free(memory); }
  void download(void* to, const void*, std::size_t bytes) override {
    if (bytes > 0) std::memset(to, 0, bytes);
  }
  void fill_zero(void*, std::size_t) override {}
  std::atomic<int> compiled = 0;

 protected:
  const char* dialect() const override { return gpu::cuda_dialect; }
  bool reads_pointers() const override { return true; }
  gpu::group_limits limits() const override { return {.tensor_core_memory = 99 << 10}; }
  std::shared_ptr<gpu::compiled_kernel> compile(const std::string& text) override {
    ++compiled;
    const int least = text.find("mma.sync") == text.npos ? 0 : 10 * gpu::tensor_core_capability;
    for (const std::string& architecture : architectures_) {
      if (std::stoi(architecture.substr(3)) < least) continue;
      CAPTURE(architecture);
      CHECK(compiler_.compile(text, architecture).size() > 500);
    }
    return std::make_shared<gpu::compiled_kernel>();
  }
  void run(gpu::compiled_kernel&, const std::vector<void*>&, gpu::parameters&, index_t) override {}
  void wait() override {}
  void read(void* to, const void*, std::size_t bytes) override { std::memset(to, 0, bytes); }
  void write(void*, const void*, std::size_t) override {}

 private:
  gpu::nvrtc_compiler compiler_;
  std::vector<std::string> architectures_ = architectures();
};

/// Null without NVRTC.
const device* compiling_device() {
  static const device* found = []() -> const device* {
    try {
      return new device(std::make_shared<compile_only>());
    } catch (const device_error& e) {
      test::skip("nvrtc", e.what());
      return nullptr;
    }
  }();
  return found;
}
#endif

using values = std::vector<oracle::array>;

/// One expected result: elements, and their accuracy.
struct expectation {
  oracle::array value;
  std::vector<double> slack{};
  expectation(oracle::array v) : value(std::move(v)) {}
  expectation(const oracle::derivative& d) : value(d.value), slack(d.error.f) { REQUIRE(converged(d)); }
};

/// Calls f(context, device) on the CPU, on the reference back end and on the tested device, if there is one.
template <class... Choices, class F>
void check_everywhere(F f, const std::vector<expectation>& expected, double tolerance = 2e-6) {
  const auto on = [&](const device& d) {
    context_in<Choices...> c(d);
    c.seed = 3;
    return f(c, d);
  };
  const auto check = [&](const device& d, double of_largest) {
    CAPTURE(std::string(d->name()));
    const values seen = on(d);
    REQUIRE(seen.size() == expected.size());
    for (std::size_t i = 0; i < seen.size(); ++i) {
      CAPTURE(i);
      CHECK(matches(
          seen[i], expected[i].value,
          {.absolute = 1e-12, .of_largest = of_largest, .slack = expected[i].slack, .times_slack = 10}));
    }
  };
  check(default_device(), tolerance);
  check(reference(), tolerance);
  if (const device* d = tested_device()) check(*d, 4 * tolerance);
#if WEFT_WITH_CUDA && !defined(WEFT_TEST_KIND)
  if (const device* d = compiling_device()) on(*d);
#endif
}

/// The elements of x [6, 10] and w [10, 7] on a device.
auto left_on(const device& d) {
  return variable<float, extents<dyn, 10>>(randn<float>(extents<dyn, 10>{6, 10}, {.seed = 1}, d));
}
auto right_on(const device& d) {
  return variable<float, extents<10, 7>>(randn<float>(extents<10, 7>{}, {.seed = 2}, d));
}

/// The gradient that a tape has accumulated, or zeros.
template <class V>
oracle::array gradient_of(const V& x) {
  return x.grad().defined() ? oracle::read(x.grad())
                            : oracle::zeros(dtype_of<typename V::value_type>, x.extents());
}

/// Checks that the value of f(x, w), and the gradients of x and w of a weighted sum of its elements, equal
/// those of definition(x, w).
template <class... Choices, class F, class G>
void check_with_gradients(F f, G definition, double of_value, double of_gradients) {
  const auto x = left_on(default_device());
  const auto w = right_on(default_device());
  const auto e = definition(x, w);
  const auto value = oracle::value(e);
  const auto weights = oracle::read(randn<float>(extents<dyn>{value.size()}, {.seed = 4}));
  const auto run = [&](context_in<Choices...>& c, const device& d) {
    const auto x = left_on(d);
    const auto w = right_on(d);
    tape steps(c);
    auto y = steps.eval(f(x, w));
    auto seed = decltype(y.grad())(y.extents(), d);
    seed.copy_from(std::vector<float>(weights.f.begin(), weights.f.end()));
    steps.backward(y, seed);
    return std::pair(oracle::read(y), values{gradient_of(x), gradient_of(w)});
  };
  check_everywhere<Choices...>([&](auto& c, const device& d) { return values{run(c, d).first}; }, {value},
                               of_value);
  check_everywhere<Choices...>([&](auto& c, const device& d) { return run(c, d).second; },
                               {oracle::gradient(e, x, weights), oracle::gradient(e, w, weights)},
                               of_gradients);
}
template <class F>
void check_with_gradients(F f, double tolerance = 2e-6) {
  check_with_gradients<>(f, f, tolerance, tolerance);
}

/// Operands of an element-wise op, from its domain, including a zero and a tie.
template <class Op>
float sample(index_t i, int k) {
  double low = -2, high = 2;
  if constexpr (requires { Op::domain; }) {
    low = Op::domain.low;
    high = Op::domain.high;
  }
  if (i == 3 && low < 0) return 0;
  if (i == 5) return static_cast<float>((low + high) / 2 + 0.25);
  return static_cast<float>(low + (high - low) * unit_interval(philox_word({7, static_cast<std::uint32_t>(k)},
                                                                           static_cast<std::uint64_t>(i))));
}

template <class Op, int K>
auto operand_of(const device& d) {
  constexpr bool logic = std::is_base_of_v<op::logical<1>, Op> || std::is_base_of_v<op::logical<2>, Op>;
  if constexpr (logic || (std::is_same_v<Op, op::where> && K == 0))
    return generate<bool>(extents<dyn>{133}, [](index_t i) { return i % (K + 2) == 0; }, d);
  else return generate<float>(extents<dyn>{133}, [](index_t i) { return sample<Op>(i, K); }, d);
}

template <class Op, int... K>
void check_elementwise(std::integer_sequence<int, K...>) {
  INFO("op ", std::string(Op::name));
  check_everywhere(
      [](context& c, const device& d) {
        return values{oracle::read(eval(apply<Op>(operand_of<Op, K>(d)...), c))};
      },
      {oracle::value(apply<Op>(operand_of<Op, K>(default_device())...))}, 1e-6);
}

/// Checks every op that is an instruction or an element-wise formula, except random ops.
template <class Op>
void check_op() {
  constexpr bool random = std::is_same_v<Op, op::dropout> || std::is_same_v<Op, op::bernoulli>;
  if constexpr (Op::arity > 0 && !random && !std::is_same_v<Op, op::cast> &&
                !std::is_same_v<Op, op::contiguous> &&
                (Op::kind == op::op_kind::elementwise || std::is_base_of_v<op::elementwise<Op::arity>, Op>))
    check_elementwise<Op>(std::make_integer_sequence<int, Op::arity>{});
}
template <class... Ops>
void check_ops(op::op_list<Ops...>) {
  (check_op<Ops>(), ...);
}

/// The message of the error with which `f` is refused.
template <class F>
std::string refusal_of(F f) {
  try {
    f();
  } catch (const value_error& refused) {
    return refused.what();
  }
  return "nothing was refused";
}
/// Checks that `f` is refused for an index, with the name of `op`. Code compiled for this CPU names the
/// index.
template <class F>
void check_index_is_refused(const std::string& op, F f) {
  const std::string said = refusal_of(f), begin = "weft: " + op + ": ";
  CAPTURE(said);
  const bool with_position =
      said.starts_with(begin + "index ") && said.find(" is outside of [0, ") != said.npos;
  CHECK((with_position || said == begin + "an index is out of range"));
}

}  // namespace

TEST_CASE("every element-wise op is what its definition says, on every device") {
  check_ops(op::all::list{});
}

TEST_CASE("rows, columns and products, with their gradients") {
  check_with_gradients([](auto x, auto w) { return softmax(matmul(x, w)); });
  check_with_gradients([](auto x, auto w) { return einsum<"ij,jk->kij">(x, w); });
  check_with_gradients([](auto x, auto w) { return einsum<"ij,jk->ki">(x, w); });
  check_with_gradients([](auto x, auto w) { return gelu(matmul(exp(x * 0.1f), w) + 1.0f); });
  check_with_gradients([](auto x, auto w) {
    return layer_norm(matmul(x, w), slice<0, 0, 7>(sum(x, dims<0>)), sum(w, dims<0>));
  });
  check_with_gradients([](auto x, auto w) { return rms_norm(matmul(x, w), sum(w, dims<0>)); });
  check_with_gradients([](auto x, auto w) {
    return group_norm<1>(matmul(x, w), sum(w, dims<0>), sum(w, dims<0>));
  });
  check_with_gradients([](auto x, auto w) { return apply<op::channel_moments>(matmul(x, w)); });
  check_with_gradients([](auto x, auto w) {
    return apply<op::batch_norm, attr<number_bits(1e-5)[0]>>(
        unflatten<0, 2>(x), exp(slice<1, 0, 3>(slice<0, 0, 2>(w))), slice<0, 0, 3>(sum(w, dims<0>)),
        slice<0, 4, 7>(sum(w, dims<0>)));
  });
  check_with_gradients([](auto x, auto w) {
    return rotary(unsqueeze<0>(unsqueeze<1>(matmul(x, concat<1>(w, w)))), 2);
  });
  check_with_gradients([](auto x, auto w) { return sum(matmul(x, w), dims<0>); });
  check_with_gradients(
      [](auto x, auto w) { return amax(matmul(x, w), dims<0>) - amin(matmul(x, w), dims<0>); });
  check_with_gradients([](auto x, auto w) { return logsumexp(matmul(x, w), dims<-1>); });
  check_with_gradients([](auto x, auto w) { return matmul(transpose(w), transpose(x)); });
}

TEST_CASE("columns of many rows are folded in blocks, whatever is beside them") {
  const auto long_on = [](const device& d) {
    return randn<float>(extents<dyn, dyn>{1003, 5}, {.seed = 6}, d);
  };
  const auto deep_on = [](const device& d) {
    return randn<float>(extents<dyn, dyn, dyn>{3, 130, 7}, {.seed = 7}, d);
  };
  const auto all = [](const auto& x, const auto& y, auto f) {
    return values{f(sum(x, dims<0>)),
                  f(amax(x, dims<0>)),
                  f(sum(x * x + 1.0f, dims<0>)),
                  f(sum(y, dims<1>)),
                  f(amin(exp(y), dims<1>)),
                  f(sum(y, dims<0, 1>)),
                  f(sum(cast<double>(y), dims<1>)),
                  f(sum(cast<std::int32_t>(x * 100.0f), dims<0>))};
  };
  std::vector<expectation> expected;
  for (const auto& v : all(long_on(default_device()), deep_on(default_device()),
                           [](const auto& e) { return oracle::value(e); }))
    expected.push_back(v);
  check_everywhere(
      [&](context& c, const device& d) {
        return all(long_on(d), deep_on(d), [&](const auto& e) { return oracle::read(eval(e, c)); });
      },
      expected);
}

TEST_CASE("columns are reduced in the kernel that reduces rows of the same elements") {
  using matrix = extents<dyn, dyn>;
  using row = extents<dyn>;
  for (const auto& [rows, columns] : {std::pair<index_t, index_t>{1003, 5},
                                      {37, 260},
                                      {9, 1},
                                      {0, 8},
                                      {7, 0},
                                      {1, 700},
                                      {130, 64},
                                      {8300, 12},
                                      {9, 1600},
                                      {70, 2100},
                                      {11, 8193}}) {
    CAPTURE(rows);
    CAPTURE(columns);
    const auto leaves = [&](const device& d) {
      return std::tuple(variable<float, matrix>(randn<float>(matrix{rows, columns}, {.seed = 6}, d)),
                        variable<float, row>(randn<float>(row{columns}, {.seed = 7}, d)),
                        variable<float, row>(randn<float>(row{columns}, {.seed = 8}, d)),
                        tensor<float, matrix>(randn<float>(matrix{rows, columns}, {.seed = 9}, d)));
    };
    const auto [x, w, b, g] = leaves(default_device());
    // A norm: the gradients of weight and bias are sums of values that the operand's gradient reads and
    // computes.
    const auto centred = x - mean(x, dims<1>, keepdim);
    const auto scale = rsqrt(mean(centred * centred, dims<1>, keepdim) + 1e-5f);
    const auto normal = centred * scale;
    const auto back = [&](auto h) {
      return scale * (h - mean(h, dims<1>, keepdim) - normal * mean(h * normal, dims<1>, keepdim));
    };
    check_everywhere(
        [&](context& c, const device& d) {
          const auto [x, w, b, g] = leaves(d);
          tape steps(c);
          steps.backward(steps.eval(layer_norm(x, w, b)), g);
          return values{gradient_of(x), gradient_of(w), gradient_of(b)};
        },
        {oracle::value(back(g * w)), oracle::value(sum(g * normal, dims<0>)), oracle::value(sum(g, dims<0>))},
        1e-5);
    // A bias before a softmax: its gradient is the sum of the operand's gradient.
    const auto soft = softmax(x + b);
    const auto of_soft = soft * (g - sum(g * soft, dims<1>, keepdim));
    check_everywhere(
        [&](context& c, const device& d) {
          const auto [x, w, b, g] = leaves(d);
          tape steps(c);
          steps.backward(steps.eval(softmax(x + b)), g);
          return values{gradient_of(x), gradient_of(b)};
        },
        {oracle::value(of_soft), oracle::value(sum(of_soft, dims<0>))}, 1e-5);
  }
}

TEST_CASE("rows of groups of 256 items and of more, in registers and not") {
  for (const index_t n : {2049, 8192, 9004}) {
    CAPTURE(n);
    const auto all = [n](const device& d, auto f) {
      const auto x = randn<float>(extents<dyn, dyn>{3, n}, {.seed = 6}, d);
      const auto label = generate<std::int32_t>(extents<dyn>{3}, [n](index_t i) { return i * i % n; }, d);
      return values{f(softmax(x)), f(softmax(cast<float>(cast<bfloat16>(x)))), f(amax(x, dims<1>)),
                    f(sum(x * x, dims<1>)), f(cross_entropy<reduction_kind::none>(x, label))};
    };
    std::vector<expectation> expected;
    for (const auto& v : all(default_device(), [](const auto& e) { return oracle::value(e); }))
      expected.push_back(v);
    check_everywhere(
        [&](context& c, const device& d) {
          return all(d, [&](const auto& e) { return oracle::read(eval(e, c)); });
        },
        expected, 1e-5);
  }
}

TEST_CASE("products in bf16 and f16 round operands and results, with their gradients") {
  const auto net = [](auto x, auto w) { return matmul(gelu(matmul(x, w)), transpose(w)) + x; };
  const auto rounded = [](auto type, auto x, auto w) {
    using T = decltype(type);
    const auto narrow = cast<T>(w);
    return cast<float>(matmul(cast<T>(gelu(cast<float>(matmul(cast<T>(x), narrow)))), transpose(narrow))) + x;
  };
  const auto in = [&](auto type) { return [&rounded, type](auto x, auto w) { return rounded(type, x, w); }; };
  check_with_gradients<precision::bf16>(net, in(bfloat16{}), 0x1p-7,
                                        0x1p-5);  // sums in another order may round differently;
  check_with_gradients<precision::f16>(net, in(float16{}), 0x1p-10,
                                       0x1p-8);  // expected gradients are not rounded
  const auto product = [](auto x, auto w) { return matmul(x, w); };
  check_with_gradients<precision::bf16>(
      product, [](auto x, auto w) { return cast<float>(matmul(cast<bfloat16>(x), cast<bfloat16>(w))); },
      0x1p-8, 0x1p-6);
}

TEST_CASE("movement, with its gradients") {
  check_with_gradients([](auto x, auto w) { return concat<1>(x, matmul(x, w)) * 2.0f; });
  check_with_gradients([](auto x, auto) { return slice<1, 1, 9, 2>(flip<0>(x)) + 0.0f; });
  check_with_gradients([](auto x, auto) { return pad<1, 2, 1>(x) * 3.0f; });
  check_with_gradients([](auto x, auto) {
    return permute<1, 2, 0>(reshape(x, extents<dyn, 2, 5>{6, 2, 5})) * 1.5f;
  });
}

TEST_CASE("look-ups and losses, with their gradients") {
  check_with_gradients([](auto x, auto w) {
    const device& d = w.state()->where;
    const auto index = generate<std::int32_t>(extents<dyn>{8}, [](index_t i) { return i * i % 6; }, d);
    return embedding(x, index);
  });
  check_with_gradients([](auto x, auto w) {  // enough indices to be sorted on a GPU
    const device& d = w.state()->where;
    const auto index = generate<std::int32_t>(
        extents<dyn, 35>{2, 35}, [](index_t i) { return i * i % 5; }, d);
    return embedding(x, index);
  });
  check_with_gradients([](auto x, auto w) {
    const device& d = w.state()->where;
    const auto labels = generate<std::int64_t>(extents<dyn>{6}, [](index_t i) { return i % 7; }, d);
    return cross_entropy(matmul(x, w), labels);
  });
  check_with_gradients([](auto x, auto w) {
    const device& d = w.state()->where;
    const auto labels = generate<std::int64_t>(extents<dyn>{6}, [](index_t i) { return i * i % 10; }, d);
    return linear_cross_entropy(matmul(x, w), w, labels, 10 * 2);  // three slices, and all rows at once
  });
  check_with_gradients([](auto x, auto w) {
    const device& d = w.state()->where;
    const auto index = generate<std::int64_t>(extents<dyn, 3>{6, 3}, [](index_t i) { return i * 7 % 10; }, d);
    return gather<1>(x, index);
  });
  const auto numbers = [](const device& d) { return randn<float>(extents<4, 9>{}, {.seed = 5}, d); };
  const auto here = numbers(default_device());
  check_everywhere(
      [&](context& c, const device& d) {
        return values{oracle::read(eval(argmax<1>(numbers(d)), c)),
                      oracle::read(eval(argmin<0>(numbers(d)), c))};
      },
      {oracle::value(argmax<1>(here)), oracle::value(argmin<0>(here))});
}

TEST_CASE("windows, convolutions and pooling, with their gradients, and of every type") {
  const auto image = [](auto x) { return reshape<2, 2, 5, dyn>(concat<0>(x, x * 0.5f)); };
  check_with_gradients([&](auto x, auto y) {
    constexpr conv_options o{.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}};
    return conv2d<o>(image(x), reshape<2, 2, 3, 2>(slice<0, 0, 24>(flatten<0, 1>(y))));
  });
  check_with_gradients([&](auto x, auto y) {  // a matrix for each channel
    constexpr conv_options o{.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}, .groups = 2};
    return conv2d<o>(image(x), reshape<2, 1, 3, 2>(slice<0, 0, 12>(flatten<0, 1>(y))));
  });
  check_with_gradients([&](auto x, auto y) {
    constexpr conv_transpose_options o{.stride = {2, 1}, .padding = {1, 0}, .output_padding = {1, 0}};
    return conv_transpose2d<o>(image(x), reshape<2, 2, 3, 2>(slice<0, 0, 24>(flatten<0, 1>(y))));
  });
  check_with_gradients([&](auto x, auto) {
    return upsample_nearest<height_width{3, 2}>(image(x)) * upsample_bilinear<height_width{3, 2}>(image(x));
  });
  check_with_gradients([&](auto x, auto) {
    return max_pool2d<height_width{3, 2}, pool_options{.stride = {1, 2}, .padding = {1, 0}}>(image(x)) +
           avg_pool2d<height_width{3, 2}, pool_options{.stride = {1, 2}, .padding = {1, 0}}>(image(x));
  });
  const auto of_type = [&]<class T>(T) {
    const auto numbers = [](const device& d) {
      return generate<T>(
          extents<2, 5, 7>{},
          [](index_t i) {
            if (is_floating(dtype_of<T>) && i % 23 == 7) return static_cast<T>(std::nanf(""));
            return static_cast<T>(static_cast<float>(i * 7 % 5) - (std::is_signed_v<T> ? 2.f : 0.f));
          },
          d);
    };
    const auto all = [](const auto& x, auto f) {
      constexpr pool_options o{.stride = 2, .padding = 1}, to_end{.stride = {3, 2}, .ceil_mode = true};
      constexpr pool_options without_padding{.stride = 3, .padding = 1, .count_include_pad = false};
      return values{f(max_pool2d<3, o>(x)),
                    f(avg_pool2d<3, o>(x)),
                    f(max_pool2d<2, to_end>(x)),
                    f(avg_pool2d<2, to_end>(x)),
                    f(avg_pool2d<3, without_padding>(x)),
                    f(windows<2, 2>(x))};
    };
    std::vector<expectation> expected;
    for (const auto& v : all(numbers(default_device()), [](const auto& e) { return oracle::value(e); }))
      expected.push_back(v);
    check_everywhere(
        [&](context& c, const device& d) {
          return all(numbers(d), [&](const auto& e) { return oracle::read(eval(e, c)); });
        },
        expected);
  };
  of_type(float{});
  of_type(double{});
  of_type(bfloat16{});
  of_type(float16{});
  of_type(std::int32_t{});
  of_type(std::uint8_t{});
}

TEST_CASE("sorting and running sums, of every type, with their gradients") {
  check_with_gradients([](auto x, auto) { return sort<0, descending>(x) * cumsum<1>(x); });
  check_with_gradients([](auto x, auto) { return topk<1, 3>(x).values; });
  check_with_gradients([](auto x, auto) { return cumprod<1>(x); });
  check_with_gradients([](auto x, auto) {
    return apply<op::linear_recurrence, attr<0, 0>>(transpose(x), transpose(x * 0.5f));
  });
  const auto long_lines = [](const device& d) {
    return generate<float>(
        extents<2, 1500>{}, [](index_t i) { return static_cast<float>(i * 7919 % 211); }, d);
  };
  check_everywhere(
      [&](context& c, const device& d) {
        return values{oracle::read(eval(topk<1>(long_lines(d), 1000).indices, c))};
      },
      {oracle::value(topk<1>(long_lines(default_device()), 1000).indices)});
  const auto of_type = [&]<class T>(T) {
    const auto numbers = [](const device& d) {
      return generate<T>(
          extents<4, 9>{},
          [](index_t i) {
            if (is_floating(dtype_of<T>) && i % 11 == 7) return static_cast<T>(std::nanf(""));
            return static_cast<T>(static_cast<float>(i * 7 % 5) - (std::is_signed_v<T> ? 2.f : 0.f));
          },
          d);
    };
    const auto here = numbers(default_device());
    const auto all = [](const auto& x, auto f) {
      return values{f(sort<1>(x)),
                    f(argsort<0>(x)),
                    f(argsort<1, descending>(transpose(x))),
                    f(topk<1, smallest>(x, 3).indices),
                    f(topk<0, 2>(x).values),
                    f(cumsum<0>(x)),
                    f(cumprod<0>(x)),
                    f(cumprod<1>(transpose(x)))};
    };
    std::vector<expectation> expected;
    for (const auto& v : all(here, [](const auto& e) { return oracle::value(e); })) expected.push_back(v);
    check_everywhere(
        [&](context& c, const device& d) {
          return all(numbers(d), [&](const auto& e) { return oracle::read(eval(e, c)); });
        },
        expected);
  };
  of_type(float{});
  of_type(double{});
  of_type(bfloat16{});
  of_type(float16{});
  of_type(std::int64_t{});
  of_type(std::int32_t{});
  of_type(std::uint8_t{});
  of_type(bool{});
}

TEST_CASE("a mixture of experts: what the CPU computes") {
  const auto trained = [](context& c, const device& d) {
    auto model = mixture_of_experts<10>::create(
        10, 3, {.per_row = 2, .capacity_factor = 1}, [&] { return feed_forward<10>::create(10, 7, d); }, d);
    initialize(model, 2);
    const auto x = left_on(d);
    tape steps(c);
    const auto y = steps.eval(model(x));
    const auto loss = steps.eval(mean(square(y)) + model.balance_loss(x));
    steps.backward(loss);
    values all{oracle::read(y), gradient_of(x), gradient_of(model.router.weight)};
    for (const auto& e : model.experts) all.push_back(gradient_of(e.in.weight));
    return all;
  };
  context here;
  std::vector<expectation> expected;
  for (const auto& v : trained(here, default_device())) expected.push_back(v);
  check_everywhere(trained, expected);
}

TEST_CASE("dropout: zeros or scaled elements, the same ones on every device") {
  const auto drop = [](context& c, const device& d) {
    c.seed = 3;
    return oracle::read(eval(dropout(full<float>(extents<4, 90>{}, 1.5f, d), 0.25f), c));
  };
  context c;
  const oracle::array seen = drop(c, default_device());
  const auto zeros = std::count(seen.f.begin(), seen.f.end(), 0.0),
             scaled = std::count(seen.f.begin(), seen.f.end(), 2.0);
  CHECK(zeros + scaled == 360);
  CHECK(zeros > 50);
  CHECK(zeros < 130);
  check_everywhere([&](context& on, const device& d) { return values{drop(on, d)}; }, {seen}, 0);
}

TEST_CASE("what makes a gradient adds it to one that is there") {
  const auto table = [](const device& d) {
    return variable<float, extents<6, 10>>(randn<float>(extents<6, 10>{}, {.seed = 1}, d));
  };
  const auto rows = [](const device& d) { return randn<float>(extents<7, 6>{}, {.seed = 2}, d); };
  const auto index = [](const device& d) {
    return generate<std::int32_t>(
        extents<dyn>{8}, [](index_t i) { return i * i % 6; }, d);
  };
  const auto columns = [](const device& d) {
    return generate<std::int64_t>(
        extents<6, 3>{}, [](index_t i) { return i * 7 % 10; }, d);
  };
  const auto each = [&](const device& d, const auto& w, auto f) {
    f(mean(tanh(matmul(rows(d), w))));
    f(mean(tanh(embedding(w, index(d)))));
    f(mean(tanh(gather<1>(w, columns(d)))));
  };
  std::vector<expectation> expected;
  const auto here = table(default_device());
  oracle::array total = oracle::zeros(dtype::f32, here.extents());
  for (int round = 0; round < 2; ++round)
    each(default_device(), here, [&](auto y) {
      const auto g = oracle::gradient(y, here);
      REQUIRE(converged(g));
      for (std::size_t i = 0; i < total.f.size(); ++i) total.f[i] += g.value.f[i];
      expected.push_back(total);
    });
  check_everywhere(
      [&](context& c, const device& d) {
        const auto w = table(d);
        values seen;
        for (int round = 0; round < 2; ++round)
          each(d, w, [&](auto y) {
            tape steps(c);
            steps.backward(steps.eval(y));
            seen.push_back(oracle::read(w.grad()));
          });
        return seen;
      },
      expected);
}

TEST_CASE("attention, with its gradients, within one block of positions and beyond") {
  const auto check = [](auto causal_or_not, index_t batch, std::array<index_t, 2> positions,
                        std::array<index_t, 2> heads, index_t features, index_t first) {
    constexpr bool hides = decltype(causal_or_not)::value;
    using qkv = variable<float, extents<dyn, dyn, dyn, dyn>>;
    const auto drawn = [=](std::uint64_t seed, const device& d) {
      const std::size_t of = seed == 1 ? 0 : 1;  // queries, or keys and values
      return qkv(randn<float>(extents<dyn, dyn, dyn, dyn>{batch, positions[of], heads[of], features},
                              {.seed = seed}, d));
    };
    const auto attended = [=](const qkv& q, const qkv& k, const qkv& v) {
      if constexpr (hides) return attention<causal>(q, k, v, first);
      else return attention<false>(q, k, v);
    };
    const auto loss = [=](const qkv& q, const qkv& k, const qkv& v) { return sum(sin(attended(q, k, v))); };
    const device& here = default_device();
    const qkv q = drawn(1, here), k = drawn(2, here), v = drawn(3, here);
    const auto e = loss(q, k, v);
    const auto run = [&](context& c, const device& d) {
      const qkv q = drawn(1, d), k = drawn(2, d), v = drawn(3, d);
      tape steps(c);
      steps.backward(steps.eval(loss(q, k, v)));
      return values{gradient_of(q), gradient_of(k), gradient_of(v)};
    };
    check_everywhere(
        [&](context& c, const device& d) {
          return values{oracle::read(eval(attended(drawn(1, d), drawn(2, d), drawn(3, d)), c))};
        },
        {oracle::value(attended(q, k, v))}, 2e-5);
    check_everywhere(run, {oracle::gradient(e, q), oracle::gradient(e, k), oracle::gradient(e, v)}, 2e-5);
  };
  const auto both = [&](index_t batch, std::array<index_t, 2> positions, std::array<index_t, 2> heads,
                        index_t features, index_t first) {
    check(std::true_type{}, batch, positions, heads, features, first);
    check(std::false_type{}, batch, positions, heads, features, first);
  };
  both(2, {5, 5}, {3, 3}, 4, 0);
  both(1, {70, 70}, {1, 1}, 2, 0);
  both(2, {3, 7}, {4, 2}, 3, 4);
  both(1, {7, 3}, {3, 1}, 2, 0);
}

TEST_CASE("attention over several tiles of a device, of operands whose heads come first in memory") {
  const auto check = []<class T>(T, auto causal_or_not, std::array<index_t, 2> positions,
                                 std::array<index_t, 2> heads, index_t features, index_t first) {
    constexpr bool hides = decltype(causal_or_not)::value;
    constexpr double tolerance = std::is_same_v<T, float> ? 2e-6 : 1e-2;
    using four = extents<dyn, dyn, dyn, dyn>;
    const auto drawn = [=](std::uint64_t seed, const device& d) {
      const std::size_t of = seed % 3 == 1 ? 0 : 1;  // queries and their cotangents, or keys and values
      return variable<T, four>(randn<T>(four{2, heads[of], positions[of], features}, {.seed = seed}, d));
    };
    const auto attended = [=](const auto& q, const auto& k, const auto& v) {
      const auto at = [](const auto& x) { return transpose<1, 2>(x); };
      if constexpr (hides) return attention<causal>(at(q), at(k), at(v), first);
      else return attention<false>(at(q), at(k), at(v));
    };
    const auto read = [](const auto& x) { return oracle::read(eval(transpose<1, 2>(x))); };
    const device& here = default_device();
    const auto q = drawn(1, here), k = drawn(2, here), v = drawn(3, here), g = drawn(4, here);
    const auto expected = test::cotangents(hides, first, {read(q), read(k), read(v)}, read(g));
    const auto result = oracle::value(attended(q, k, v));
    CAPTURE(features);
    CAPTURE(hides);
    check_everywhere(
        [&](context& c, const device& d) {
          const auto q = drawn(1, d), k = drawn(2, d), v = drawn(3, d), g = drawn(4, d);
          tape steps(c);
          auto y = steps.eval(attended(q, k, v));
          steps.backward(y, eval(transpose<1, 2>(g), c));
          const auto gradient = [&](const auto& x) {
            return oracle::read(eval(transpose<1, 2>(x.grad()), c));
          };
          return values{oracle::read(y), gradient(q), gradient(k), gradient(v)};
        },
        {result, expected[0], expected[1], expected[2]}, tolerance);
  };
  const auto both = [&](std::array<index_t, 2> positions, std::array<index_t, 2> heads, index_t features,
                        index_t first) {
    check(0.0f, std::true_type{}, positions, heads, features, first);
    check(0.0f, std::false_type{}, positions, heads, features, first);
  };
  both({129, 129}, {2, 2}, 64, 0);
  both({60, 131}, {4, 2}, 33, 71);
  both({67, 20}, {2, 1}, 128, 0);
  both({1, 97}, {1, 1}, 100, 96);
  both({33, 17}, {1, 1}, 257, 0);  // more features than tiles hold
  check(bfloat16{}, std::true_type{}, {97, 97}, {2, 1}, 64, 0);
  check(bfloat16{}, std::false_type{}, {9, 4}, {3, 3}, 1, 0);
  check(bfloat16{}, std::true_type{}, {20, 70}, {4, 2}, 128, 30);
  check(bfloat16{}, std::false_type{}, {33, 66}, {1, 1}, 60, 0);
  check(float16{}, std::true_type{}, {40, 70}, {2, 2}, 20, 30);
  check(float16{}, std::true_type{}, {66, 66}, {2, 1}, 80, 0);
  check(float16{}, std::false_type{}, {5, 65}, {1, 1}, 16, 0);
}

/// Sums of rows, each computed by threads of a group with shared memory.
struct row_totals : op::rule<1> {
  static constexpr auto kind = op::op_kind::native;
  static constexpr auto name = "row_totals";
  static void on_cpu(const native_call& call) {
    const strided& x = call.in[0];
    for (index_t r = 0; r < x.extents[0]; ++r) {
      float& total = call.out[0].data<float>()[r] = 0;
      for (index_t i = 0; i < x.extents[1]; ++i)
        total += x.data<const float>()[r * x.stride[0] + i * x.stride[1]];
    }
  }
  // [cooperative]
  static constexpr native_code code{.cpu = &on_cpu,
                                    .text = R"(
      NATIVE_KERNEL {
        SHARED_MEMORY float shared[GROUP_SIZE];
        for (long task = GROUP_ID; task < tasks; task += GROUPS) {
          float part = 0;
          for (long i = LOCAL_ID; i < in0_extent(1); i += GROUP_SIZE)
            part += in0_load(task * in0_stride(0) + i * in0_stride(1));
          float total = fold_sum_f32(part, shared);
          if (LOCAL_ID == 0) out0_store(task, total);
        }
      })",
                                    .threads = 16};
  // [/cooperative]
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {operands[0].extents.order == 2, {dtype::f32, {1, {operands[0].extents[0]}}}};
  }
};

TEST_CASE("an op of one's own whose threads cooperate, with more tasks than groups") {
  const auto numbers = [](const device& d, index_t rows, index_t columns) {
    return generate<float>(
        extents<dyn, dyn>{rows, columns}, [](index_t i) { return static_cast<float>(i % 23); }, d);
  };
  for (const auto& [rows, columns] : {std::pair<index_t, index_t>{4100, 3}, {3, 129}, {0, 5}, {5, 0}}) {
    CAPTURE(rows);
    const auto x = numbers(default_device(), rows, columns);
    check_everywhere(
        [&](context& c, const device& d) {
          const auto turned = eval(transpose<0, 1>(numbers(d, rows, columns)), c);
          return values{oracle::read(eval(apply<row_totals>(transpose<0, 1>(turned)), c))};
        },
        {oracle::value(sum(x, dims<1>))}, 0);
  }
}

TEST_CASE("stored types round where the program says") {
  const auto check = [](auto type) {
    using T = decltype(type);
    const auto chain = [](const device& d) {
      const auto x = generate<T>(
          extents<dyn>{77}, [](index_t i) { return T(static_cast<float>(i % 19)); }, d);
      return cast<float>(cast<T>(cast<float>(x) * 1.37f));
    };
    check_everywhere([&](context& c, const device& d) { return values{oracle::read(eval(chain(d), c))}; },
                     {oracle::value(chain(default_device()))}, 0);
  };
  check(bfloat16{});
  check(float16{});
  check(std::uint8_t{});
  check(std::int32_t{});
  check(std::int64_t{});
}

TEST_CASE("running sums, products and recurrences of long lines are as accurate as in f64") {
  constexpr index_t size = 1 << 18;
  const float numbers[] = {0.1f, 1.000001f, 0.99999f};
  std::vector<std::vector<double>> expected(3, std::vector<double>(size));
  double sum = 0, product = 1, y = 0;
  for (std::size_t i = 0; i < expected[0].size(); ++i) {
    expected[0][i] = sum += static_cast<double>(numbers[0]);
    expected[1][i] = product *= static_cast<double>(numbers[1]);
    expected[2][i] = y = y * static_cast<double>(numbers[2]) + static_cast<double>(numbers[0]);
  }
  const auto on = [&](const device& d) {
    context c(d);
    const auto line = [&](int k) { return full<float>(extents<dyn>{size}, numbers[k], d); };
    return std::vector{eval(cumsum<0>(line(0)), c).to_vector(), eval(cumprod<0>(line(1)), c).to_vector(),
                       eval(apply<op::linear_recurrence, attr<0, 0>>(line(2), line(0)), c).to_vector()};
  };
  for (const device* d : {&default_device(), &reference(), tested_device()}) {
    if (!d) continue;
    CAPTURE(std::string((*d)->name()));
    const auto seen = on(*d);
    for (std::size_t l = 0; l < expected.size(); ++l) {
      CAPTURE(l);
      double error = 0;
      for (std::size_t i = 0; i < expected[l].size(); ++i)
        error = std::max(error, std::abs(static_cast<double>(seen[l][i]) / expected[l][i] - 1));
      CHECK(error < 2e-7);
    }
  }
#if WEFT_WITH_CUDA && !defined(WEFT_TEST_KIND)
  if (const device* d = compiling_device()) on(*d);
#endif
}

TEST_CASE("an index out of range is an error that names the op") {
  const device* d = tested_device();
  if (!d) return;
  context c(*d);
  const auto table = randn<float>(extents<4, 3>{}, {}, *d);
  const auto index = generate<std::int32_t>(extents<2>{}, [](index_t i) { return 3 * i + 2; }, *d);
  const auto y = eval(embedding(table, index), c);
  check_index_is_refused("embedding", [&] { y.to_vector(); });
  const auto selected = eval(index_select<0>(table, index), c);
  check_index_is_refused("index_select", [&] { selected.to_vector(); });
  const auto empty = eval(index_select<0>(randn<float>(extents<4, 0>{}, {}, *d), index), c);
  check_index_is_refused("index_select", [&] {
    (void)empty.to_vector();
    (**d).synchronize();  // no elements are read
  });
  const auto loss_of = [&](std::int64_t label) {
    return eval(cross_entropy(table, full<std::int64_t>(extents<4>{}, label, *d)), c);
  };
  for (const std::int64_t label : {std::int64_t{3}, std::int64_t{-1}, std::int64_t{1} << 32}) {
    const auto loss = loss_of(label);
    check_index_is_refused("cross_entropy", [&] { (void)loss.item(); });
  }
  CHECK(std::isnan(loss_of(-100).item()));
  CHECK(std::isfinite(loss_of(2).item()));
  const auto nothing = eval(scatter_add<0>(zeros<float>(extents<dyn, dyn>{0, 3}, *d),
                                           full<std::int32_t>(extents<dyn, dyn>{2, 3}, 5, *d),
                                           zeros<float>(extents<dyn, dyn>{2, 3}, *d)),
                            c);
  check_index_is_refused("scatter_add", [&] {
    (void)nothing.to_vector();
    (**d).synchronize();
  });
  const auto hot = eval(one_hot<3>(index), c);
  check_index_is_refused("one_hot", [&] { hot.to_vector(); });
  const auto fine = eval(embedding(table, generate<std::int32_t>(
                                              extents<2>{}, [](index_t i) { return i; }, *d)),
                         c);
  CHECK(fine.to_vector().size() == 6);
}

/// Values, then gradients, at special points; agree/elementwise_test.cpp compares them with PyTorch on the
/// CPU.
values at_special_points(context& c, const device& d, bool by_definition) {
  const float special[] = {NAN, INFINITY, -INFINITY, 0, -0.0f, 1, -1, 2};
  const auto of = [&](int k) {
    return variable<float, extents<dyn>>(generate<float>(
        extents<dyn>{64}, [&](index_t i) { return special[k ? i % 8 : i / 8]; }, d));
  };
  auto a = of(0), b = of(1);
  const auto whole = generate<std::int32_t>(extents<dyn>{9}, [](index_t i) { return i - 4; }, d);
  const auto labels = generate<std::int32_t>(extents<dyn>{8}, [](index_t i) { return i % 3 ? i : -100; }, d);
  const auto logits = randn<float>(extents<dyn, 8>{8, 8}, {}, d);
  const auto value = [&](const auto& e) {
    return by_definition ? oracle::value(e) : oracle::read(eval(e, c));
  };
  values all{value(sign(a)),
             value(clamp(a, b, 1.0f)),
             value(clamp_min(a, b)),
             value(clamp_max(a, b)),
             value(floor(whole) + round(whole)),
             value(cross_entropy<reduction_kind::none>(logits, labels)),
             value(argmax(logits)),
             value(logits[-1]),
             oracle::read(eval(dropout(logits, 1.0f), c))};
  const auto append_gradients = [&](const auto& e) {
    a.zero_grad();
    b.zero_grad();
    tape steps(c);
    steps.backward(steps.eval(sum(e)));
    all.push_back(oracle::read(a.grad()));
    all.push_back(oracle::read(b.grad()));
  };
  append_gradients(maximum(a, b));
  append_gradients(minimum(relu(a), b));
  append_gradients(clamp(a, b, 1.0f));
  append_gradients(a / b);
  return all;
}

TEST_CASE("special values and gradients at them, labels to ignore, argmax of all, a row by number") {
  context c;
  const values expected = at_special_points(c, default_device(), true);
  check_everywhere([](context& in, const device& d) { return at_special_points(in, d, false); },
                   {expected.begin(), expected.end()});
}

#if WEFT_WITH_CUDA && !defined(WEFT_TEST_KIND)
TEST_CASE("kernels became machine code for GPUs") {
  if (const device* d = compiling_device())
    CHECK(static_cast<const compile_only&>(**d).compiled > 80);
}
#endif

TEST_CASE("memory of a device: aligned, zeroed, copied both ways and between places, also of no bytes") {
  const device* d = tested_device();
  if (!d) return;
  std::vector<unsigned char> sent(1000), back(1000, 7);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<unsigned char>(i * 7);
  const buffer a = d->allocate(1000), b = d->allocate(1);
  CHECK(reinterpret_cast<std::uintptr_t>(a.data()) % 64 == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % 64 == 0);
  backend& on = **d;
  on.upload(a.data(), sent.data(), sent.size());
  on.fill_zero(static_cast<char*>(a.data()) + 100, 200);
  on.upload(a.data(), sent.data(), 0);
  on.fill_zero(a.data(), 0);
  on.download(back.data(), static_cast<char*>(a.data()) + 50, 900);
  on.download(back.data(), a.data(), 0);
  for (std::size_t i = 0; i < 900; ++i)
    CHECK(back[i] == (i + 50 >= 100 && i + 50 < 300 ? 0 : sent[i + 50]));
  CHECK(back[900] == 7);
  on.synchronize();
  CHECK_THROWS_AS(on.call_native("nothing", {}, {{}, {}, attributes{}, 0}), device_error);
}

TEST_CASE(
    "the host may change what it has sent as soon as the call returns, and queued work keeps its order") {
  const device* d = tested_device();
  if (!d) return;
  context c(*d);
  const auto x = zeros<float>(extents<dyn>{4096}, *d);
  auto sum = zeros<float>(extents<dyn>{4096}, *d);
  std::vector<float> numbers(4096);
  for (int round = 1; round <= 20; ++round) {
    numbers.assign(4096, static_cast<float>(round));
    (*d)->upload(x.state()->memory.data(), numbers.data(), 4096 * sizeof(float));
    numbers.assign(4096, -1e9f);
    sum = eval(sum + x, c);  // the previous sum's memory returns to the allocator while it is read
  }
  CHECK(sum.to_vector() == std::vector<float>(4096, 210));
}

TEST_CASE("the host cannot read the memory of a device with its own") {
  const device* d = tested_device();
  if (!d || (*d)->host_accessible()) return;
  const auto x = zeros<float>(extents<3>{}, *d);
  CHECK_THROWS_AS(x.data(), device_error);
  const auto y = zeros<float>(extents<3>{});
  CHECK_THROWS_AS(eval(x + y), device_error);
}

TEST_CASE(
    "what a native op of a device refuses is said when the host waits, under the name that users know") {
  const device* d = tested_device();
  if (!d || (*d)->host_accessible()) return;
  context c(*d);
  const auto p = full<float>(extents<3>{}, 1.5f, *d);
  CHECK(
      refusal_of([&] { eval(bernoulli(p), c).to_vector(); }).starts_with("weft: bernoulli: a probability "));
  CHECK(refusal_of([&] { eval(multinomial(p - 1.5f), c).to_vector(); }).starts_with("weft: multinomial: "));
  const auto index = full<std::int32_t>(extents<2>{}, 3, *d);
  check_index_is_refused(
      "embedding", [&] { eval(embedding(p + full<float>(extents<3, 3>{}, 0, *d), index), c).to_vector(); });
  CHECK(eval(bernoulli(p - 0.5f), c).to_vector() == std::vector<float>{1, 1, 1});
}
