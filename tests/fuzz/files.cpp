// SPDX-License-Identifier: MIT
// Fuzz target for the readers of files: any bytes yield a value or a weft exception, nothing else. The first
// byte selects the reader.
#include <cstdint>
#include <cstdlib>

#include <weft/io/npy.hpp>
#include <weft/io/safetensors.hpp>
#include <weft/io/tensor_files.hpp>
#include <weft/train/checkpoint_contents.hpp>
#include <weft/train/idx.hpp>

#include "../memory_file.hpp"
#include "../numbers.hpp"

namespace {

void require(bool holds) {
  if (!holds) __builtin_trap();
}

void read_as_safetensors(const std::string& bytes) {
  const weft::io::stored_tensors read = weft::io::parse_safetensors(bytes, "fuzz");
  for (const auto& [name, t] : read.tensors)
    require(t.bytes.size() == static_cast<std::size_t>(t.extents.size() * weft::size_of(t.type)));
  weft::io::detail::as_safetensors(read, [&](const weft::io::file_parts& parts) {
    std::string again;
    for (const std::string_view part : parts) again += part;
    const weft::io::stored_tensors same = weft::io::parse_safetensors(again, "written");
    require(same.metadata == read.metadata && same.tensors.size() == read.tensors.size());
    for (const auto& [name, t] : read.tensors) require(same.tensors.at(name).bytes == t.bytes);
  });
}

std::size_t values_in(const weft::io::json_value& v) {
  std::size_t n = 1;
  v.for_each_item([&](const weft::io::json_value& item) { n += values_in(item); });
  v.for_each_member([&](std::string_view, const weft::io::json_value& member) { n += values_in(member); });
  return n;
}
void read_as_json(const std::string& bytes) {
  const weft::io::json j(bytes, "fuzz");
  require(values_in(j.root()) <= bytes.size());
  if (j.root().kind() == weft::io::json_kind::string)
    require(weft::io::json(weft::io::json_string(j.root().text()), "written").root().text() ==
            j.root().text());
  (void)j.root().integer();
}

/// If `is_sealed`, adds the right checksum, which a fuzzer would not find.
void read_as_index(const std::string& bytes, bool is_sealed) {
  using weft::detail::checkpoint_index;
  const checkpoint_index i =
      checkpoint_index::parsed(is_sealed ? weft::detail::sealed(bytes) : bytes, "fuzz");
  require(i.id.name.step >= 0 && i.samples >= 0 && i.optimizer_steps >= 0 && !i.shards.empty());
  require(checkpoint_index::parsed(i.text(), "written").text() == i.text());
}
void read_as_latest(const std::string& bytes) {
  const auto l = weft::detail::latest_checkpoint::parsed(weft::detail::sealed(bytes), "fuzz");
  require(l.name.text().find('/') == std::string::npos && l.name.suffix.empty());
}

void read_as_shard(const std::string& bytes) {
  weft::detail::checkpoint_contents c;
  const auto data = weft::io::detail::safetensors_parser("fuzz").begin_of_data(bytes, bytes.size());
  weft::detail::checkpoint_id id{0, 0, {0, 0}};
  c.add("fuzz", 0, 1, id,
        weft::io::parse_safetensors_header(std::string_view(bytes).substr(0, static_cast<std::size_t>(data)),
                                           bytes.size(), "fuzz"));
  c.require_whole();
  for (const auto& [key, t] : c.tensors()) {
    weft::index_t elements = 0;
    for (const auto& p : t.pieces) {
      require(is_within(p.where, t.whole.extents) && p.at + p.bytes <= bytes.size());
      require(p.bytes == weft::bytes_of(p.where.extents, t.whole.type) && !p.sums.empty());
      elements += p.where.size();
    }
    require(elements == t.whole.extents.size());
  }
}

void read_as_idx(const std::string& bytes) {
  const weft::shape extents =
      weft::detail::idx_extents(std::string_view(bytes).substr(0, 28), bytes.size(), "fuzz");
  require(static_cast<std::size_t>(extents.size()) <= bytes.size());
}

void require_whole(const weft::io::stored_tensors& read) {
  for (const auto& [name, t] : read.tensors)
    require(t.bytes.size() == static_cast<std::size_t>(t.extents.size() * weft::size_of(t.type)));
}

void read_as_npy(const std::string& bytes) {
  const weft::io::stored_tensor t = weft::io::parse_npy(bytes, "fuzz");
  require_whole({.tensors = {{"", t}}});
  const std::string written =
      weft::io::detail::npy_beginning(t.type, t.extents) + std::string(t.bytes.begin(), t.bytes.end());
  const weft::io::stored_tensor same = weft::io::parse_npy(written, "written");
  require(same.type == t.type && same.extents == t.extents && same.bytes == t.bytes);
}
void read_as_archive(const std::string& bytes) {
  static const memory_file file;
  file.write(bytes);
  require_whole(weft::io::read_tensors(file.path()));
}
/// Reads the bytes as the pickle of a torch.save file, with the right checksum.
void read_as_pickle(const std::string& bytes) {
  read_as_archive(archive({{"a/data.pkl", bytes}, {"a/data/0", std::string(24, '\1')}}));
}
/// Reads the bytes as a DEFLATE stream; the first two bytes give the size of the output.
void read_as_deflate(const std::string& bytes) {
  if (bytes.size() < 2) return;
  std::string to(static_cast<unsigned char>(bytes[0]) |
                     static_cast<std::size_t>(static_cast<unsigned char>(bytes[1])) << 8,
                 '\0');
  weft::io::inflate(std::string_view(bytes).substr(2), to.data(), to.size(), "fuzz");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  static const char* const only = std::getenv("WEFT_FUZZ_READER");  // one of "0" to "10"
  try {
    switch (only ? std::atoi(only) : data[0] % 11) {
      case 0: read_as_idx(bytes); break;
      case 1: read_as_json(bytes); break;
      case 2: read_as_index(bytes, true); break;
      case 3: read_as_index(bytes, false); break;
      case 4: read_as_latest(bytes); break;
      case 5: read_as_shard(bytes); break;
      case 6: read_as_safetensors(bytes); break;
      case 7: read_as_npy(bytes); break;
      case 8: read_as_archive(bytes); break;
      case 9: read_as_pickle(bytes); break;
      default: read_as_deflate(bytes);
    }
  } catch (const weft::error&) {}
  return 0;
}
