// SPDX-License-Identifier: MIT
// Recurrent layers with PyTorch's parameters: cells, which compute one step, and whole sequences.
//
//   auto outputs = steps.eval(layer(x));            // [T, B, In] -> [T, B, Hidden], from a state of zeros
//
//   auto state = steps.eval(cell(x, before));       // one step of an LSTM: states [2, B, Hidden]
//   auto y = steps.eval(head(state[0]));            // state[0] is h, state[1] is c
//
// The two values of an LSTM's state are one tensor, because a statement has one value. A sequence is computed
// as one product of all inputs, one statement for each position, and a few that join the results; compile
// time does not depend on its length. Layers are stacked by applying one to the outputs of another.
#pragma once

#include <weft/nn/layers.hpp>
#include <weft/run/recurrence.hpp>

namespace weft::op {

/// The compile-time errors for states of cells.
template <bool Holds, class... Extents>
struct lstm_state_law {
  static_assert(Holds,
                "weft: lstm_cell: for an input [..., In], the state must be [2, ..., Hidden], as "
                "stack<0>(h, c)");
};
template <bool Holds, class... Extents>
struct gru_state_law {
  static_assert(Holds, "weft: gru_cell: for an input [..., In], the state must be [..., Hidden]");
};

/// The input of a cell, whose state, operand 1, has the same dims except the last. The gates would broadcast.
struct gru_input : requirement {
  static constexpr auto name = "gru_cell";
  template <bool Holds, class... Extents>
  using law = gru_state_law<Holds, Extents...>;
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    return beside_state(dims, operands, 0);
  }

 protected:
  /// The law for a state with `leading` more dims than the input.
  template <class Dims>
  static constexpr inferred beside_state(Dims& dims, const tensor_spec* operands, int leading) {
    const shape &x = operands[0].extents, &state = operands[1].extents;
    inferred result{x.order > 0 && state.order == x.order + leading, operands[0]};
    for (int d = 0; d < x.order - 1 && result.holds; ++d)
      result.holds = dims.unify(x[d], state[d + leading], result.value.extents[d]);
    return result;
  }
};
/// The same where the state is two values, h and c.
struct lstm_input : gru_input {
  static constexpr auto name = "lstm_cell";
  template <bool Holds, class... Extents>
  using law = lstm_state_law<Holds, Extents...>;
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    inferred result = beside_state(dims, operands, 1);
    index_t values = 0;
    result.holds = result.holds && dims.unify(operands[1].extents[0], 2, values);
    return result;
  }
};

}  // namespace weft::op

namespace weft {

namespace detail {

constexpr index_t times(index_t n, index_t extent) { return extent == dyn ? dyn : n * extent; }

/// A cell of `gates` gates for `in` features and a state of `hidden`.
template <class Cell, index_t In, index_t Hidden>
Cell created_cell(index_t gates, index_t in, index_t hidden, const device& where) {
  constexpr index_t all = Cell::gates;
  const initializer how = linear<>::starting(hidden);
  return {make_parameter(extents<all, In>{gates * hidden, in}, how, where),
          make_parameter(extents<all, Hidden>{gates * hidden, hidden}, how, where),
          make_parameter(extents<all>{gates * hidden}, how, where),
          make_parameter(extents<all>{gates * hidden}, how, where)};
}

/// A step of an LSTM: `from_input` [..., 4 H] is the input's contribution to the gates, with both biases.
template <class W>
struct lstm_step {
  static constexpr auto name = "lstm";
  W weight_hh;

  static constexpr shape state_of(const shape& from_input) {
    shape s{1, {2}};
    for (int d = 0; d < from_input.order; ++d) s.append(from_input[d]);
    index_t& last = s[s.order - 1];
    if (last >= 0) last /= 4;
    return s;
  }
  auto operator()(expression auto from_input, expression auto state) const {
    return let(std::move(state), [in = std::move(from_input), w = weight_hh](auto before) {
      return let(in + matmul(select<0, 0>(before), transpose(w)), [before](auto gates) {
        auto added = sigmoid(weft::chunk<-1, 4, 0>(gates)) * tanh(weft::chunk<-1, 4, 2>(gates));
        return let(sigmoid(weft::chunk<-1, 4, 1>(gates)) * select<0, 1>(before) + added,
                   [gates](auto c) { return stack<0>(sigmoid(weft::chunk<-1, 4, 3>(gates)) * tanh(c), c); });
      });
    });
  }
};

/// A step of a GRU: `from_input` [..., 3 H] is the input's contribution to the gates, with its bias.
template <class W, class B>
struct gru_step {
  static constexpr auto name = "gru";
  W weight_hh;
  B bias_hh;

