// SPDX-License-Identifier: MIT
// Norms of gradients, and clipping by them.
#pragma once

#include <cmath>

#include <weft/nn/module.hpp>
#include <weft/op/all.hpp>
#include <weft/run/update.hpp>

namespace weft {

/// The 2-norm of all gradients together; summed in f32 within rows, in double across.
template <class Parameters = tensor_list>
double gradient_norm(const Parameters& parameters, context& c = default_context()) {
  double sum_of_squares = 0;
  recycled_vector<float> rows;
  for (const auto& p : parameters) {
    if (!p->grad || p->type != dtype::f32) continue;
    const auto sums = eval(sum(square(row_view<float>(p->grad)), dims<-1>), c);
    rows.resize(static_cast<std::size_t>(sums.size()));
    sums.copy_to(rows.data());
    for (float row : rows) sum_of_squares += row;
  }
  return std::sqrt(sum_of_squares);
}

/// What gradients of norm `norm` are multiplied with so that it does not exceed `limit`; as in
/// torch.nn.utils.clip_grad_norm_.
inline double clip_factor(double norm, double limit) {
  return limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0;
}

/// Multiplies all gradients. A template so that units that clip nothing pay nothing.
template <class Parameters>
void scale_gradients(const Parameters& parameters, float factor, context& c = default_context()) {
  for (const auto& p : parameters)
    if (p->grad) update(c, {p->grad}, flat_view<float>(p->grad) * factor);
}

/// Scales all gradients so that their norm is at most `limit`; returns the norm before.
template <class M>
double clip_grad_norm(M& model, double limit, context& c = default_context()) {
  const tensor_list parameters = parameters_of(model);
  const double norm = gradient_norm(parameters, c);
  const auto factor = static_cast<float>(clip_factor(norm, limit));
  if (factor < 1) scale_gradients(parameters, factor, c);
  return norm;
}

/// Limits every element of every gradient to [-limit, limit].
template <class M>
void clip_grad_value(M& model, float limit, context& c = default_context()) {
  for (const auto& p : parameters_of(model))
    if (p->grad) update(c, {p->grad}, clamp(flat_view<float>(p->grad), -limit, limit));
}

}  // namespace weft
