// SPDX-License-Identifier: MIT
// Layers divided among ranks (tensor parallelism): the parts of parameters, and the messages of divided
// programs.
#pragma once

#include <map>
#include <string_view>
#include <utility>

#include <weft/nn/module.hpp>
#include <weft/op/positions.hpp>
#include <weft/parallel/first_values.hpp>
#include <weft/parallel/groups.hpp>
#include <weft/parallel/parts.hpp>

namespace weft::parallel {

/// Throws shape_error, naming the parameter, if its groups or units do not divide the dim, or a rank would
/// have no part.
void check_division(const std::string& name, const shape& whole, const placement& p,
                    const communicator& ranks);

/// Replaces the elements of a parameter by this rank's part. A deferred parameter stays deferred.
void divide_parameter(const std::string& name, tensor_state& p, const placement& where,
                      const communicator& layers);

/// How a type of parameters declares that they are divided.
template <class Parameter>
constexpr placement division_of() {
  if constexpr (requires { Parameter::division::value; }) return Parameter::division::value;
  else return placement{};
}

/// Sets all parameters to those of the first rank, and replaces those that the model declares divisible by
/// this rank's part. Deferred parameters get their elements later, and only this rank's part. Collective over
/// `layers`. Throws usage_error for a parameter that another run has divided, or that the model declares
/// twice, divided in different ways.
template <class Model>
void divide_layers(Model& model, communicator& layers, const comm_options& control) {
  if (layers.size() == 1) return;
  state_dict_t all;
  std::map<const tensor_state*, std::pair<std::string, placement>> first;
  for_each_parameter(model, [&]<class P>(const std::string& name, const P& p) {
    const tensor_state& t = *p.state();
    if (t.divided)
      refuse<usage_error>({"weft: bind: parameter ", name, " is already divided, as ", t.divided->name});
    if (message_device(t.where, &layers) != t.where)
      refuse<device_error>({"weft: bind: parameter ", name, " is on device ", t.where->name(),
                            ": layers can be divided ", divided_devices});
    const auto [seen, is_new] = first.try_emplace(&t, name, division_of<P>());
    if (!(seen->second.second == division_of<P>()))
      refuse<usage_error>({"weft: bind: parameters ", seen->second.first, " and ", name,
                           " are the same, but their layers divide them in different ways"});
    all.emplace_back(name, p.state());
  });
  if (all.empty()) return;
  begin_as_first(layers, control, all.front().second->where, all);
  for_each_parameter(model, [&]<class P>(const std::string& name, const P& p) {
    if (division_of<P>().is_divided() && !p.state()->divided)  // a tied one may be divided already
      divide_parameter(name, *p.state(), division_of<P>(), layers);
  });
}

/// The number of units of a parameter of a divided layer.
inline index_t units_of(const division& d) { return d.whole[d.where.dim] / (d.where.groups * d.where.unit); }
/// Whether rank `layer_rank` of the ranks that divide layers is the first with its elements of `t`; the first
/// includes them in norms and saves them.
bool is_first_in_layer(const tensor_state& t, int layer_rank);

/// Starts a collective of a program: op::sum_over_positions among the ranks that divide positions, other ops
/// among the ranks that divide layers. On one rank it copies, and returns completed work.
work start_collective(backend& where, const rank_groups& groups, std::string_view op, const attributes& at,
                      const strided& in, const strided& out);

/// The collectives of a program that are in flight, by the value that they compute.
class started_collectives {
 public:
  void add(int result, work w) { all_.push_back({result, std::move(w)}); }
  /// Makes progress without waiting.
  void poll() {
    for (started& s : all_) s.messages.is_completed();
  }
  /// Waits for the collectives of value `result`; throws their error.
  void wait_for(int result);
  /// Waits for all, ignoring errors.
  void abandon() noexcept { all_.clear(); }

 private:
  struct started {
    int result;
    work messages;
  };
  std::vector<started> all_;
};

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/layers.ipp>
#endif
