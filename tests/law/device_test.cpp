// SPDX-License-Identifier: MIT
// Back end = reference: every kind of program gives on a device what it gives on the reference back
// end. WEFT_TEST_DEVICE names the device; by default it is opencl, where there is one.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <sstream>

#include <weft/gpu/open.hpp>
#include <weft/lower/reference.hpp>
#include <weft/weft.hpp>

using namespace weft;

namespace {

/// Null where the machine has no such device.
const device* tested_device() {
  static const device* found = []() -> const device* {
    const char* name = std::getenv("WEFT_TEST_DEVICE");
    try {
      return new device(open_device(name ? name : "opencl"));
    } catch (const device_error& e) {
      if (name) throw;
      MESSAGE("skipped: ", e.what());
      return nullptr;
    }
  }();
  return found;
}

const device& reference() {
  static const device r(std::make_shared<lower::reference_backend>());
  return r;
}

#if WEFT_WITH_CUDA
/// Architectures that kernels are compiled for: those of WEFT_TEST_ARCHITECTURES, or sm_90.
std::vector<std::string> architectures() {
  const char* const given = std::getenv("WEFT_TEST_ARCHITECTURES");
  std::istringstream names(given ? given : "sm_90");
  return {std::istream_iterator<std::string>(names), {}};
}

/// Compiles every kernel to machine code and runs none: the text is right as far as a machine without a GPU can tell.
class compile_only : public gpu::text_backend {
 public:
  const char* name() const override { return "NVRTC"; }
  void* allocate(std::size_t bytes) override { return std::calloc(1, bytes); }
  void deallocate(void* memory, std::size_t) noexcept override { std::free(memory); }
  void upload(void*, const void*, std::size_t) override {}
  void download(void* to, const void*, std::size_t bytes) override { std::memset(to, 0, bytes); }
  void fill_zero(void*, std::size_t) override {}
  void synchronize() override {}
  int compiled = 0;

 protected:
  const char* vocabulary() const override { return gpu::cuda_vocabulary; }
  std::shared_ptr<gpu::compiled_kernel> compile(const std::string& text) override {
    ++compiled;
    for (const std::string& architecture : architectures_) {
      CAPTURE(architecture);
      CHECK(compiler_.compile(text, architecture).size() > 500);
    }
    return std::make_shared<gpu::compiled_kernel>();
  }
  void run(gpu::compiled_kernel&, const std::vector<void*>&, gpu::parameters&, index_t) override {}
  void read(void* to, const void*, std::size_t bytes) override { std::memset(to, 0, bytes); }

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
      MESSAGE("kernels are not compiled for GPUs: ", e.what());
      return nullptr;
    }
  }();
  return found;
}
#endif

using values = std::vector<std::vector<float>>;

/// Largest difference between two results in units of the largest value of each tensor.
double distance(const values& a, const values& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t t = 0; t < a.size(); ++t) {
    REQUIRE(a[t].size() == b[t].size());
    double most = 1e-6, apart = 0;
    for (std::size_t i = 0; i < a[t].size(); ++i) {
      if (std::isnan(a[t][i]) && std::isnan(b[t][i])) continue;
      if (a[t][i] == b[t][i]) continue;
      most = std::max<double>(most, std::abs(b[t][i]));
      apart = std::max<double>(apart, std::abs(a[t][i] - b[t][i]));
    }
    worst = std::max(worst, apart / most);
  }
  return worst;
}

/// Runs f(context, device) on the CPU, on the tested device and on the reference back end.
template <class... Choices, class F>
void same_everywhere(F f, double tolerance = 2e-6) {
  const auto on = [&](const device& d) {
    context_in<Choices...> c(d);
    c.seed = 3;
    return f(c, d);
  };
  const values expected = on(reference());
  CHECK(distance(on(default_device()), expected) <= tolerance);
  if (const device* d = tested_device()) CHECK(distance(on(*d), expected) <= 4 * tolerance);
#if WEFT_WITH_CUDA
  if (const device* d = compiling_device()) on(*d);
#endif
}

