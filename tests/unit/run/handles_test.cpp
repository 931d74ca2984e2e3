// SPDX-License-Identifier: MIT
// Tensors as handles: elements, indices, conversions between extents, tensors like others, updates in place.
#include <doctest/doctest.h>

#include <limits>
#include <sstream>

#include <weft/weft.hpp>

using namespace weft;

namespace {

using loose = tensor<float, extents<dyn, 3>>;

/// Takes any number of rows.
float corner(const loose& t) { return t(0, 0); }

auto counted() { return from(extents<2, 3>{}, std::vector<float>{0, 1, 2, 3, 4, 5}); }

}  // namespace

TEST_CASE("t(i, j) is an element; indices count from both ends and are checked") {
  auto t = counted();
  CHECK(t(0, 0) == 0);
  CHECK(t(1, 2) == 5);
  CHECK(t(-1, 1) == 4);
  CHECK(t(0, -3) == 0);
  CHECK(eval(sum(t))() == 15);   // a scalar has no index
  CHECK_THROWS_WITH_AS(t(1, 3), "weft: index 3 of dim 1 is outside of [-3, 3) for a tensor of shape [2, 3]",
                       value_error);
  CHECK_THROWS_AS(t(-3, 0), value_error);
  auto u = ones<std::int32_t>(extents<dyn, 2, 2>{3});
  u.mutable_data()[9] = 7;
  CHECK(u(2, 0, 1) == 7);
}

TEST_CASE("from: elements in braces have their own type, or the one that is named; their number is checked") {
  auto t = from(extents<2, 2>{}, {1.5f, 2.0f, 3.0f, 4.0f});
  static_assert(std::is_same_v<decltype(t), tensor<float, extents<2, 2>>>);
  CHECK(t.to_vector() == std::vector<float>{1.5f, 2, 3, 4});
  static_assert(std::is_same_v<decltype(from(extents<1>{}, {7})), tensor<std::int32_t, extents<1>>>);
  CHECK(from<float>(extents<dyn>{3}, {1, 2, 3}).to_vector() == std::vector<float>{1, 2, 3});
  CHECK(from<float>(extents<0>{}, {}).size() == 0);
  const double array[] = {0.5, 0.25};
  CHECK(from(extents<dyn, 2>{1}, array)(0, 1) == 0.25);
  auto flags = from(extents<2>{}, {false, true});
  CHECK(flags(1));
  CHECK_THROWS_WITH_AS(from(extents<dyn, 2>{2}, {1.0f, 2.0f, 3.0f}),
                       "weft: from: a tensor of shape [2, 2] has 4 elements, not 3", shape_error);
  CHECK_THROWS_WITH_AS(from(extents<dyn, 2>{2}, std::vector<float>{1, 2, 3}),
                       "weft: from: a tensor of shape [2, 2] has 4 elements, not 3", shape_error);
}

TEST_CASE("x[i] and select take indices from the right, of tensors and of expressions") {
  auto t = counted();
  CHECK(eval((t + 1)[-1]).to_vector() == std::vector<float>{4, 5, 6});
  CHECK(eval(t[1][2]).item() == 5);
  CHECK(eval(t[-1][-3]).item() == 3);
  CHECK(eval(select<1>(t, -1)).to_vector() == std::vector<float>{2, 5});
  CHECK(eval(select<-1>(t * 2, -2)).to_vector() == std::vector<float>{2, 8});
  CHECK(eval(let(t + 1, [](auto x) { return x[0] * x[1]; })).to_vector() == std::vector<float>{4, 10, 18});
  auto half = shared(t * 0.5f);
  CHECK(eval(half[0] + half[-1]).to_vector() == std::vector<float>{1.5f, 2.5f, 3.5f});
  CHECK(eval(slice<0>(t, 0, 2)[1]).to_vector() == std::vector<float>{3, 4, 5});  // a node with given bounds
  CHECK(eval(let(t, [](auto x) { return x; })[1]).to_vector() == std::vector<float>{3, 4, 5});
  CHECK_THROWS_WITH_AS(select<1>(t, 3),
                       "weft: index 3 of dim 1 is outside of [-3, 3) for a tensor of shape [2, 3]",
                       value_error);
  CHECK_THROWS_AS((t + 1)[2], value_error);
}

