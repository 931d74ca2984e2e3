// SPDX-License-Identifier: MIT
// Cases of check_onnx.py: matrix products, convolutions, attention, losses and models.
#include "onnx_cases.hpp"

using namespace weft;

namespace {

struct mlp {
  linear<4, 16> hidden;
  linear<16, 3> output;
  auto operator()(expression auto x) const { return softmax(output(gelu(hidden(x)))); }
};

struct image_net {
  convolution2d_without_bias<3, 8, 3, conv_options{.padding = 1}> first;
  batch_normalization<8> norm;
  convolution2d<8, 8, 3, conv_options{.stride = 2, .padding = 1, .groups = 4}> second;
  linear<8, 5> head;
  auto operator()(expression auto x) const {
    auto y = max_pool2d<3, pool_options{.stride = 2, .padding = 1}>(relu(norm(first(std::move(x)))));
    return head(mean(relu(second(std::move(y))), dims<2, 3>));
  }
};

struct block {
  layer_normalization<8> ln_1;
  causal_self_attention<8> attention;
  layer_normalization<8> ln_2;
  feed_forward<8, 32> mlp;
  auto operator()(expression auto x) const {
    return let(x, [this](auto a) {
      return let(a + attention(ln_1(a)), [this](auto b) { return b + mlp(ln_2(b)); });
    });
  }
};

struct language_model {
  embedding_table<11, 8> tokens;
  embedding_table<16, 8> positions;
  repeat<block> blocks;
  layer_normalization<8> norm;
  static language_model create() {
    block b{{}, causal_self_attention<8>::create(8, 2), {}, {}},
        c{{}, causal_self_attention<8>::create(8, 2), {}, {}};
    return {{}, {}, {{b, c}}, {}};
  }
  auto operator()(expression auto x, expression auto numbers) const {
    return matmul(norm(blocks(tokens(std::move(x)) + positions(std::move(numbers)))),
                  transpose(tokens.weight));
  }
};

struct stacked {
  lstm<3, 5> first;
  gru<5, 4> second;
  auto operator()(expression auto x) const { return second(first(std::move(x))); }
};

/// A custom op, defined by a formula.
struct squash : op::elementwise<1> {
  static constexpr auto name = "squash";
  static constexpr auto value(auto x) { return softplus(x) / (1 + abs(x)); }
};

template <element T>
void products(onnx_cases& to, const std::string& type) {
  to.add(
      "matmul_" + type, [](auto a, auto b) { return matmul(a, b); }, numbers<T>(extents<dyn, 5, 7>{3}),
      numbers<T>(extents<7, 3>{}, 1));
  to.add(
      "matmul_batches_" + type, [](auto a, auto b) { return matmul(transpose(a), b); },
      numbers<T>(extents<2, 1, 5, 7>{}), numbers<T>(extents<3, 5, 2>{}, 1));
  to.add(
      "matmul_vectors_" + type, [](auto a, auto b) { return matmul(a, b) * a[0]; }, numbers<T>(extents<13>{}),
      numbers<T>(extents<13>{}, 1));
  to.add(
      "matmul_empty_" + type, [](auto a, auto b) { return matmul(a, b); }, numbers<T>(extents<2, 0>{}),
      numbers<T>(extents<0, 3>{}, 1));
  to.add(
      "attention_" + type, [](auto q, auto k, auto v) { return attention<causal>(q, k, v); },
      numbers<T>(extents<2, 5, 3, 4>{}), numbers<T>(extents<2, 5, 3, 4>{}, 1),
      numbers<T>(extents<2, 5, 3, 4>{}, 2));
  to.add(
      "softmax_" + type, [](auto a) { return softmax(a) + log_softmax<0>(a); }, numbers<T>(extents<3, 7>{}));
  to.add(
      "layer_norm_" + type, [](auto a, auto w) { return layer_norm(a, w, w) + rms_norm(a, w); },
      numbers<T>(extents<3, 7>{}), numbers<T>(extents<7>{}, 1));
  to.add(
      "group_norm_" + type, [](auto a, auto w) { return group_norm<2>(a, w, w); },
      numbers<T>(extents<dyn, 4, 3, 5>{2}), numbers<T>(extents<4>{}, 1));
  to.add(
      "conv2d_" + type,
      [](auto a, auto w, auto b) {
        return conv2d<conv_options{.stride = {1, 2}, .padding = {2, 1}, .dilation = {2, 1}}>(a, w, b);
      },
      numbers<T>(extents<2, 3, 7, 9>{}), numbers<T>(extents<5, 3, 3, 2>{}, 1), numbers<T>(extents<5>{}, 2));
  to.add(
      "conv_transpose2d_" + type,
      [](auto a, auto w, auto b) {
        constexpr conv_transpose_options o{
            .stride = {1, 3}, .padding = {2, 1}, .output_padding = {0, 2}, .dilation = {2, 1}, .groups = 2};
        return conv_transpose2d<o>(a, w, b);
      },
      numbers<T>(extents<2, 4, 5, 3>{}), numbers<T>(extents<4, 3, 3, 2>{}, 1), numbers<T>(extents<6>{}, 2));
  to.add(
      "upsample_" + type,
      [](auto a) {
        return upsample_nearest<height_width{2, 3}>(a) * upsample_bilinear<height_width{2, 3}>(a);
      },
      numbers<T>(extents<2, dyn, 3>{2, 4, 3}));
  to.add(
      "avg_pool2d_" + type,
      [](auto a) {
        return avg_pool2d<height_width{3, 2}, pool_options{.stride = {2, 3}, .padding = {1, 0}}>(a);
      },
      numbers<T>(extents<2, 3, 7, 9>{}));
  to.add(
      "max_pool2d_" + type,
      [](auto a) {
        return max_pool2d<height_width{3, 2}, pool_options{.stride = {2, 3}, .padding = {1, 0}}>(a);
      },
      numbers<T>(extents<3, 7, 9>{}));
  to.add(
      "pooling_to_the_end_" + type,
      [](auto a) {
        constexpr pool_options o{.stride = {2, 3}, .padding = {1, 0}, .ceil_mode = true};
        constexpr pool_options excluding{o.stride, o.padding, true, false};
        return max_pool2d<height_width{3, 2}, o>(a) + avg_pool2d<height_width{3, 2}, o>(a) * 2 +
               avg_pool2d<height_width{3, 2}, excluding>(a) * 3;
      },
      numbers<T>(extents<2, dyn, 8, 9>{3}));
  to.add(
      "cross_entropy_" + type,
      [](auto a, auto i) { return cross_entropy<reduction_kind::mean, 2, per_million<100'000>>(a, i); },
      numbers<T>(extents<5, 4>{}), indices<std::int64_t>(4, extents<5>{}));
}

/// Matrix products whose sums are exact in f32, so that the result is rounded in only one way; read as f32.
template <element T>
void rounded(onnx_cases& to, const std::string& type) {
  const auto a = numbers<T>(extents<5, 13>{});
  const auto b = numbers<T>(extents<13, 7>{}, 1);
  to.add(
      "rounded_matmul_" + type, [](auto x, auto y) { return cast<float>(matmul(x * x, y * y)); }, a, b);
  to.add(
      "rounded_einsum_" + type, [](auto x, auto y) { return cast<float>(einsum<"ab,bc->ca">(x * x, y)); }, a,
      b);
  to.add(
      "rounded_conv2d_" + type, [](auto x, auto y) { return cast<float>(conv2d(x * x, y)); },
      numbers<T>(extents<1, 3, 6, 6>{}), numbers<T>(extents<2, 3, 3, 3>{}, 1));
  to.add(
      "rounded_sum_" + type,
      [](auto x) { return cast<float>(sum(x * x, dims<0>)) - cast<float>(sum(x, dims<1>))[0]; }, a);
}

}  // namespace

int main(int, char** arguments) {
  onnx_cases to(arguments[1]);
  to.allow(1e-5);
  products<float>(to, "f32");
  products<double>(to, "f64");
  products<bfloat16>(to, "bf16");
  products<float16>(to, "f16");

  to.add(
      "max_pool2d_i32", [](auto a) { return max_pool2d<2>(a); }, numbers<std::int32_t>(extents<5, 6>{}));
  to.add(
      "max_pool2d_u8", [](auto a) { return max_pool2d<2>(a); }, numbers<std::uint8_t>(extents<1, 2, 5, 6>{}));
  to.add(
      "avg_pool2d_i32", [](auto a) { return avg_pool2d<2>(a); }, numbers<std::int32_t>(extents<5, 6>{}));
  to.add(
      "max_pool1d", [](auto a) { return max_pool1d<3>(a); }, numbers<float>(extents<2, 3, 10>{}));
  to.add(
      "conv1d", [](auto a, auto w) { return conv1d<conv_options{.padding = 2, .dilation = 2}>(a, w); },
      numbers<float>(extents<2, 3, 10>{}), numbers<float>(extents<4, 3, 3>{}, 1));
  to.add(
      "depthwise",
      [](auto a, auto w) { return conv2d<conv_options{.stride = 2, .padding = 1, .groups = 4}>(a, w); },
      numbers<float>(extents<2, 4, 7, 5>{}), numbers<float>(extents<4, 1, 3, 3>{}, 1));
  to.add(
      "attention_mask", [](auto q, auto k, auto v, auto mask) { return attention(q, k, v, mask); },
      numbers<float>(extents<2, 3, 4, 6>{}), numbers<float>(extents<2, 6, 2, 6>{}, 1),
      numbers<float>(extents<2, 6, 2, 6>{}, 2), numbers<float>(extents<2, 1, 1, 6>{}, 3));
  to.add(
      "attention_groups", [](auto q, auto k, auto v) { return attention<causal>(q, k, v, 3); },
      numbers<float>(extents<2, 3, 4, 6>{}), numbers<float>(extents<2, 6, 2, 6>{}, 1),
      numbers<float>(extents<2, 6, 2, 6>{}, 2));
  to.add(
      "attention_all", [](auto q, auto k, auto v) { return attention<!causal>(q, k, v); },
      numbers<float>(extents<1, 5, 2, 3>{}), numbers<float>(extents<1, 7, 1, 3>{}, 1),
      numbers<float>(extents<1, 7, 1, 3>{}, 2));
  to.add(
      "rotary", [](auto a) { return rotary(a) + rotary<100>(a, 5); }, numbers<float>(extents<2, 5, 3, 8>{}));
  to.add(
      "losses", [](auto a, auto b) { return mse_loss(a, b) + bce_with_logits(a, sigmoid(b)); },
      numbers<float>(extents<dyn, 3>{7}), numbers<float>(extents<dyn, 3>{7}, 1));

  rounded<bfloat16>(to, "bf16");
  rounded<float16>(to, "f16");

  to.add(
      "linear_cross_entropy", [](auto x, auto w, auto i) { return linear_cross_entropy(x, w, i, 8); },
      numbers<float>(extents<dyn, 3, 4>{2}), numbers<float>(extents<5, 4>{}, 1),
      indices<std::int64_t>(5, extents<dyn, 3>{2}));
  to.add(
      "formula_of_user", [](auto x) { return tap(apply<squash>(x), "squashed"); },
      numbers<float>(extents<dyn, 4>{3}));
  to.add_resized(
      "norms_empty", [](auto x, auto w) { return layer_norm(x, w, w); },
      std::tuple(numbers<float>(extents<dyn, 4>{3}), numbers<float>(extents<4>{})),
      std::tuple(numbers<float>(extents<dyn, 4>{0}), numbers<float>(extents<4>{})));

  const mlp m;
  to.add_resized(
      "mlp", [&m](auto x) { return m(x); }, std::tuple(numbers<float>(extents<dyn, 4>{1})),
      std::tuple(numbers<float>(extents<dyn, 4>{7})), state_dict(m));
  image_net net;
  net.norm.running_mean.copy_from(std::vector<float>{.1f, -.2f, .3f, 0, 1, -1, .5f, .25f});
  net.norm.running_var.copy_from(std::vector<float>{1, 2, .5f, .1f, 3, 1, .7f, .01f});
  set_training(net, false);
  to.add_resized(
      "image_net", [&net](auto x) { return net(x); }, std::tuple(numbers<float>(extents<dyn, 3, 9, 11>{1})),
      std::tuple(numbers<float>(extents<dyn, 3, 9, 11>{5})), state_dict(net));
  to.add_resized(
      "image_net_sizes", [&net](auto x) { return net(x); },
      std::tuple(numbers<float>(extents<dyn, 3, dyn, dyn>{1, 8, 8})),
      std::tuple(numbers<float>(extents<dyn, 3, dyn, dyn>{2, 13, 7})), state_dict(net));
  const auto gpt = language_model::create();
  const auto positions = [](index_t n) {
    return tensor<std::int64_t, extents<dyn>>(arange<std::int64_t>(n));
  };
  to.add_resized(
      "language_model", [&gpt](auto x, auto p) { return gpt(x, p); },
      std::tuple(indices<std::int64_t>(11, extents<dyn, dyn>{1, 4}), positions(4)),
      std::tuple(indices<std::int64_t>(11, extents<dyn, dyn>{2, 9}), positions(9)), state_dict(gpt));
  const lstm_cell<3, 5> cell;
  to.add_resized(
      "lstm_cell", [&cell](auto x, auto s) { return cell(x, s); },
      std::tuple(numbers<float>(extents<dyn, 3>{1}), numbers<float>(extents<2, dyn, 5>{1})),
      std::tuple(numbers<float>(extents<dyn, 3>{3}), numbers<float>(extents<2, dyn, 5>{3})),
      state_dict(cell));
  const stacked recurrent;
  to.add_resized(
      "recurrent", [&recurrent](auto x) { return recurrent(x); },
      std::tuple(numbers<float>(extents<dyn, dyn, 3>{2, 1})),
      std::tuple(numbers<float>(extents<dyn, dyn, 3>{7, 3})), state_dict(recurrent));
  to.add_resized(
      "recurrent_from_state", [&recurrent](auto x, auto s) { return recurrent.second(x, s); },
      std::tuple(numbers<float>(extents<dyn, dyn, 5>{2, 1}), numbers<float>(extents<dyn, 4>{1})),
      std::tuple(numbers<float>(extents<dyn, dyn, 5>{5, 3}), numbers<float>(extents<dyn, 4>{3})),
      state_dict(recurrent));
  to.store(onnx::tensor_storage::in_another_file);
  const linear<40, 50> wide;
  to.add_resized(
      "in_two_files", [&wide](auto x) { return wide(x); }, std::tuple(numbers<float>(extents<dyn, 40>{1})),
      std::tuple(numbers<float>(extents<dyn, 40>{3})), state_dict(wide));
}
