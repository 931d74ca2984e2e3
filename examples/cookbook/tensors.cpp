// SPDX-License-Identifier: MIT
// Recipes of docs/cookbook/tensors.md.
#include <iostream>

#include <weft/weft.hpp>

#include "../section.hpp"
using namespace weft;

int main() {
  auto x = from(extents<2, 3>{}, std::vector<float>{1, 2, 3, 4, 5, 6});

  section("element");
  // [element]
  const index_t i = 1, j = 2;
  float value = x(i, j);                             // reads one element; host memory only
  x.mutable_data()[i * x.extent(1) + j] = 10;        // row-major; before the next expression of x
  std::cout << value << ' ' << eval(x[i]) << '\n';
  // [/element]

  section("vector");
  // [vector]
  std::vector<float> rows{1, 2, 3, 4, 5, 6, 7, 8};
  auto t = from(extents<dyn, 4>{2, 4}, rows);        // in: copied
  std::vector<float> out = t.to_vector();            // out: copied
  t.copy_from(rows);                                 // in again, into the same tensor
  std::cout << to_string(t.extents()) << ' ' << out.back() << '\n';
  // [/vector]

  section("slices");
  // [slices]
  const index_t first = 1, last = 3;                 // known at run time
  auto columns = slice<1>(t, first, last);           // t[:, first:last]; the extent of the result is dyn
  auto row = t[first];                               // t[first]; -1 is the last one
  auto column = select<1>(t, last);                  // t[:, last]
  std::cout << eval(columns) << '\n' << eval(row) << '\n' << eval(column) << '\n';
  // [/slices]

  section("assign");
  // [assign]
  auto part = clone(t);
  update(slice<1>(part, first, last), 0);  // part[:, 1:3] = 0
  update(part[0], part[1] * 10);           // part[0] = part[1] * 10
  std::cout << part << '\n';
  std::cout << eval(where(t > 6, 0.0f, t)) << '\n';  // t[t > 6] = 0, in a new tensor
  // [/assign]

  section("reductions");
  // [reductions]
  auto deviation = stddev(t, dims<0>);  // as torch.std; stddev<0>(t, dims<0>) as numpy.std
  auto norm = vector_norm(t);
  auto some = any(t > 7.0f);
  auto every = all(t > 0.0f);
  std::cout << eval(deviation) << '\n' << eval(norm) << '\n' << eval(some) << ' ' << eval(every) << '\n';
  // [/reductions]

  section("random");
  // [random]
  auto a = randn<float>(extents<2>{}, {.seed = 1});
  auto b = randn<float>(extents<2>{}, {.seed = 1});               // the same numbers
  auto c = randn<float>(extents<2>{}, {.seed = 1, .stream = 1});  // different numbers
  std::cout << std::boolalpha << (a.to_vector() == b.to_vector()) << ' '
            << (a.to_vector() == c.to_vector()) << '\n';

  context run;                                       // random ops draw from the context
  run.seed = 7;
  run.begin_step(0);
  auto first_mask = eval(dropout(ones<float>(extents<8>{}), 0.5f), run);
  run.begin_step(0);                                 // the same step again: the same numbers
  auto again = eval(dropout(ones<float>(extents<8>{}), 0.5f), run);
  std::cout << (first_mask.to_vector() == again.to_vector()) << '\n';
  // [/random]

  section("sample");
  // [sample]
  auto logits = from(extents<2, 3>{}, std::vector<float>{0, 9, 0, 0, 0, 9});
  std::cout << eval(multinomial(softmax(logits))) << '\n';       // one position per row
  std::cout << eval(multinomial<2>(ones_like(logits))) << '\n';  // two different positions per row
  // [/sample]

  section("f64");
  // [f64]
  variable<double, extents<2>> w(from(extents<2>{}, std::vector<double>{1.0 / 3, 2.0 / 3}));
  auto as_double = cast<double>(x);  // matmul(float, double) does not compile
  tape steps;
  steps.backward(steps.eval(sum(log(w))));
  std::cout.precision(12);
  std::cout << w.grad() << '\n' << eval(sum(as_double)) << '\n';
  // [/f64]
}