TEST_CASE("an index from the right of an extent that is not known yet is an error that says so") {
  loose t = counted();
  CHECK(eval(t[-1]).to_vector() == std::vector<float>{3, 4, 5});   // the tensor knows it
  CHECK(eval((t + 1)[1]).to_vector() == std::vector<float>{4, 5, 6});
  CHECK_THROWS_WITH_AS(
      (t + 1)[-1],
      "weft: select: index -1 counts from the right of dim 0, whose extent is not known before the "
      "operand is evaluated",
      value_error);
}

TEST_CASE("printing: what has no elements, and NaN of either sign") {
  const auto printed = [](const auto& t) {
    std::ostringstream out;
    out << t;
    return out.str();
  };
  variable<float, extents<2>> v(ones<float>(extents<2>{}));
  CHECK(printed(v.grad()) == "undefined");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(printed(from(extents<3>{}, std::vector<float>{nan, -nan, -1.5f})) == "f32 [3]\n[nan, nan, -1.5]");
  CHECK(printed(full<bfloat16>(extents<1>{}, bfloat16(-nan))) == "bf16 [1]\n[nan]");
  CHECK(printed(full<double>(extents<1>{}, static_cast<double>(-nan))) == "f64 [1]\n[nan]");
  CHECK(printed(full<std::int64_t>(extents<1>{}, -7)) == "i64 [1]\n[-7]");
}

TEST_CASE("a tensor converts to one of a type that knows less, and on demand to one that knows more") {
  auto t = counted();
  CHECK(corner(t) == 0);
  loose l = t;
  l = eval(t + 1);
  CHECK(l(1, 2) == 6);
  const tensor<float, extents<2, 3>> again(l);
  CHECK(again.data() == l.data());
  CHECK_THROWS_AS((tensor<float, extents<dyn, 4>>(tensor<float, extents<dyn, dyn>>(t))), shape_error);
  static_assert(std::is_convertible_v<tensor<float, extents<2, 3>>, loose>);
  static_assert(!std::is_convertible_v<loose, tensor<float, extents<2, 3>>>);
  static_assert(!std::is_convertible_v<variable<float, extents<2, 3>>, loose>);  // the gradient would be lost
  static_assert(!std::is_convertible_v<tensor<double, extents<2, 3>>, loose>);
}

TEST_CASE("tensors like another have its type, extents and device") {
  const device elsewhere(std::make_shared<cpu::cpu_backend>(1));
  variable<double, extents<dyn, 2>> x(full<double>(extents<dyn, 2>{3}, 4.0, elsewhere));
  auto z = zeros_like(x), o = ones_like(x), n = randn_like(x, {.seed = 3}), u = rand_like(x, {.seed = 3});
  static_assert(std::is_same_v<decltype(z), tensor<double, extents<dyn, 2>>>);
  CHECK(z.to_vector() == std::vector<double>(6, 0.0));
  CHECK(o.to_vector() == std::vector<double>(6, 1.0));
  CHECK(full_like(x, 2.5).to_vector() == std::vector<double>(6, 2.5));
  CHECK(n.to_vector() == randn<double>(extents<3, 2>{}, {.seed = 3}).to_vector());
  CHECK(u.to_vector() == rand<double>(extents<3, 2>{}, {.seed = 3}).to_vector());
  CHECK(n.state()->where == elsewhere);
  CHECK(u.state()->where == elsewhere);
  CHECK(rand_like(zeros<bfloat16>(extents<0, 3>{})).size() == 0);
  CHECK(z.state()->where == elsewhere);
}

