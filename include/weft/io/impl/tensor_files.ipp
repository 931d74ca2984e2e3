// SPDX-License-Identifier: MIT
// Definitions of <weft/io/tensor_files.hpp>.
#pragma once

#include <algorithm>
#include <deque>
#include <set>

#include <weft/base/config.hpp>
#include <weft/io/json.hpp>
#include <weft/io/npy.hpp>
#include <weft/io/pt.hpp>
#include <weft/io/safetensors.hpp>
#include <weft/io/tensor_files.hpp>

namespace weft {
namespace io {
namespace detail {

/// `from` converted to the dtype of `wanted` if they differ and both are floating-point, otherwise nullopt.
/// Throws if `options` do not convert.
inline std::optional<stored_tensor> conversion(const std::string& path, const std::string& name,
                                               const stored_tensor& from, const tensor_spec& wanted,
                                               const load_options& options) {
  if (from.type == wanted.type || !weft::detail::includes(wanted.extents, from.extents) ||
      !is_floating(from.type) || !is_floating(wanted.type))
    return {};
  if (!options.convert)
    refuse_tensor(path, name, from, wanted, ": load(path, tensors, {.convert = true}) converts");
  return converted(from, wanted.type);
}

inline stored_tensor stored_as(const tensor_state& t, const save_options& options) {
  check(options);
  stored_tensor s = stored(t);
  return options.as && is_floating(s.type) && s.type != *options.as ? converted(s, *options.as) : s;
}

/// The tensors of the files in an index.
inline stored_tensors read_indexed(const std::string& path, const name_filter& wanted) {
  stored_tensors all;
  for (const auto& [file, names] : indexed_files(path, wanted)) {
    stored_tensors part = read_tensors(file, [of = &names](const std::string& n) { return of->contains(n); });
    for (const std::string& name : names)
      if (!part.tensors.contains(name) && !part.others.contains(name)) refuse_index(path, file, name);
    all.tensors.merge(part.tensors);
    all.others.merge(part.others);
  }
  return all;
}

/// The names of the tensors of a file.
inline std::set<std::string> names_in(const std::string& path) {
  std::set<std::string> names;
  read_tensors(path, [&](const std::string& name) { return names.insert(name), false; });
  return names;
}

/// Whether `t` is loaded under one of its names in `tensors`.
inline bool is_loaded(const std::shared_ptr<tensor_state>& t, const named_tensors& tensors,
                      const stored_tensors& file, const load_options& options) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const auto& other) {
    return other.second == t && file.tensors.contains(options.prefix + other.first);
  });
}

/// Throws for a file without the tensor `key`.
[[noreturn, gnu::cold]] inline void refuse_missing(const std::string& path, const std::string& key,
                                                   const stored_tensors& file, const load_options& options) {
  const bool is_npy = file.tensors.contains("");
  const std::set<std::string> names = is_npy ? std::set<std::string>{""} : names_in(path);
  if (names.contains(""))
    refuse<io_error>({"weft: ", path, ": holds one unnamed tensor: write load(path, tensor)"});
  refuse_missing(path, options.prefix, key, file.others, names, "load(path, tensors, ");
}

}  // namespace detail

WEFT_DEFINE file_format format_of(const std::string& path) {
  if (path.ends_with(".json")) return file_format::index;
  std::string first(6, '\0');
  const input_file file(path);
  file.read(0, first.data(), static_cast<std::size_t>(std::min<std::uint64_t>(6, file.size())));
  if (first == detail::npy_magic) return file_format::npy;
  if (first.starts_with(detail::pt_legacy_magic)) return file_format::pt;
  if (!first.starts_with("PK\3\4") && !first.starts_with("PK\5\6")) return file_format::safetensors;
  return detail::pt_folder(zip_file(path)).empty() ? file_format::npz : file_format::pt;
}

