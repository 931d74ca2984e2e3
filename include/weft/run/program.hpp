// SPDX-License-Identifier: MIT
// The programs of an expression type: graph, plan and kernels, all computed by the compiler.
//
// `value_program` computes the value. `forward_program` also returns the values that the backward pass reads,
// and `backward_program` computes the gradients. Only the tables below are in the binary; no code after this
// header depends on expression types.
#pragma once

#include <weft/grad/partition.hpp>
#include <weft/graph/flatten.hpp>
#include <weft/graph/precision.hpp>
#include <weft/graph/products.hpp>
#include <weft/graph/views.hpp>
#include <weft/lower/cpu_kernel.hpp>
#include <weft/lower/native_code.hpp>
#include <weft/lower/verify.hpp>
#include <weft/run/choices.hpp>

namespace weft::runtime {

namespace detail {

/// The graph of E; its value is the only output, unless E is a bundle.
template <expression E, class Options>
constexpr graph::compute_graph graph_of() {
  if constexpr (requires { Options::template check_positions<E>(); }) Options::template check_positions<E>();
  graph::compute_graph g;
  const graph::value v = graph::flatten<E>(g);
  if (g.outputs.empty()) g.outputs.push_back(v.id);
  return verified(graph::with_products_in(Options::products, graph::with_canonical_extents(g)),
                  graph::verify_graph);
}

/// The graph of E and its derivative, joined by autodiff::with_cotangents.
template <expression E, class Options>
constexpr graph::compute_graph joint_graph_of() {
  const graph::compute_graph g = autodiff::with_cotangents(graph_of<E, Options>());
  return verified(graph::expanded(graph::with_wide_gradients(Options::products, g)),
                  graph::verify_cotangents);
}

/// The plan of a graph in which all ops are expanded.
constexpr lower::plan plan_of(const graph::compute_graph& g) {
  return verified(lower::make_plan(verified(graph::with_legal_views(graph::with_transposed_products(g)),
                                            graph::verify_views)),
                  lower::verify_plan);
}

/// Whether these options divide the graph of Source::make(). Options of ranks that divide layers have a
/// template `divided`, which replaces it by what one rank computes (parallel/tensor_parallel.hpp).
template <class Source, class Options>
concept divides_programs = requires { typename Options::template divided<Source>; };

}  // namespace detail

/// The source of one rank's graph for options that contain `Options`: Source, or its replacement.
template <class Source, class Options>
struct divided_by {
  using type = Source;
};
template <class Source, class Options>
  requires detail::divides_programs<Source, Options>
struct divided_by<Source, Options> {
  using type = typename Options::template divided<Source>;
};
template <class Source, class Options>
using divided_source = typename divided_by<Source, Options>::type;

/// The dims along which the result of a program has positions, given those of its leaves. Options of ranks
/// that divide positions have a template `positions` for this function. Throws usage_error
/// (placement/positions.hpp).
using positions_function = positions_dims (*)(std::span<const positions_dims> leaves);

namespace detail {

template <class Source, class Options>
inline constexpr positions_function positions_in = nullptr;
template <class Source, class Options>
  requires requires { typename Options::template positions<Source>; }
inline constexpr positions_function positions_in<Source, Options> =
    &Options::template positions<Source>::of_result;

template <expression E, class Options>
struct value_graph {
  static constexpr graph::compute_graph make() {
    return verified(graph::expanded(graph_of<E, Options>()), graph::verify_expanded);
  }
  static constexpr auto frozen = graph::freeze_graph<value_graph>();
};
template <expression E, class Options>
struct value_plan {
  static constexpr positions_function positions = positions_in<value_graph<E, Options>, Options>;
  static constexpr lower::plan make() {
    using source = value_graph<E, Options>;
    if constexpr (divides_programs<source, Options>)
      return plan_of(Options::template divided<source>::frozen.thaw());
    else return plan_of(source::make());
  }
};
/// One joint graph for the forward and backward pass, so that E is differentiated once.
template <expression E, class Options>
struct joint_graph {
  static constexpr graph::compute_graph make() { return joint_graph_of<E, Options>(); }
  static constexpr auto frozen = graph::freeze_graph<joint_graph>();
};
template <expression E, class Options>
constexpr graph::compute_graph thawed_joint_graph() {
  using source = joint_graph<E, Options>;
  if constexpr (divides_programs<source, Options>) return Options::template divided<source>::frozen.thaw();
  else return source::frozen.thaw();
}
template <expression E, class Options>
struct forward_plan {
  static constexpr positions_function positions = positions_in<joint_graph<E, Options>, Options>;
  static constexpr lower::plan make() {
    const graph::compute_graph joint = thawed_joint_graph<E, Options>();
    return plan_of(
        autodiff::forward_part(joint, autodiff::saved_values(joint, Options::saved == saving::written)));
  }
};
template <expression E, class Options>
struct backward_plan {
  static constexpr lower::plan make() {
    const graph::compute_graph joint = thawed_joint_graph<E, Options>();
    return plan_of(
        autodiff::backward_part(joint, autodiff::saved_values(joint, Options::saved == saving::written)));
  }
};

/// One of the two parts of the backward program.
template <expression E, class Options, graph::compute_graph autodiff::divided_backward::* Part>
struct backward_part_plan {
  static constexpr lower::plan make() {
    const graph::compute_graph joint = thawed_joint_graph<E, Options>();
    const bool all_written = Options::saved == saving::written;
    return plan_of(autodiff::backward_in_parts(joint, autodiff::saved_values(joint, all_written)).*Part);
  }
};

}  // namespace detail

/// A plan with the CPU kernels of its instructions. Source::make() returns the plan.
template <class Source>
class program {
  static constexpr auto planned_ = lower::freeze<Source>();
  static constexpr auto native_uses_ = [] {
    constexpr int count = lower::native_uses_of(planned_.view()).size();
    return first_of<count>(lower::native_uses_of(planned_.view()));
  }();
  /// The plan with the functions of its native ops for the types that occur.
  template <int... I>
  static constexpr auto with_functions(std::integer_sequence<int, I...>) {
    auto p = planned_;
    for (lower::step_entry& s : p.steps.data) {
      [[maybe_unused]] const lower::native_use use = lower::native_use_of(planned_.view(), s);
      ((use == native_uses_.data[I]
            ? void(s.function = cpu::native_function_of<native_uses_.data[I].op,
                                                        element_of<native_uses_.data[I].type>>())
            : void()),
       ...);
    }
    return p;
  }
  static constexpr auto frozen_ =
      with_functions(std::make_integer_sequence<int, static_cast<int>(native_uses_.view().size())>{});
  static constexpr auto instructions_ = frozen_.instructions;  // small: template arguments are read from it
  static constexpr auto kernels_ = frozen_.kernels;
  static constexpr int kernel_count = static_cast<int>(kernels_.view().size());

