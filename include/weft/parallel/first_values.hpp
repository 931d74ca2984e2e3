// SPDX-License-Identifier: MIT
// The initial values on all ranks: those of rank 0.
//
// Ranks first compare a digest of the names, dtypes and shapes of all tensors, which ensures that they have
// the same model, and then digests of the tensors' elements; rank 0 sends only the tensors that differ.
// Binding a model that every rank has created identically sends 16 bytes, plus 16 per tensor.
#pragma once

#include <array>
#include <bit>
#include <string>
#include <string_view>
#include <vector>

#include <weft/base/xxh64.hpp>
#include <weft/parallel/unit.hpp>

namespace weft::parallel {

namespace detail {

/// The size of the largest message of elements, in bytes.
inline constexpr index_t first_values_bytes = 1 << 20;

/// The fields of an initializer as integers.
using initializer_fields = std::array<std::int64_t, 6>;
initializer_fields fields_of(const tensor_state& t);

inline std::string_view bytes_in(const auto& fields) {
  return {reinterpret_cast<const char*>(fields.data()), fields.size() * sizeof(fields[0])};
}

/// A digest of dtype, shape and elements, or, of a deferred parameter, of its initializer. Reads device
/// memory in pieces.
std::uint64_t digest(const tensor_state& t);

/// Name, dtype and shape of a tensor, for error messages.
[[gnu::cold]] std::string described(const std::string& name, const tensor_state& t);
/// Throws usage_error on all ranks if names, dtypes or shapes on any rank differ from those of rank 0. Sends
/// one digest. Collective.
[[gnu::cold]] void require_same_model(communicator& ranks, const comm_options& o,
                                      const state_dict_t& tensors);
/// Throws usage_error naming the first tensor that differs from rank 0's, and the rank. `forms`: digests of
/// name, dtype and shape of each tensor of this rank. Collective.
[[noreturn, gnu::cold]] void refuse_other_models(communicator& ranks, const comm_options& o,
                                                 const state_dict_t& tensors,
                                                 const std::vector<std::uint64_t>& forms);

/// Sets the elements of `t` to those of rank 0, in messages of at most 1 MiB.
void take_elements(communicator& ranks, const comm_options& o, const device& messages, const state_ptr& t);

/// Sets the initializers of deferred parameters to those of rank 0.
[[gnu::cold]] void take_initializers(communicator& ranks, const comm_options& o,
                                     const tensor_list& parameters);

/// Throws value_error if another run holds the elements of `t`.
[[gnu::cold]] void require_elements_here(const std::string& name, const tensor_state& t);

}  // namespace detail

/// Sets the elements of `tensors`, and the initializers of deferred parameters, to those of rank 0. Tensors
/// that are equal on all ranks are not sent. `o`: options of the messages; `where`: the device of the
/// tensors. Throws usage_error on all ranks if their tensors differ in number, names, types or shapes, or a
/// parameter is deferred on some ranks only; value_error if another run holds a tensor's elements.
/// Collective.
[[gnu::cold]] void begin_as_first(communicator& ranks, comm_options o, const device& where,
                                  const state_dict_t& tensors);

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/first_values.ipp>
#endif
