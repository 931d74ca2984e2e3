// SPDX-License-Identifier: MIT
// within 12: mistake::result_divided
// within 12: divided_dim<1, 1, 1>
// within 12: weft: tensor parallel: the layers cannot be divided
#include <weft/weft.hpp>
#include <weft/parallel/tensor_parallel.hpp>
using namespace weft;
using plan = policy<strategy::mesh<tp<>>>;
template <index_t In, index_t Out, class Division>
using weight = parameter<extents<In, Out>, float, typename Division::template weight<1, 0>>;
using input = variable<float, extents<4, 8>>;

/// The last layer is divided by columns.
auto layers(input x, weight<8, 12, divided::columns<>> a) { return relu(matmul(x, a)); }
using E = decltype(layers({}, {}));
static_assert(sent<E, plan>(2) >= 0);
