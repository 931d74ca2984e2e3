// SPDX-License-Identifier: MIT
// Definitions of <weft/io/safetensors.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/io/json.hpp>
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

WEFT_DEFINE stored_tensors read_safetensors(const std::string& path, const name_filter& wanted) {
  const input_file file(path);
  safetensors_header header = parse_safetensors_header(safetensors_beginning(file), file.size(), path);
  stored_tensors all;
  all.metadata = std::move(header.metadata);
  all.others = std::move(header.others);
  for (const tensor_entry& t : header.tensors) {
    if (wanted && !wanted(t.name)) continue;
    stored_tensor& to = all.tensors[t.name];
    to = {t.type, t.extents, std::vector<char>(static_cast<std::size_t>(t.end - t.begin))};
    file.read(header.data + t.begin, to.bytes.data(), to.bytes.size());
  }
  return all;
}

WEFT_DEFINE std::map<std::string, std::set<std::string>> indexed_files(const std::string& path,
                                                                       const name_filter& wanted) {
  const json index(input_file(path).text(std::uint64_t{1} << 26), path);
  const std::optional<json_value> map = index.root().find("weight_map");
  if (!map || map->kind() != json_kind::object)
    refuse<io_error>({"weft: ", path, ": is not an index of tensor files: it has no \"weight_map\""});
  std::map<std::string, std::set<std::string>> all;
  map->for_each_member([&](std::string_view name, const json_value& file) {
    if (wanted && !wanted(std::string(name))) return;
    const std::string_view text = file.text();
    if (file.kind() != json_kind::string || text.empty() || text.find('/') != text.npos || text[0] == '.')
      refuse<io_error>({"weft: ", path, ": the file of ", json_string(name),
                        " is not the name of a file in the same folder"});
    if (text.ends_with(".json"))
      refuse<io_error>({"weft: ", path, ": the file of ", json_string(name), " is itself an index"});
    all[parent_of(path) + "/" + std::string(text)].emplace(name);
  });
  return all;
}

namespace detail {
WEFT_DEFINE void refuse_index(const std::string& index, const std::string& file, const std::string& name) {
  refuse<io_error>({"weft: ", file, ": has no ", json_string(name), ", which ", index, " says it has"});
}
}  // namespace detail

WEFT_DEFINE void write_safetensors(const std::string& path, const stored_tensors& from) {
  detail::require_no_others("safetensors", from);
  detail::as_safetensors(from, [&](const file_parts& parts) { replace_file(system_calls(), path, parts); });
}

}  // namespace io
}  // namespace weft
