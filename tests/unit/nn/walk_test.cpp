// SPDX-License-Identifier: MIT
// The tensors of a module are found in every kind of member, and copies keep their ties.
#include <doctest/doctest.h>

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>

#include <weft/weft.hpp>

using namespace weft;

namespace {

using layer = linear<2, 3>;

struct holder {
  std::optional<layer> maybe, nothing;
  std::shared_ptr<layer> shared = std::make_shared<layer>();
  std::unique_ptr<layer> owned = std::make_unique<layer>();
  std::vector<layer> list = std::vector<layer>(2);
  std::array<layer, 1> fixed;
  std::deque<layer> queue = std::deque<layer>(1);
  std::map<std::string, layer> by_name{{"b", {}}, {"a", {}}};
  std::unordered_map<int, layer> by_number{{30, {}}, {4, {}}, {100, {}}};
  std::pair<layer, float> pair;
  std::tuple<int, layer> tuple;
  std::string name = "holder";
  std::function<float(float)> f;
  std::vector<std::string> words{"x"};
  device where = default_device();
  tensor<float, extents<2>> buffer{shape{1, {2}}};
};

std::string names_of(const auto& m) {
  std::string all;
  for (const auto& [name, t] : state_dict(m))
    if (!name.ends_with("bias")) all += name + " ";
  return all;
}

}  // namespace

TEST_CASE("containers are walked, by PyTorch's names") {
  holder m;
  m.maybe.emplace();
  CHECK(names_of(m) ==
        "maybe.weight shared.weight owned.weight list.0.weight list.1.weight fixed.0.weight queue.0.weight "
        "by_name.a.weight by_name.b.weight by_number.4.weight by_number.30.weight by_number.100.weight "
        "pair.0.weight tuple.1.weight buffer ");
  CHECK(parameters_of(m).size() == 2 * 14);
  CHECK(named_buffers(m).size() == 1);
  static_assert(module<holder>);
}

TEST_CASE("an optimiser changes what containers hold") {
  struct {
    std::optional<layer> maybe = layer{};
    std::map<std::string, std::unique_ptr<layer>> by_name;
  } m;
  m.by_name["a"] = std::make_unique<layer>();
  const auto x = ones<float>(extents<4, 2>{});
  const auto before = m.by_name["a"]->weight.to_vector(), before_maybe = m.maybe->weight.to_vector();
  tape steps;
  steps.backward(steps.eval(sum((*m.maybe)(x)) + sum((*m.by_name["a"])(x))));
  sgd{.lr = 0.5}.step(m);
  for (std::size_t i = 0; i < before.size(); ++i) {
    CHECK(m.by_name["a"]->weight.to_vector()[i] == doctest::Approx(before[i] - 2));
    CHECK(m.maybe->weight.to_vector()[i] == doctest::Approx(before_maybe[i] - 2));
  }
}

namespace {
struct many {
  layer a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa, ab, ac, ad, ae, af;
};
class with_children {
 public:
  explicit with_children(int n) : number_(n) {}
  int number() const { return number_; }
  auto children() { return std::tie(first_, second_); }
  auto children() const { return std::tie(first_, second_); }

 private:
  layer first_, second_;
  int number_;
};
}  // namespace

TEST_CASE("a struct has up to 32 members") {
  many m;
  const auto all = state_dict(m);
  REQUIRE(all.size() == 64);
  CHECK(all[2].first == "b.weight");
  CHECK(all[62].first == "af.weight");
  CHECK(all[62].second == m.af.weight.state());
}

TEST_CASE("a class with private members says what it holds") {
  CHECK(names_of(with_children(3)) == "0.weight 1.weight ");
  CHECK(clone(with_children(3)).number() == 3);
}

namespace {
class counter {  // neither copied nor a plain struct
 public:
  counter() = default;

 private:
  std::mutex mutex_;
};
struct counted_layer {
  layer inner;
  std::shared_ptr<counter> calls = std::make_shared<counter>();
};
}  // namespace
template <>
inline constexpr bool weft::holds_no_tensors<counter> = true;

namespace {
struct incomplete;
/// Pointers to types without tensors, or to opaque types, are members like any other.
struct with_pointers {
  layer inner;
  incomplete* of_library = nullptr;
  context* where = nullptr;
  const char* name = "with pointers";
  void (*f)() = nullptr;
  void* any = nullptr;
  std::vector<int*> numbers;
};
}  // namespace

TEST_CASE("pointers to what holds no tensors are no hindrance") {
  with_pointers m;
  CHECK(names_of(m) == "inner.weight ");
}

TEST_CASE("a class of which only its author knows is told about") {
  counted_layer m;
  CHECK(names_of(m) == "inner.weight ");
  const auto copy = clone(m);
  CHECK(copy.inner.weight.state() != m.inner.weight.state());
}