/// The value of f(x, w), summed with weights, and the gradients of x [6, 10] and w [10, 7].
template <class... Choices, class F>
void same_with_gradients(F f, double tolerance = 2e-6) {
  same_everywhere<Choices...>(
      [&](context_in<Choices...>& c, const device& d) {
        variable<float, extents<dyn, 10>> x(randn<float>(extents<dyn, 10>{6, 10}, {.seed = 1}, d));
        variable<float, extents<10, 7>> w(randn<float>(extents<10, 7>{}, {.seed = 2}, d));
        tape steps(c);
        auto y = steps.eval(f(x, w));
        const auto weights = randn<float>(extents<dyn>{y.size()}, {.seed = 4}, d);
        auto seed = decltype(y.grad())(y.extents(), d);
        seed.copy_from(weights.to_vector());
        steps.backward(y, seed);
        values v{y.to_vector()};
        if (x.grad().defined()) v.push_back(x.grad().to_vector());
        if (w.grad().defined()) v.push_back(w.grad().to_vector());
        return v;
      },
      tolerance);
}

/// Operands of an element-wise op, from its domain, with a zero and a tie among them.
template <class Op>
float sample(index_t i, int k) {
  double low = -2, high = 2;
  if constexpr (requires { Op::domain; }) {
    low = Op::domain.low;
    high = Op::domain.high;
  }
  if (i == 3 && low < 0) return 0;
  if (i == 5) return static_cast<float>((low + high) / 2 + 0.25);
  return static_cast<float>(low + (high - low) * unit_interval(philox_word({7, static_cast<std::uint32_t>(k)}, static_cast<std::uint64_t>(i))));
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
  same_everywhere(
      [](context& c, const device& d) {
        auto y = eval(cast<float>(apply<Op>(operand_of<Op, K>(d)...)), c);
        return values{y.to_vector()};
      },
      1e-6);
}

/// Every op that is an instruction or an element-wise formula, and not random.
template <class Op>
void check_op() {
  constexpr bool random = std::is_same_v<Op, op::dropout> || std::is_same_v<Op, op::bernoulli>;
  if constexpr (Op::arity > 0 && !random && !std::is_same_v<Op, op::cast> && !std::is_same_v<Op, op::contiguous> &&
                (Op::kind == op::op_kind::elementwise || std::is_base_of_v<op::elementwise<Op::arity>, Op>))
    check_elementwise<Op>(std::make_integer_sequence<int, Op::arity>{});
}
template <class... Ops>
void check_ops(op::op_list<Ops...>) {
  (check_op<Ops>(), ...);
}

}  // namespace

TEST_CASE("every element-wise op gives the same on every device") { check_ops(op::all::list{}); }

TEST_CASE("rows, columns and products give the same with their gradients") {
  same_with_gradients([](auto x, auto w) { return softmax(matmul(x, w)); });
  same_with_gradients([](auto x, auto w) { return gelu(matmul(exp(x * 0.1f), w) + 1.0f); });
  same_with_gradients([](auto x, auto w) { return layer_norm(matmul(x, w), slice<0, 0, 7>(sum(x, dims<0>)), sum(w, dims<0>)); });
  same_with_gradients([](auto x, auto w) { return rms_norm(matmul(x, w), sum(w, dims<0>)); });
  same_with_gradients([](auto x, auto w) { return sum(matmul(x, w), dims<0>); });
  same_with_gradients([](auto x, auto w) { return amax(matmul(x, w), dims<0>) - amin(matmul(x, w), dims<0>); });
  same_with_gradients([](auto x, auto w) { return logsumexp(matmul(x, w), dims<-1>); });
  same_with_gradients([](auto x, auto w) { return matmul(transpose(w), transpose(x)); });
}

TEST_CASE("products in bf16 and f16 give the same with their gradients") {
  const auto net = [](auto x, auto w) { return matmul(gelu(matmul(x, w)), transpose(w)) + x; };
  same_with_gradients<precision::bf16>(net, 0x1p-7);  // sums in another order may round the other way
  same_with_gradients<precision::f16>(net, 0x1p-10);
  same_with_gradients<precision::bf16>([](auto x, auto w) { return matmul(x, w); }, 0x1p-8);
}

TEST_CASE("movement gives the same with its gradients") {
  same_with_gradients([](auto x, auto w) { return concat<1>(x, matmul(x, w)) * 2.0f; });
  same_with_gradients([](auto x, auto) { return slice<1, 1, 9, 2>(flip<0>(x)) + 0.0f; });
  same_with_gradients([](auto x, auto) { return pad<1, 2, 1>(x) * 3.0f; });
  same_with_gradients([](auto x, auto) { return permute<1, 2, 0>(reshape(x, extents<dyn, 2, 5>{6, 2, 5})) * 1.5f; });
}

