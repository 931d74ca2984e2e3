// SPDX-License-Identifier: MIT
// Definitions of <weft/io/safetensors.hpp>.
#pragma once

#include <deque>

#include <weft/base/config.hpp>
#include <weft/io/safetensors.hpp>

namespace weft {
namespace io {

WEFT_DEFINE stored_tensors parse_safetensors(std::string_view file, const std::string& what) {
  const auto data =
      static_cast<std::size_t>(detail::safetensors_parser(what).begin_of_data(file, file.size()));
  safetensors_header header = parse_safetensors_header(file.substr(0, data), file.size(), what);
  stored_tensors all;
  all.metadata = std::move(header.metadata);
  all.others = std::move(header.others);
  for (const tensor_entry& t : header.tensors) {
    const auto bytes =
        file.substr(data + static_cast<std::size_t>(t.begin), static_cast<std::size_t>(t.end - t.begin));
    all.tensors.emplace(t.name, stored_tensor{t.type, t.extents, {bytes.begin(), bytes.end()}});
  }
  return all;
}

WEFT_DEFINE stored_tensors read_safetensors(const std::string& path) {
  const input_file file(path);
  safetensors_header header = parse_safetensors_header(safetensors_beginning(file), file.size(), path);
  stored_tensors all;
  all.metadata = std::move(header.metadata);
  all.others = std::move(header.others);
  for (const tensor_entry& t : header.tensors) {
    stored_tensor& to = all.tensors[t.name];
    to = {t.type, t.extents, std::vector<char>(static_cast<std::size_t>(t.end - t.begin))};
    file.read(header.data + t.begin, to.bytes.data(), to.bytes.size());
  }
  return all;
}

WEFT_DEFINE void write_safetensors(const std::string& path, const stored_tensors& from) {
  if (!from.others.empty()) {
    const auto& [name, why] = *from.others.begin();
    refuse<value_error>({"weft: safetensors: tensor ", name, " ", why, ": its elements have not been read"});
  }
  detail::as_safetensors(from, [&](const file_parts& parts) { replace_file(system_calls(), path, parts); });
}

WEFT_DEFINE void store_form(const tensor_state& t, stored_tensor& to) {
  weft::detail::require_memory(t);
  t.where->synchronize();
  to.type = t.type;
  to.extents = t.extents;
}

WEFT_DEFINE void store(const tensor_state& t, stored_tensor& to) {
  store_form(t, to);
  to.bytes.resize(t.bytes());
  t.where->download(to.bytes.data(), t.memory.data(), t.bytes());
}

namespace detail {

WEFT_DEFINE void refuse_tensor(const std::string& path, const std::string& name, const stored_tensor& from,
                               const tensor_state& t, const char* cure) {
  throw io_error("weft: " + path + ": tensor " + name + " is " + name_of(from.type) + " " +
                 to_string(from.extents) + ", the model wants " + name_of(t.type) + " " +
                 to_string(t.whole()) + cure);
}

WEFT_DEFINE void refuse_missing(const std::string& path, const std::string& name,
                                const std::map<std::string, std::string>& others) {
  const auto other = others.find(name);
  refuse<io_error>(
      {"weft: ", path, ": tensor ", name, " ", other == others.end() ? "is missing" : other->second});
}

}  // namespace detail

WEFT_DEFINE void require_restorable(const std::string& path, const std::string& name,
                                    const stored_tensor& from, const tensor_state& t) {
  if (!(from.extents == t.whole()) || from.type != t.type) detail::refuse_tensor(path, name, from, t);
  weft::detail::require_memory(t);
  if (from.type == dtype::boolean &&
      std::any_of(from.bytes.begin(), from.bytes.end(), [](char c) { return c != 0 && c != 1; }))
    throw io_error("weft: " + path + ": tensor " + name + " is bool, and has bytes other than 0 and 1");
}

WEFT_DEFINE void restore(const std::string& path, const std::string& name, const stored_tensor& from,
                         tensor_state& t) {
  require_restorable(path, name, from, t);
  t.where->upload(t.memory.data(), from.bytes.data(), from.bytes.size());
  ++t.version();
}

WEFT_DEFINE stored_tensor converted(const stored_tensor& from, dtype type) {
  stored_tensor to{type, from.extents, {}};
  detail::with_floating(from.type, [&]<class From>(From) {
    detail::with_floating(type, [&]<class To>(To) { detail::convert_elements<From, To>(from, to); });
  });
  return to;
}

WEFT_DEFINE void save(const std::string& path, const named_tensors& tensors, save_options options) {
  if (options.as && !is_floating(*options.as))
    throw value_error(std::string("weft: save: ") + name_of(*options.as) + " is no floating type");
  stored_tensors file;
  file.metadata["format"] = "pt";
  for (const auto& [name, t] : tensors) {
    if (!t) refuse<value_error>({"weft: save: tensor ", name, " is null"});
    if (file.tensors.contains(name)) refuse<value_error>({"weft: save: tensor ", name, " is there twice"});
    stored_tensor& to = file.tensors[name] = stored(*t);
    if (options.as && is_floating(to.type) && to.type != *options.as) to = converted(to, *options.as);
  }
  write_safetensors(path, file);
}

WEFT_DEFINE void load(const std::string& path, const named_tensors& tensors, load_options options) {
  const stored_tensors file = read_safetensors(path);
  std::deque<stored_tensor> conversions;
  std::vector<const stored_tensor*> values;
  for (const auto& [name, t] : tensors) {
    if (!t) refuse<value_error>({"weft: load: tensor ", name, " is null"});
    const auto found = file.tensors.find(name);
    if (found == file.tensors.end()) detail::refuse_missing(path, name, file.others);
    const stored_tensor& from = found->second;
    if (from.type != t->type && from.extents == t->whole() && is_floating(from.type) &&
        is_floating(t->type)) {
      if (!options.convert)
        detail::refuse_tensor(path, name, from, *t, ": load(path, tensors, {.convert = true}) converts");
      values.push_back(&conversions.emplace_back(converted(from, t->type)));
    } else {
      values.push_back(&from);
    }
    require_restorable(path, name, *values.back(), *t);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i)
    restore(path, tensors[i].first, *values[i], *tensors[i].second);
}

}  // namespace io
}  // namespace weft