namespace {
struct own_mode {
  layer map;
  bool training = true;
};
struct only_dropout {
  dropout_layer first, second;
};
struct of_modes {
  own_mode own;
  layer map;
  dropout_layer drop;
  only_dropout nested;
  std::vector<dropout_layer> list = std::vector<dropout_layer>(2);
  std::map<std::string, only_dropout> by_name{{"a", {}}};
  std::optional<dropout_layer> maybe = dropout_layer{}, nothing;
  std::shared_ptr<batch_normalization<3>> shared = std::make_shared<batch_normalization<3>>();
  std::tuple<int, dropout_layer> tuple;
  repeat<own_mode> blocks{std::vector<own_mode>(2)};
  std::vector<int> numbers{1, 2};
  std::string training = "not a bool";
  std::function<float(float)> f;
};
std::vector<bool> modes_of(const of_modes& m) {
  return {m.own.training,
          m.drop.training,
          m.nested.first.training,
          m.nested.second.training,
          m.list[0].training,
          m.list[1].training,
          m.by_name.at("a").second.training,
          m.maybe->training,
          m.shared->training,
          std::get<1>(m.tuple).training,
          m.blocks.blocks[0].training,
          m.blocks.blocks[1].training};
}
}  // namespace

TEST_CASE("set_training reaches all layers, with tensors and without") {
  of_modes m;
  CHECK(modes_of(m) == std::vector<bool>(12, true));
  set_training(m, false);
  CHECK(modes_of(m) == std::vector<bool>(12, false));
  set_training(m, true);
  CHECK(modes_of(m) == std::vector<bool>(12, true));
  CHECK(m.training == "not a bool");
  CHECK_FALSE(m.nothing.has_value());
  dropout_layer alone;
  set_training(alone, false);
  CHECK_FALSE(alone.training);
  sequential net{linear<3, 3>{}, [](auto x) { return relu(x); }, dropout_layer{0.5f},
                 batch_normalization<3>{}};
  set_training(net, false);
  const tensor<float, extents<4, 3>> x = ones<float>(extents<4, 3>{});
  CHECK(eval(net(x)).to_vector() == eval(net(x)).to_vector());  // nothing is dropped
}

TEST_CASE("clone: tensors of its own, equal elements") {
  holder m;
  m.maybe.emplace();
  m.buffer.copy_from({5, 6});
  for (const auto& p : parameters_of(m)) p->grad = make_state(p->where, p->extents, p->type);
  m.list[0].weight.on_gradient([](auto) {});
  const auto copy = clone(m);
  CHECK(names_of(copy) == names_of(m));
  const auto from = state_dict(m), to = state_dict(copy);
  REQUIRE(from.size() == to.size());
  const auto elements = [](const tensor_state& t) {
    std::vector<float> v(static_cast<std::size_t>(t.extents.size()));
    detail::download_to(t, v.data());
    return v;
  };
  for (std::size_t i = 0; i < from.size(); ++i) {
    CHECK(to[i].second != from[i].second);
    CHECK(to[i].second->memory.data() != from[i].second->memory.data());
    CHECK(elements(*to[i].second) == elements(*from[i].second));
    CHECK(to[i].second->grad == nullptr);
    CHECK(to[i].second->gradient_hooks.empty());
    CHECK(to[i].second->init.scale == from[i].second->init.scale);
  }
  CHECK(copy.shared != m.shared);
  CHECK(copy.name == "holder");
  CHECK_FALSE(copy.nothing.has_value());
}

TEST_CASE("clone: what is shared stays shared") {
  struct {
    layer head;
    parameter<extents<3, 2>> tied = head.weight;
    std::shared_ptr<layer> one = std::make_shared<layer>(), same = one, null;
  } m;
  auto copy = clone(m);
  CHECK(copy.tied.state() == copy.head.weight.state());
  CHECK(copy.tied.state() != m.tied.state());
  CHECK(copy.one == copy.same);
  CHECK(copy.one != m.one);
  CHECK(copy.null == nullptr);
  const auto kept = m.head.weight.to_vector();
  copy.head.weight.copy_from(std::vector<float>(6, 9.0f));
  CHECK(m.head.weight.to_vector() == kept);
}

TEST_CASE("clone: sequences, repeats, classes with children, tensors, other devices") {
  const device other(std::make_shared<cpu::cpu_backend>(1));
  sequential model{linear<2, 3>{}, [](auto x) { return relu(x); }, linear<3, 2>{}};
  repeat<layer> blocks{std::vector<layer>(3)};
  with_children by_hand(3);
  to(blocks, other);
  const auto check = [](const auto& m, const device& where) {
    const auto copy = clone(m);
    const auto from = state_dict(m), to = state_dict(copy);
    REQUIRE(from.size() == to.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      CHECK(from[i].second != to[i].second);
      CHECK(to[i].second->where == where);
    }
  };
  check(model, default_device());
  check(blocks, other);
  check(by_hand, default_device());
  const auto x = from(extents<2>{}, std::vector<float>{1, 2});
  auto y = clone(x);
  y.copy_from({3, 4});
  CHECK(x.to_vector() == std::vector<float>{1, 2});
  CHECK_FALSE(clone(tensor<float, extents<2>>()).defined());
  CHECK(clone(zeros<float>(extents<0, 3>{})).extents() == shape{2, {0, 3}});
}

