// SPDX-License-Identifier: MIT
// ONNX files: their structure, read by the tests' own reader, and refused expressions.
// tests/agree/check_onnx.py runs the models.
#include <doctest/doctest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include <weft/nn/mixture_of_experts.hpp>
#include <weft/onnx/save.hpp>
#include <weft/weft.hpp>

#include "onnx_file.hpp"

using namespace weft;

namespace {

/// A file of this process, removed by the destructor.
struct temporary_file {
  const std::string name = "weft_" + std::to_string(::getpid()) + ".onnx",
                    path = std::filesystem::temp_directory_path() / name;
  ~temporary_file() {
    std::filesystem::remove(path);
    std::filesystem::remove(path + ".data");
  }
} const file;
const std::string& path = file.path;

std::string content(const std::string& of) {
  std::ifstream in(of, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
template <expression E>
onnx_file::graph exported(const E& e, const onnx_options& options = {}) {
  save_onnx(path, e, options);
  return onnx_file::read(content(path));
}
std::string text_of(const onnx::protobuf_message& m) {
  std::string all;
  for (const auto part : m.parts()) all += part;
  return all;
}
using strings = std::vector<std::string>;

struct mlp {
  linear<4, 8> hidden;
  linear<8, 3> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};
struct tied {
  embedding_table<7, 4> tokens;
  linear<4, 4> middle;
  linear_without_bias<4, 7> head;
  auto operator()(expression auto i) const { return head(middle(tokens(i))); }
};
struct images {
  convolution2d<3, 4, 3, conv_options{.padding = {1, 2}}> conv;
  batch_normalization<4> norm;
  auto operator()(expression auto x) const { return max_pool2d<2>(relu(norm(conv(x)))); }
};

/// An op for which ONNX has no operator.
struct doubled : op::rule<1> {
  static constexpr auto kind = op::op_kind::native;
  static constexpr auto name = "doubled";
  static void on_cpu(const native_call&) {}
  static constexpr native_code code{&on_cpu};
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, operands[0]};
  }
};

}  // namespace

TEST_CASE("protobuf: the bytes of the format's documentation, negative numbers, nested references") {
  onnx::protobuf_message m;
  m.add_integer(1, 150);
  CHECK(text_of(m) == "\x08\x96\x01");
  onnx::protobuf_message text;
  text.add_string(2, "testing");
  CHECK(text_of(text) == "\x12\x07testing");
  onnx::protobuf_message outer;
  outer.add_message(3, m);
  CHECK(text_of(outer) == "\x1a\x03\x08\x96\x01");
  onnx::protobuf_message negative;
  negative.add_integer(1, -2);
  CHECK(text_of(negative) == "\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01");
  onnx::protobuf_message packed;
  packed.add_integers(4, {3, 270, 86942});
  CHECK(text_of(packed) == "\x22\x06\x03\x8e\x02\x9e\xa7\x05");
  onnx::protobuf_message number;
  number.add_float(2, 1.5f);
  CHECK(text_of(number) == std::string("\x15\0\0\xc0\x3f", 5));
  const std::string large(300, 'x');
  onnx::protobuf_message holder;
  holder.add_integer(1, 1);
  holder.add_reference(9, large);
  holder.add_integer(2, 2);
  onnx::protobuf_message above;
  above.add_string(1, "a");
  above.add_message(5, holder);
  CHECK(above.size() == text_of(above).size());
  CHECK(onnx_file::one_of(onnx_file::one_of(text_of(above), 5).bytes, 9).bytes == large);
  bool refers = false;
  for (const auto part : above.parts()) refers |= part.data() == large.data();
  CHECK(refers);
}

