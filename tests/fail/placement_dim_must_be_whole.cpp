// SPDX-License-Identifier: MIT
// within 12: mistake::dim_must_be_whole
// within 12: op_named<'c', 'u', 'b', 'e'>
// within 12: divided_dim<1, 1, 1>
// within 12: weft: tensor parallel: the layers cannot be divided
#include <weft/weft.hpp>
#include <weft/parallel/tensor_parallel.hpp>
using namespace weft;
using plan = policy<strategy::mesh<tp<>>>;
template <index_t In, index_t Out, class Division>
using weight = parameter<extents<In, Out>, float, typename Division::template weight<1, 0>>;
using input = variable<float, extents<4, 8>>;

/// An op of a user that does not state which dims may be divided.
struct cube : op::rule<1> {
  static constexpr auto kind = op::op_kind::native;
  static constexpr auto name = "cube";
  static constexpr native_code code{};
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, operands[0]};
  }
  static constexpr auto vjp(auto g, auto, auto x) { return g * x * x * 3; }
};
auto layers(input x, weight<8, 12, divided::columns<>> a) { return apply<cube>(matmul(x, a)); }
using E = decltype(layers({}, {}));
static_assert(sent<E, plan>(2) >= 0);