TEST_CASE("update of one tensor computes into its memory from the old elements") {
  auto t = counted();
  const float* memory = t.data();
  update(t, flip<1>(t) * 2);
  CHECK(t.to_vector() == std::vector<float>{4, 2, 0, 10, 8, 6});
  CHECK(t.data() == memory);
  context c;
  update(t, t - t, c);
  CHECK(eval(sum(abs(t))).item() == 0);
  CHECK_THROWS_AS(update(t, reshape<3, 2>(t)[0]), shape_error);
}

TEST_CASE("a linear layer without bias") {
  linear_without_bias<3, 2> layer;
  layer.weight.copy_from({1, 0, 0, 0, 1, -1});
  CHECK(eval(layer(counted())).to_vector() == std::vector<float>{0, -1, 3, -1});
  CHECK(parameter_count(layer) == 6);
  auto wide = linear_without_bias<>::create(3, 5);
  CHECK(state_dict(wide).size() == 1);
  CHECK(eval(wide(counted())).size() == 10);
}

TEST_CASE("a tensor that was moved says so when it is used") {
  auto t = counted();
  auto u = std::move(t);
  CHECK(u.size() == 6);
  const char* const text =
      "weft: a tensor of type f32 [2, 3] is used before it has elements, or after it was moved";
  CHECK_THROWS_WITH_AS(t + 1, text, value_error);
  CHECK_THROWS_WITH_AS(t.to_vector(), text, value_error);
  CHECK_THROWS_WITH_AS(t(0, 0), text, value_error);
}

TEST_CASE(
    "a change in place through a view of the elements is a change of the tensor, and the other way round") {
  variable<float, extents<2, 3>> w(ones<float>(extents<2, 3>{}));
  const auto check = [&](auto view, auto change) {
    tape steps;
    const auto loss = steps.eval(sum(w * w));
    const auto written = w * 2.0f;
    change(view);
    CHECK_THROWS_AS(eval(written), value_error);
    CHECK_THROWS_AS(steps.backward(loss), value_error);
  };
  check(flat_view<float>(w.state()), [](auto& v) { update(v, v * 10.0f); });
  check(row_view<float>(w.state()), [](auto& v) { v.mutable_data()[0] = 1; });
  check(flat_view<float>(row_view<float>(w.state()).state()), [](auto& v) { update(v, v + 1.0f); });
  const auto view = flat_view<float>(w.state());
  const auto written = view * 2.0f;
  update(w, w + 1.0f);
  CHECK_THROWS_AS(eval(written), value_error);
  CHECK(eval(view * 1.0f).to_vector() == w.to_vector());
}

TEST_CASE("a copy on another device is a tensor of its own: no view, no hooks") {
  const device other(std::make_shared<cpu::cpu_backend>(1));
  auto t = full<float>(extents<2>{}, 1.0f);
  const auto view = flat_view<float>(t.state());
  const auto far = view.to(other);
  context c(other);
  const auto written = far * 2.0f;
  t.mutable_data()[0] = 7;
  CHECK(eval(written, c).to_vector() == std::vector<float>{2, 2});
  auto moved = flat_view<float>(t.state());
  const auto before = moved * 2.0f;
  moved.mutable_data()[0] = 3;
  move_to(*moved.state(), other);
  CHECK_THROWS_AS(eval(before, c), value_error);  // the count goes along
  CHECK(moved.to_vector() == std::vector<float>{3, 1});

  variable<float, extents<2>> w(full<float>(extents<2>{}, 1.0f));
  int calls = 0;
  w.on_gradient([&](const auto&) { ++calls; });
  const auto q = w.to(other);
  tape steps(c);
  steps.backward(steps.eval(sum(q)));
  CHECK(calls == 0);
  CHECK_FALSE(w.grad().defined());
  move_to(*w.state(), other);  // all handles move, with their hooks
  steps.backward(steps.eval(sum(w)));
  CHECK(calls == 1);
}