  static constexpr shape state_of(shape from_input) {
    index_t& last = from_input[from_input.order - 1];
    if (last >= 0) last /= 3;
    return from_input;
  }
  auto operator()(expression auto from_input, expression auto state) const {
    return let(std::move(state), [in = std::move(from_input), w = weight_hh, b = bias_hh](auto before) {
      return let(in, [before, w, b](auto x) {
        return let(matmul(before, transpose(w)) + b, [before, x](auto h) {
          auto reset = sigmoid(weft::chunk<-1, 3, 0>(x) + weft::chunk<-1, 3, 0>(h));
          auto fresh = tanh(weft::chunk<-1, 3, 2>(x) + std::move(reset) * weft::chunk<-1, 3, 2>(h));
          auto keep = sigmoid(weft::chunk<-1, 3, 1>(x) + weft::chunk<-1, 3, 1>(h));
          return let(std::move(keep), [before, fresh](auto z) { return (1 - z) * fresh + z * before; });
        });
      });
    });
  }
};

/// The recurrence of `step` over `x`, from the state `start` if there is one.
template <class Step, expression X, expression... S>
auto recurrence(Step step, X x, S... start) {
  static_assert(X::static_shape.order == 3,
                "weft: lstm, gru: a sequence must be [positions, batch, features]");
  static_assert(
      sizeof...(S) <= 1 && ((S::static_shape.order == recurrence_node<Step, X>::state_shape.order) && ...),
      "weft: lstm, gru: the state of an lstm must be [2, batch, hidden], as stack<0>(h, c); that of a gru, "
      "[batch, hidden]");
  return recurrence_node<Step, X, S...>{
      {}, as_written(std::move(x)), operand_list<S...>(as_written(std::move(start))...), std::move(step)};
}

}  // namespace detail

/// One step of a long short-term memory (Hochreiter and Schmidhuber, 1997), torch.nn.LSTMCell: x [..., In]
/// and the previous state [2, ..., Hidden], h and c -> the next state [2, ..., Hidden]. state[0] is h, the
/// output; stack<0>(h, c) makes a state. A state of another shape does not compile, or throws shape_error at
/// evaluation. Elements start uniform in +-1 / sqrt(Hidden). The gates take one product with x and one with
/// h.
template <index_t In = dyn, index_t Hidden = dyn>
struct lstm_cell {
  static constexpr index_t gates = detail::times(4, Hidden);
  parameter<extents<gates, In>> weight_ih =
      detail::parameter_if_static<gates, In>(linear<>::starting(Hidden));
  parameter<extents<gates, Hidden>> weight_hh =
      detail::parameter_if_static<gates, Hidden>(linear<>::starting(Hidden));
  parameter<extents<gates>> bias_ih = detail::parameter_if_static<gates>(linear<>::starting(Hidden));
  parameter<extents<gates>> bias_hh = detail::parameter_if_static<gates>(linear<>::starting(Hidden));

  /// For `in` features and a state of `hidden`, on `where`. Throws shape_error if the type has a different
  /// static extent.
  static lstm_cell create(index_t in, index_t hidden, const device& where = parameter_device()) {
    return detail::created_cell<lstm_cell, In, Hidden>(4, in, hidden, where);
  }
  auto operator()(expression auto x, expression auto state) const {
    const detail::lstm_step<decltype(weight_hh)> step{weight_hh};
    return let(std::move(state), [&](auto before) {
      auto in = apply<op::lstm_input>(std::move(x), before);
      return step(matmul(std::move(in), transpose(weight_ih)) + bias_ih + bias_hh, before);
    });
  }
};

/// One step of a gated recurrent unit (Cho et al., 2014), torch.nn.GRUCell: x [..., In] and the previous
/// state [..., Hidden] -> the next state, which is the output. Otherwise as lstm_cell.
template <index_t In = dyn, index_t Hidden = dyn>
struct gru_cell {
  static constexpr index_t gates = detail::times(3, Hidden);
  parameter<extents<gates, In>> weight_ih =
      detail::parameter_if_static<gates, In>(linear<>::starting(Hidden));
  parameter<extents<gates, Hidden>> weight_hh =
      detail::parameter_if_static<gates, Hidden>(linear<>::starting(Hidden));
  parameter<extents<gates>> bias_ih = detail::parameter_if_static<gates>(linear<>::starting(Hidden));
  parameter<extents<gates>> bias_hh = detail::parameter_if_static<gates>(linear<>::starting(Hidden));