TEST_CASE("a step that would change nothing is an error") {
  layer m;
  sgd optimizer{.lr = 1};
  CHECK_THROWS_WITH_AS(optimizer.step(m), doctest::Contains("no parameter has a gradient"), usage_error);
  linear<> not_made;
  CHECK_THROWS_WITH_AS(optimizer.step(not_made), doctest::Contains("no parameter with elements"),
                       usage_error);
  CHECK(optimizer.steps == 0);
  adamw other;
  CHECK_THROWS_AS(other.step(m), usage_error);
  // Parameters that the loss does not depend on do not change.
  tape steps;
  steps.backward(steps.eval(sum(m.bias * 2.0f)));
  const auto weight = m.weight.to_vector(), bias = m.bias.to_vector();
  optimizer.step(m);
  CHECK(m.weight.to_vector() == weight);
  CHECK(m.bias.to_vector() != bias);
}

namespace {
struct opaque_pointer {
  context* where = nullptr;
  std::span<const int> numbers;
};
struct settings {
  int count = 0;
  double rate = 0;
  int sizes[3] = {};
  std::array<float, 2> range{};
  std::optional<int> limit;
  std::string_view name;
  opaque_pointer more;
};
struct with_settings {
  layer inner;
  settings how;
  std::array<settings, 2> others;
};

struct one_pointer {
  layer* to;
};
struct one_reference {
  layer& to;
};
struct one_span {
  std::span<layer> to;
};
struct one_wrapper {
  std::reference_wrapper<layer> to;
};
struct pointer_and_number {
  int number;
  const layer* to;
};
struct nested_pointer {
  one_pointer inside;
};
}  // namespace

TEST_CASE("trivially copyable structs are walked too: what they point to is not omitted") {
  with_settings m;
  CHECK(names_of(m) == "inner.weight ");
  using enum detail::content;
  static_assert(detail::content_of<settings> == none);
  static_assert(detail::content_of<one_pointer> == unknown);
  static_assert(detail::content_of<one_reference> == unknown);
  static_assert(detail::content_of<one_span> == unknown);
  static_assert(detail::content_of<one_wrapper> == unknown);
  static_assert(detail::content_of<pointer_and_number> == unknown);
  static_assert(detail::content_of<nested_pointer> == unknown);
  static_assert(detail::content_of<std::array<one_pointer, 2>> == unknown);
  static_assert(detail::content_of<std::optional<one_pointer>> == unknown);
  static_assert(detail::content_of<std::span<layer>> == unknown);
  static_assert(detail::content_of<std::span<const float>> == none);
}

TEST_CASE("a lambda that captures numbers holds no tensors") {
  const float slope = 0.2f;
  const int sign = -1;
  sequential m{linear<2, 3>{}, [slope](auto x) { return leaky_relu(x, slope); },
               [=](auto x) { return x * static_cast<float>(sign); }, linear<3, 1>{}};
  CHECK(state_dict(m).size() == 4);
  const auto before = m.children();
  sgd optimizer{.lr = 1};
  const auto copy = clone(m);
  tape steps;
  steps.backward(steps.eval(sum(m(ones<float>(extents<4, 2>{})))));
  optimizer.step(m);
  copy_weights(copy, m);
  CHECK(std::get<3>(copy.modules).bias.to_vector() == std::get<3>(before).bias.to_vector());
}

TEST_CASE("initial values of He and Glorot") {
  const auto deviation = [](const auto& w) { return eval(sqrt(mean(square(w)))).item(); };
  const extents<300, 200> shape;
  const auto he = make_parameter(shape, init::kaiming_normal(200)),
             he_uniform = make_parameter(shape, init::kaiming_uniform(200)),
             glorot = make_parameter(shape, init::xavier_normal(200, 300)),
             glorot_uniform = make_parameter(shape, init::xavier_uniform(200, 300));
  CHECK(deviation(he) == doctest::Approx(std::sqrt(2.0 / 200)).epsilon(0.02));
  CHECK(deviation(he_uniform) == doctest::Approx(std::sqrt(2.0 / 200)).epsilon(0.02));
  CHECK(deviation(glorot) == doctest::Approx(std::sqrt(2.0 / 500)).epsilon(0.02));
  CHECK(deviation(glorot_uniform) == doctest::Approx(std::sqrt(2.0 / 500)).epsilon(0.02));
  CHECK(eval(amax(abs(glorot_uniform))).item() <= std::sqrt(6.0 / 500));
  const linear<4, 8> layer{.weight = make_parameter(extents<8, 4>{}, init::kaiming_normal(4))};
  CHECK(layer.bias.size() == 8);
}