TEST_CASE("look-ups and losses give the same with their gradients") {
  same_with_gradients([](auto x, auto w) {
    const device& d = w.state()->where;
    const auto index = generate<std::int32_t>(extents<dyn>{8}, [](index_t i) { return i * i % 6; }, d);
    return embedding(x, index);
  });
  same_with_gradients([](auto x, auto w) {
    const device& d = w.state()->where;
    const auto labels = generate<std::int64_t>(extents<dyn>{6}, [](index_t i) { return i % 7; }, d);
    return cross_entropy(matmul(x, w), labels);
  });
  same_with_gradients([](auto x, auto w) {
    const device& d = w.state()->where;
    const auto labels = generate<std::int64_t>(extents<dyn>{6}, [](index_t i) { return i * i % 10; }, d);
    return linear_cross_entropy(matmul(x, w), w, labels, 10 * 2);  // three slices
  });
  same_with_gradients([](auto x, auto w) {
    const device& d = w.state()->where;
    const auto index = generate<std::int64_t>(extents<dyn, 3>{6, 3}, [](index_t i) { return i * 7 % 10; }, d);
    return gather<1>(x, index);
  });
  same_everywhere([](context& c, const device& d) {
    const auto x = randn<float>(extents<4, 9>{}, {.seed = 5}, d);
    return values{eval(cast<float>(argmax<1>(x)), c).to_vector(), eval(cast<float>(argmin<0>(x)), c).to_vector(),
                  eval(dropout(x, 0.5f), c).to_vector()};
  });
}

TEST_CASE("what makes a gradient adds it to one that is there") {
  same_everywhere(
      [](context& c, const device& d) {
        variable<float, extents<6, 10>> w(randn<float>(extents<6, 10>{}, {.seed = 1}, d));
        const auto x = randn<float>(extents<7, 6>{}, {.seed = 2}, d);
        const auto index = generate<std::int32_t>(extents<dyn>{8}, [](index_t i) { return i * i % 6; }, d);
        const auto columns = generate<std::int64_t>(extents<6, 3>{}, [](index_t i) { return i * 7 % 10; }, d);
        values v;
        for (int round = 0; round < 2; ++round) {
          const auto play = [&](auto y) {
            tape steps(c);
            steps.backward(steps.eval(y));
            v.push_back(w.grad().to_vector());
          };
          play(mean(tanh(matmul(x, w))));
          play(mean(tanh(embedding(w, index))));
          play(mean(tanh(gather<1>(w, columns))));
        }
        return v;
      },
      2e-6);
}

TEST_CASE("attention gives the same with its gradients") {
  same_everywhere(
      [](context& c, const device& d) {
        using qkv = variable<float, extents<2, dyn, 3, 8>>;
        qkv q(randn<float>(extents<2, dyn, 3, 8>{2, 70, 3, 8}, {.seed = 1}, d));
        qkv k(randn<float>(extents<2, dyn, 3, 8>{2, 70, 3, 8}, {.seed = 2}, d));
        qkv v(randn<float>(extents<2, dyn, 3, 8>{2, 70, 3, 8}, {.seed = 3}, d));
        values all;
        const auto add = [&](auto y_of) {
          tape steps(c);
          auto loss = steps.eval(sum(sin(y_of())));
          steps.backward(loss);
          all.push_back({loss.item()});
          for (auto* t : {&q, &k, &v}) {
            all.push_back(t->grad().to_vector());
            t->zero_grad();
          }
        };
        add([&] { return attention<causal>(q, k, v); });
        add([&] { return attention<false>(q, k, v); });
        return all;
      },
      2e-5);
}

TEST_CASE("stored types give the same") {
  const auto check = [](auto type) {
    using T = decltype(type);
    same_everywhere([](context& c, const device& d) {
      const auto x = generate<T>(extents<dyn>{77}, [](index_t i) { return T(static_cast<float>(i % 19)); }, d);
      return values{eval(cast<float>(cast<T>(cast<float>(x) * 1.37f)), c).to_vector()};
    });
  };
  check(bfloat16{});
  check(float16{});
  check(std::uint8_t{});
  check(std::int32_t{});
  check(std::int64_t{});
}

