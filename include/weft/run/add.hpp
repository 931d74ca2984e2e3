// SPDX-License-Identifier: MIT
// Operations of tapes on gradients: the sum of two of the same shape, and the product with a scalar.
#pragma once

#include <weft/run/flat_kernel.hpp>

namespace weft::runtime {

namespace detail {
template <dtype T>
inline constexpr std::array add_words{
    lower::instruction{lower::sweep}.encoded(),
    lower::instruction{lower::load, T, 0}.encoded(),
    lower::instruction{lower::load, T, 1}.encoded(),
    lower::instruction{op::number_of_op<op::add>, compute_type(T), 1, 2}.encoded(),
    lower::instruction{lower::store, T, 2, 3}.encoded(),
    lower::instruction{lower::end}.encoded()};
template <dtype T>
inline constexpr std::array scale_words{
    lower::instruction{lower::load_row, compute_type(T), 1}.encoded(),
    lower::instruction{lower::scalar_argument, compute_type(T), 0}.encoded(),
    lower::instruction{op::number_of_op<op::multiply>, compute_type(T), 0, 1}.encoded(),
    lower::instruction{lower::sweep}.encoded(),
    lower::instruction{lower::load, T, 0}.encoded(),
    lower::instruction{op::number_of_op<op::multiply>, compute_type(T), 4, 2}.encoded(),
    lower::instruction{lower::store, T, 2, 5}.encoded(),
    lower::instruction{lower::end}.encoded()};

[[noreturn, gnu::cold]] inline void refuse_spec(const char* what, const tensor_state& a,
                                                const tensor_state& b, dtype type) {
  if (b.type != type)
    refuse<value_error>({"weft: ", what, ": elements of ", name_of(a.type), " and ", name_of(b.type)});
  refuse<shape_error>({"weft: ", what, ": the shapes are ", a.extents, " and ", b.extents});
}
/// Throws unless `b` has dtype `type` and `size` elements.
inline void require_form(const char* what, const tensor_state& a, const tensor_state& b, dtype type,
                         index_t size) {
  if (b.type != type || b.extents.size() != size) refuse_spec(what, a, b, type);
}

/// Calls f(std::integral_constant<dtype, T>) for the floating dtype `t`; throws value_error for any other
/// dtype.
template <class F>
void visit_floating(const char* what, dtype t, F f) {
  switch (t) {
    case dtype::f64: return f(std::integral_constant<dtype, dtype::f64>{});
    case dtype::f32: return f(std::integral_constant<dtype, dtype::f32>{});
    case dtype::bf16: return f(std::integral_constant<dtype, dtype::bf16>{});
    case dtype::f16: return f(std::integral_constant<dtype, dtype::f16>{});
    default: refuse<value_error>({"weft: ", what, ": elements of ", name_of(t), ", which is not floating"});
  }
}
}  // namespace detail

// Templates, so that programs without differentiation compile no kernels for them.

/// x *= scalar * factor, in place. The scalar has the type in which x is computed (f32 for bf16 and f16,
/// whose products are rounded once). Throws value_error if it has another type, and shape_error unless it has
/// one element.
template <class = void>
void scale(backend& device, tensor_state& x, const tensor_state& scalar, double factor) {
  detail::require_form("scale", x, scalar, compute_type(x.type), 1);
  detail::visit_floating("scale", x.type, [&]<dtype T>(std::integral_constant<dtype, T>) {
    launch_flat<detail::scale_words<T>>(device, {&x, &scalar, &x}, {any_number::of(factor)});
  });
}

/// sum = a + b, which have the same floating type and number of elements; bf16 and f16 are rounded once.
/// `sum` may be a or b. Throws value_error or shape_error if they differ.
template <class = void>
void add(backend& device, const tensor_state& a, const tensor_state& b, tensor_state& sum) {
  for (const tensor_state* other : {&b, static_cast<const tensor_state*>(&sum)})
    detail::require_form("add", a, *other, a.type, a.extents.size());
  detail::visit_floating("add", a.type, [&]<dtype T>(std::integral_constant<dtype, T>) {
    launch_flat<detail::add_words<T>>(device, {&a, &b, &sum});
  });
}

}  // namespace weft::runtime
