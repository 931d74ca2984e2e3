// SPDX-License-Identifier: MIT
// What a module holds apart from the elements of its tensors. While it does not change, evaluating the module
// executes the same programs, with the same numbers, in the same memory.
//
//   module_contents all;
//   append_contents(blocks, all);
#pragma once

#include <cstring>

#include <weft/base/recycled.hpp>
#include <weft/tensor/walk.hpp>

namespace weft::runtime {

/// Contents of modules, in order of declaration.
struct module_contents {
  recycled_vector<any_number> numbers;      // members that are not tensors; addresses and extents of tensors
  recycled_vector<std::uint64_t> versions;  // of tensors
  tensor_list parameters;                   // tracked tensors
};

namespace detail {

/// Does not see private members of classes with `children`.
class contents_reader {
 public:
  explicit contents_reader(module_contents& to) : to_(to) {}

  template <class Path, class Tensor>
  void operator()(const Path&, const Tensor& t) {
    const std::shared_ptr<tensor_state>& state = t.state();
    append_address(state->memory.data());
    for (int d = 0; d < state->extents.order; ++d) append(state->extents[d]);
    to_.versions.push_back(state->version());
    if constexpr (Tensor::requires_grad) to_.parameters.push_back(state);
  }
  template <class Part>
  void enter(const Part& p) {
    using weft::detail::content;
    if constexpr (weft::detail::content_of<Part> == content::none) append(p);
    else if constexpr (weft::detail::is_container<Part>) append(p.size());
    else if constexpr (weft::detail::is_pointer_to_one<Part>) append(static_cast<bool>(p));
  }

 private:
  void append_address(const void* p) {
    to_.numbers.push_back({static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(p))});
  }
  template <class T>
  void append(const T& x) {
    using namespace weft::detail;
    if constexpr (std::is_trivially_copyable_v<T>) {
      for (std::size_t i = 0; i < sizeof(T); i += sizeof(std::int64_t)) {
        any_number word;
        std::memcpy(&word.bits, reinterpret_cast<const char*>(&x) + i, std::min(sizeof word, sizeof(T) - i));
        to_.numbers.push_back(word);
      }
    } else if constexpr (is_tuple<T>) {
      std::apply([&](const auto&... each) { (append(each), ...); }, x);
    } else if constexpr (map_container<T>) {
      append(x.size());
      for_each_entry(x, [&](const auto& key, const auto& value) {
        append(key);
        append(value);
      });
    } else if constexpr (is_container<T>) {
      append(x.size());
      for (const auto& each : x) append(each);
    } else if constexpr (is_pointer_to_one<T>) {
      append(static_cast<bool>(x));
      if (x) append(*x);
    } else if constexpr (has_children<T>) {
      append(x.children());
    } else if constexpr (is_plain_struct<T>()) {
      for_each_member(x, [&](std::string_view, const auto& member) { append(member); });
    }
  }

  module_contents& to_;
};

}  // namespace detail

/// Appends what the module `m` holds.
template <class M>
void append_contents(const M& m, module_contents& to) {
  detail::contents_reader reader(to);
  weft::detail::walk<weft::detail::tensors_of::both>(m, weft::detail::no_path{}, reader);
}

}  // namespace weft::runtime
