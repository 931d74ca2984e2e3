// SPDX-License-Identifier: MIT
// Chapter 1 of the tutorial, docs/tutorial/tensors.md: tensors and shapes.
#include <iostream>

#include <weft/weft.hpp>

#include "../section.hpp"
using namespace weft;

// [function]
/// Takes a matrix with any number of rows and exactly three columns, which are part of its type.
float first_of_second_row(const tensor<float, extents<dyn, 3>>& t) { return t.to_vector()[3]; }
// [/function]

int main() {
  section("create");
  // [create]
  auto a = from(extents<2, 3>{}, std::vector<float>{1, 2, 3, 4, 5, 6});
  auto b = zeros<float>(extents<2, 3>{});
  auto c = full<double>(extents<4>{}, 2.5);
  auto d = arange<std::int32_t>(5);
  auto e = randn<float>(extents<2, 3>{}, {.seed = 7});
  std::cout << a << '\n' << c << '\n' << d << '\n';
  // [/create]

  section("dynamic");
  // [dynamic]
  int rows = 2;                                     // known at run time only
  auto f = ones<float>(extents<dyn, 3>{rows, 3});
  auto g = ones<float>(extents<dyn, 3>{rows});      // static extents may be left out
  std::cout << to_string(f.extents()) << ' ' << to_string(g.extents()) << '\n';
  // [/dynamic]

  section("ask");
  // [ask]
  std::cout << "extents " << to_string(a.extents()) << ", first " << a.extent(0)
            << ", last " << a.extent(-1) << ", elements " << a.size() << '\n';
  static_assert(decltype(a)::static_shape.order == 2);
  static_assert(std::is_same_v<decltype(a)::value_type, float>);
  // [/ask]

  section("elements");
  // [elements]
  float one = a(1, -2);                             // one element; negative indices count from the right
  std::vector<float> values = a.to_vector();        // a copy, in row-major order
  const float* memory = a.data();                   // the elements themselves, to read
  std::cout << one << ' ' << values[4] << ' ' << memory[4] << ' ' << eval(sum(a)).item() << '\n';
  a.copy_from({6, 5, 4, 3, 2, 1});                  // sets all elements
  std::cout << a << '\n';
  // [/elements]

  section("handles");
  // [handles]
  auto same = a;                                    // a second handle to the same elements
  auto copy = clone(a);                             // a tensor with its own elements
  a.mutable_data()[0] = 100;
  std::cout << same.data()[0] << ' ' << copy.data()[0] << '\n';
  // [/handles]

  section("shapes");
  // [shapes]
  auto x = arange<float>(12);
  auto m = reshape(x, extents<3, 4>{});             // all extents given; any may be dyn
  auto n = reshape<2, dyn>(x);                      // one may be inferred
  std::cout << eval(m) << '\n'
            << eval(transpose(m)) << '\n'
            << eval(n) << '\n';
  // [/shapes]

  section("slices");
  // [slices]
  auto t = eval(m);
  std::cout << eval(t[1]) << '\n'                   // row 1
            << eval(t[-1]) << '\n'                  // the last row
            << eval(slice<1, 1, 3>(t)) << '\n'      // columns 1 and 2; bounds known to the compiler
            << eval(slice<0>(t, 0, rows)) << '\n'   // rows 0 and 1; bounds given at run time
            << eval(flip<0>(t)) << '\n';
  // [/slices]

  section("join");
  // [join]
  auto row = from(extents<2>{}, std::vector<float>{1, 2});
  std::cout << eval(concat<0>(row, row)) << '\n'
            << eval(stack<0>(row, row)) << '\n'
            << eval(expand(unsqueeze<0>(row), extents<dyn, 2>{3})) << '\n';
  // [/join]

  section("types");
  // [types]
  auto whole = cast<std::int32_t>(full<float>(extents<2>{}, 2.75f));   // rounds toward zero
  auto half = cast<bfloat16>(full<float>(extents<2>{}, 1.01f));        // 8 bits of precision
  std::cout << eval(whole) << '\n' << eval(half) << '\n';
  // [/types]

  section("convert");
  // [convert]
  auto exact = tensor<float, extents<3, 4>>(t);      // the same elements, with more static extents
  tensor<float, extents<dyn, dyn>> loose = t;        // with fewer: always valid, so implicit
  std::cout << first_of_second_row(b) << '\n';
  // [/convert]

  section("errors");
  // [errors]
  try {
    auto p = ones<float>(extents<dyn, dyn>{2, 3}), q = ones<float>(extents<dyn, dyn>{4, 5});
    eval(matmul(p, q));
  } catch (const shape_error& error) {
    std::cout << error.what() << '\n';
  }
  try {
    eval(t[3]);
  } catch (const value_error& error) {
    std::cout << error.what() << '\n';
  }
  // [/errors]
  (void)e, (void)exact, (void)loose;
}
