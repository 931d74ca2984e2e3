// SPDX-License-Identifier: MIT
// Norms of gradients, and gradient clipping. Gradients may be of different floating types.
//
//   const double norm = clip_grad_norm(model, 1.0);
#pragma once

#include <algorithm>
#include <cmath>

#include <weft/nn/module.hpp>
#include <weft/op/all.hpp>
#include <weft/run/update.hpp>

namespace weft {

namespace detail {

/// The type in which norms and updates of T are computed: double for f64, otherwise float.
template <element T>
using update_number = std::conditional_t<std::is_same_v<T, double>, double, float>;

using state_ref = const std::shared_ptr<tensor_state>&;

// For one gradient. T is its type; the views check it.

template <element T>
double sum_of_squares(state_ref gradient, context& c) {
  using number = update_number<T>;
  const auto sums = eval(sum(square(in_type<number>(row_view<T>(gradient))), dims<-1>), c);
  recycled_vector<number> rows(static_cast<std::size_t>(sums.size()));
  sums.copy_to(rows.data());
  double all = 0;
  for (number row : rows) all += row;
  return all;
}
template <element T>
void scale_gradient(state_ref gradient, double factor, context& c) {
  using number = update_number<T>;
  update(c, {gradient}, in_type<T>(in_type<number>(flat_view<T>(gradient)) * static_cast<number>(factor)));
}
#ifdef WEFT_COMPILED
extern template double sum_of_squares<float>(state_ref gradient, context& c);
extern template double sum_of_squares<double>(state_ref gradient, context& c);
extern template double sum_of_squares<bfloat16>(state_ref gradient, context& c);
extern template double sum_of_squares<float16>(state_ref gradient, context& c);
extern template void scale_gradient<float>(state_ref gradient, double factor, context& c);
extern template void scale_gradient<double>(state_ref gradient, double factor, context& c);
extern template void scale_gradient<bfloat16>(state_ref gradient, double factor, context& c);
extern template void scale_gradient<float16>(state_ref gradient, double factor, context& c);
#endif
template <element T>
void clamp_gradient(state_ref gradient, double limit, context& c) {
  using number = update_number<T>;
  const auto most = static_cast<number>(limit);
  update(c, {gradient}, in_type<T>(clamp(in_type<number>(flat_view<T>(gradient)), -most, most)));
}

/// Whether `p` is seen for the first time, since tied parameters occur at several places of a model; records
/// it.
inline bool is_new(tensor_list& met, state_ref p) {
  if (std::find(met.begin(), met.end(), p) != met.end()) return false;
  met.push_back(p);
  return true;
}

/// Calls f(T{}, gradient) for every gradient of the model `m`, with T the type of its parameter, so that
/// programs are compiled only for the types that occur in the model.
template <class M, class F>
void for_each_gradient_of(const char* what, M& m, F f) {
  tensor_list met;
  const auto visit = [&](no_path, const auto& p) {
    using parameter_type = typename std::remove_cvref_t<decltype(p)>::value_type;
    require_own_gradient(*p.state(), what);
    if constexpr (is_floating(dtype_of<parameter_type>))
      if (p.state()->grad && is_new(met, p.state())) f(parameter_type{}, p.state()->grad);
  };
  walk<tensors_of::parameters>(m, no_path{}, visit);
}
/// The same for parameters whose types are known at run time only.
template <class Parameters, class F>
void for_each_gradient_in(const char* what, const Parameters& parameters, F f) {
  tensor_list met;
  for (const auto& p : parameters) {
    require_own_gradient(*p, what);
    if (!p->grad || !is_new(met, p)) continue;
    switch (p->grad->type) {
      case dtype::f64: f(double{}, p->grad); break;
      case dtype::f32: f(float{}, p->grad); break;
      case dtype::bf16: f(bfloat16{}, p->grad); break;
      case dtype::f16: f(float16{}, p->grad); break;
      default:
        refuse<value_error>({"weft: ", what, ": gradients must be floating, not ", name_of(p->grad->type)});
    }
  }
}

/// Throws value_error if `limit` is negative or NaN.
inline void require_limit(const char* what, double limit) {
  if (!(limit >= 0)) refuse<value_error>({"weft: ", what, ": the limit must be 0 or more, not ", limit});
}

}  // namespace detail

/// The 2-norm of all gradients together: summed within rows in f64 for f64 and in f32 for other types, and
/// across rows in double. 0 if there are none, NaN if an element is NaN. Waits for the device.
template <class Parameters = tensor_list>
double gradient_norm(const Parameters& parameters, context& c = default_context()) {
  double squares = 0;
  detail::for_each_gradient_in("gradient_norm", parameters, [&]<class T>(T, detail::state_ref g) {
    squares += detail::sum_of_squares<T>(g, c);
  });
  return std::sqrt(squares);
}

/// The factor that limits gradients of 2-norm `norm` to `limit`: min(1, limit / (norm + 1e-6)), as in
/// torch.nn.utils.clip_grad_norm_; 0 for a limit of 0, NaN for a norm of NaN. Throws value_error if the limit
/// is negative or NaN.
inline double clip_factor(double norm, double limit) {
  detail::require_limit("clip_factor", limit);
  const double factor = limit / (norm + 1e-6);
  return factor > 1 ? 1 : factor;
}

/// Multiplies all gradients by `factor`; each product is rounded once. A template, so that programs that do
/// not clip do not compile it.
template <class Parameters>
void scale_gradients(const Parameters& parameters, double factor, context& c = default_context()) {
  detail::for_each_gradient_in("scale_gradients", parameters, [&]<class T>(T, detail::state_ref g) {
    detail::scale_gradient<T>(g, factor, c);
  });
}

/// Scales all gradients so that their 2-norm together is at most `limit`, and returns the norm before
/// scaling: torch.nn.utils.clip_grad_norm_. Gradients accumulated over several backward passes are clipped as
/// their sum. A limit of 0 makes all of them 0 (step_options::clip = 0 means no limit). If the norm is NaN
/// all gradients become NaN. Throws value_error if the limit is negative or NaN. Waits for the device.
template <class M>
double clip_grad_norm(M& model, double limit, context& c = default_context()) {
  detail::require_limit("clip_grad_norm", limit);
  double squares = 0;
  detail::for_each_gradient_of("clip_grad_norm", model, [&]<class T>(T, detail::state_ref g) {
    squares += detail::sum_of_squares<T>(g, c);
  });
  const double norm = std::sqrt(squares), factor = clip_factor(norm, limit);
  if (!(factor >= 1))
    detail::for_each_gradient_of("clip_grad_norm", model, [&]<class T>(T, detail::state_ref g) {
      detail::scale_gradient<T>(g, factor, c);
    });
  return norm;
}

/// Clamps every element of every gradient to [-limit, limit]; NaN stays NaN. torch.nn.utils.clip_grad_value_.
/// Throws value_error if the limit is negative or NaN.
template <class M>
void clip_grad_value(M& model, double limit, context& c = default_context()) {
  detail::require_limit("clip_grad_value", limit);
  detail::for_each_gradient_of("clip_grad_value", model, [&]<class T>(T, detail::state_ref g) {
    detail::clamp_gradient<T>(g, limit, c);
  });
}

}  // namespace weft
