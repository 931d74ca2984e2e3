// SPDX-License-Identifier: MIT
// Definitions of <weft/io/safetensors.hpp>.
#pragma once

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

WEFT_DEFINE void write_safetensors(const std::string& path, const stored_tensors& from) {
  detail::require_no_others("safetensors", from);
  detail::as_safetensors(from, [&](const file_parts& parts) { replace_file(system_calls(), path, parts); });
}

}  // namespace io
}  // namespace weft
