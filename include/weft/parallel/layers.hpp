// SPDX-License-Identifier: MIT
// Layers divided among ranks: the parts of parameters, and the messages of divided programs.
#pragma once

#include <string_view>

#include <weft/nn/module.hpp>
#include <weft/parallel/groups.hpp>
#include <weft/parallel/unit.hpp>

namespace weft::parallel {

/// The extents of the part of `rank` of a tensor of shape `whole`, divided as `p`. Throws shape_error, naming
/// the parameter, if its groups or units do not divide the dim, or are fewer than ranks.
inline shape part_extents(const std::string& name, shape whole, const placement& p, const communicator& ranks,
                          int rank) {
  const index_t e = whole[p.dim];
  if (e % (p.groups * p.unit) || e / (p.groups * p.unit) < ranks.size())
    throw shape_error("weft: bind: parameter " + name + " of shape " + to_string(whole) +
                      " cannot be divided among " + std::to_string(ranks.size()) + " ranks along " +
                      to_string(p));
  whole[p.dim] = p.groups * p.unit * count_of_part(e / (p.groups * p.unit), ranks.size(), rank);
  return whole;
}

/// Calls f(first element in the whole, first element in the part, number of elements) for the ranges of which
/// the part of `rank` consists.
template <class F>
void for_each_range(const shape& whole, const placement& p, int ranks, int rank, F f) {
  index_t outer = p.groups, inner = 1;
  for (int d = 0; d < p.dim; ++d) outer *= whole[d];
  for (int d = p.dim + 1; d < whole.order; ++d) inner *= whole[d];
  const index_t group = whole[p.dim] / p.groups, units = group / p.unit;
  const index_t first = first_of_part(units, ranks, rank) * p.unit * inner;
  const index_t count = count_of_part(units, ranks, rank) * p.unit * inner;
  for (index_t o = 0; o < outer; ++o) f(o * group * inner + first, o * count, count);
}

/// The whole of a tensor from the parts of all ranks. Collective.
inline state_ptr joined_parts(const tensor_state& part, const division& of, communicator& layers,
                              const comm_options& o) {
  const auto count_on = [&](int r) { return part_extents(of.name, of.whole, of.where, layers, r).size(); };
  rank_counts counts;
  for (int r = 0; r < layers.size(); ++r) counts.push_back(count_on(r));
  const state_ptr all = flat(part.where, of.whole.size(), part.type);
  layers.all_gather(elements_of(part), elements_of(*all), counts, o).wait();
  const state_ptr whole = make_state(part.where, of.whole, part.type);
  index_t begin = 0;
  for (int r = 0; r < layers.size(); ++r) {
    for_each_range(of.whole, of.where, layers.size(), r, [&](index_t at, index_t from, index_t count) {
      copy_rows(whole, at, all, begin + from, count);
    });
    begin += counts[static_cast<std::size_t>(r)];
  }
  return whole;
}

/// Replaces the elements of a parameter by the part of this rank.
inline void divide_parameter(const std::string& name, tensor_state& p, const placement& where,
                             const communicator& layers) {
  const shape own = part_extents(name, p.extents, where, layers, layers.rank());
  const state_ptr whole = alias_of(p), part = make_state(p.where, own, p.type);
  for_each_range(p.extents, where, layers.size(), layers.rank(),
                 [&](index_t at, index_t to, index_t count) { copy_rows(part, to, whole, at, count); });
  p.divided = std::make_shared<division>(division{name, p.extents, where});
  p.memory = part->memory;
  p.extents = own;
  p.grad.reset();
  ++p.version;
}

/// Sets all parameters to those of the first rank, and replaces those that the model says may be divided by
/// the part of this rank. Collective over `layers`. Throws usage_error for a parameter that a run has
/// divided.
template <class Model>
void divide_layers(Model& model, communicator& layers) {
  if (layers.size() == 1) return;
  for_each_parameter(model, [&]<class P>(const std::string& name, const P& p) {
    tensor_state& t = *p.state();
    constexpr bool may_be = requires { P::division::value; };
    if (t.divided) {
      if constexpr (may_be)
        if (t.divided->where == P::division::value && t.divided->name != name) return;  // tied
      throw usage_error("weft: bind: parameter " + name + " is divided already, as " + t.divided->name);
    }
    weft::detail::materialize_state<typename P::value_type>(t);
    if (!t.where->host_accessible())
      throw device_error("weft: bind: parameter " + name + " is on device " + t.where->name() +
                         ": layers are divided on devices whose memory the host can access");
    layers.broadcast(elements_of(t), 0, {.label = name, .control = true}).wait();
    ++t.version;
    if constexpr (may_be)
      if constexpr (P::division::value.is_divided()) divide_parameter(name, t, P::division::value, layers);
  });
}

/// Executes a collective of a divided program among the ranks that divide layers, and waits for it.
inline void exchange_in_layer(backend& where, const rank_groups& groups, std::string_view op,
                              const attributes& at, const strided& in, const strided& out) {
  communicator* const layers = groups.layers();
  if (!layers || layers->size() == 1) return where.copy(in, out);
  const comm_options o = groups.labelled(std::string(op));
  const elements mine{in.pointer, in.size(), in.type}, result{out.pointer, out.size(), out.type};
  if (op == "all_reduce") {
    where.copy(in, out);
    return layers->all_reduce(result, at[0] ? reduction::maximum : reduction::sum, o).wait();
  }
  const bool gathers = op == "all_gather";
  const strided& all = gathers ? out : in;
  const index_t rows = all.extents[0], unit = at[1], row = rows ? all.size() / rows : 0;
  rank_counts counts;
  for (int r = 0; r < layers->size(); ++r)
    counts.push_back(count_of_part(rows / unit, layers->size(), r) * unit * row);
  if (gathers) layers->all_gather(mine, result, counts, o).wait();
  else layers->reduce_scatter(mine, result, reduction::sum, counts, o).wait();
}

}  // namespace weft::parallel