WEFT_DEFINE stored_tensors read_tensors(const std::string& path, const name_filter& wanted) {
  switch (format_of(path)) {
    case file_format::npy: return {.tensors = {{"", read_npy(path)}}};
    case file_format::npz: return read_npz(path, wanted);
    case file_format::pt: return read_pt(path, wanted);
    case file_format::index: return detail::read_indexed(path, wanted);
    default: return read_safetensors(path, wanted);
  }
}

WEFT_DEFINE void save(const std::string& path, const named_tensors& tensors, save_options options) {
  detail::require_written("save", path);
  if (path.ends_with(".npy"))
    refuse<value_error>(
        {"weft: save: ", path,
         ": a .npy file holds one unnamed tensor: write save(path, tensor), or use a .npz file"});
  stored_tensors file;
  for (const auto& [name, t] : tensors) {
    if (!t) refuse<value_error>({"weft: save: tensor ", name, " is null"});
    if (!file.tensors.emplace(name, stored_tensor{}).second)
      refuse<value_error>({"weft: save: tensor ", name, " occurs twice"});
    file.tensors[name] = detail::stored_as(*t, options);
  }
  if (path.ends_with(".npz")) return write_npz(path, file);
  file.metadata["format"] = "pt";
  write_safetensors(path, file);
}

WEFT_DEFINE void load(const std::string& path, const named_tensors& tensors, load_options options) {
  std::set<std::string> names;
  for (const auto& [name, t] : tensors) {
    if (!t) refuse<value_error>({"weft: load: tensor ", name, " is null"});
    names.insert(options.prefix + name);
  }
  const stored_tensors file =
      read_tensors(path, [&](const std::string& name) { return names.contains(name); });
  std::deque<stored_tensor> conversions;
  std::vector<const stored_tensor*> values;  // null for a tied tensor that is loaded under another name
  for (const auto& [key, t] : tensors) {
    const std::string name = options.prefix + key;
    const auto found = file.tensors.find(name);
    if (found == file.tensors.end()) {
      if (file.others.contains(name) || !detail::is_loaded(t, tensors, file, options))
        detail::refuse_missing(path, key, file, options);
      values.push_back(nullptr);
      continue;
    }
    auto other = detail::conversion(path, name, found->second, {t->type, t->whole()}, options);
    values.push_back(other ? &conversions.emplace_back(std::move(*other)) : &found->second);
    require_restorable(path, name, *values.back(), *t);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (values[i]) restore(path, options.prefix + tensors[i].first, *values[i], *tensors[i].second);
}

namespace detail {

WEFT_DEFINE void save_tensor(const std::string& path, const std::shared_ptr<tensor_state>& t,
                             const save_options& options) {
  require_written("save", path);
  if (!path.ends_with(".npy"))
    refuse<value_error>({"weft: save: ", path,
                         ": an unnamed tensor can be saved only to a .npy file; for others, write save(path, "
                         "{{\"name\", x.state()}})"});
  write_npy(path, stored_as(*t, options));
}

WEFT_DEFINE stored_tensor load_tensor(const std::string& path, const tensor_spec& wanted,
                                      const load_options& options) {
  stored_tensors file = read_tensors(path);
  const auto found = file.tensors.find("");
  if (const auto other = file.others.find(""); other != file.others.end())
    refuse<io_error>({"weft: ", path, ": the tensor ", other->second});
  if (found == file.tensors.end() && file.tensors.empty())
    refuse<io_error>({"weft: ", path, ": has no tensor that can be read"});
  if (found == file.tensors.end())
    refuse<io_error>({"weft: ", path, ": holds named tensors: write load(path, {{\"",
                      file.tensors.begin()->first, "\", x.state()}})"});
  if (auto other = conversion(path, "", found->second, wanted, options)) return std::move(*other);
  if (found->second.type != wanted.type || !weft::detail::includes(wanted.extents, found->second.extents))
    refuse_tensor(path, "", found->second, wanted);
  return std::move(found->second);
}

}  // namespace detail
}  // namespace io
}  // namespace weft