TEST_CASE("save_onnx: parameters have the model's names, inputs no elements, extents that are dyn a name") {
  const mlp model;
  const auto x = zeros<float>(extents<dyn, 4>{2});
  const auto g = exported(softmax(model(x)),
                          {.inputs = {{"x", x, {"batch"}}}, .outputs = {"y"}, .tensors = state_dict(model)});
  REQUIRE(g.inputs.size() == 1);
  CHECK(g.inputs[0].name == "x");
  CHECK(g.inputs[0].type == 1);
  CHECK(g.inputs[0].dims == strings{"batch", "4"});
  REQUIRE(g.outputs.size() == 1);
  CHECK(g.outputs[0].name == "y");
  CHECK(g.outputs[0].dims == strings{"batch", "3"});
  CHECK(g.initializers.size() == 4);
  for (const auto& [name, t] : state_dict(model)) {
    REQUIRE(g.initializers.contains(name));
    CHECK(std::memcmp(g.initializers.at(name).bytes.data(), t->memory.data(), t->bytes()) == 0);
  }
  CHECK(g.count("MatMul") == 2);
  CHECK(g.count("Relu") == 1);
  CHECK(g.count("Softmax") == 1);
  CHECK(g.first("Transpose").attributes.at("perm").integers == std::vector<std::int64_t>{1, 0});

  const auto fixed = exported(model(x), {.inputs = {{"x", x}}, .dynamic = false});
  CHECK(fixed.inputs[0].dims == strings{"2", "4"});
  CHECK(fixed.outputs[0].dims == strings{"2", "3"});
  CHECK(fixed.outputs[0].name == "output");
  CHECK(fixed.initializers.contains("constant_0"));
}

TEST_CASE("save_onnx: tied parameters are one initializer, several outputs share nodes") {
  tied model;
  model.head.weight = model.tokens.weight;
  const auto i = zeros<std::int32_t>(extents<dyn, dyn>{2, 3});
  auto logits = model(i);
  const auto g =
      exported(bundled(logits, argmax<2>(logits)), {.inputs = {{"i", i}}, .tensors = state_dict(model)});
  CHECK(g.initializers.contains("tokens.weight"));
  CHECK_FALSE(g.initializers.contains("head.weight"));
  CHECK(g.outputs.size() == 2);
  CHECK(g.outputs[0].name == "output_0");
  CHECK(g.outputs[1].dims == strings{"i_0", "i_1"});
  CHECK(g.outputs[1].type == 7);
  CHECK(g.count("Gather") == 1);
  CHECK(g.count("MatMul") == 2);
}

TEST_CASE("save_onnx: extents that operands determine are numbers, and equal ones have one name") {
  const auto x = zeros<float>(extents<dyn, dyn>{2, 4}), y = zeros<float>(extents<dyn, dyn>{4, 5});
  const auto g = exported(matmul(x, y), {.inputs = {{"x", x}, {"y", y}}});
  CHECK(g.inputs[0].dims == strings{"x_0", "x_1"});
  CHECK(g.inputs[1].dims == strings{"x_1", "y_1"});
  CHECK(g.outputs[0].dims == strings{"x_0", "y_1"});
  const auto called = exported(matmul(x, y), {.inputs = {{"x", x}, {"y", y, {"inner"}}}});
  CHECK(called.inputs[0].dims == strings{"x_0", "inner"});
  CHECK(exported(x + x, {.inputs = {{"x", x, {"n", "n"}}}}).outputs[0].dims == strings{"n", "n"});
  const auto w = zeros<float>(extents<4, 3>{});
  CHECK(exported(matmul(x, w), {.inputs = {{"x", x}}}).inputs[0].dims == strings{"x_0", "4"});
  const auto of_size = zeros<float>(extents<dyn, dyn>{4, 3});
  CHECK(exported(matmul(x, of_size), {.inputs = {{"x", x}}}).inputs[0].dims == strings{"x_0", "4"});
  CHECK(exported(flatten<0, 1>(x), {.inputs = {{"x", x}}}).outputs[0].dims == strings{"output_0"});
}

TEST_CASE("save_onnx: convolution, batch norm and pooling are operators with these attributes") {
  images model;
  set_training(model, false);
  const auto x = zeros<float>(extents<dyn, 3, 8, 8>{1});
  const auto g = exported(model(x), {.inputs = {{"x", x}}, .tensors = state_dict(model)});
  CHECK(g.first("Conv").attributes.at("pads").integers == std::vector<std::int64_t>{1, 2, 1, 2});
  CHECK(g.first("BatchNormalization").attributes.at("epsilon").number == 1e-5f);
  CHECK(g.first("MaxPool").attributes.at("strides").integers == std::vector<std::int64_t>{2, 2});
  CHECK(g.initializers.contains("norm.running_var"));
  CHECK(g.outputs[0].dims == strings{"x_0", "4", "4", "5"});
}

