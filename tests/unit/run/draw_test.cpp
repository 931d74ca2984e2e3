// SPDX-License-Identifier: MIT
// Drawings of expressions show the fusion that is executed.
#include <doctest/doctest.h>

#include <string>

#include <weft/run/draw.hpp>
#include <weft/weft.hpp>

using namespace weft;

namespace {
int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++n;
  return n;
}
/// The text in the box of kernel `k`.
std::string box(const std::string& dot, int k) {
  const auto from = dot.find("subgraph cluster" + std::to_string(k) + " ");
  return from == dot.npos ? "" : dot.substr(from, dot.find("  }\n", from) - from);
}
}  // namespace

TEST_CASE("to_dot: what follows a matmul is one kernel, the matmul is none") {
  const tensor<float, extents<3, 4>> x(extents<3, 4>{});
  const tensor<float, extents<4, 5>> w(extents<4, 5>{});
  const std::string dot = to_dot(relu(matmul(x, w) + 1.0f));
  CHECK(count(dot, "subgraph") == 1);
  CHECK(box(dot, 0).find("add f32 [3, 5]") != std::string::npos);
  CHECK(box(dot, 0).find("contract") == std::string::npos);
  CHECK(count(dot, "contract f32 [3, 5]") == 1);
  CHECK(count(dot, "style=bold") == 1);
}

TEST_CASE("to_dot_with_gradients: the statement and its derivative") {
  const variable<float, extents<3, 4>> x(extents<3, 4>{});
  const auto loss = sum(exp(x));
  const std::string both = to_dot_with_gradients(loss), forward = to_dot(loss);
  CHECK(count(both, "\"exp f32") == 1);  // the derivative reads the value
  CHECK(count(both, "style=bold") == 2);
  CHECK(count(both, "->") > count(forward, "->"));
}
