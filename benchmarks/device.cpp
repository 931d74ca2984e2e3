// SPDX-License-Identifier: MIT
// The performance of a device: bandwidth of element-wise and row kernels, rates of matrix products and
// attention.
//
//   weft_benchmark_device cuda [small]       small: small sizes, measured once
//
// Prints a Markdown table of medians over interleaved rounds; peers/device_pytorch.py does the same in
// PyTorch. Bytes are the minimum that must move: each operand read once, each result written once. Causal
// attention counts half of the floating-point operations of attention without a mask, and 2.5 times as many
// in the backward pass.
#include <algorithm>
#include <string>
#include <vector>

#include <weft/gpu/open.hpp>
#include <weft/weft.hpp>

#include "peers/ops.hpp"

using namespace weft;

namespace {

struct measurement {
  std::string what;
  double amount;  // bytes or floating-point operations
  const char* unit;
  std::function<void()> run;
  std::vector<double> seconds{};
};

using matrix = extents<dyn, dyn>;
using by_head = extents<dyn, dyn, dyn, dyn>;

struct table {
  parameter<matrix> weight;
};

class tasks {
 public:
  tasks(const device& where, bool small) : where_(where), c_(where), small_(small) {
    element_wise();
    rows();
    products<float>("f32", false);
    products<float>("tf32", true);
    products<bfloat16>("bf16", false);
    for (const index_t features : {64, 128})
      for (const index_t positions : {1024, 4096}) attention_of(positions, features);
    optimizer();
  }
  std::vector<measurement> all;

 private:
  template <class T = float>
  auto numbers(index_t rows, index_t columns, std::uint64_t stream = 1) {
    return tensor<T, matrix>(randn<T>(matrix{rows, columns}, {.stream = stream}, where_));
  }
  void add(std::string what, double amount, const char* unit, std::function<void()> run) {
    all.push_back({std::move(what), amount, unit, std::move(run)});
  }
  /// f(x) forward, then backward with the gradient `g` of the result.
  template <class F, class X, class G>
  void add_both_ways(const std::string& what, double amount, double backward, const char* unit, F f, X x,
                     G g) {
    add(what, amount, unit, [=, this] { eval(f(tensor(x)), c_); });
    add(what + ", backward too", amount + backward, unit, [=, this] {
      x.state()->grad.reset();
      tape steps(c_);
      steps.backward(steps.eval(f(x)), g);
    });
  }