namespace {
struct drops {
  linear<4, 4> in;
  dropout_layer drop{0.5f};
  auto operator()(expression auto x) const { return drop(in(drop(x))); }
};
struct drops_states {
  lstm<4, 5> states;
  dropout_layer drop{0.5f};
  auto operator()(expression auto x) const { return drop(states(x)); }
};
}  // namespace

TEST_CASE("save_onnx: dropout is nothing after set_training(model, false)") {
  const auto check = [](auto model, const auto& x, const char* op) {
    const onnx_options named{.inputs = {{"x", x}}, .tensors = state_dict(model)};
    CHECK_THROWS_WITH_AS(save_onnx(path, model(x), named), doctest::Contains("set_training(model, false)"),
                         value_error);
    set_training(model, false);
    const auto g = exported(model(x), named);
    CHECK(g.count(op) == 1);
    CHECK(g.count("Where") == 0);
  };
  check(drops{}, zeros<float>(extents<dyn, 4>{2}), "MatMul");
  check(drops_states{}, zeros<float>(extents<dyn, dyn, 4>{3, 2}), "Scan");
  const auto narrow = zeros<bfloat16>(extents<dyn>{2});
  CHECK(exported(dropout(narrow, 0), {.inputs = {{"x", narrow}}}).outputs[0].dims == strings{"x_0"});
  const auto whole = zeros<std::int32_t>(extents<dyn>{2});
  CHECK(exported(dropout(whole, 0), {.inputs = {{"x", whole}}}).count("Cast") == 1);
}

TEST_CASE("save_onnx: a recurrence is one Scan, for any length") {
  const lstm<3, 5> layer;
  const auto x = zeros<float>(extents<dyn, dyn, 3>{4, 2});
  const auto g = exported(layer(x), {.inputs = {{"x", x, {"T", "B"}}}, .tensors = state_dict(layer)});
  REQUIRE(g.count("Scan") == 1);
  REQUIRE(g.first("Scan").bodies.size() == 1);
  const onnx_file::graph& body = g.first("Scan").bodies[0];
  CHECK(body.count("MatMul") == 1);
  CHECK(body.inputs[1].dims == strings{"?", "20"});
  CHECK(g.outputs[0].dims == strings{"T", "B", "5"});

  const auto gates = zeros<float>(extents<dyn, 2, dyn>{4, 20});
  CHECK_THROWS_WITH_AS(
      exported(detail::recurrence(detail::lstm_step<decltype(layer.weight_hh_l0)>{layer.weight_hh_l0}, gates),
               {.inputs = {{"gates", gates}}}),
      doctest::Contains("needs a first state"), value_error);
}

TEST_CASE("save_onnx: bf16 is computed in f32 and rounded; values of its type are at the borders alone") {
  const auto x = zeros<bfloat16>(extents<3, 4>{});
  const auto w = zeros<bfloat16>(extents<4, 2>{});
  const auto g = exported(matmul(x, w) + cast<bfloat16>(0.5f * x[0][0]),
                          {.inputs = {{"x", x}}, .tensors = {{"w", w.state()}}});
  CHECK(g.inputs[0].type == 16);
  CHECK(g.outputs[0].type == 16);
  CHECK(g.initializers.at("w").type == 16);
  CHECK(g.initializers.at("w").bytes.size() == 16);
  CHECK(g.count("Cast") >= 6);
}

TEST_CASE("save_onnx: elements in another file") {
  const auto x = zeros<float>(extents<dyn, 40>{1});
  const auto w = randn<float>(extents<40, 50>{});
  const auto b = randn<float>(extents<50>{});
  const auto g = exported(matmul(x, w) + b, {.inputs = {{"x", x}},
                                             .tensors = {{"w", w.state()}, {"b", b.state()}},
                                             .storage = onnx::tensor_storage::in_another_file});
  const auto& stored = g.initializers.at("w");
  CHECK(stored.external.at("location") == file.name + ".data");
  CHECK(stored.external.at("offset") == "0");
  CHECK(stored.bytes.empty());
  CHECK(g.initializers.at("b").external.empty());
  const std::string data = content(path + ".data");
  REQUIRE(data.size() == 8000);
  CHECK(std::memcmp(data.data(), w.data(), 8000) == 0);
}

