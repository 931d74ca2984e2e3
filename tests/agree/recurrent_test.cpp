// SPDX-License-Identifier: MIT
// LSTM and GRU agree with PyTorch: values and all gradients, with PyTorch's parameters by name.
#include "cases.hpp"

using namespace weft;
using namespace weft::test;

namespace {

const io::stored_tensors& cases() {
  static const io::stored_tensors all = file("recurrent");
  return all;
}

/// Compares value and gradients of f(layer, variables), for all parameters and the variables `named`.
template <class Layer, class F, class... Named>
void agrees(const stored_case& c, Layer layer, F f, const Named&... named) {
  for (const auto& [name, p] : state_dict(layer)) c.restore(name, *p);
  c.agrees([&] { return f(layer); }, 1e-5, 1, named...);
  for (const auto& [name, p] : state_dict(layer)) {
    REQUIRE(p->grad);
    c.same(*p->grad, "grad." + name, 1e-5, 1);
  }
}

template <template <index_t, index_t> class Layer, index_t In, index_t Hidden>
void of_sizes(const std::string& name, const auto& f) {
  int number = 0;
  for_each_case(cases(), name, [&](const stored_case& c) {
    const shape w = c.extents_of(c.has("weight_ih") ? "weight_ih" : "weight_ih_l0");
    const shape hh = c.extents_of(c.has("weight_hh") ? "weight_hh" : "weight_hh_l0");
    f(c, Layer<dyn, dyn>::create(w[1], hh[1]));
    if (number++ == 0) f(c, Layer<In, Hidden>());
  });
}

}  // namespace

TEST_CASE("cells") {
  of_sizes<lstm_cell, 7, 5>("lstm_cell", [](const stored_case& c, const auto& cell) {
    auto x = c.variable<float, order2>("x"), h = c.variable<float, order2>("h"),
         before = c.variable<float, order2>("c");
    const auto step = [&](const auto& layer) { return layer(x, stack<0>(h, before)); };
    agrees(c, cell, step, "x", x, "h", h, "c", before);
  });
  of_sizes<gru_cell, 7, 5>("gru_cell", [](const stored_case& c, const auto& cell) {
    auto x = c.variable<float, order2>("x"), h = c.variable<float, order2>("h");
    agrees(
        c, cell, [&](const auto& layer) { return layer(x, h); }, "x", x, "h", h);
  });
}

TEST_CASE("sequences") {
  of_sizes<lstm, 7, 5>("lstm", [](const stored_case& c, const auto& layer) {
    auto x = c.variable<float, order3>("x");
    agrees(
        c, layer, [&](const auto& l) { return l(x); }, "x", x);
  });
  of_sizes<gru, 7, 5>("gru", [](const stored_case& c, const auto& layer) {
    auto x = c.variable<float, order3>("x");
    agrees(
        c, layer, [&](const auto& l) { return l(x); }, "x", x);
  });
}

TEST_CASE("sequences from a given state, and the last state") {
  of_sizes<lstm, 7, 5>("lstm_from", [](const stored_case& c, const auto& layer) {
    auto x = c.variable<float, order3>("x");
    auto h = c.variable<float, order2>("h"), before = c.variable<float, order2>("c");
    const index_t last = x.extent(0) - 1;
    const auto outputs_and_last_cell = [&](const auto& l) {
      return let(l.states(x, stack<0>(h, before)), [last](auto s) {
        return concat<0>(select<1, 0>(s), slice<0>(select<1, 1>(s), last, last + 1));
      });
    };
    agrees(c, layer, outputs_and_last_cell, "x", x, "h", h, "c", before);
  });
  of_sizes<gru, 7, 5>("gru_from", [](const stored_case& c, const auto& layer) {
    auto x = c.variable<float, order3>("x");
    auto h = c.variable<float, order2>("h");
    agrees(
        c, layer, [&](const auto& l) { return l(x, h); }, "x", x, "h", h);
  });
}
