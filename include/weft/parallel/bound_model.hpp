// SPDX-License-Identifier: MIT
// The model of a run. A run works on the tensors that the model had when it was bound: one that the program
// puts in the place of another afterwards would be neither trained nor saved, which steps and saves refuse.
#pragma once

#include <algorithm>
#include <string>

#include <weft/nn/module.hpp>
#include <weft/optim/clip.hpp>

namespace weft {

namespace detail {
/// The parameters of a model, each once; a tied parameter has the name of its first occurrence.
template <class Model>
state_dict_t once_each(const Model& model) {
  state_dict_t all = named_parameters(model);
  tensor_list met;
  std::erase_if(all, [&](const auto& named) { return !is_new(met, named.second); });
  return all;
}
}  // namespace detail

namespace parallel {

/// A model of any type, which must outlive it, and the tensors that it had at construction.
class bound_model {
 public:
  template <class Model>
  explicit bound_model(const Model& m)
      : model_(&m), walks_(&walks_of<Model>), tensors_(weft::detail::states<both>(m)) {}

  /// The parameters that the model has now, each once, and its buffers.
  state_dict_t parameters() const { return walks_->parameters(model_); }
  state_dict_t buffers() const { return walks_->buffers(model_); }

  /// Throws usage_error, naming `what` and the tensor, if the model has other tensors than at construction.
  /// Allocates nothing, except for models with unordered maps.
  void require_unchanged(const char* what) const {
    if (!walks_->is_unchanged(model_, tensors_)) refuse_changed(what);
  }

 private:
  static constexpr auto both = weft::detail::tensors_of::both;

  /// Functions of a type of models.
  struct walks {
    bool (*is_unchanged)(const void* model, const tensor_list& tensors);
    state_dict_t (*parameters)(const void* model);
    state_dict_t (*buffers)(const void* model);
  };
  template <class Model>
  static const Model& as(const void* model) {
    return *static_cast<const Model*>(model);
  }
  template <class Model>
  static bool is_unchanged(const void* model, const tensor_list& tensors) {
    std::size_t same = 0, count = 0;
    const auto compare = [&](weft::detail::no_path, const auto& t) {
      same += count < tensors.size() && tensors[count] == t.state();
      ++count;
    };
    weft::detail::walk<both>(as<Model>(model), weft::detail::no_path{}, compare);
    return same == tensors.size() && count == same;
  }
  template <class Model>
  static constexpr walks walks_of{&is_unchanged<Model>,
                                  [](const void* model) { return weft::detail::once_each(as<Model>(model)); },
                                  [](const void* model) { return named_buffers(as<Model>(model)); }};

  [[noreturn, gnu::cold]] void refuse_changed(const char* what) const;

  const void* model_;
  const walks* walks_;
  tensor_list tensors_;  // in the order of the walk
};

}  // namespace parallel
}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/bound_model.ipp>
#endif