TEST_CASE("an index out of range is an error that names the op") {
  const device* d = tested_device();
  if (!d) return;
  context c(*d);
  const auto table = randn<float>(extents<4, 3>{}, {}, *d);
  const auto index = generate<std::int32_t>(extents<2>{}, [](index_t i) { return 3 * i + 2; }, *d);
  const auto y = eval(embedding(table, index), c);
  CHECK_THROWS_WITH_AS(y.to_vector(), "weft: embedding: an index is out of range", value_error);
  const auto selected = eval(index_select<0>(table, index), c);
  CHECK_THROWS_WITH_AS(selected.to_vector(), "weft: index_select: an index is out of range", value_error);
  const auto loss_of = [&](std::int64_t label) {
    return eval(cross_entropy(table, full<std::int64_t>(extents<4>{}, label, *d)), c);
  };
  for (const std::int64_t label : {std::int64_t{3}, std::int64_t{-1}, std::int64_t{1} << 32}) {
    const auto loss = loss_of(label);
    CHECK_THROWS_WITH_AS(loss.item(), "weft: cross_entropy: an index is out of range", value_error);
  }
  CHECK(std::isnan(loss_of(-100).item()));
  CHECK(std::isfinite(loss_of(2).item()));
  const auto hot = eval(one_hot<3>(index), c);
  CHECK_THROWS_WITH_AS(hot.to_vector(), "weft: one_hot: an index is out of range", value_error);
  const auto fine = eval(embedding(table, generate<std::int32_t>(extents<2>{}, [](index_t i) { return i; }, *d)), c);
  CHECK(fine.to_vector().size() == 6);
}

TEST_CASE("special values and gradients at them, labels to ignore, argmax of all, a row by number") {
  const float special[] = {NAN, INFINITY, -INFINITY, 0, -0.0f, 1, -1, 2};
  same_everywhere([&](context& c, const device& d) {
    const auto of = [&](int k) {
      return variable<float, extents<dyn>>(generate<float>(extents<dyn>{64}, [&](index_t i) { return special[k ? i % 8 : i / 8]; }, d));
    };
    auto a = of(0), b = of(1);
    const auto gradient_of = [&](const auto& e) {
      a.zero_grad();
      b.zero_grad();
      tape steps(c);
      steps.backward(steps.eval(sum(e)));
      auto g = a.grad().to_vector();
      const auto second = b.grad().to_vector();
      g.insert(g.end(), second.begin(), second.end());
      return g;
    };
    const auto whole = generate<std::int32_t>(extents<dyn>{9}, [](index_t i) { return i - 4; }, d);
    const auto labels = generate<std::int32_t>(extents<dyn>{8}, [](index_t i) { return i % 3 ? i : -100; }, d);
    const auto logits = randn<float>(extents<dyn, 8>{8, 8}, {}, d);
    values all{eval(sign(a), c).to_vector(),
               eval(clamp(a, b, 1.0f), c).to_vector(),
                  eval(cast<float>(floor(whole) + round(whole)), c).to_vector(),
                  gradient_of(maximum(a, b)),
                  gradient_of(minimum(relu(a), b)),
                  gradient_of(clamp(a, b, 1.0f)),
                  gradient_of(a / b),
                  eval(cross_entropy<reduction_kind::none>(logits, labels), c).to_vector(),
                  eval(cast<float>(argmax(logits)), c).to_vector(),
                  eval(logits[-1], c).to_vector(),
                  eval(dropout(logits, 1.0f), c).to_vector()};
    for (auto& v : all)  // as numbers, so that the distance sees where they are
      for (float& x : v) x = std::isnan(x) ? 7.25f : std::isinf(x) ? std::copysign(8.5f, x) : x;
    return all;
  });
}

#if WEFT_WITH_CUDA
TEST_CASE("kernels became machine code for GPUs") {
  if (const device* d = compiling_device())
    CHECK(static_cast<const compile_only&>(**d).compiled > 80);
}
#endif

TEST_CASE("the host cannot read the memory of a device with its own") {
  const device* d = tested_device();
  if (!d || (*d)->host_accessible()) return;
  const auto x = zeros<float>(extents<3>{}, *d);
  CHECK_THROWS_AS(x.data(), device_error);
  const auto y = zeros<float>(extents<3>{});
  CHECK_THROWS_AS(eval(x + y), device_error);
}