  /// As lstm_cell::create.
  static gru_cell create(index_t in, index_t hidden, const device& where = parameter_device()) {
    return detail::created_cell<gru_cell, In, Hidden>(3, in, hidden, where);
  }
  auto operator()(expression auto x, expression auto state) const {
    const detail::gru_step<decltype(weight_hh), decltype(bias_hh)> step{weight_hh, bias_hh};
    return let(std::move(state), [&](auto before) {
      auto in = apply<op::gru_input>(std::move(x), before);
      return step(matmul(std::move(in), transpose(weight_ih)) + bias_ih, before);
    });
  }
};

/// A long short-term memory over whole sequences, torch.nn.LSTM of one layer: x [T, B, In] -> outputs [T, B,
/// Hidden]. States, passed and returned, are [2, B, Hidden], h and c; the default initial state is zeros.
/// Evaluated as several programs, like a `repeat`: one product for all inputs, then for each position one
/// product with weight_hh and a few kernels; joining the states copies all of them about log8(T) times.
/// Cannot be inside `grad`. Not for ranks that divide positions (axis cp), because each would see only its
/// own. Throws shape_error if T is 0.
template <index_t In = dyn, index_t Hidden = dyn>
struct lstm {
  static constexpr index_t gates = detail::times(4, Hidden);
  parameter<extents<gates, In>> weight_ih_l0 =
      detail::parameter_if_static<gates, In>(linear<>::starting(Hidden));
  parameter<extents<gates, Hidden>> weight_hh_l0 =
      detail::parameter_if_static<gates, Hidden>(linear<>::starting(Hidden));
  parameter<extents<gates>> bias_ih_l0 = detail::parameter_if_static<gates>(linear<>::starting(Hidden));
  parameter<extents<gates>> bias_hh_l0 = detail::parameter_if_static<gates>(linear<>::starting(Hidden));

  /// As lstm_cell::create.
  static lstm create(index_t in, index_t hidden, const device& where = parameter_device()) {
    auto [weight_ih, weight_hh, bias_ih, bias_hh] = lstm_cell<In, Hidden>::create(in, hidden, where);
    return {weight_ih, weight_hh, bias_ih, bias_hh};
  }
  /// The outputs [T, B, Hidden], from the state `start` [2, B, Hidden] if it is passed.
  auto operator()(expression auto x, expression auto... start) const {
    return select<1, 0>(states(std::move(x), std::move(start)...));
  }
  /// The states at all positions, [T, 2, B, Hidden]. For s = steps.eval(layer.states(x)), the outputs are
  /// select<1>(s, 0) and the last state is s[T - 1].
  auto states(expression auto x, expression auto... start) const {
    return detail::recurrence(detail::lstm_step<decltype(weight_hh_l0)>{weight_hh_l0},
                              matmul(std::move(x), transpose(weight_ih_l0)) + bias_ih_l0 + bias_hh_l0,
                              std::move(start)...);
  }
};

/// A gated recurrent unit over whole sequences, torch.nn.GRU of one layer: x [T, B, In] -> outputs [T, B,
/// Hidden], the states at all positions. Otherwise as lstm; a state is [B, Hidden].
template <index_t In = dyn, index_t Hidden = dyn>
struct gru {
  static constexpr index_t gates = detail::times(3, Hidden);
  parameter<extents<gates, In>> weight_ih_l0 =
      detail::parameter_if_static<gates, In>(linear<>::starting(Hidden));
  parameter<extents<gates, Hidden>> weight_hh_l0 =
      detail::parameter_if_static<gates, Hidden>(linear<>::starting(Hidden));
  parameter<extents<gates>> bias_ih_l0 = detail::parameter_if_static<gates>(linear<>::starting(Hidden));
  parameter<extents<gates>> bias_hh_l0 = detail::parameter_if_static<gates>(linear<>::starting(Hidden));

  /// As lstm_cell::create.
  static gru create(index_t in, index_t hidden, const device& where = parameter_device()) {
    auto [weight_ih, weight_hh, bias_ih, bias_hh] = gru_cell<In, Hidden>::create(in, hidden, where);
    return {weight_ih, weight_hh, bias_ih, bias_hh};
  }
  /// The outputs, from the state `start` [B, Hidden] if it is passed. outputs[T - 1] is the last state.
  auto operator()(expression auto x, expression auto... start) const {
    return detail::recurrence(
        detail::gru_step<decltype(weight_hh_l0), decltype(bias_hh_l0)>{weight_hh_l0, bias_hh_l0},
        matmul(std::move(x), transpose(weight_ih_l0)) + bias_ih_l0, std::move(start)...);
  }
};

}  // namespace weft
