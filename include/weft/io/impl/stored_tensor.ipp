// SPDX-License-Identifier: MIT
// Definitions of <weft/io/stored_tensor.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/io/stored_tensor.hpp>

namespace weft {
namespace io {

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
                               const tensor_spec& wanted, const char* cure) {
  refuse<io_error>({"weft: ", path, ": tensor ", name, name.empty() ? "" : " ", "is ", name_of(from.type),
                    " ", from.extents, ", but the model expects ", name_of(wanted.type), " ", wanted.extents,
                    cure});
}

/// "a, b, c and 9 others".
inline std::string some_of(const std::set<std::string>& names) {
  std::string text;
  std::size_t count = 0;
  for (auto n = names.begin(); n != names.end() && count < 3; ++n, ++count) text += (count ? ", " : "") + *n;
  return text + (names.size() > count ? " and " + std::to_string(names.size() - count) + " others" : "");
}

/// The shortest name that consists of a prefix and `key`, where the prefix is empty or ends with a dot, and
/// is not the prefix that was used; null if there is none.
inline const std::string* find_prefixed(const std::set<std::string>& names, const std::string& key,
                                        const std::string& used) {
  const std::string* found = nullptr;
  for (const std::string& n : names)
    if (n != used + key && (n == key || n.ends_with("." + key)) && (!found || n.size() < found->size()))
      found = &n;
  return found;
}

WEFT_DEFINE void refuse_missing(const std::string& path, const std::string& prefix, const std::string& key,
                                const std::map<std::string, std::string>& others,
                                const std::set<std::string>& names, const char* call) {
  const std::string name = prefix + key, what = "weft: " + path + ": tensor " + name + " ";
  if (const auto other = others.find(name); other != others.end()) refuse<io_error>({what, other->second});
  if (const std::string* const found = find_prefixed(names, key, prefix))
    refuse<io_error>({what, "is missing, ", *found, " is there: ", call, "{.prefix = \"",
                      found->substr(0, found->size() - key.size()), "\"})"});
  refuse<io_error>({what, "is missing, ",
                    names.empty() ? "and the file has no tensors" : "the file has " + some_of(names)});
}

WEFT_DEFINE void check(const save_options& options) {
  if (options.as && !is_floating(*options.as))
    refuse<value_error>({"weft: save: ", name_of(*options.as), " is not a floating type"});
}

WEFT_DEFINE void require_written(const char* what, const std::string& path) {
  if (path.empty()) refuse<value_error>({"weft: ", what, ": the path is empty"});
  if (path.ends_with(".pt") || path.ends_with(".pth"))
    refuse<value_error>({"weft: ", what, ": ", path,
                         ": .pt files can be read but not written: save a .safetensors file, which "
                         "safetensors.torch.load_file reads"});
  if (path.ends_with(".json"))
    refuse<value_error>(
        {"weft: ", what, ": ", path, ": indices of several files can be read but not written"});
}

WEFT_DEFINE void require_no_others(const char* format, const stored_tensors& from) {
  if (from.others.empty()) return;
  const auto& [name, why] = *from.others.begin();
  refuse<value_error>({"weft: ", format, ": tensor ", name, " ", why, ": its elements have not been read"});
}

}  // namespace detail

WEFT_DEFINE void require_restorable(const std::string& path, const std::string& name,
                                    const stored_tensor& from, const tensor_state& t) {
  if (!(from.extents == t.whole()) || from.type != t.type)
    detail::refuse_tensor(path, name, from, {t.type, t.whole()});
  if (from.bytes.size() != bytes_of(from.extents, from.type))
    refuse<io_error>({"weft: ", path, ": tensor ", name, name.empty() ? "" : " ", "has ", from.bytes.size(),
                      " bytes, but ", name_of(from.type), " ", from.extents, " needs ",
                      bytes_of(from.extents, from.type)});
  weft::detail::require_memory(t);
  if (from.type == dtype::boolean &&
      std::any_of(from.bytes.begin(), from.bytes.end(), [](char c) { return c != 0 && c != 1; }))
    refuse<io_error>({"weft: ", path, ": tensor ", name, name.empty() ? "" : " ",
                      "is bool, but has bytes other than 0 and 1"});
}

WEFT_DEFINE void restore(const std::string& path, const std::string& name, const stored_tensor& from,
                         tensor_state& t) {
  require_restorable(path, name, from, t);
  t.where->upload(t.memory.data(), from.bytes.data(), from.bytes.size());
  ++t.version();
}

WEFT_DEFINE std::vector<char> converted(std::string_view elements, dtype from, dtype to) {
  std::vector<char> all;
  detail::with_floating(from, [&]<class From>(From) {
    detail::with_floating(to, [&]<class To>(To) { detail::convert_elements<From, To>(elements, all); });
  });
  return all;
}

}  // namespace io
}  // namespace weft