  void element_wise() {
    const index_t rows = small_ ? 256 : 16384, columns = 2048;
    const auto x = numbers(rows, columns), y = numbers(rows, columns, 2);
    const double bytes = static_cast<double>(x.state()->bytes());
    add("copy: x + 0", 2 * bytes, "GB/s", [=, this] { eval(x + 0.0f, c_); });
    add("chain: gelu(x * y + x)", 3 * bytes, "GB/s", [=, this] { eval(gelu(x * y + x), c_); });
    add("sum of columns", bytes, "GB/s", [=, this] { eval(sum(x, dims<0>), c_); });
  }
  void rows() {
    const index_t rows = small_ ? 256 : 32768, columns = 768;
    const variable<float, matrix> x(numbers(rows, columns));
    const auto g = numbers(rows, columns, 2);
    const variable<float, extents<dyn>> weight(ones<float>(extents<dyn>{columns}, where_)),
        bias(zeros<float>(extents<dyn>{columns}, where_));
    const double bytes = static_cast<double>(x.state()->bytes());
    add_both_ways(
        "softmax of rows of 768", 2 * bytes, 3 * bytes, "GB/s", [](auto x) { return softmax(x); }, x, g);
    add_both_ways(
        "layer_norm of rows of 768", 2 * bytes, 3 * bytes, "GB/s",
        [=](auto x) { return layer_norm(x, weight, bias); }, x, g);
    const index_t tokens = small_ ? 64 : 8192, classes = small_ ? 1000 : 50304;
    const variable<float, matrix> logits(numbers(tokens, classes));
    const tensor<std::int64_t, extents<dyn>> labels(
        generate<std::int64_t>(extents<dyn>{tokens}, [=](index_t i) { return i * 37 % classes; }, where_));
    const double of_logits = static_cast<double>(logits.state()->bytes());
    add("cross_entropy of 8192 x 50304", of_logits, "GB/s",
        [=, this] { eval(cross_entropy(tensor(logits), labels), c_); });
    add("cross_entropy of 8192 x 50304, backward too", 3 * of_logits, "GB/s", [=, this] {
      logits.state()->grad.reset();
      tape steps(c_);
      steps.backward(steps.eval(cross_entropy(logits, labels)));
    });
  }
  template <class T>
  void products(const std::string& type, bool tf32) {
    for (const index_t side : {4096, 8192}) {
      const index_t n = small_ ? 256 : side;
      const auto a = numbers<T>(n, n), b = numbers<T>(n, n, 2);
      const double side_of = static_cast<double>(n);
      add("matmul " + std::to_string(side) + " " + type, 2 * side_of * side_of * side_of, "TFLOP/s",
          [=, this] {
            where_->allow_tf32(tf32);
            eval(matmul(a, b), c_);
          });
    }
  }
  void attention_of(index_t positions, index_t features) {
    const index_t t = small_ ? positions / 16 : positions, batch = small_ ? 1 : 16384 / positions,
                  heads = small_ ? 2 : 1536 / features;
    const by_head e{batch, t, heads, features};
    const auto numbers = [&](std::uint64_t stream) {
      return variable<bfloat16, by_head>(randn<bfloat16>(e, {.stream = stream}, where_));
    };
    const auto q = numbers(1), k = numbers(2), v = numbers(3);
    const tensor<bfloat16, by_head> g = randn<bfloat16>(e, {.stream = 4}, where_);
    const double products =
        2.0 * static_cast<double>(batch * heads * t * t * features);  // two products, half masked
    const std::string what =
        "causal attention bf16, T " + std::to_string(positions) + " D " + std::to_string(features);
    add(what, products, "TFLOP/s",
        [=, this] { eval(attention<causal>(tensor(q), tensor(k), tensor(v)), c_); });
    add(what + ", backward too", 3.5 * products, "TFLOP/s", [=, this] {
      for (const auto* x : {&q, &k, &v}) x->state()->grad.reset();
      tape steps(c_);
      steps.backward(steps.eval(attention<causal>(q, k, v)), g);
    });
  }
  void optimizer() {
    const index_t rows = small_ ? 1 << 8 : 1 << 17;
    model_ = table{make_parameter(matrix{rows, 1 << 10}, init::normal(1), where_)};
    const auto gradient = numbers(rows, 1 << 10);
    add("clipping and AdamW", 8.0 * static_cast<double>(gradient.state()->bytes()), "GB/s", [=, this] {
      model_.weight.state()->grad = gradient.state();
      clip_grad_norm(model_, 1.0, c_);
      adamw_.step(model_, 1, c_);
    });
  }

  const device& where_;
  context c_;
  bool small_;
  table model_;
  adamw adamw_{.weight_decay = 0.1};
};

}  // namespace

int main(int count, char** values) try {
  const device where = open_device(count > 1 ? values[1] : "auto");
  const bool small = count > 2 && std::string(values[2]) == "small";
  tasks known(where, small);
  const auto finish = [&] { where->synchronize(); };
  for (int round = 0; round < (small ? 1 : 9); ++round)
    for (measurement& m : known.all) m.seconds.push_back(ops::seconds_of(m.run, finish));
  std::printf("%s\n\n| kernel | median |\n|---|---|\n", where->description().c_str());
  for (measurement& m : known.all) {
    std::sort(m.seconds.begin(), m.seconds.end());
    const bool tera = std::string(m.unit) == "TFLOP/s";
    std::printf("| %s | %.*f %s |\n", m.what.c_str(), tera ? 1 : 0,
                m.amount / m.seconds[m.seconds.size() / 2] * (tera ? 1e-12 : 1e-9), m.unit);
  }
} catch (const std::exception& e) {
  std::fprintf(stderr, "weft_benchmark_device: %s\n", e.what());
  return 2;
}
