// SPDX-License-Identifier: MIT
// The values with which ranks begin: those of rank 0.
//
// Ranks compare a digest of the names, types and shapes of all tensors, so that the ranks of one run have one
// model; then digests of what the tensors hold, and rank 0 sends only what differs: binding a model that
// every rank has created alike sends 16 bytes, and 16 for each tensor.
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

/// The largest message with elements, in bytes.
inline constexpr index_t first_values_bytes = 1 << 20;

/// The fields of an initializer as integers.
using initializer_fields = std::array<std::int64_t, 4>;
initializer_fields fields_of(const tensor_state& t);

inline std::string_view bytes_in(const auto& fields) {
  return {reinterpret_cast<const char*>(fields.data()), fields.size() * sizeof(fields[0])};
}

/// A number that is another, but for chance, if type, shape or elements are others; for a deferred parameter,
/// if the initializer is. Reads device memory in pieces.
std::uint64_t digest(const tensor_state& t);

/// Name, type and shape of a tensor, for messages.
[[gnu::cold]] std::string described(const std::string& name, const tensor_state& t);
/// Throws usage_error on all ranks if names, types or shapes are not those of rank 0. Sends one digest.
/// Collective.
[[gnu::cold]] void require_same_model(communicator& ranks, const comm_options& o,
                                      const state_dict_t& tensors);
/// Throws usage_error that names the first tensor that differs from that of rank 0, and the rank. `forms`:
/// digests of what describes each tensor of this rank. Collective.
[[noreturn, gnu::cold]] void refuse_other_models(communicator& ranks, const comm_options& o,
                                                 const state_dict_t& tensors,
                                                 const std::vector<std::uint64_t>& forms);

/// Sets the elements of `t` to those of rank 0, in messages of at most 1 MiB.
void take_elements(communicator& ranks, const comm_options& o, const device& messages, const state_ptr& t);

/// Sets the initializers of deferred parameters to those of rank 0.
[[gnu::cold]] void take_initializers(communicator& ranks, const comm_options& o,
                                     const tensor_list& parameters);

/// Throws value_error if the elements of `t` are with another run.
[[gnu::cold]] void require_elements_here(const std::string& name, const tensor_state& t);

}  // namespace detail

/// Sets the elements of `tensors` to those of rank 0, the initializers of deferred parameters to its. What is
/// equal on all ranks is not sent. `o`: of the messages; `where`: the device of the tensors. Throws
/// usage_error on all ranks if their tensors differ in number, names, types or shapes, or a parameter is
/// deferred on some ranks only; value_error if another run has its elements. Collective.
[[gnu::cold]] void begin_as_first(communicator& ranks, comm_options o, const device& where,
                                  const state_dict_t& tensors);

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/first_values.ipp>
#endif
