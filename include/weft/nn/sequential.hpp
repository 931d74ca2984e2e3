// SPDX-License-Identifier: MIT
// Modules and functions applied one after the other, named 0, 1, ... as in PyTorch.
//
//   sequential model{linear<784, 128>{}, [](auto x) { return relu(x); }, linear<128, 10>{}};
#pragma once

#include <tuple>

#include <weft/expr/expression.hpp>

namespace weft {

/// Applies modules and callables in order, as torch.nn.Sequential; each takes the result of the one before.
template <class... Modules>
struct sequential {
  std::tuple<Modules...> modules;

  explicit sequential(Modules... m) : modules(std::move(m)...) {}

  auto& children() { return modules; }
  const auto& children() const { return modules; }

  auto operator()(expression auto x) const { return from<0>(std::move(x)); }

 private:
  template <std::size_t I>
  auto from(expression auto x) const {
    if constexpr (I == sizeof...(Modules)) return x;
    else {
      using module = std::tuple_element_t<I, std::tuple<Modules...>>;
      static_assert(!detail::applies_if_not_const<module, decltype(x)>,
                    "weft: sequential: operator() of a module must be const: "
                    "auto operator()(expression auto x) const");
      return from<I + 1>(std::get<I>(modules)(std::move(x)));
    }
  }
};

}  // namespace weft