TEST_CASE("save_onnx: what cannot be exported is refused with its name, and no file is changed") {
  const auto x = zeros<float>(extents<dyn, 4>{2});
  const onnx_options named{.inputs = {{"x", x}}};
  const mlp model;
  save_onnx(path, model(x), named);
  const std::string before = content(path);
  const auto refuses = [&](const auto& e, const char* why) {
    CHECK_THROWS_WITH_AS(save_onnx(path, e, named), doctest::Contains(why), value_error);
    CHECK(content(path) == before);
  };
  refuses(dropout(x, 0.5f), "weft: onnx: op dropout cannot be exported: its numbers are random");
  refuses(bernoulli(x), "op bernoulli cannot be exported: its numbers are random");
  refuses(uniform_like(x), "op uniform_like");
  refuses(multinomial(x), "op multinomial cannot be exported: its numbers are random");
  refuses(apply<doubled>(x), "op doubled cannot be exported: it is not an op of weft");
  refuses(grad([](auto z) { return sum(cumprod<0>(z)); }, x), "op linear_recurrence");
  images net;
  const auto image = zeros<float>(extents<2, 3, 8, 8>{});
  CHECK_THROWS_WITH_AS(save_onnx(path, net(image)), doctest::Contains("set_training(model, false)"),
                       value_error);
  CHECK(net.norm.num_batches_tracked.item() == 0);
  const auto experts =
      mixture_of_experts<4>::create(4, 2, {.per_row = 1}, [] { return feed_forward<4>::create(4, 8); });
  CHECK_THROWS_WITH_AS(save_onnx(path, experts(x), named), doctest::Contains("mixtures of experts"),
                       value_error);
  const auto large = zeros<std::int64_t>(extents<4, 4>{});
  CHECK_THROWS_WITH_AS(save_onnx(path, max_pool2d<2>(large)),
                       doctest::Contains("op max_pool2d cannot be exported: MaxPool does not support i64"),
                       value_error);
  CHECK(content(path) == before);
}

TEST_CASE("save_onnx: names and inputs that cannot be are refused") {
  const auto x = zeros<float>(extents<dyn, 4>{2}), y = zeros<float>(extents<dyn, 4>{2});
  const auto refuses = [&](const onnx_options& options, const char* why) {
    CHECK_THROWS_WITH_AS(save_onnx(path, x * 2, options), doctest::Contains(why), value_error);
  };
  refuses({.inputs = {{"y", y}}}, "input y is not an operand of the expression");
  refuses({.inputs = {{"x", x}}, .outputs = {"x"}}, "output x: another value has this name");
  refuses({.inputs = {{"x", x}}, .tensors = {{"x", y.state()}}}, "tensor x: another value has this name");
  refuses({.inputs = {{"x", x}, {"z", x}}}, "the same tensor is another input, too");
  refuses({.inputs = {{"", x}}}, "has no name");
  refuses({.inputs = {{"\xff", x}}}, "UTF-8");
  refuses({.inputs = {{"x", x, {"a", "b", "c"}}}}, "3 names for 2 dims");
  refuses({.inputs = {{"x", x}}, .outputs = {"a", "b"}}, "2 names for 1 outputs");
  refuses({.inputs = {{"x", x}}, .tensors = {{"w", nullptr}}}, "tensor w is null");
  CHECK_THROWS_AS(save_onnx(path, matmul(x, transpose(zeros<float>(extents<dyn, dyn>{2, 3})))), shape_error);
  CHECK_THROWS_AS(save_onnx(path, slice<0>(x, 1, 5)), shape_error);
  CHECK_THROWS_AS(save_onnx("/nowhere/x.onnx", x * 2), io_error);
  auto changed = x * 2;
  tensor<float, extents<dyn, 4>>(x.state()).mutable_data();
  CHECK_THROWS_WITH_AS(save_onnx(path, changed), doctest::Contains("changed in place"), value_error);
  // Generated names give way to the user's.
  const auto g = exported(x * 2, {.inputs = {{"constant_0", x}}, .outputs = {"Mul_0"}});
  CHECK(g.outputs[0].name == "Mul_0");
}