  template <int K, int... I>
  static constexpr kernel_function kernel(std::integer_sequence<int, I...>) {
    return &lower::cpu_kernel<instructions_.data[kernels_.data[K].first_instruction + I]...>::run;
  }
  struct function_table {
    kernel_function at[std::size_t{kernel_count > 0 ? kernel_count : 1}];
  };
  template <int... K>
  static constexpr function_table functions(std::integer_sequence<int, K...>) {
    return {{kernel<K>(std::make_integer_sequence<int, kernels_.data[K].instructions>{})...}};
  }

 public:
  static constexpr lower::plan_view plan = frozen_.view();
  static constexpr positions_function positions = [] {
    if constexpr (requires { Source::positions; }) return Source::positions;
    else return nullptr;
  }();
  static constexpr function_table functions_ = functions(std::make_integer_sequence<int, kernel_count>{});
  static constexpr std::span<const kernel_function> kernels{functions_.at,
                                                            static_cast<std::size_t>(kernel_count)};
};

/// The program that computes the value of E.
template <expression E, class Options = program_options<>>
using value_program = program<detail::value_plan<E, Options>>;
/// The program that computes the value of E and what the backward pass needs: outputs
/// [value, saved values...].
template <expression E, class Options = program_options<>>
using forward_program = program<detail::forward_plan<E, Options>>;
/// The program that computes the cotangents of the leaves of E from the saved values and the cotangent of its
/// value.
template <expression E, class Options = program_options<>>
using backward_program = program<detail::backward_plan<E, Options>>;
/// The same in two programs (autodiff::backward_in_parts): the first computes the cotangents of inputs and
/// what the second one reads; the second computes the cotangents of parameters.
template <expression E, class Options = program_options<>>
using backward_input_program =
    program<detail::backward_part_plan<E, Options, &autodiff::divided_backward::input>>;
template <expression E, class Options = program_options<>>
using backward_weight_program =
    program<detail::backward_part_plan<E, Options, &autodiff::divided_backward::weight>>;

}  // namespace weft::runtime
